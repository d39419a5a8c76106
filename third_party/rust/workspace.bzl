"""@local_rust: the Rust compiler of the host.

Licence: MIT or Apache-2.0.
Why: the crates below bindings/rust and their tests.

It is the rustc that LEAFPACK_RUSTC names, else the one on the PATH, else that of rustup in the home
folder; 1.63 or a later one. Where there is none, the repository is there all the same and every
target that needs it is skipped as incompatible.
"""

_OLDEST = [1, 63]

def _candidates(ctx):
    named = ctx.getenv("LEAFPACK_RUSTC")
    if named:
        return [named]
    home = ctx.getenv("HOME")
    return [ctx.which("rustc")] + ([ctx.path(home + "/.cargo/bin/rustc")] if home else [])

def _find(ctx):
    """Version and sysroot of the first rustc that fits, or None."""
    for candidate in _candidates(ctx):
        if not candidate or not ctx.path(candidate).exists:
            continue
        version = ctx.execute([candidate, "--version"])
        sysroot = ctx.execute([candidate, "--print=sysroot"])
        if version.return_code != 0 or sysroot.return_code != 0:
            continue

        # "rustc 1.63.0 (...)"
        numbers = version.stdout.split(" ")[1].split(".")
        if [int(number) for number in numbers[:2]] >= _OLDEST:
            return struct(version = version.stdout.strip(), sysroot = sysroot.stdout.strip())
    return None

def _has_asan(ctx, sysroot):
    """Whether a run-time of the address sanitizer is there; Debian's rustc has none."""
    rustlib = ctx.path(sysroot + "/lib/rustlib")
    for target in rustlib.readdir() if rustlib.exists else []:
        libraries = target.get_child("lib")
        for library in libraries.readdir() if libraries.exists else []:
            if library.basename.startswith("librustc") and library.basename.endswith("rt.asan.a"):
                return True
    return False

def _local_rust_impl(ctx):
    found = _find(ctx)
    cargo = False
    asan = found and _has_asan(ctx, found.sysroot)
    if found:
        for tool in ["rustc", "rustdoc", "cargo"]:
            path = ctx.path(found.sysroot + "/bin/" + tool)
            if path.exists:
                ctx.symlink(path, "bin/" + tool)
        cargo = ctx.path("bin/cargo").exists
    else:
        # buildifier: disable=print
        print("no rustc %d.%d or later found: Rust targets are skipped (LEAFPACK_RUSTC names one)" %
              (_OLDEST[0], _OLDEST[1]))
    for tool in ["rustc", "rustdoc", "cargo"]:
        if not ctx.path("bin/" + tool).exists:
            ctx.file("bin/" + tool, "")

    # What was compiled by another compiler is compiled again.
    ctx.file("version", found.version if found else "none", executable = False)
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "%{rules}": str(Label("//third_party/rust:rules.bzl")),
        "%{compatible}": "[]" if found else "[\"@platforms//:incompatible\"]",
        "%{asan_compatible}": "[]" if asan else "[\"@platforms//:incompatible\"]",
        "%{cargo_compatible}": "[]" if cargo else "[\"@platforms//:incompatible\"]",
    }, executable = False)

_local_rust = repository_rule(
    implementation = _local_rust_impl,
    local = True,
    environ = ["HOME", "LEAFPACK_RUSTC", "PATH"],
    attrs = {"_build_file": attr.label(default = "//third_party/rust:local_rust.BUILD")},
)

def local_rust(name):
    _local_rust(name = name)
