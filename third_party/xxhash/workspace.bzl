"""xxHash, of which the header xxhash.h is used (XXH3, 64 and 128 bits).

Licence: BSD-2-Clause (the library; its command line tool, which is not used, is GPL-2.0).
Why: the digest of a layout must be the same in every process and on every platform, and fast.
"""

load("//third_party:fetch.bzl", "source_archive")

_SHA256 = "aae608dfe8213dfd05d909a57718ef82f30722c392344583d3f39050c7f29a80"

def repository(name):
    source_archive(
        name = name,
        urls = ["https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.3.tar.gz"],
        sha256 = _SHA256,
        strip_prefix = "xxHash-0.8.3",
        debian_pool = "pool/main/x/xxhash/xxhash_0.8.3.orig.tar.gz",
        debian_sha256 = _SHA256,
        debian_strip_prefix = "xxHash-0.8.3",
        files = {"BUILD.bazel": str(Label("//third_party/xxhash:xxhash.BUILD"))},
    )
