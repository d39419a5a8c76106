#!/usr/bin/env python3
"""lock.py: writes lock.bzl anew, from what Debian's archive holds today.

    third_party/toolchains/lock.py [MIRROR]

MIRROR is the address of an archive (the folder that has dists/ and pool/); without it,
LEAFPACK_DEBIAN_MIRROR or the one that this host's apt uses. Standard library only; no root, no apt.
"""

import lzma
import os
import pathlib
import sys
import urllib.request

# What each tree is made of: suite, architecture and packages. The order is that of unpacking.
_SYSROOT = [
    "libc6",
    "libc6-dev",
    "linux-libc-dev",
    "libcrypt1",
    "libcrypt-dev",
    "libgcc-s1",
    "libgcc-10-dev",
    "libstdc++6",
    "libstdc++-10-dev",
]
TREES = {
    # The compiler, the linker and the tools around them, with every library that they need. Debian 12.
    "llvm_x86_64": (
        "bookworm",
        "amd64",
        [
            "clang-19",
            "libclang-common-19-dev",
            "libclang-cpp19",
            "libclang-rt-19-dev",
            "libedit2",
            "libbsd0",
            "libc6",
            "libffi8",
            "libgcc-s1",
            "libgmp10",
            "libicu72",
            "libllvm19",
            "liblzma5",
            "libmd0",
            "libstdc++6",
            "libtinfo6",
            "libxml2",
            "libz3-4",
            "libzstd1",
            "lld-19",
            "llvm-19",
            "patchelf",
            "zlib1g",
        ],
    ),
    # Headers and libraries of the target, of Debian 11.
    "sysroot_x86_64": ("bullseye", "amd64", _SYSROOT),
    # zlib is for libtorch of aarch64, which wants it where it runs.
    "sysroot_aarch64": ("bullseye", "arm64", [*_SYSROOT, "zlib1g"]),
    # Python's headers for aarch64. Debian 12, whose Python is the version that the wheel is for.
    "python_aarch64": ("bookworm", "arm64", ["libpython3.11-dev"]),
    # qemu-aarch64, a static program. Debian 13: that of Debian 12 shows programs the host's /proc/cpuinfo.
    "qemu_x86_64": ("trixie", "amd64", ["qemu-user"]),
}

_HEADER = '''"""Debian packages of the hermetic toolchains. Written by lock.py; do not edit.

Per tree, in the order of unpacking: package, version, path below the archive's root, sha256, in one string.
"""

LOCK = {
'''


def find_mirror():
    chosen = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("LEAFPACK_DEBIAN_MIRROR")
    if chosen:
        return chosen.rstrip("/")
    for path in ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"]:
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if words[:1] in (["URIs:"], ["deb"]):
                    for word in words[1:]:
                        if word.startswith("http"):
                            return word.rstrip("/")
    raise SystemExit("this host's apt names no mirror: give the address of one")


def read_index(mirror, suite, arch):
    """The suite's packages by name, each a dict of its fields."""
    url = f"{mirror}/dists/{suite}/main/binary-{arch}/Packages.xz"
    print("reading", url, file=sys.stderr)
    with urllib.request.urlopen(url, timeout=300) as answer:
        text = lzma.decompress(answer.read()).decode()
    packages = {}
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if "Package" in fields:
            # A suite has one version of each package.
            packages[fields["Package"]] = fields
    return packages


def main():
    mirror = find_mirror()
    indices = {}
    lines = [_HEADER]
    for tree, (suite, arch, names) in TREES.items():
        index = indices.get((suite, arch))
        if index is None:
            index = indices[suite, arch] = read_index(mirror, suite, arch)
        missing = [name for name in names if name not in index]
        if missing:
            raise SystemExit(f"{tree}: {suite} has no package {', '.join(missing)} for {arch}")
        lines.append(f'    "{tree}": [\n')
        for name in names:
            fields = index[name]
            entry = [name, fields["Version"], fields["Filename"], fields["SHA256"]]
            lines.append(f'        "{" ".join(entry)}",\n')
        lines.append("    ],\n")
    lines.append("}\n")
    target = pathlib.Path(__file__).resolve().parent / "lock.bzl"
    target.write_text("".join(lines), encoding="utf-8")
    print("wrote", target, file=sys.stderr)


if __name__ == "__main__":
    main()
