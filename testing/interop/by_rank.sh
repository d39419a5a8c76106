#!/bin/sh
# by_rank.sh PROGRAM...: runs the program of this rank, then compares what it left with what rank 0 left.
set -eu
shift $((RANK % $#))
"./$1" || exit $?
# Every rank has written its files when one has passed the barrier.
for rank in 0 "$RANK"; do
  for file in result error; do
    [ -s "$TEST_TMPDIR/$file.$rank" ] || { echo "rank $rank left no $file" >&2; exit 1; }
  done
done
cmp "$TEST_TMPDIR/result.0" "$TEST_TMPDIR/result.$RANK"
# A text begins with "all_reduce on rank 2: ": whose it is.
expected=$(sed 's/ on rank 0:/:/' "$TEST_TMPDIR/error.0")
got=$(sed "s/ on rank $RANK:/:/" "$TEST_TMPDIR/error.$RANK")
[ "$got" = "$expected" ] || { printf 'rank 0: %s\nrank %s: %s\n' "$expected" "$RANK" "$got" >&2; exit 1; }
