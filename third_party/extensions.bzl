"""The module extension of MODULE mode: the pins of //third_party:repositories.bzl.

    leafpack = use_extension("@leafpack//third_party:extensions.bzl", "leafpack")
    use_repo(leafpack, "com_google_absl")

Rule sets (platforms, bazel_skylib, rules_cc) are modules, named in MODULE.bazel.
"""

load("//third_party:repositories.bzl", "declare_pins")

def _leafpack_impl(_ctx):
    declare_pins(declared = [])

leafpack = module_extension(
    doc = "Declares the external repositories that leafpack's targets use.",
    implementation = _leafpack_impl,
)
