"""Programs that check docs/shm_slots.pml."""

load("@spin//:compatible.bzl", "COMPATIBLE")

_FILES = ["c", "h", "b", "m", "p", "t"]

def checker(name, options = []):
    """A program that looks at all states of the model, and ends at the first fault.

    Args:
      name: of the program.
      options: macros of the model, as "RANKS=3".
    """
    native.genrule(
        name = name + "_source",
        srcs = ["//:docs/shm_slots.pml"],
        outs = ["%s_model/pan.%s" % (name, suffix) for suffix in _FILES],
        cmd = "spin=$$PWD/$(location @spin//:usr/bin/spin); model=$$PWD/$(location //:docs/shm_slots.pml); " +
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
        # Others' code.
        copts = ["-O2", "-w"],
        tags = ["no-sanitizer"],
        target_compatible_with = COMPATIBLE,
    )
