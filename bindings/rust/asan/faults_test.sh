#!/bin/sh
# faults_test.sh PROGRAM: the sanitizer ends it for each of its faults, and only for those.
set -u
program=$1

expect() {
  "$program" "$1" >"$TEST_TMPDIR/output" 2>&1
  code=$?
  if [ $code -eq 0 ] || ! grep -q "$2" "$TEST_TMPDIR/output"; then
    cat "$TEST_TMPDIR/output"
    echo "$1: exit $code, and $2 was expected" >&2
    exit 1
  fi
}

"$program" nothing || exit 1
expect use_after_free 'AddressSanitizer: heap-use-after-free'
expect overflow 'AddressSanitizer: heap-buffer-overflow'
expect leak 'LeakSanitizer: detected memory leaks'
