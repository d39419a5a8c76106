#!/bin/sh
# abidiff_test.sh BASELINE LIBRARY COMPATIBLE... -- CHANGED...: from the baseline, which is that of the last
# release, to LIBRARY and to each of COMPATIBLE abidiff finds nothing but what leafpack.h allows: added
# functions, and members added at the end of structs that begin with their size. In each of CHANGED it
# finds more, so that its silence means something.
#
# At a release, and after a change that is meant, with a new LEAFPACK_ABI_VERSION:
#   abidw --headers-dir bindings/c --no-show-locs --no-comp-dir-path --no-corpus-path \
#     --type-id-style hash bazel-bin/bindings/c/abi/libtypes.so > bindings/c/abi/baseline.abi
set -u
if ! command -v abidiff >/dev/null; then
  echo "SKIPPED: abidiff is not here (Debian: abigail-tools)"
  exit 0
fi
baseline=$1
shift

# Reads abidiff's report, of which every line must be known, and prints those that are not. (A
# suppression of abidiff hides other changes of a struct that grows.)
not_allowed() {
  awk '
    function refuse() { print; bad = 1 }
    /^$/ { next }
    /^(Functions|Variables) changes summary: 0 Removed/ { next }
    /^[0-9]+ functions? with some indirect sub-type change:$/ { next }
    /^  \[C\] .function .* has some indirect sub-type changes:$/ { next }
    /^ +parameter [0-9]+ of type .* has sub-type changes:$/ { next }
    /^ +in pointed to type .*:$/ { next }
    /^ +in unqualified underlying type .*:$/ { next }
    /^ +underlying type .struct leafpack_[a-z_]+. changed:$/ {
      if ($0 ~ /leafpack_component/) refuse()  # has no size of its own
      next
    }
    /^ +type size changed from [0-9]+ to [0-9]+ \(in bits\)$/ {
      end = $5
      if ($7 <= $5) refuse()
      next
    }
    /^ +[0-9]+ data member insertions?:$/ { next }
    / at offset [0-9]+ \(in bits\)/ {
      match($0, / at offset [0-9]+/)
      if (end == "" || substr($0, RSTART + 11, RLENGTH - 11) + 0 < end + 0) refuse()
      next
    }
    { refuse() }
    END { exit bad }
  '
}

compatible() {
  abidiff --no-added-syms "$baseline" "$1" >"$TEST_TMPDIR/report"
  code=$?
  # 4 is "there are changes"; 1, 2 and 8 are errors and what breaks programs for certain.
  [ $code -eq 0 ] || { [ $code -eq 4 ] && not_allowed <"$TEST_TMPDIR/report"; }
}

while [ "$1" != -- ]; do
  compatible "$1" || { cat "$TEST_TMPDIR/report"; echo "$1: the ABI has changed" >&2; exit 1; }
  shift
done
shift
[ $# -gt 0 ] || exit 1
for changed in "$@"; do
  if compatible "$changed" >/dev/null; then
    echo "no change is found in $changed" >&2
    exit 1
  fi
done
