"""libtorch: the CPU wheel of torch, whose include/ and lib/ are libtorch; and the wheels of other builds.

Licence: BSD-3-Clause.
Why: tensors, and c10d's process groups and stores.

The wheel is the same file, byte for byte, at PyTorch's own index and where pip finds
torch==2.13.0 in its CPU build; it is checked by its sha256 either way. C++ targets use it with
any Python on the machine, or none; the Python module needs Python 3.11.

The CUDA wheel is that of PyPI, 527 MB, for CUDA 13.0. Only --config=cuda fetches it: then the targets of
@libtorch stand for those of @libtorch_cuda, so that all else names @libtorch alone.

In the same way they stand for those of @libtorch_aarch64 in a build with --config=aarch64. Its wheel is that of PyPI,
427 MB, whose libtorch_cpu.so names two libraries of CUDA; without a GPU it calls neither, so empty libraries of their
names stand for them.

With --config=next_torch they stand for the headers of @libtorch_next, a later torch that sources are compiled against
and nothing is linked with: what c10d's headers move is seen before the pin above moves. PyPI has it as a
CUDA wheel alone, 555 MB, of which the headers (40 MB) are kept.
"""

load("//third_party:wheels.bzl", "fetch_wheel")
load("//third_party/cuda:workspace.bzl", "check_host", "pypi_url")
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
        "%{aarch64}": str(Label("//platforms:cpu_aarch64")),
        "%{cuda}": str(Label("//third_party/cuda:enabled")),
        "%{next}": str(Label("//third_party/libtorch:is_next")),
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

_CUDA_WHEEL = struct(
    file = "torch-%s-cp311-cp311-manylinux_2_28_x86_64.whl" % TORCH_VERSION,
    sha256 = "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7",
)

def _libtorch_cuda_impl(ctx):
    check_host(ctx)
    archive = fetch_wheel(
        ctx,
        url = pypi_url("torch", "cp311", _CUDA_WHEEL.file),
        # With == alone pip takes the CPU wheel (2.13.0+cpu) where it finds both.
        requirement = "torch===" + TORCH_VERSION,
        file = _CUDA_WHEEL.file,
        sha256 = _CUDA_WHEEL.sha256,
    )
    ctx.extract(archive, output = "site")
    ctx.delete(archive)
    ctx.symlink(ctx.attr._build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

_libtorch_cuda = repository_rule(
    implementation = _libtorch_cuda_impl,
    attrs = {
        "_build_file": attr.label(default = "//third_party/libtorch:libtorch_cuda.BUILD"),
    },
)

_AARCH64_WHEEL = struct(
    file = "torch-%s-cp311-cp311-manylinux_2_28_aarch64.whl" % TORCH_VERSION,
    sha256 = "092790c696a760c729fd5722835f50b9d81fd7c8f141571f3f3cf4081a8f664c",
)

# By far the most of the wheel's 1.5 GB, of no use without a GPU.
_CUDA_LIBRARIES = ["libtorch_cuda.so", "libtorch_cuda_linalg.so"]

def _libtorch_aarch64_impl(ctx):
    archive = fetch_wheel(
        ctx,
        url = pypi_url("torch", "cp311", _AARCH64_WHEEL.file),
        requirement = "torch===" + TORCH_VERSION,
        file = _AARCH64_WHEEL.file,
        sha256 = _AARCH64_WHEEL.sha256,
    )
    ctx.extract(archive, output = "site")
    ctx.delete(archive)
    for name in _CUDA_LIBRARIES:
        ctx.delete("site/torch/lib/" + name)
    ctx.file("empty.cc", "", executable = False)
    ctx.symlink(ctx.attr._build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

_libtorch_aarch64 = repository_rule(
    implementation = _libtorch_aarch64_impl,
    attrs = {
        "_build_file": attr.label(default = "//third_party/libtorch:libtorch_aarch64.BUILD"),
    },
)

_NEXT_VERSION = "2.14.1"

_NEXT_WHEEL = struct(
    file = "torch-%s-cp311-cp311-manylinux_2_28_x86_64.whl" % _NEXT_VERSION,
    sha256 = "305a61f61f35f128579f299c5bd33d475f6a01c6307336139632e30856c4854d",
)

def _libtorch_next_impl(ctx):
    archive = fetch_wheel(
        ctx,
        url = pypi_url("torch", "cp311", _NEXT_WHEEL.file),
        requirement = "torch===" + _NEXT_VERSION,
        file = _NEXT_WHEEL.file,
        sha256 = _NEXT_WHEEL.sha256,
    )
    ctx.extract(archive, output = "include", stripPrefix = "torch/include")
    ctx.delete(archive)
    ctx.symlink(ctx.attr._build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

_libtorch_next = repository_rule(
    implementation = _libtorch_next_impl,
    attrs = {
        "_build_file": attr.label(default = "//third_party/libtorch:libtorch_next.BUILD"),
    },
)

def repository(name):
    _libtorch(name = name)

def libtorch_cuda(name):
    _libtorch_cuda(name = name)

def libtorch_aarch64(name):
    _libtorch_aarch64(name = name)

def libtorch_next(name):
    _libtorch_next(name = name)
