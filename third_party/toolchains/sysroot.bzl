"""Headers and libraries of a target, from pinned Debian packages, as a --sysroot."""

load("//third_party/toolchains:debs.bzl", "unpack_debs")

# With these, waits of libstdc++ call pthread functions of glibc 2.30. Without them it waits by the
# older ones on the system clock, and looks at its own clock after each.
_CLOCK_MACROS = [
    "_GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT",
    "_GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK",
    "_GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK",
]

def _edit(ctx, path, replacements):
    text = ctx.read(path)
    for old, new in replacements.items():
        if old not in text:
            fail("%s: no %r in %s" % (ctx.name, old, path))
        text = text.replace(old, new)
    ctx.delete(path)
    ctx.file(path, text, executable = False)

def _sysroot_impl(ctx):
    unpack_debs(ctx, ctx.attr.packages)
    triple = ctx.attr.cpu + "-linux-gnu"
    libraries = "usr/lib/%s/" % triple

    # Linker scripts name files by absolute path, and --sysroot does not help: in a sandbox the
    # script is a link that leads out of the sysroot, and the linker takes the host's files.
    for name in ["libc.so", "libm.so"]:
        path = libraries + name
        if not ctx.read(path).startswith("/* GNU ld script"):
            continue
        words = []
        for line in ctx.read(path).splitlines():
            words.append(" ".join([
                word.split("/")[-1] if word.startswith("/") and word not in ["/*", "*/"] else word
                for word in line.split(" ")
            ]))
        ctx.delete(path)
        ctx.file(path, "\n".join(words) + "\n", executable = False)

    _edit(
        ctx,
        "usr/include/%s/c++/10/bits/c++config.h" % triple,
        {"#define %s 1" % macro: "/* #undef %s */" % macro for macro in _CLOCK_MACROS},
    )
    ctx.file(
        "usr/include/leafpack/glibc_baseline.h",
        ctx.read(ctx.path(ctx.attr._baseline)).replace("@VERSION@", ctx.attr.baseline),
        executable = False,
    )
    # Also what points into packages that are not here: run-time libraries of gcc's sanitizers and others.
    for entry in ctx.path("usr/lib/gcc/%s/10" % triple).readdir():
        if entry.basename.endswith(".so") and not entry.exists:
            ctx.delete(entry)
    for path in ["etc", "lib64", "usr/bin", "usr/share"]:
        ctx.delete(path)
    ctx.file("BUILD.bazel", ctx.read(ctx.path(ctx.attr._build_file)), executable = False)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

sysroot = repository_rule(
    doc = "A sysroot: @NAME//:headers and :libraries.",
    implementation = _sysroot_impl,
    environ = ["LEAFPACK_DEBIAN_MIRROR"],
    attrs = {
        "baseline": attr.string(doc = "The version of glibc's first symbols on this CPU.", mandatory = True),
        "cpu": attr.string(mandatory = True),
        "packages": attr.string_list(doc = "As in lock.bzl.", mandatory = True),
        "_baseline": attr.label(default = "//third_party/toolchains:glibc_baseline.h"),
        "_build_file": attr.label(default = "//third_party/toolchains:sysroot.BUILD"),
    },
)
