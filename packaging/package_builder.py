"""package_builder.py PARAMETERS OUT: writes a tar whose bytes depend on its inputs only.

PARAMETERS is the JSON that cpp_package.bzl writes. Entries are sorted; owners, times and modes are
fixed.
"""

import io
import json
import os
import re
import sys
import tarfile

INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^">]+)[">]', re.MULTILINE)


class PackageError(Exception):
    """What is wrong with the package."""


def closure(public, headers, hidden):
    """What `public` includes, directly or not: path to content.

    Args:
      public: paths of headers.
      headers: path to a function that gives the content, for every header that may go in.
      hidden: path to the repository of a header that must not be included.
    """
    result = {}
    pending = [(path, None) for path in public]
    while pending:
        path, user = pending.pop()
        if path in result:
            continue
        if path not in headers:
            raise PackageError(f"{user} includes {path} of @{hidden[path]}, which the package does not hold")
        result[path] = headers[path]()
        for match in INCLUDE.finditer(result[path]):
            name = match.group(1).decode()
            beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
            for candidate in (name, beside):
                if candidate in headers or candidate in hidden:
                    pending.append((candidate, path))
                    break
    return result


def expand(text, values):
    """`text` with each @KEY@ replaced; a key that is not known is an error."""

    def value(match):
        if match.group(1) not in values:
            raise PackageError(f"no value for {match.group(0)}")
        return values[match.group(1)]

    return re.sub(r"@([A-Z_]+)@", value, text)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def entries(parameters):
    """Path in the tar to (content, mode), or for a link to its target as a str."""
    headers = {path: (lambda source=source: read(source)) for path, source in parameters["headers"].items()}
    result = {}
    for path, content in closure(parameters["public"], headers, parameters["hidden"]).items():
        result[f"{parameters['include']}/{path}"] = content
    for path, source in parameters["files"].items():
        result[path] = read(source)
    values = dict(parameters["substitutions"])
    values["VERSION"] = parameters["version"]
    values["DEFINES"] = ";".join(parameters["defines"])
    values["DEFINE_FLAGS"] = " ".join(f"-D{define}" for define in parameters["defines"])
    for path, source in parameters["templates"].items():
        result[path] = expand(read(source).decode(), values).encode()
    name = os.path.basename(parameters["library"])
    result[f"lib/{name}.{parameters['version']}"] = read(parameters["library"])
    executable = set(parameters["executables"])
    result = {path: (content, 0o755 if path in executable else 0o644) for path, content in result.items()}
    result[f"lib/{name}"] = f"{name}.{parameters['version']}"
    return result


def write_tar(root, files, target):
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in sorted(files.items()):
            info = tarfile.TarInfo(f"{root}/{path}")
            if isinstance(entry, str):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry, 0o777
                tar.addfile(info)
            else:
                content, info.mode = entry
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        parameters = json.load(file)
    try:
        write_tar(parameters["root"], entries(parameters), target)
    except PackageError as error:
        raise SystemExit(f"{parameters['root']}: {error}") from None


if __name__ == "__main__":
    main()
