"""Kernels of the library under compute-sanitizer, on small sizes: memcheck and racecheck.

    python benchmarks/gpu_sanitize.py [--ranks 2] [--tools memcheck,racecheck]

A tool's silence counts only if the tool reports a fault made on purpose. Exit status: 0 clean, 1 findings (or a tool
that does not see the fault), 3 without compute-sanitizer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_inputs
from gpu_inputs import Shape
from gpu_peers import free_port

import ep_lib

SOURCE = Path(__file__).resolve().with_name("gpu_sanitize.cu")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
KEPT = re.compile(r"========= +(Error|Warning|Invalid|Program hit|Race|Potential|ERROR|RACECHECK)|^Traceback|^\w+Error")
NOT_THERE = 3
TOKENS, HIDDEN = 24, 256
LINES_KEPT = 40
PLANTED = {"memcheck": "write_past_the_end", "racecheck": "race_in_shared_memory"}


def find_tool() -> str | None:
    """The path of compute-sanitizer, from the PATH or beside the toolkits under /usr/local."""
    patterns = ("cuda*/bin/compute-sanitizer", "cuda*/compute-sanitizer/compute-sanitizer")
    beside = [path for pattern in patterns for path in sorted(Path("/usr/local").glob(pattern), reverse=True)]
    wheels = [Path(folder) / "nvidia" / "cu13" / "bin" / "compute-sanitizer" for folder in sys.path]
    return shutil.which("compute-sanitizer") or next((str(p) for p in beside + wheels if p.exists()), None)


def judge(log: str, processes: int) -> tuple[bool, str]:
    """Whether a tool's log is clean, and why: at least ``processes`` processes must have given their summary."""
    counts = [int(a or b) for a, b in SUMMARY.findall(log)]
    if len(counts) < processes:
        return False, f"{len(counts)} summaries, expected {processes} or more: it did not watch every rank to the end"
    if any(counts):
        return False, f"{sum(counts)} findings"
    return True, f"clean: {len(counts)} processes, 0 findings"


def run_ranks(prefix: list[str], ranks: int, arguments: list[str], devices: str, limit: float) -> tuple[int, str]:
    """Exit status (the first not 0) and logs of this script's ``--program``: a process per rank under ``prefix``.

    Each rank is started as torchrun would, because a tool always sees a process that it starts itself.
    """
    command = [*prefix, sys.executable, str(Path(__file__).resolve()), "--program", *arguments]
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        crew = []
        for rank, log in enumerate(logs):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": devices}
            environment = {**os.environ, **world, **place}
            crew.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + limit
        statuses = []
        for process in crew:
            try:
                statuses.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                statuses.append(process.wait())
        for log in logs:
            log.seek(0)
        text = "\n".join(log.read() for log in logs)
    late = f"\nstopped after {limit:.0f} s" if time.monotonic() > deadline else ""
    return next((status for status in statuses if status), 0), text + late


def planted(rank: ep_lib.Rank, name: str) -> None:
    """One fault, in 256 bytes from CUDA itself: behind those of CuPy's pool there would be more of its memory."""
    elements = 64
    address = rank.xp.cuda.runtime.malloc(4 * elements)
    kernel = ep_lib.Kernel.from_file(SOURCE, name)
    kernel.launch(rank, 1, elements, address, elements, shared_bytes=4 * elements)
    rank.synchronize()


def program(rank: ep_lib.Rank) -> None:
    """What the tools watch: every operation of a Buffer once or twice, on few tokens, with each result checked."""
    import torch

    device = gpu_inputs.device_of(rank)
    if device == "cuda":
        torch.cuda.set_device(rank.rank)
    shape = Shape(rank.world_size, TOKENS, HIDDEN, 8 * rank.world_size, 4)
    idx = gpu_inputs.routing(shape, rank.rank, "random", device)
    weights = gpu_inputs.weights(shape, rank.rank, device)
    x, _ = gpu_inputs.rows(shape, rank.rank, 0, "bf16", device)
    copies = gpu_inputs.goes_to(shape, idx).sum(1, keepdim=True)
    arguments = {"num_experts": shape.experts, "top_k": shape.top_k, "hidden": HIDDEN, "max_tokens": TOKENS}
    low_latency = {"num_max_dispatch_tokens_per_rank": TOKENS, "num_low_latency_sms": 4}
    with ep_lib.Buffer(rank, **arguments, num_sms=4, **low_latency) as buffer:
        recv = buffer.dispatch(x, idx, weights)
        _require(torch.equal(buffer.dispatch(x, handle=recv.handle).x, recv.x), "the second dispatch")
        out = buffer.combine(recv.x, recv.handle)
        _require(torch.equal(out, (x.float() * copies).bfloat16()), "combine")
        fp8 = gpu_inputs.rows(shape, rank.rank, 0, "fp8", device)
        again = buffer.dispatch(fp8, idx, num_worst_tokens=shape.ranks * TOKENS)
        own = (again.src_rank == rank.rank) & (again.topk_idx >= 0).any(1)
        sent = fp8[0].view(torch.uint8)[again.src_token[own].long()]
        _require(torch.equal(again.x[0].view(torch.uint8)[own], sent), "dispatch of FP8 rows without counts")
        for use_fp8 in (True, False):
            rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, use_fp8=use_fp8)
        out, _, _ = buffer.low_latency_combine(rows, idx, torch.ones_like(weights), handle)
        rank.synchronize()
        _require(torch.equal(out, (x.float() * shape.top_k).bfloat16()), "low-latency combine")


def _require(right: bool, what: str) -> None:
    if not right:
        raise RuntimeError(f"{what} gives wrong rows")


def check(path: str, tool: str, ranks: int, devices: str, limit: float) -> tuple[bool, str]:
    """Whether a tool sees the fault on purpose and finds nothing else, and the text that says so."""
    prefix = [path, "--tool", tool, "--target-processes", "all", "--report-api-errors", "no", "--print-limit", "20"]
    began = time.monotonic()
    status, log = run_ranks(prefix, 1, ["--plant", PLANTED[tool]], devices, limit)
    clean, why = judge(log, 1)
    seen = not clean and why.endswith("findings")
    lines = [f"{tool}: the fault on purpose {'was seen' if seen else 'was NOT seen'} ({why}; exit status {status})"]
    if not seen:
        lines += ["| " + line for line in log.splitlines()[-15:]]
    status, log = run_ranks(prefix, ranks, [], devices, limit)
    clean, why = judge(log, ranks)
    lines.append(f"{tool}: {why}; exit status {status}; {time.monotonic() - began:.0f} s")
    if status != 0 or not clean:
        lines += ["| " + line for line in log.splitlines() if KEPT.search(line)][:LINES_KEPT]
        lines += ["| " + line for line in log.splitlines()[-15:]]
    return seen and clean and status == 0, "\n".join(lines)


def places(tools: int, ranks: int, devices: list[str]) -> list[str]:
    """The GPUs that each tool uses; each has its own if there are enough."""
    shift = ranks if len(devices) >= tools * ranks else 0
    return [",".join(devices[number * shift : number * shift + ranks]) for number in range(tools)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--limit", type=float, default=40, help="seconds for each run (default 40)")
    parser.add_argument("--program", action="store_true", help="be one rank of what the tools watch")
    parser.add_argument("--plant", choices=sorted(PLANTED.values()), help="with --program: only this fault")
    options = parser.parse_args()
    if options.program:
        with ep_lib.init(backend="cuda", heap_bytes=64 << 20) as rank:
            if options.plant:
                planted(rank, options.plant)
            else:
                program(rank)
        return 0
    path = find_tool()
    if path is None:
        print("compute-sanitizer not found (neither on the PATH nor under /usr/local/cuda*); nothing was checked")
        return NOT_THERE
    print(subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1])
    tools = options.tools.split(",")
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(options.ranks)))).split(",")
    chosen = places(len(tools), options.ranks, devices)
    at_once = len(tools) if len(set(chosen)) == len(tools) else 1
    with ThreadPoolExecutor(at_once) as pool:
        pairs = zip(tools, chosen, strict=True)
        jobs = [pool.submit(check, path, tool, options.ranks, where, options.limit) for tool, where in pairs]
        results = [job.result() for job in jobs]
    print("\n".join(words for _, words in results))
    return 0 if all(right for right, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
