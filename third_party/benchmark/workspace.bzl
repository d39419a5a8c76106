"""Google Benchmark.

Licence: Apache-2.0.
Why: micro-benchmarks of plan, pack, digest and agreement. Benchmarks only.
"""

load("//third_party:fetch.bzl", "source_archive")

_SHA256 = "32131c08ee31eeff2c8968d7e874f3cb648034377dfc32a4c377fa8796d84981"

def repository(name):
    source_archive(
        name = name,
        urls = ["https://github.com/google/benchmark/archive/refs/tags/v1.9.1.tar.gz"],
        sha256 = _SHA256,
        strip_prefix = "benchmark-1.9.1",
        debian_pool = "pool/main/b/benchmark/benchmark_1.9.1.orig.tar.gz",
        debian_sha256 = _SHA256,
        debian_strip_prefix = "benchmark-1.9.1",
    )
