"""leafpack_repositories() declares every external repository that leafpack's targets use.

Call it in the WORKSPACE of a repository that depends on leafpack; it needs no second macro. That
repository's .bazelrc needs `build --cxxopt=-std=c++20 --host_cxxopt=-std=c++20`.

A repository that the caller has declared before under the same name is left alone, and a
repository that no built target needs is never fetched.

In MODULE mode //third_party:extensions.bzl declares the same.
"""

load("//third_party/abseil:workspace.bzl", abseil = "repository")
load("//third_party/bazel_rules:workspace.bzl", bazel_rules = "repositories")
load("//third_party/benchmark:workspace.bzl", benchmark = "repository")
load("//third_party/cuda:workspace.bzl", "cuda_libraries", "cuda_toolkit", "nvidia_nccl")
load("//third_party/gloo:workspace.bzl", gloo = "repository")
load("//third_party/googletest:workspace.bzl", googletest = "repository")
load("//third_party/libtorch:workspace.bzl", "libtorch_aarch64", "libtorch_cuda", "libtorch_next", libtorch = "repository")
load("//third_party/python:workspace.bzl", "local_python", "pypi_build_tools", "pypi_test", "pypi_twine")
load("//third_party/rust:workspace.bzl", "local_rust")
load("//third_party/spin:workspace.bzl", spin = "repository")
load("//third_party/toolchains:workspace.bzl", "python_aarch64", toolchains = "repositories")
load("//third_party/xxhash:workspace.bzl", xxhash = "repository")

def declare_pins(declared):
    """Declares what leafpack pins, in either mode.

    Args:
      declared: names that are left alone.
    """
    for name, declare in [
        ("com_google_absl", abseil),
        ("com_google_googletest", googletest),
        ("com_github_google_benchmark", benchmark),
        ("cuda_libraries", cuda_libraries),
        ("cuda_toolkit", cuda_toolkit),
        ("gloo", gloo),
        ("leafpack_python_aarch64", python_aarch64),
        ("libtorch", libtorch),
        ("libtorch_aarch64", libtorch_aarch64),
        ("libtorch_cuda", libtorch_cuda),
        ("libtorch_next", libtorch_next),
        ("local_python", local_python),
        ("local_rust", local_rust),
        ("nvidia_nccl", nvidia_nccl),
        ("pypi_build_tools", pypi_build_tools),
        ("pypi_test", pypi_test),
        ("pypi_twine", pypi_twine),
        ("spin", spin),
        ("xxhash", xxhash),
    ]:
        if name not in declared:
            declare(name)

def leafpack_repositories():
    """Declares the external repositories that are not declared yet."""
    declared = native.existing_rules()
    declare_pins(declared)
    bazel_rules(declared)
    toolchains(declared)
