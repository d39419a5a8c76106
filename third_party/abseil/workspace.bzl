"""Abseil: Status and StatusOr, strings, spans, containers, flags and logging.

Licence: Apache-2.0.
Why: error handling and containers in every public header; leafpack writes no helper that Abseil has.
"""

load("//third_party:fetch.bzl", "source_archive")

def repository(name):
    source_archive(
        name = name,
        urls = ["https://github.com/abseil/abseil-cpp/releases/download/20240722.0/abseil-cpp-20240722.0.tar.gz"],
        sha256 = "f50e5ac311a81382da7fa75b97310e4b9006474f9560ac46f54a9967f07d4ae3",
        strip_prefix = "abseil-cpp-20240722.0",
        debian_pool = "pool/main/a/abseil/abseil_20240722.0.orig.tar.gz",
        debian_sha256 = "df6d1f5ef540725f3851201176a60486aab332410788465c9877910bb471c34a",
        debian_strip_prefix = "abseil-20240722.0",
    )
