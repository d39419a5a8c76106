#!/usr/bin/env bash
# model_test.sh GOOD FAULTY...: no fault is found in the first model, one in each of the others.
set -euo pipefail

found() {
  report=$("$1" -m1000000)
  echo "== $1"
  echo "$report"
  grep -q "^Full statespace search" <<<"$report"
  if grep -q "max search depth too small" <<<"$report"; then return 1; fi
  grep -o "errors: [0-9]*" <<<"$report" >"$TEST_TMPDIR/errors"
}

cd "$TEST_TMPDIR"
good=$TEST_SRCDIR/$TEST_WORKSPACE/$1
shift
found "$good"
[ "$(cat errors)" = "errors: 0" ] || { echo "the model has a fault" >&2; exit 1; }
grep -q "(0 of [0-9]* states)" <<<"$report" || { echo "some states are never reached" >&2; exit 1; }
for faulty in "$@"; do
  found "$TEST_SRCDIR/$TEST_WORKSPACE/$faulty"
  [ "$(cat errors)" = "errors: 1" ] || { echo "the fault of $faulty was not found" >&2; exit 1; }
done
