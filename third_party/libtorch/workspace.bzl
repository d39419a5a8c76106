"""libtorch: the CPU wheel of torch, whose include/ and lib/ are libtorch.

Licence: BSD-3-Clause.
Why: tensors, and c10d's process groups and stores.

The wheel is the same file, byte for byte, at PyTorch's own index and where pip finds
torch==2.13.0 in its CPU build; it is checked by its sha256 either way. C++ targets use it with
any Python on the machine, or none; the Python module needs Python 3.11.
"""

load("//third_party:wheels.bzl", "fetch_wheel")
load("//third_party/python:find.bzl", "compile_site", "find_python")

TORCH_VERSION = "2.13.0"

_WHEELS = {
    "x86_64": struct(
        file = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        sha256 = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    ),
}

def _libtorch_impl(ctx):
    arch = {"amd64": "x86_64"}.get(ctx.os.arch, ctx.os.arch)
    if ctx.os.name != "linux" or arch not in _WHEELS:
        fail("leafpack pins torch %s for Linux on %s; this machine is %s on %s" %
             (TORCH_VERSION, ", ".join(_WHEELS.keys()), ctx.os.name, arch))
    wheel = _WHEELS[arch]
    archive = fetch_wheel(
        ctx,
        url = "https://download.pytorch.org/whl/cpu/" + wheel.file.replace("+", "%2B"),
        requirement = "torch==" + TORCH_VERSION,
        file = wheel.file,
        sha256 = wheel.sha256,
    )
    ctx.extract(archive, output = "site")
    ctx.delete(archive)

    # Test programs and tools of torch itself, which nothing here runs (torch_shm_manager stays).
    for entry in ctx.path("site/torch/bin").readdir():
        if entry.basename != "torch_shm_manager":
            ctx.delete(entry)
    python = find_python(ctx)
    if python:
        compile_site(ctx, python, "site")
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "%{rules}": str(Label("//third_party/python:rules.bzl")),
    }, executable = False)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

_libtorch = repository_rule(
    implementation = _libtorch_impl,
    attrs = {
        "_build_file": attr.label(default = "//third_party/libtorch:libtorch.BUILD"),
        "_find_python": attr.label(default = "//third_party/python:find_python.py"),
    },
)

def repository(name):
    _libtorch(name = name)
