#!/bin/sh
# fuzz.sh - run one fuzz target from its seeds for some seconds and print the executions.
#
# usage: tools/fuzz.sh fuzz_NAME SECONDS [libFuzzer options]
# New inputs stay in build-fuzz/corpus; a crash is written to build-fuzz/ and makes the exit status 1.
set -eu
cd "$(dirname "$0")/.."
target=$1
seconds=$2
shift 2
seeds=fuzz/corpus/${target#fuzz_}
[ -d build-fuzz ] || CC=clang meson setup build-fuzz -Dfuzz=true -Dtests=disabled >/dev/null
ninja -C build-fuzz "fuzz/$target" >build-fuzz/ninja.log || { tail -n 30 build-fuzz/ninja.log; exit 1; }
mkdir -p "build-fuzz/corpus/$target" "$seeds"
log=build-fuzz/$target.log
if ! "build-fuzz/fuzz/$target" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="build-fuzz/$target-" "$@" \
    "build-fuzz/corpus/$target" "$seeds" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "$target: FINDING after $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions"
    exit 1
fi
echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions in $seconds s, no finding"
