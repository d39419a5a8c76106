"""A library with the types of leafpack.h in its debug information, for tools that compare ABIs."""

def types_library(name, change = None):
    """Makes lib<name>.so of functions that do nothing.

    Args:
      name: of the library.
      change: a command of sed that changes leafpack.h first.
    """
    header = name + "/leafpack.h"
    native.genrule(
        name = name + "_header",
        srcs = ["//bindings/c:header"],
        outs = [header],
        cmd = "sed '%s' $< > $@ && ! cmp -s $< $@" % change if change else "cp $< $@",
    )
    native.genrule(
        name = name + "_source",
        srcs = [
            "stub.awk",
            header,
        ],
        outs = [name + "/stub.c"],
        cmd = "awk -v header=%s/%s -f $(location stub.awk) $(location %s) > $@" %
              (native.package_name(), header, header),
    )
    native.cc_binary(
        name = "lib%s.so" % name,
        srcs = [
            header,
            name + "/stub.c",
        ],
        copts = [
            "-std=c11",
            "-g",
            "-O0",
            "-Wno-unused-parameter",
        ],
        linkshared = True,
        tags = ["no-sanitizer"],
    )
