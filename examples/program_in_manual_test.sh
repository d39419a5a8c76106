#!/bin/sh
# program_in_manual_test.sh MANUAL LANGUAGE PROGRAM: the manual's first program in this language is this one.
set -eu
awk -v begin="\`\`\`$2" '$0 == begin { inside = 1; next } /^```$/ { if (inside) exit } inside' "$1" >"$TEST_TMPDIR/program"
[ -s "$TEST_TMPDIR/program" ]
diff "$3" "$TEST_TMPDIR/program"
