"""clang 19 and lld 19 from pinned Debian packages, and a cc_toolchain for each sysroot."""

load("//third_party/toolchains:debs.bzl", "unpack_debs")

_BIN = "usr/lib/llvm-19/bin/"

# What is kept of the programs.
_PROGRAMS = ["clang", "lld", "llvm-ar", "llvm-dwp", "llvm-nm", "llvm-objcopy", "llvm-objdump"]
_LINKS = {"clang++": "clang", "ld.lld": "lld", "llvm-strip": "llvm-objcopy"}
_RUNTIMES = "usr/lib/llvm-19/lib/clang/19/lib/linux"

# Of the run-times, those of libFuzzer and the address sanitizer.
_KEPT_RUNTIMES = ["libclang_rt.%s-x86_64.a" % name for name in ["asan", "asan_cxx", "asan_static", "fuzzer"]]
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"

def _run(ctx, arguments):
    """Runs a program of the tree by its own loader, which needs nothing of the host's."""
    result = ctx.execute([
        ctx.path(_LOADER),
        "--library-path",
        "%s:%s" % (ctx.path("lib/x86_64-linux-gnu"), ctx.path(_LIBRARIES)),
    ] + arguments)
    if result.return_code != 0:
        fail("%s: %s failed:\n%s%s" % (ctx.name, arguments, result.stdout, result.stderr))
    return result.stdout.strip()

def _llvm_impl(ctx):
    if ctx.os.name != "linux" or ctx.os.arch not in ["amd64", "x86_64"]:
        fail("the hermetic toolchains run on Linux on x86_64; this machine is %s on %s" %
             (ctx.os.name, ctx.os.arch))
    unpack_debs(ctx, ctx.attr.packages)

    # The loader by a path that is relative to where actions run: the programs' bytes, and with them the
    # cache keys, are the same wherever Bazel's folders are.
    patchelf = ctx.path("usr/bin/patchelf")
    loader = "external/%s/%s" % (ctx.name, _LOADER)
    programs = "$ORIGIN/../lib:$ORIGIN/../../x86_64-linux-gnu:$ORIGIN/../../../../lib/x86_64-linux-gnu"
    for program in _PROGRAMS:
        file = ctx.path(_BIN + program).realpath
        _run(ctx, [patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", programs, file])

    # A library's own RUNPATH would hide the program's path for what the library needs.
    here = "$ORIGIN:$ORIGIN/../../../lib/x86_64-linux-gnu"
    done = {}
    for folder in [_LIBRARIES, "usr/lib/llvm-19/lib"]:
        for entry in ctx.path(folder).readdir():
            file = entry.realpath
            if ".so" not in entry.basename or str(file) in done:
                continue
            done[str(file)] = True
            if "libLLVM" in entry.basename or "libclang-cpp" in entry.basename:
                _run(ctx, [patchelf, "--force-rpath", "--set-rpath", here, file])

    keep = _PROGRAMS + _LINKS.keys()
    for entry in ctx.path(_BIN[:-1]).readdir():
        if entry.basename not in keep:
            ctx.delete(entry)
    for entry in ctx.path(_RUNTIMES).readdir():
        if entry.basename.removesuffix(".syms") not in _KEPT_RUNTIMES:
            ctx.delete(entry)
    for name, target in _LINKS.items():
        if not ctx.path(_BIN + name).exists:
            ctx.symlink(_BIN + target, _BIN + name)
    for path in [
        "lib64",
        "usr/bin",
        "usr/include",
        "usr/lib/clang",
        "usr/lib/cmake",
        "usr/lib/llvm-19/lib/cmake",
        "usr/lib/llvm-19/share",
        "usr/share",
    ]:
        ctx.delete(path)
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "%{sysroot_aarch64}": ctx.attr.sysroot_aarch64.workspace_name,
        "%{sysroot_x86_64}": ctx.attr.sysroot_x86_64.workspace_name,
        "%{toolchain}": str(Label("//third_party/toolchains:toolchain.bzl")),
    }, executable = False)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

llvm = repository_rule(
    doc = "The compiler: @NAME//:cc_x86_64 and :cc_aarch64 are cc_toolchains.",
    implementation = _llvm_impl,
    environ = ["LEAFPACK_DEBIAN_MIRROR"],
    attrs = {
        "packages": attr.string_list(doc = "As in lock.bzl.", mandatory = True),
        "sysroot_aarch64": attr.label(mandatory = True),
        "sysroot_x86_64": attr.label(mandatory = True),
        "_build_file": attr.label(default = "//third_party/toolchains:llvm.BUILD"),
    },
)
