#!/bin/sh
# symbols_test.sh LIBRARY HEADER SYMBOLS STRUCTS: the library exports exactly the symbols of the golden list,
# the header declares exactly these functions, and every struct and constant of it is in the other golden list.
set -eu
library=$1 header=$2 golden=$3 structs=$4
LC_ALL=C
export LC_ALL
work=${TEST_TMPDIR:?}

nm -D --defined-only "$library" | awk '{ print $3 }' | sort >"$work/exported"
[ -s "$work/exported" ] || { echo "$library exports nothing" >&2; exit 1; }
# A declaration begins with LEAFPACK_CALL or LEAFPACK_API at the start of a line.
grep -E '^LEAFPACK_(CALL|API) ' "$header" | grep -oE 'leafpack_[a-z0-9_]+\(' | tr -d '(' |
  sort >"$work/declared"

status=0
diff "$golden" "$work/exported" || { echo "exported symbols (>) differ from $golden (<)"; status=1; }
diff "$golden" "$work/declared" || { echo "functions of $header (>) differ from $golden (<)"; status=1; }

{
  sed 's|/\*.*||' "$header" | grep -oE 'LEAFPACK_[A-Z0-9_]+ = ' | sed 's/^/constant /; s/ = $//'
  grep -oE '^typedef struct leafpack_[a-z_]+ \{' "$header" | sed 's/^typedef //; s/ {$//'
} | sort >"$work/described"
[ "$(wc -l <"$work/described")" -gt 50 ] || { echo "$header has too few constants" >&2; exit 1; }
grep -oE '^(constant|struct) [A-Za-z0-9_]+' "$structs" | sort >"$work/golden"
missing=$(comm -23 "$work/described" "$work/golden")
[ -z "$missing" ] || { echo "not in $structs: $missing"; status=1; }
exit $status
