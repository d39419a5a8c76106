"""@spin: the model checker Spin.

Licence: BSD-3-Clause.
Why: docs/shm_slots.pml, the model of the slot protocol of shared memory, is checked as a test.
"""

load("//third_party/toolchains:debs.bzl", "unpack_debs")

_PACKAGES = [
    "spin 6.5.2+dfsg-1 pool/main/s/spin/spin_6.5.2+dfsg-1_amd64.deb 55452ba139bae09a165363fdee18fe496913b4ae441d122280fbcbb48556502f",
]

def _spin_impl(ctx):
    unpack_debs(ctx, _PACKAGES)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)
    ctx.file("BUILD.bazel", """exports_files(
    ["usr/bin/spin"],
    visibility = ["//visibility:public"],
)
""", executable = False)

_spin = repository_rule(
    implementation = _spin_impl,
    environ = ["LEAFPACK_DEBIAN_MIRROR"],
)

def repository(name):
    _spin(name = name)
