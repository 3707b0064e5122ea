#!/usr/bin/env bash
# Times the two commands of the README in an empty clone, as a newcomer runs them: benchmarks/house.sh [lab|test|all]
#
# To reach, on 2 cores: `make lab LAB=0` in 180 s after downloads, `make test` in 600 s. The first line is the
# installation alone; its second run finds the packages in pip's cache, which is what "after downloads" means.
set -euo pipefail
what=${1:-all}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export EP_LIB_CACHE_DIR="$work/kernels" # no kernel is compiled yet
export PIP_QUIET=1

clone() { git clone --quiet "$root" "$1"; }

timed() { # name, limit in seconds, command...
    local name=$1 limit=$2 begin end
    shift 2
    begin=$(date +%s.%N)
    "$@" >"$work/log" 2>&1 || {
        tail -40 "$work/log"
        echo "$name FAILED"
        exit 1
    }
    end=$(date +%s.%N)
    awk -v n="$name" -v l="$limit" -v a="$begin" -v b="$end" 'BEGIN { printf "%-28s %7.1f s   (reach %d s)\n", n, b - a, l }'
    tail -1 "$work/log"
}

if [[ $what != test ]]; then
    clone "$work/lab"
    timed "make lab LAB=0" 180 make -C "$work/lab" lab LAB=0
    timed "make lab LAB=0, again" 60 make -C "$work/lab" lab LAB=0
fi
if [[ $what != lab ]]; then
    clone "$work/test"
    timed "make test" 600 make -C "$work/test" test
fi
