#!/bin/bash
# run.sh PROGRAM RUNS SEED...: fuzzes with a fixed seed, so that what is found is found again.
set -eu
program=$1
runs=$2
shift 2
corpus=${TEST_TMPDIR:?}/corpus
mkdir "$corpus"
for seed in "$@"; do
  cp "$seed" "$corpus"
done
# A leak check stops the process by ptrace, which sandboxes forbid.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0
exec "$program" -seed=1 -runs="$runs" -timeout=30 -rss_limit_mb=1024 -print_final_stats=1 \
  -artifact_prefix="${TEST_UNDECLARED_OUTPUTS_DIR:-$TEST_TMPDIR}/" "$corpus"
