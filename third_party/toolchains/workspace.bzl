"""Hermetic C++ toolchains: clang 19 and lld 19 of Debian 12, with a sysroot of Debian 11 per CPU.

Licence: Apache-2.0 with LLVM exception (clang, lld), GPL with the run-time library exception and
LGPL (libstdc++, libgcc, glibc of the sysroots, which programs link dynamically).
Why: the same bytes from any machine, no newer glibc asked of a user than torch asks, and a compiler for
aarch64; qemu (GPL-2.0), which nothing links, runs tests for that CPU.

Nothing is fetched unless --config=hermetic is used, and of the sysroots only that of the target's CPU. What each tree
holds is in lock.bzl, which lock.py writes.
"""

load("//third_party/toolchains:cross_tools.bzl", "python_headers", "qemu")
load("//third_party/toolchains:llvm.bzl", "llvm")
load("//third_party/toolchains:lock.bzl", "LOCK")
load("//third_party/toolchains:sysroot.bzl", "sysroot")

def repositories(declared):
    """Declares those repositories that are not in `declared`, a dict by name."""
    for cpu, baseline in [("x86_64", "2.2.5"), ("aarch64", "2.17")]:
        name = "leafpack_sysroot_" + cpu
        if name not in declared:
            sysroot(name = name, baseline = baseline, cpu = cpu, packages = LOCK["sysroot_" + cpu])
    if "leafpack_llvm" not in declared:
        llvm(
            name = "leafpack_llvm",
            packages = LOCK["llvm_x86_64"],
            sysroot_aarch64 = "@leafpack_sysroot_aarch64//:headers",
            sysroot_x86_64 = "@leafpack_sysroot_x86_64//:headers",
        )
    if "leafpack_qemu" not in declared:
        qemu(name = "leafpack_qemu", packages = LOCK["qemu_x86_64"])

def python_aarch64(name):
    """Python's headers for that CPU, in either mode: @local_python//:headers names them."""
    python_headers(name = name, packages = LOCK["python_aarch64"])
