#!/bin/sh
# abidiff_test.sh BASELINE LIBRARY CHANGED...: abidiff finds no change but added functions from the baseline
# to LIBRARY, and finds one in each of CHANGED, so that its silence means something.
#
# After a change that is meant, and a new LEAFPACK_ABI_VERSION unless only a struct grew at its end:
#   abidw --headers-dir bindings/c --no-show-locs --no-comp-dir-path --no-corpus-path \
#     --type-id-style hash bazel-bin/bindings/c/abi/libtypes.so > bindings/c/abi/baseline.abi
set -u
if ! command -v abidiff >/dev/null; then
  echo "SKIPPED: abidiff is not here (Debian: abigail-tools)"
  exit 0
fi
baseline=$1 library=$2
shift 2
abidiff --no-added-syms "$baseline" "$library" || { echo "the ABI has changed" >&2; exit 1; }
for changed in "$@"; do
  if abidiff --no-added-syms "$baseline" "$changed" >/dev/null; then
    echo "abidiff finds no change in $changed" >&2
    exit 1
  fi
done
