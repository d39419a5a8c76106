"""GoogleTest and GoogleMock.

Licence: BSD-3-Clause.
Why: every C++ test is written with it. Tests only.
"""

load("//third_party:fetch.bzl", "source_archive")

def repository(name):
    source_archive(
        name = name,
        urls = ["https://github.com/google/googletest/releases/download/v1.16.0/googletest-1.16.0.tar.gz"],
        sha256 = "78c676fc63881529bf97bf9d45948d905a66833fbfa5318ea2cd7478cb98f399",
        strip_prefix = "googletest-1.16.0",
        debian_pool = "pool/main/g/googletest/googletest_1.16.0.orig.tar.gz",
        debian_sha256 = "2f54382b5d13d6cd0be2afc524f1e510d37f8ba78c2d439c5bea64ef37e30d01",
        debian_strip_prefix = "googletest-1.16.0",
    )
