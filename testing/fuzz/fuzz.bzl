"""leafpack_fuzz_test: a libFuzzer program, and a test that runs it for a while."""

load("//third_party:cc.bzl", "leafpack_cc_binary")

_ONLY_FUZZ = select({
    "//third_party/toolchains:is_fuzz": [],
    "//conditions:default": ["@platforms//:incompatible"],
})

def leafpack_fuzz_test(name, srcs, deps, seeds = [], runs = 200000):
    """Makes NAME, a test of `runs` inputs, and NAME_program, for as many as one likes.

    Both are for --config=fuzz alone. A run begins with the files `seeds`; with the same seeds it is the same run.

    Args:
      name: of the test.
      srcs: with LLVMFuzzerTestOneInput.
      deps: what is fuzzed.
      seeds: files that are inputs.
      runs: how many inputs are tried.
    """
    leafpack_cc_binary(
        name = name + "_program",
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer,address"],
        tags = ["manual"],
        target_compatible_with = _ONLY_FUZZ,
        testonly = True,
        deps = deps,
    )
    native.sh_test(
        name = name,
        size = "medium",
        srcs = ["run.sh"],
        args = [
            "$(rootpath :%s_program)" % name,
            str(runs),
        ] + ["$(rootpath %s)" % seed for seed in seeds],
        data = [":%s_program" % name] + seeds,
        target_compatible_with = _ONLY_FUZZ,
    )
