"""Kernels of the library under compute-sanitizer, on small sizes: memcheck and racecheck.

    python benchmarks/gpu_sanitize.py [--ranks 2] [--tools memcheck,racecheck]

Before a tool's silence counts, it must report a fault made on purpose. Exit status: 0 clean, 1 findings (or a tool that
does not see the fault), 3 where there is no compute-sanitizer.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import ep_lib

SOURCE = Path(__file__).resolve().with_name("gpu_sanitize.cu")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
KEPT = re.compile(r"========= +(Error|Warning|Invalid|Program hit|Race|Potential|ERROR|RACECHECK)|^Traceback|^\w+Error")
NOT_THERE = 3
LINES_KEPT = 40
PLANTED = {"memcheck": "write_past_the_end", "racecheck": "race_in_shared_memory"}


def find_tool() -> str | None:
    """The path of compute-sanitizer, from the PATH or beside the toolkits under /usr/local."""
    patterns = ("cuda*/bin/compute-sanitizer", "cuda*/compute-sanitizer/compute-sanitizer")
    beside = [path for pattern in patterns for path in sorted(Path("/usr/local").glob(pattern), reverse=True)]
    wheels = [Path(folder) / "nvidia" / "cu13" / "bin" / "compute-sanitizer" for folder in sys.path]
    return shutil.which("compute-sanitizer") or next((str(p) for p in beside + wheels if p.exists()), None)


def judge(log: str, processes: int) -> tuple[bool, str]:
    """Whether a tool's log is clean, and why: ``processes`` of them or more must have given their summary."""
    counts = [int(a or b) for a, b in SUMMARY.findall(log)]
    if len(counts) < processes:
        return False, f"{len(counts)} summaries, expected {processes} or more: it did not watch every rank to its end"
    if any(counts):
        return False, f"{sum(counts)} findings"
    return True, f"clean: {len(counts)} processes, 0 findings"


def run_tool(path: str, tool: str, arguments: list[str], limit: float) -> tuple[int, str]:
    """Exit status and log of this script's ``--program`` under a tool."""
    options = ["--tool", tool, "--target-processes", "all", "--report-api-errors", "no", "--print-limit", "20"]
    command = [path, *options, sys.executable, str(Path(__file__).resolve()), "--program", *arguments]
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
    except subprocess.TimeoutExpired as error:
        text = error.stdout or b""
        return 124, (text if isinstance(text, str) else text.decode(errors="replace")) + f"\nstopped after {limit} s"
    return done.returncode, done.stdout


def planted(rank: ep_lib.Rank, name: str) -> None:
    """One fault."""
    array = rank.empty(64, "int32")
    kernel = ep_lib.Kernel.from_file(SOURCE, name)
    kernel.launch(rank, 1, 64, array, *([64] if name == "write_past_the_end" else []))
    rank.synchronize()


def program(rank: ep_lib.Rank) -> None:
    """What is watched: every operation of a Buffer once or twice, on few tokens."""
    import torch

    torch.cuda.set_device(rank.rank)
    tokens, hidden, experts, top_k = 24, 256, 8 * rank.world_size, 4
    generator = torch.Generator(device="cuda").manual_seed(rank.rank)
    x = torch.randint(-8, 8, (tokens, hidden), generator=generator, device="cuda").bfloat16()
    idx = torch.rand(tokens, experts, generator=generator, device="cuda").topk(top_k).indices
    weights = torch.rand(tokens, top_k, generator=generator, device="cuda")
    goes = torch.zeros(tokens, rank.world_size, dtype=torch.bool, device="cuda")
    copies = goes.scatter_(1, idx // 8, True).sum(1, keepdim=True)
    shape = {"num_experts": experts, "top_k": top_k, "hidden": hidden, "max_tokens": tokens}
    with ep_lib.Buffer(rank, **shape, num_sms=4) as buffer:
        recv = buffer.dispatch(x, idx, weights)
        again = buffer.dispatch(x, handle=recv.handle)
        if not torch.equal(recv.x, again.x):
            raise RuntimeError("the second dispatch differs from the first")
        out = buffer.combine(recv.x, recv.handle)
        if not torch.equal(out, (x.float() * copies).bfloat16()):
            raise RuntimeError("combine differs")


def check(path: str, tool: str, ranks: int, limit: float) -> bool:
    """One line about a tool, and what it found."""
    began = time.monotonic()
    _, log = run_tool(path, tool, ["--ranks", "1", "--plant", PLANTED[tool]], limit)
    clean, why = judge(log, 1)
    print(f"{tool}: the fault on purpose {'was NOT seen' if clean else 'was seen'} ({why})", flush=True)
    seen = not clean and why.endswith("findings")
    status, log = run_tool(path, tool, ["--ranks", str(ranks)], limit)
    clean, why = judge(log, ranks)
    print(f"{tool}: {why}; exit status {status}; {time.monotonic() - began:.0f} s", flush=True)
    if status != 0 or not clean:
        print("\n".join([line for line in log.splitlines() if KEPT.search(line)][:LINES_KEPT]))
        print("...\n" + "\n".join(log.splitlines()[-15:]), flush=True)
    return seen and clean and status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--limit", type=float, default=40, help="seconds for each run (default 40)")
    parser.add_argument("--program", action="store_true", help="be what the tools watch")
    parser.add_argument("--plant", choices=sorted(PLANTED.values()), help="with --program: only this fault")
    options = parser.parse_args()
    if options.program:
        what, args = (planted, (options.plant,)) if options.plant else (program, ())
        ep_lib.spawn(what, ranks=options.ranks, backend="cuda", args=args, heap_bytes=64 << 20)
        return 0
    path = find_tool()
    if path is None:
        print("compute-sanitizer: not there (neither on the PATH nor under /usr/local/cuda*); nothing was checked")
        return NOT_THERE
    print(subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1])
    return 0 if all([check(path, tool, options.ranks, options.limit) for tool in options.tools.split(",")]) else 1


if __name__ == "__main__":
    sys.exit(main())
