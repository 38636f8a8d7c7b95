#!/bin/sh
# check.sh - run the tests; the last line is "N passed, N failed, N skipped" over all of them.
#
# usage: tools/check.sh [long|pjrt]
# Release build with every quick test, then the unit tests in a build with ASan and UBSan.  `long` adds clang-tidy, a clang build with
# warnings as errors, the long tests and FUZZ_SECONDS (60) of each fuzz target.  `pjrt` runs only what
# needs XLA's plugins, after fetching them (tools/pjrt_plugins.py); the quick tests of these also run, or skip, in the others.  Reports: build*/meson-logs/testlog.*
set -u
cd "$(dirname "$0")/.."
mode=${1:-quick}
logs=
broken=0

# build DIR [meson options]: set up once, compile, and count a build that fails as one failed test.
build() {
    dir=$1
    shift
    if [ ! -f "$dir/build.ninja" ]; then
        meson setup "$dir" "$@" >"$dir.log" 2>&1 || { cat "$dir.log"; rm -rf "$dir"; }
        rm -f "$dir.log"
    fi
    echo "check: building $dir"
    ninja -C "$dir" >"/tmp/lignum-check-$$.log" 2>&1 && status=0 || status=1
    [ $status = 0 ] || tail -n 40 "/tmp/lignum-check-$$.log"
    [ $status = 0 ] || broken=$((broken + 1))
    rm -f "/tmp/lignum-check-$$.log"
    return $status
}

# run DIR [meson test options]
run() {
    dir=$1
    shift
    echo "check: testing $dir"
    rm -f "$dir/meson-logs/testlog.json"
    meson test -C "$dir" --no-rebuild --quiet "$@"
    logs="$logs $dir/meson-logs/testlog.json"
}

# Under sanitizers some tests do a part of their work, unless it is the long check.
[ "$mode" = long ] && export LG_TEST_ALL=1
sanitize="-Db_sanitize=address,undefined -Db_lundef=false"
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

if [ "$mode" = pjrt ]; then
    tools/pjrt_plugins.py || [ $? = 77 ] || exit 1
    build build && run build --suite pjrt
    # shellcheck disable=SC2086
    tools/summary.py $logs --broken "$broken"
    exit
fi

build build && if [ "$mode" = long ]; then run build; else run build --no-suite long; fi
# shellcheck disable=SC2086
build build-asan $sanitize && run build-asan --suite unit --timeout-multiplier 4

if [ "$mode" = long ]; then
    echo "check: clang-tidy"
    git ls-files 'src/*.c' 'cli/*.c' 'examples/*.c' | grep -vE '/(avx512|amx)/' | xargs -P "$(nproc)" -n 8 clang-tidy --quiet -p build ||
        broken=$((broken + 1))
    CC=clang build build-clang -Dwerror=true && run build-clang --suite unit
    for target in fuzz/fuzz_*.c; do
        name=$(basename "$target" .c)
        tools/fuzz.sh "$name" "${FUZZ_SECONDS:-60}" || broken=$((broken + 1))
    done
fi

# shellcheck disable=SC2086
tools/summary.py $logs --broken "$broken"
