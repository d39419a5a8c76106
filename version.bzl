"""The version of leafpack, as in CHANGELOG.md and in the Python package."""

VERSION = "0.1.0"
