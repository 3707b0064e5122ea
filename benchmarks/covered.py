"""What tests run of ep_lib: lines and branches of its Python, lines of the emulator's runtime in C++ (by g++ and gcov).

    python benchmarks/covered.py                                     # the whole suite; `make coverage` does it
    python benchmarks/covered.py --json before.json tests/device/test_ring.py -k signal
    python benchmarks/covered.py --against before.json tests/device/test_ring.py -k signal

What is not an option of this script goes to pytest. ``--json`` keeps the figures of each file, ``--against`` names the
files of which less is run than was then. Kernels and the runtime are compiled anew, into build/coverage. A process that
ends by a signal or with ``_exit`` does not tell what of the C++ it has run, so the figures are lower bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path.cwd()
FOLDER = ROOT / "build" / "coverage"

# g++ that makes the runtime, and nothing else, count its lines. The counters' files have the names of the sources.
COMPILER = """#!/bin/sh
source= ; target= ; before=
for word; do
    case $word in */emulator/runtime/*.cpp) source=$(basename "$word") ;; esac
    [ "$before" != -o ] || target=$word
    before=$word
done
if [ -n "$source" ]; then
    exec g++ "$@" --coverage -fprofile-update=atomic -dumpdir "{counts}/" -dumpbase "$source" -dumpbase-ext .cpp
fi
case $target in */libepemu-*.so) exec g++ "$@" --coverage ;; esac
exec g++ "$@"
"""
SETTINGS = """
[run]
branch = True
parallel = True
source = {package}
data_file = {data}
concurrency = multiprocessing,thread
patch = subprocess
sigterm = True
"""
KERNEL = "from ep_lib import Kernel; Kernel.from_source('__global__ void k() {}', 'k').compile()"
Figures = dict[str, list[int]]  # by file: what is run, and of how many


def run_tests(words: list[str]) -> int:
    """The tests, counted from a cold cache; returns pytest's exit status."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in ("counts", "python", "cache"):
        (FOLDER / name).mkdir(mode=0o700, parents=True)
    compiler, settings = FOLDER / "g++", FOLDER / "settings"
    compiler.write_text(COMPILER.format(counts=FOLDER / "counts"))
    compiler.chmod(0o755)
    settings.write_text(SETTINGS.format(package=ROOT / "ep_lib", data=FOLDER / "python" / "data"))
    own = {"EP_LIB_CXX": str(compiler), "EP_LIB_CACHE_DIR": str(FOLDER / "cache"), "GCOV_ERROR_FILE": os.devnull}
    environment = {**os.environ, **own, "COVERAGE_RCFILE": str(settings), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", KERNEL], check=True, env=environment)
    coverage = [sys.executable, "-m", "coverage"]
    status = subprocess.run([*coverage, "run", "-m", "pytest", *words], env=environment, check=False).returncode
    subprocess.run([*coverage, "combine", "--quiet"], env=environment, check=True)
    subprocess.run([*coverage, "json", "--quiet", "-o", str(FOLDER / "python.json")], env=environment, check=True)
    return status


def of_python() -> tuple[Figures, Figures]:
    """Lines and branches."""
    lines, branches = {}, {}
    for name, file in json.loads((FOLDER / "python.json").read_text())["files"].items():
        found = file["summary"]
        lines[name] = [found["covered_lines"], found["num_statements"]]
        branches[name] = [found["covered_branches"], found["num_branches"]]
    return lines, branches


def of_runtime() -> Figures:
    """Lines of the runtime's sources and headers: those of a header that one source runs are run."""
    runs: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    counts = sorted((FOLDER / "counts").glob("*.gcda"))
    command = ["gcov", "--json-format", "--stdout", *map(str, counts)]
    for text in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        for file in json.loads(text)["files"]:
            if "emulator/runtime/" in file["file"]:
                for line in file["lines"]:
                    runs[file["file"]][line["line_number"]] += line["count"]
    return {name: [sum(count > 0 for count in lines.values()), len(lines)] for name, lines in sorted(runs.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="keep the figures of each file there")
    parser.add_argument("--against", type=Path, help="figures that --json has kept: name files with less")
    options, words = parser.parse_known_args()
    status = run_tests(words)
    lines, branches = of_python()
    figures = {"lines of Python": lines, "branches of Python": branches, "lines of the C++ runtime": of_runtime()}
    for what, files in figures.items():
        run, all_of = (sum(column) for column in zip(*files.values(), strict=True))
        print(f"{what:<26}{run:>7} of {all_of:>6}  {run / all_of:6.1%}")
    if options.against is not None:
        for what, files in json.loads(options.against.read_text()).items():
            for name, (then, all_then) in files.items():
                now, all_now = figures[what].get(name, [0, 0])
                if all_then - then < all_now - now:
                    print(f"{what}: {name} has {all_now - now} that no test runs, and had {all_then - then}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    return status


if __name__ == "__main__":
    sys.exit(main())
