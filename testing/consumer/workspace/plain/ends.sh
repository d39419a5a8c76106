#!/bin/sh
# ends.sh FILE SYSTEM DEVICE: rank 0 looks for $WORD in FILE; ranks 1 and 2 end as a fault test expects.
set -eu
case $RANK in
  0) [ "$LAST $2 $3" = "yes linux cpu" ] && grep -q "^$WORD\$" "$1" ;;
  1) [ -z "${LAST:-}" ] && exit 3 ;;
  2) kill -KILL $$ ;;
esac
