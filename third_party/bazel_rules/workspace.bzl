"""Rule sets that the BUILD files of dependencies load: platforms, bazel_skylib, rules_cc.

Licence: Apache-2.0, all.
Why: abseil, googletest and benchmark name them; leafpack's own BUILD files use native rules.

The pins are those that many public repositories agree on. A Bazel that carries its own copies
(as Debian's does) overrides them with --override_repository, and then they are not fetched.
"""

load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")

def repositories(declared):
    """Declares those rule sets that are not in `declared`, a dict by name."""
    for name, sha256, url, strip_prefix in [
        (
            "platforms",
            "218efe8ee736d26a3572663b374a253c012b716d8af0c07e842e82f238a0a7ee",
            "https://github.com/bazelbuild/platforms/releases/download/0.0.10/platforms-0.0.10.tar.gz",
            "",
        ),
        (
            "bazel_skylib",
            "3b5b49006181f5f8ff626ef8ddceaa95e9bb8ad294f7b5d7b11ea9f7ddaf8c59",
            "https://github.com/bazelbuild/bazel-skylib/releases/download/1.9.0/bazel-skylib-1.9.0.tar.gz",
            "",
        ),
        (
            "rules_cc",
            "2037875b9a4456dce4a79d112a8ae885bbc4aad968e6587dca6e64f3a0900cdf",
            "https://github.com/bazelbuild/rules_cc/releases/download/0.0.9/rules_cc-0.0.9.tar.gz",
            "rules_cc-0.0.9",
        ),
    ]:
        if name not in declared:
            http_archive(
                name = name,
                sha256 = sha256,
                urls = [url],
                strip_prefix = strip_prefix,
            )
