#!/bin/sh
# Starts a Python program with the import path of its dependencies.
set -eu

if [ -z "${RUNFILES_DIR:-}" ]; then
  if [ -n "${TEST_SRCDIR:-}" ]; then
    RUNFILES_DIR=$TEST_SRCDIR
  else
    RUNFILES_DIR=$(cd "$(dirname "$0")" && pwd)/$(basename "$0").runfiles
  fi
fi
export RUNFILES_DIR

PYTHONPATH=
for path in %{imports}; do
  PYTHONPATH=$PYTHONPATH${PYTHONPATH:+:}$RUNFILES_DIR/$path
done
export PYTHONPATH
# No files are written beside the sources, and the folder of the program is not importable.
export PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1

python=$RUNFILES_DIR/%{interpreter}
main=$RUNFILES_DIR/%{main}
if [ -z "%{pytest}" ]; then
  exec "$python" "$main" "$@"
fi
exec "$python" -m pytest -p no:cacheprovider --rootdir="$(dirname "$main")" --color=no \
  ${XML_OUTPUT_FILE:+--junitxml="$XML_OUTPUT_FILE"} \
  ${TESTBRIDGE_TEST_ONLY:+-k "$TESTBRIDGE_TEST_ONLY"} \
  "$main" "$@"
