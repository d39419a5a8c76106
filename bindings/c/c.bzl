"""C programs and tests: compiled as C11 with every warning an error."""

_C_COPTS = [
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-pedantic",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Werror",
]

def leafpack_c_binary(name, copts = [], **kwargs):
    """A C program."""
    native.cc_binary(name = name, copts = _C_COPTS + copts, **kwargs)

def leafpack_c_test(name, size, copts = [], **kwargs):
    """A C test, which fails by its exit code."""

    # Static, as the sanitizers' options (third_party/sanitizers) are heard in the program itself only.
    native.cc_test(name = name, size = size, copts = _C_COPTS + copts, linkstatic = True, **kwargs)
