#!/bin/sh
# program_in_manual_test.sh MANUAL PROGRAM: the first C program of the manual is this one.
set -eu
awk '/^```c$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' "$1" >"$TEST_TMPDIR/program.c"
[ -s "$TEST_TMPDIR/program.c" ]
diff "$2" "$TEST_TMPDIR/program.c"
