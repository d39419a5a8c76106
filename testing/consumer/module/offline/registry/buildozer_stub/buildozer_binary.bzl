"""`bazel mod` loads the extension of the real module to learn its repository; `bazel mod tidy` alone runs that."""

def _no_binary_impl(ctx):
    fail("%s: buildozer comes from a registry, and this build uses none" % ctx.name)

_no_binary = repository_rule(implementation = _no_binary_impl)

def _buildozer_binary_impl(_ctx):
    _no_binary(name = "buildozer_binary")

buildozer_binary = module_extension(implementation = _buildozer_binary_impl)
