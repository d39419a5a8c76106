"""Tests that check models by Spin."""

load("@spin//:compatible.bzl", "COMPATIBLE")

_FILES = ["c", "h", "b", "m", "p", "t"]

def _checker(name, model, options):
    """A program that looks at all states of the model, and ends at the first fault.

    Args:
      name: of the program.
      model: the file.
      options: macros of the model, as "RANKS=3".
    """
    native.genrule(
        name = name + "_source",
        srcs = [model],
        outs = ["%s_model/pan.%s" % (name, suffix) for suffix in _FILES],
        cmd = "spin=$$PWD/$(location @spin//:usr/bin/spin); model=$$PWD/$(location %s); " % model +
              "cc=$(CC); case $$cc in */*) cc=$$PWD/$$cc;; esac; [ -x $$cc ] || cc=$(CC); " +
              "cd $(RULEDIR)/%s_model && $$spin -P\"$$cc -E -x c\" %s -a $$model >&2" %
              (name, " ".join(["-D" + option for option in options])),
        target_compatible_with = COMPATIBLE,
        toolchains = ["@bazel_tools//tools/cpp:current_cc_toolchain"],
        tools = ["@spin//:usr/bin/spin"],
    )
    native.cc_library(
        name = name + "_parts",
        textual_hdrs = ["%s_model/pan.%s" % (name, suffix) for suffix in _FILES[1:]],
        target_compatible_with = COMPATIBLE,
    )
    native.cc_binary(
        name = name,
        srcs = ["%s_model/pan.c" % name],
        deps = [name + "_parts"],
        # Others' code. SAFETY: assertions and deadlocks are looked for, no cycles.
        copts = ["-O2", "-w", "-DSAFETY"],
        tags = ["no-sanitizer"],
        target_compatible_with = COMPATIBLE,
    )

def model_test(name, model, good, faults):
    """Checks that no state of a model is a fault, and that each fault that can be put into it is found.

    Args:
      name: of the test.
      model: the file.
      good: lists of macros, as ["RANKS=3"]; the model with each has no fault, and no statement that is never reached.
      faults: by number, the macros beside FAULT=number.
    """
    goods, faulty = [], []
    for i, options in enumerate(good):
        goods.append("%s_good_%d" % (name, i + 1))
        _checker(goods[-1], model, options)
    for fault, options in faults.items():
        faulty.append("%s_fault_%d" % (name, fault))
        _checker(faulty[-1], model, ["FAULT=%d" % fault] + options)
    native.sh_test(
        name = name,
        size = "medium",
        srcs = ["//third_party/spin:model_test.sh"],
        args = [str(len(goods))] + ["$(location :%s)" % program for program in goods + faulty],
        data = goods + faulty,
        # The checker is generated C, which sanitizers only slow down.
        tags = ["no-sanitizer"],
        target_compatible_with = COMPATIBLE,
    )
