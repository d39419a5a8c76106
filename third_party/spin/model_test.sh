#!/usr/bin/env bash
# model_test.sh N GOOD... FAULTY...: no fault is found in the first N models, one in each of the others.
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
good=$1
shift
[ "$good" -gt 0 ] && [ $# -gt "$good" ] || { echo "no models, or none with a fault" >&2; exit 1; }
for model in "$@"; do
  found "$TEST_SRCDIR/$TEST_WORKSPACE/$model"
  if [ "$good" -gt 0 ]; then
    good=$((good - 1))
    [ "$(cat errors)" = "errors: 0" ] || { echo "$model has a fault" >&2; exit 1; }
    # The end of a process that has none is not reached.
    if grep ", state [0-9]*, " <<<"$report" | grep -qv '"-end-"'; then
      echo "some states of $model are never reached" >&2
      exit 1
    fi
    grep -q "(0 of [0-9]* states)" <<<"$report" || { echo "nothing tells what states are reached" >&2; exit 1; }
  else
    [ "$(cat errors)" = "errors: 1" ] || { echo "the fault of $model was not found" >&2; exit 1; }
  fi
done
