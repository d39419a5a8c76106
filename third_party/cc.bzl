"""leafpack_cc_library, leafpack_cc_binary, leafpack_cc_test: native rules with our warnings.

Warnings are errors in this repository; a workspace that depends on leafpack, whose compiler may
know more warnings, gets them as warnings only.
"""

_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wcast-qual",
    "-Wextra-semi",
    "-Wformat=2",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wshadow",
    "-Wundef",
    "-Wvla",
]

def _copts(copts):
    errors = ["-Werror"] if native.repository_name() == "@" else []
    return _WARNINGS + errors + copts

def leafpack_cc_library(name, copts = [], **kwargs):
    """cc_library with leafpack's warnings; only a static library, linked into each user."""
    native.cc_library(
        name = name,
        copts = _copts(copts),
        linkstatic = True,
        **kwargs
    )

def leafpack_cc_binary(name, copts = [], **kwargs):
    """cc_binary with leafpack's warnings."""
    native.cc_binary(name = name, copts = _copts(copts), **kwargs)

def leafpack_cc_test(name, size, deps = [], copts = [], **kwargs):
    """cc_test with leafpack's warnings and GoogleTest's main; `size` must be given."""
    native.cc_test(
        name = name,
        size = size,
        copts = _copts(copts),
        linkstatic = True,
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )
