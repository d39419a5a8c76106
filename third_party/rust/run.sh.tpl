#!/bin/sh
# Starts a Rust program where it finds the shared libraries that it was linked with.
set -eu

if [ -z "${RUNFILES_DIR:-}" ]; then
  if [ -n "${TEST_SRCDIR:-}" ]; then
    RUNFILES_DIR=$TEST_SRCDIR
  else
    RUNFILES_DIR=$(cd "$(dirname "$0")" && pwd)/$(basename "$0").runfiles
  fi
fi
export RUNFILES_DIR

for folder in %{folders}; do
  LD_LIBRARY_PATH=$RUNFILES_DIR/$folder${LD_LIBRARY_PATH:+:}${LD_LIBRARY_PATH:-}
done
export LD_LIBRARY_PATH
%{command}
