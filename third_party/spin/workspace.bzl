"""@spin: the model checker Spin.

Licence: BSD-3-Clause.
Why: the models of shared memory and of the control channel's lane are checked as tests (model.bzl).

It is Debian's package, the only one that is built. Where no mirror of Debian has it, or for another processor,
what needs it is skipped as incompatible.
"""

load("//third_party:fetch.bzl", "debian_urls")

_POOL = "pool/main/s/spin/spin_6.5.2+dfsg-1_amd64.deb"
_SHA256 = "55452ba139bae09a165363fdee18fe496913b4ae441d122280fbcbb48556502f"

def _fetch(ctx):
    if ctx.os.arch not in ["amd64", "x86_64"]:
        return False
    urls = debian_urls(ctx, _POOL, optional = True)
    if not urls or not ctx.download(urls, "spin.deb", sha256 = _SHA256, allow_fail = True).success:
        return False
    ctx.extract("spin.deb", output = "deb")
    for entry in ctx.path("deb").readdir():
        if entry.basename.startswith("data.tar"):
            ctx.extract(entry)
    return True

def _spin_impl(ctx):
    found = _fetch(ctx)
    if not found:
        # buildifier: disable=print
        print("no mirror of Debian here has %s: the models of shared memory are not checked" % _POOL)
        ctx.file("usr/bin/spin", "")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)
    ctx.file("BUILD.bazel", """exports_files(
    ["usr/bin/spin"],
    visibility = ["//visibility:public"],
)
""", executable = False)

    # Of what needs it: target_compatible_with.
    ctx.file("compatible.bzl", "COMPATIBLE = %s\n" % ([] if found else ["@platforms//:incompatible"]))

_spin = repository_rule(
    implementation = _spin_impl,
    environ = ["LEAFPACK_DEBIAN_MIRROR"],
)

def repository(name):
    _spin(name = name)
