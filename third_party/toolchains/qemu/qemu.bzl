"""run_under_qemu: a program that runs another one by qemu if it is for aarch64."""

_SCRIPT = """#!/bin/sh
# {name} PROGRAM ARGUMENTS...: runs a program for aarch64 by qemu, with the libraries of its sysroot, and
# anything else, such as a test that is a script, as it is. That finds in LEAFPACK_RUN_UNDER what it
# must start programs for aarch64 with.
set -u
LEAFPACK_RUN_UNDER=$(realpath "$0")
export LEAFPACK_RUN_UNDER
# In the head of an ELF file: its magic number, and what machine it is for.
if [ "$(od -An -tx1 -N4 "$1")$(od -An -tx1 -j18 -N2 "$1")" = " 7f 45 4c 46 b7 00" ]; then
  exec "$TEST_SRCDIR/{qemu}" -L "$TEST_SRCDIR/{sysroot}" "$@"
fi
exec "$@"
"""

def _runfile(ctx, file):
    path = file.short_path
    return path[len("../"):] if path.startswith("../") else ctx.workspace_name + "/" + path

def _impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(script, _SCRIPT.format(
        name = ctx.label.name,
        qemu = _runfile(ctx, ctx.file.qemu),
        # Of its folders lib and usr/lib.
        sysroot = "/".join(_runfile(ctx, ctx.files.sysroot[0]).split("/")[:1]),
    ), is_executable = True)
    runfiles = ctx.runfiles(files = [ctx.file.qemu] + ctx.files.sysroot)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

run_under_qemu = rule(
    implementation = _impl,
    executable = True,
    attrs = {
        "qemu": attr.label(allow_single_file = True, mandatory = True),
        "sysroot": attr.label(mandatory = True),
    },
)
