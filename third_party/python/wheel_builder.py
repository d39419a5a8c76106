"""wheel_builder.py PARAMETERS OUT: writes a wheel whose bytes depend on its inputs only.

PARAMETERS is the JSON that wheel.bzl writes. Entries are sorted, times and modes are fixed, and
RECORD comes last, as the wheel specification asks. Metadata version 2.4.
"""

import base64
import hashlib
import json
import re
import sys
import zipfile

# The earliest time that a zip file can hold.
TIME = (1980, 1, 1, 0, 0, 0)


def metadata(parameters, description):
    """The text of METADATA."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {parameters['distribution']}",
        f"Version: {parameters['version']}",
        f"Summary: {parameters['summary']}",
        f"License-Expression: {parameters['license_expression']}",
    ]
    lines += [f"License-File: {path}" for path in sorted(parameters["licenses"])]
    lines += [f"Classifier: {classifier}" for classifier in parameters["classifiers"]]
    lines += [f"Requires-Python: {parameters['python_requires']}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in parameters["requires"]]
    lines += ["Description-Content-Type: text/markdown; charset=UTF-8"]
    return "\n".join(lines) + "\n\n" + description


def check_version(files, version):
    """Refuses a package whose own __version__ is another one."""
    for path, content in files.items():
        found = re.search(rb'^__version__ = "(.*)"$', content, re.MULTILINE)
        if path.endswith("_version.py") and found and found.group(1).decode() != version:
            raise SystemExit(f"{path} says version {found.group(1).decode()}, the wheel is {version}")


def entries(parameters):
    """Pairs of path and content, in the order in which they are written."""
    files = {}
    for path, source in parameters["files"].items():
        with open(source, "rb") as file:
            files[path] = file.read()
    check_version(files, parameters["version"])
    info = f"{parameters['distribution']}-{parameters['version']}.dist-info"
    with open(parameters["readme"], encoding="utf-8") as file:
        described = {f"{info}/METADATA": metadata(parameters, file.read()).encode()}
    described[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\n"
        f"Generator: leafpack\n"
        "Root-Is-Purelib: false\n"
        f"Tag: {parameters['tag']}\n"
    ).encode()
    if parameters.get("console_scripts"):
        scripts = sorted(parameters["console_scripts"].items())
        described[f"{info}/entry_points.txt"] = "".join(
            ["[console_scripts]\n"] + [f"{name} = {target}\n" for name, target in scripts]
        ).encode()
    for path, source in parameters["licenses"].items():
        with open(source, "rb") as file:
            described[f"{info}/licenses/{path}"] = file.read()

    result = sorted(files.items()) + sorted(described.items())
    record = []
    for path, content in result:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}\n")
    record.append(f"{info}/RECORD,,\n")
    return result + [(f"{info}/RECORD", "".join(record).encode())]


def write_wheel(parameters, target):
    with zipfile.ZipFile(target, "w") as wheel:
        for path, content in entries(parameters):
            entry = zipfile.ZipInfo(path, TIME)
            entry.create_system = 3  # Unix, so that the mode counts
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        write_wheel(json.load(file), target)


if __name__ == "__main__":
    main()
