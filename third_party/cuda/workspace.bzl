"""The CUDA variant's repositories: CUDA's headers, compiler and run-time, NCCL, and what libtorch_cuda loads.

All come from NVIDIA's wheels, of the versions that the CUDA wheel of torch (//third_party/libtorch:workspace.bzl)
asks for. A build without --config=cuda fetches none of them.

@cuda_toolkit    headers, nvcc, libcudart and libcupti
@nvidia_nccl     NCCL
@cuda_libraries  what libtorch_cuda.so needs to be loaded: for programs that run, not for compiling or linking
"""

load("//third_party:wheels.bzl", "fetch_wheel")

_MANYLINUX_2014 = "manylinux2014_x86_64.manylinux_2_17_x86_64"
_MANYLINUX_2010 = "manylinux2010_x86_64.manylinux_2_12_x86_64"

# Licence of all but NCCL's: NVIDIA's Software License Agreement and CUDA EULA (proprietary; each wheel holds
# its text as License.txt). Nothing of it is in what leafpack ships. By repository: name, version, platform,
# sha256, why.
_TOOLKIT = [
    (
        "nvidia-cuda-runtime",
        "13.0.96",
        _MANYLINUX_2014,
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        "cuda_runtime_api.h and libcudart, which c10/cuda is made of",
    ),
    (
        "nvidia-cuda-nvcc",
        "13.0.88",
        _MANYLINUX_2014,
        "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
        "the compiler of kernels",
    ),
    (
        "nvidia-cuda-crt",
        "13.0.88",
        _MANYLINUX_2014,
        "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
        "crt/host_defines.h and others, which the headers of the run-time and nvcc include",
    ),
    (
        "nvidia-nvvm",
        "13.0.88",
        _MANYLINUX_2010,
        "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",
        "cicc and libdevice, which nvcc runs",
    ),
    (
        "nvidia-cuda-cccl",
        "13.0.85",
        _MANYLINUX_2014,
        "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649",
        "nv/target, which cuda_fp16.h includes",
    ),
    (
        "nvidia-cuda-cupti",
        "13.0.85",
        "manylinux_2_25_x86_64",
        "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        "libcupti, without which the CUDA wheel's libtorch_cpu.so cannot be loaded",
    ),
]

# Headers of these are part of @cuda_toolkit (ATen/cuda/CUDAContext.h includes them), libraries of @cuda_libraries.
_LIBRARIES_WITH_HEADERS = [
    (
        "nvidia-cublas",
        "13.1.1.3",
        "manylinux_2_27_x86_64",
        "37936a16db8fe4ac1f065c2139360608a543a09275cb1a1af612e08cfa065436",
        "cublas_v2.h, cublasLt.h; loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-cusparse",
        "12.6.3.3",
        _MANYLINUX_2014,
        "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
        "cusparse.h; loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-cusolver",
        "12.0.4.66",
        "manylinux_2_27_x86_64",
        "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
        "cusolverDn.h; loaded by libtorch_cuda_linalg.so",
    ),
]

_LIBRARIES = [
    (
        "nvidia-cuda-nvrtc",
        "13.0.88",
        _MANYLINUX_2010,
        "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
        "loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-cudnn-cu13",
        "9.20.0.48",
        "manylinux_2_27_x86_64",
        "0c45dd8eeb50b603f07995b1b300c62ffe6a1980482b82b3bcf94a4ca9d49304",
        "loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-cufft",
        "12.0.0.61",
        _MANYLINUX_2014,
        "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
        "loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-cufile",
        "1.15.1.6",
        _MANYLINUX_2014,
        "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
        "loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-curand",
        "10.4.0.35",
        "manylinux_2_27_x86_64",
        "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
        "loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-cusparselt-cu13",
        "0.8.1",
        "manylinux2014_x86_64",
        "786ce87568c303fadb5afcc7102d454cd3040d75f6f8626f5db460d1871f4dd0",
        "loaded by libtorch_cuda.so",
    ),
    (
        "nvidia-nvjitlink",
        "13.0.88",
        _MANYLINUX_2010,
        "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
        "loaded by libcusparse and libcusolver",
    ),
    (
        "nvidia-nvshmem-cu13",
        "3.4.5",
        _MANYLINUX_2014,
        "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
        "loaded by libtorch_nvshmem.so, which libtorch_cuda.so needs",
    ),
]

# Licence: BSD-3-Clause, the text that the wheel holds.
_NCCL = [
    (
        "nvidia-nccl-cu13",
        "2.29.7",
        "manylinux_2_18_x86_64",
        "edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d",
        "nccl.h, which c10d/ProcessGroupNCCL.hpp includes, and the library that it calls",
    ),
]

def pypi_url(project, python_tag, file):
    """Where PyPI has a file under a name that does not depend on its hash."""
    return "https://files.pythonhosted.org/packages/%s/%s/%s/%s" % (python_tag, project[0], project, file)

def check_host(ctx):
    """Fails where there are no such wheels."""
    arch = {"amd64": "x86_64"}.get(ctx.os.arch, ctx.os.arch)
    if ctx.os.name != "linux" or arch != "x86_64":
        fail("leafpack pins CUDA for Linux on x86_64; this machine is %s on %s" % (ctx.os.name, arch))

def _wheels_impl(ctx):
    check_host(ctx)
    for wheel in ctx.attr.wheels + ctx.attr.header_wheels:
        project, version, platform, sha256 = wheel.split(" ")
        file = "%s-%s-py3-none-%s.whl" % (project.replace("-", "_"), version, platform)
        archive = fetch_wheel(
            ctx,
            url = pypi_url(project, "py3", file),
            requirement = "%s==%s" % (project, version),
            file = file,
            sha256 = sha256,
        )
        ctx.extract(archive, output = "site")
        ctx.delete(archive)
        if wheel in ctx.attr.header_wheels:
            for library in ctx.path("site/nvidia/cu13/lib").readdir():
                if library.basename.startswith("lib" + project[len("nvidia-"):]) or library.basename == "libnvblas.so.13":
                    ctx.delete(library)
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

_wheels = repository_rule(
    implementation = _wheels_impl,
    attrs = {
        "wheels": attr.string_list(doc = "\"project version platform sha256\" of each."),
        "header_wheels": attr.string_list(doc = "The same; their libraries are dropped."),
        "build_file": attr.label(mandatory = True),
    },
)

def _pins(wheels):
    return [" ".join(wheel[:4]) for wheel in wheels]

def cuda_toolkit(name):
    _wheels(
        name = name,
        wheels = _pins(_TOOLKIT),
        header_wheels = _pins(_LIBRARIES_WITH_HEADERS),
        build_file = Label("//third_party/cuda:toolkit.BUILD"),
    )

def cuda_libraries(name):
    _wheels(
        name = name,
        wheels = _pins(_LIBRARIES_WITH_HEADERS + _LIBRARIES),
        build_file = Label("//third_party/cuda:libraries.BUILD"),
    )

def nvidia_nccl(name):
    _wheels(
        name = name,
        wheels = _pins(_NCCL),
        build_file = Label("//third_party/cuda:nccl.BUILD"),
    )
