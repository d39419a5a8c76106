"""What a build for aarch64 needs beside the compiler: Python's headers, and qemu to run tests."""

load("//third_party/toolchains:debs.bzl", "unpack_debs")

_ATTRS = {"packages": attr.string_list(doc = "As in lock.bzl.", mandatory = True)}

_PYTHON_BUILD = """
package(default_visibility = ["//visibility:public"])

# pyconfig.h names the CPU's own by a path below the second folder.
cc_library(
    name = "headers",
    hdrs = glob(["usr/include/**/*.h"]),
    includes = [
        "usr/include",
        "usr/include/python3.11",
    ],
)
"""

def _python_headers_impl(ctx):
    unpack_debs(ctx, ctx.attr.packages)
    ctx.delete("usr/lib")
    ctx.delete("usr/share")
    ctx.file("BUILD.bazel", _PYTHON_BUILD, executable = False)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

python_headers = repository_rule(
    doc = "Python's headers for another CPU: @NAME//:headers.",
    implementation = _python_headers_impl,
    environ = ["LEAFPACK_DEBIAN_MIRROR"],
    attrs = _ATTRS,
)

def _qemu_impl(ctx):
    unpack_debs(ctx, ctx.attr.packages)
    ctx.file("BUILD.bazel", "exports_files([\"usr/bin/qemu-aarch64\"])\n", executable = False)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

qemu = repository_rule(
    doc = "qemu-aarch64, a static program: @NAME//:usr/bin/qemu-aarch64.",
    implementation = _qemu_impl,
    environ = ["LEAFPACK_DEBIAN_MIRROR"],
    attrs = _ATTRS,
)
