"""REQUIRES_CUDA and CUDA_TEST_ENV: what targets of --config=cuda alone name."""

# For target_compatible_with. Other builds skip the target in wildcards; asked for by name, Bazel says that it
# is incompatible and names this constraint.
REQUIRES_CUDA = select({
    Label("//third_party/cuda:enabled"): [],
    "//conditions:default": [Label("//third_party/cuda:needs_config_cuda")],
})

# For `data` and `env` of tests that run with libtorch_cuda.so.
CUDA_TEST_DATA = ["@cuda_libraries//:libraries"]

CUDA_TEST_ENV = {
    "LD_LIBRARY_PATH": ":".join([
        "../cuda_libraries/site/nvidia/%s/lib" % part
        for part in ["cu13", "cudnn", "cusparselt", "nvshmem"]
    ]),
}
