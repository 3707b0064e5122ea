#!/bin/sh
# Everything that needs GPUs, in at most 10 minutes on two or four: correctness first, then one table with peers.
#
#   sh benchmarks/gpu.sh [number of GPUs to use; default: all, at most 4]
#
# Runs from the source tree with the Python on the PATH (PYTHON=... names another). Logs and JSON go to $OUT, or to
# build/gpu/; benchmarks/results/ keeps the table.json from there. COMMIT=... names the commit if git cannot. A step that
# fails or reaches its time limit does not stop the others; a list of all steps comes last. Exit status: 0 if every step
# passed, 1 if one did not, 2 if there are too few GPUs.
set -u
cd "$(dirname "$0")/.." || exit 1
PYTHON=${PYTHON:-python3}
RESULTS=${OUT:-build/gpu}
LIMIT=${LIMIT:-585} # seconds for everything; the table at the end has 15 more
DEADLINE=$(($(date +%s) + LIMIT))
KILL_AFTER=5        # seconds from a step's limit until it is killed
WORKERS=${WORKERS:-$(nproc)} # of the tests: most of their time is compiling and starting
# Multicast stays off: on a shared host it can disable GPUs of other users.
export NVSHMEM_DISABLE_NVLS=1 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$RESULTS" || exit 1
status=0
table=
parts=

# step NAME SECONDS COMMAND...: run with a time limit, keep the log, remember a failure
step() {
    name=$1 limit=$2
    shift 2
    echo "== $name"
    began=$(date +%s)
    left=$((DEADLINE - began))
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -le 0 ]; then
        row "$name" - "NOT RUN: $LIMIT s are over"
        status=1
        return
    fi
    timeout --signal=INT --kill-after="$KILL_AFTER" "$limit" "$@" >"$RESULTS/gpu_$name.log" 2>&1
    code=$?
    took=$(($(date +%s) - began))
    tail -n "${LINES_SHOWN:-25}" "$RESULTS/gpu_$name.log"
    case $code in
        0) word=passed ;;
        3) word="not there" ;;
        124 | 137) word="stopped after $limit s" ;;
        *) word="FAILED, exit status $code" ;;
    esac
    if [ $code -ne 0 ] && [ $code -ne 3 ]; then
        status=1
        grep -E '^(FAILED|ERROR) |(FAILED|ERROR) tests|^WRONG' "$RESULTS/gpu_$name.log" | sort -u | head -n 20
    fi
    row "$name" "$took s" "$word"
}

# figures NAME SECONDS COMMAND...: a step that writes a part of the table
figures() {
    part="$RESULTS/$1.json"
    rm -f "$part"
    LINES_SHOWN=6 step "$@" --json "$part"
    [ -s "$part" ] && parts="$parts $part"
}

row() { table="$table$(printf '%-12s %6s  %s' "$1" "$2" "$3")
"; }

visible() { # GPUs that CUDA programs of this shell will find
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .
    else
        nvidia-smi -L 2>/dev/null | grep -c '^GPU '
    fi
}

count=$(visible)
gpus=${1:-$((count < 4 ? count : 4))}
case $gpus in
    '' | *[!0-9]*)
        echo "the number of GPUs must be a number, got '$gpus'" >&2
        exit 2
        ;;
esac
if [ "$gpus" -lt 2 ] || [ "$gpus" -gt "$count" ]; then
    echo "$gpus GPUs asked for, $count found, at least 2 needed: see 'nvidia-smi -L' and CUDA_VISIBLE_DEVICES" >&2
    exit 2
fi
CUDA_VISIBLE_DEVICES=$(echo "${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus - 1)))}" | cut -d, -f1-"$gpus")
export CUDA_VISIBLE_DEVICES
commit=${COMMIT:-$("$PYTHON" -c 'from gpu_machine import git_commit; print(git_commit())')}

nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader 2>/dev/null
nvidia-smi topo -m 2>/dev/null | sed -n "1,$((gpus + 1))p"
LINES_SHOWN=3 step doctor 30 "$PYTHON" -m ep_lib doctor
# With -v, a run that is stopped has shown what failed until then.
LINES_SHOWN=30 step tests 400 "$PYTHON" -m pytest -m gpu -v --tb=short -p no:cacheprovider -p gpu_pairs -n "$WORKERS" \
    --durations=5 tests
LINES_SHOWN=60 step sanitizer 60 "$PYTHON" benchmarks/gpu_sanitize.py
# 3,000 random expressions, on the emulator and on a GPU: a seed that it prints replays one.
LINES_SHOWN=60 step fuzz 25 "$PYTHON" benchmarks/fuzz.py --count "${FUZZ:-3000}" --workers "$WORKERS" --seconds 20
# A rank is killed, stopped or late in each way of calling, FAULTS times each.
LINES_SHOWN=60 step faults 50 "$PYTHON" benchmarks/gpu_faults.py --runs "${FAULTS:-1}" --seconds 40 --json "$RESULTS/faults.json"
measure="$PYTHON benchmarks/gpu_measure.py --commit $commit"
figures ceilings 20 $measure --ranks "$gpus" --parts ceilings
figures normal 30 $measure --ranks "$gpus" --parts normal
figures nccl 20 $measure --ranks "$gpus" --parts nccl
figures symmetric 20 $measure --ranks "$gpus" --parts symmetric
figures low_latency 35 "$PYTHON" benchmarks/gpu_low_latency.py --ranks "$gpus" --commit "$commit" --tokens 1,8,32,128,1024
figures vary 45 "$PYTHON" benchmarks/gpu_vary.py --ranks "$gpus" --commit "$commit" --tokens 1000 --routings random \
    --libraries ep_lib,nccl --kinds counted,step --turns 1
step transports 45 sh -c "'$PYTHON' -m ep_lib bench p2p --backend cuda --json >'$RESULTS/transports.json'"
[ ! -s "$RESULTS/transports.json" ] || parts="$parts $RESULTS/transports.json"
DEADLINE=$((DEADLINE + 15)) # kept for the table
LINES_SHOWN=200 step table 10 "$PYTHON" benchmarks/gpu_report.py $parts --json "$RESULTS/table.json"
[ ! -s "$RESULTS/table.json" ] || step figures 15 "$PYTHON" benchmarks/gpu_figures.py "$RESULTS/table.json" --to "$RESULTS"
echo "== $gpus of $count GPUs; logs and JSON in $RESULTS"
printf '%s' "$table"
exit $status
