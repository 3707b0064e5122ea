#!/bin/sh
# Everything that needs GPUs, in a few minutes: versions, the tests marked gpu, the demo, and a measurement.
#
#   sh benchmarks/gpu.sh [number of GPUs to use; default: all, at most 8]
#
# Runs from the source tree with the Python on the PATH (PYTHON=... names another). Logs and JSON go to $OUT, or to
# benchmarks/results/. Ends with the status of the worst step; a step that fails does not stop the others.
set -u
cd "$(dirname "$0")/.." || exit 1
PYTHON=${PYTHON:-python3}
RESULTS=${OUT:-benchmarks/results}
export PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$RESULTS"
status=0

# step NAME SECONDS COMMAND...: run with a time limit, keep the log, remember a failure
step() {
    name=$1 limit=$2
    shift 2
    echo "== $name"
    began=$(date +%s)
    timeout --signal=INT --kill-after=20 "$limit" "$@" >"$RESULTS/gpu_$name.log" 2>&1
    code=$?
    tail -n "${LINES_SHOWN:-25}" "$RESULTS/gpu_$name.log"
    echo "== $name: exit status $code after $(($(date +%s) - began)) s"
    [ $code -eq 0 ] || status=1
}

count=$(nvidia-smi -L 2>/dev/null | wc -l)
gpus=${1:-$((count < 8 ? count : 8))}
if [ "$gpus" -eq 0 ]; then
    echo "nvidia-smi lists no GPU on this machine" >&2
    exit 2
fi

step versions 60 "$PYTHON" - <<'END'
import importlib, platform, subprocess, sys
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
step doctor 60 "$PYTHON" -m ep_lib doctor
LINES_SHOWN=60 step tests 400 "$PYTHON" -m pytest -m gpu -q -p no:cacheprovider --durations=5
if [ "$gpus" -ge 2 ]; then
    ranks=2
    [ "$gpus" -ge 4 ] && ranks=4
    step demo 180 "$PYTHON" -m ep_lib demo --backend cuda --json
    for ranks in $(seq 2 2 "$ranks"); do
        step "measure_$ranks" 120 "$PYTHON" benchmarks/gpu_measure.py --ranks "$ranks" --json "$RESULTS/gpu_measure_$ranks.json"
    done
fi
exit $status
