#!/bin/sh
# Everything that needs GPUs, in at most 8 minutes on two: versions, doctor, the tests marked gpu, the demo, figures.
#
#   sh benchmarks/gpu.sh [number of GPUs to use; default: all, at most 8]
#
# Runs from the source tree with the Python on the PATH (PYTHON=... names another). Logs and JSON go to $OUT, or to
# build/gpu/. A step that fails or runs into its limit does not stop the others; a table of all steps comes last. Exit
# status: 0 if every step passed, 1 if one did not, 2 where there are not as many GPUs.
set -u
cd "$(dirname "$0")/.." || exit 1
PYTHON=${PYTHON:-python3}
RESULTS=${OUT:-build/gpu}
KILL_AFTER=10 # seconds from a step's limit to its end by force
export PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$RESULTS" || exit 1
status=0
table=

# step NAME SECONDS COMMAND...: run with a time limit, keep the log, remember a failure
step() {
    name=$1 limit=$2
    shift 2
    echo "== $name"
    began=$(date +%s)
    timeout --signal=INT --kill-after="$KILL_AFTER" "$limit" "$@" >"$RESULTS/gpu_$name.log" 2>&1
    code=$?
    took=$(($(date +%s) - began))
    tail -n "${LINES_SHOWN:-25}" "$RESULTS/gpu_$name.log"
    case $code in
        0) word=passed ;;
        124 | 137) word="stopped after $limit s" ;;
        *) word="FAILED, exit status $code" ;;
    esac
    [ $code -eq 0 ] || status=1
    row "$name" "$took s" "$word"
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
gpus=${1:-$((count < 8 ? count : 8))}
case $gpus in
    '' | *[!0-9]*)
        echo "the number of GPUs must be a number, got '$gpus'" >&2
        exit 2
        ;;
esac
if [ "$gpus" -eq 0 ] || [ "$gpus" -gt "$count" ]; then
    echo "$gpus GPUs asked for, $count found: 'nvidia-smi -L' and CUDA_VISIBLE_DEVICES tell which" >&2
    exit 2
fi
CUDA_VISIBLE_DEVICES=$(echo "${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus - 1)))}" | cut -d, -f1-"$gpus")
export CUDA_VISIBLE_DEVICES

# The limits on two GPUs, 15 + 25 + 240 + 50 + 30 + 60 s, and six times KILL_AFTER are 480 s.
step versions 15 "$PYTHON" - <<'END'
import importlib, platform, subprocess
query = ["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
print(subprocess.run(query, capture_output=True, text=True).stdout, end="")
print(subprocess.run(["nvidia-smi", "topo", "-p2p", "w"], capture_output=True, text=True).stdout)
print("Python", platform.python_version(), "on", platform.release())
for name in ("ep_lib", "numpy", "cupy", "torch", "cloudpickle", "ml_dtypes", "mpi4py"):
    try:
        print(name, getattr(importlib.import_module(name), "__version__", "(no version)"))
    except ImportError as error:
        print(name, "missing:", error)
from ep_lib.jit import nvrtc
print("NVRTC", nvrtc.version())
END
step doctor 25 "$PYTHON" -m ep_lib doctor
LINES_SHOWN=60 step tests 240 "$PYTHON" -m pytest -m gpu -q -p no:cacheprovider --durations=5
if [ "$gpus" -ge 2 ]; then
    step demo 50 "$PYTHON" -m ep_lib demo --backend cuda --json
    # With NVSHMEM's multicast off: on a shared host it can put GPUs of others out of service.
    LINES_SHOWN=40 step transports 30 env NVSHMEM_DISABLE_NVLS=1 sh -c "
        '$PYTHON' -m ep_lib bench p2p --backend cuda --transports p2p,nvshmem &&
        '$PYTHON' -m ep_lib bench put --backend cuda --transport p2p --bytes 64,4K &&
        '$PYTHON' -m ep_lib bench put --backend cuda --transport nvshmem --bytes 64,4K"
    for ranks in 2 4 8; do
        [ "$ranks" -le "$gpus" ] || break
        LINES_SHOWN=40 step "measure_$ranks" 60 \
            "$PYTHON" benchmarks/gpu_measure.py --ranks "$ranks" --json "$RESULTS/gpu_measure_$ranks.json"
    done
else
    row demo - "not run: needs 2 GPUs"
    row transports - "not run: needs 2 GPUs"
    row measure - "not run: needs 2 GPUs"
fi
echo "== $gpus of $count GPUs; logs in $RESULTS"
printf '%s' "$table"
exit $status
