"""Headers of Gloo, which the torch wheel compiles in but does not ship.

Licence: BSD-3-Clause.
Why: c10d/ProcessGroupGloo.hpp includes them. The code itself is in libtorch_cpu.so, so the class
layouts must be those that torch was built with: headers of commit d97133a (2025-09) match torch
2.13. A later commit may do; an older one does not (gloo::Context lost its vtable).

Debian's source package is the only archive of that commit with a hash that can be relied on:
archives that GitHub makes of a commit are not promised to keep their bytes.
"""

load("//third_party:fetch.bzl", "source_archive")

def repository(name):
    source_archive(
        name = name,
        debian_pool = "pool/main/g/gloo/gloo_0.0~git20250912.d97133a.orig.tar.xz",
        debian_sha256 = "43d930375720059ac67b1619c7d020d5d2cee79757caf4e75a1bfedb8eeb2b42",
        debian_strip_prefix = "gloo-0.0~git20250912.d97133a",
        files = {
            "BUILD.bazel": str(Label("//third_party/gloo:gloo.BUILD")),
            "gloo/config.h": str(Label("//third_party/gloo:config.h")),
        },
    )
