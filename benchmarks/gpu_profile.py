"""What GPUs do in notebook 06's dispatch, by the kernel's own clocks: ``python benchmarks/gpu_profile.py --json FILE``.

Rung 4 of tutorial_kernels/06_dispatch.cu, with the ladder's tokens, on two ranks. Of several rounds the quickest is
kept: in most others a rank waits for the launch of the other one (18 rounds on two H200: 45 to 2,652 us). ``marks`` of
the JSON: [rank, block, warp, what, nanoseconds], where what is "token" (the warp begins one), "sent" (its last one has
left), "signalled" and "waited" (of the last block). GPUs have a clock each, so a rank's nanoseconds count from its own
first mark. ``recorded_dispatch`` of lessons/dispatch_combine.py makes a timeline of it.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import gpu_machine
import numpy as np
from gpu_clock import watch_of

import ep_lib
from ep_lib.workshop.course.ladders import Memory
from ep_lib.workshop.course.ladders.exchange import Exchange, arrivals
from ep_lib.workshop.lessons.dispatch_combine import PROFILED

SOURCE = Path(__file__).resolve().with_suffix(".cu")
RUNG = "dispatch"
ROUNDS, WARM_UP = 21, 3
WHAT = ("token", "sent", "signalled", "waited")  # Mark of gpu_profile.cu
Marks = list[tuple[int, int, int, str, int]]


def marks_of(rank: int, profile: Any) -> Marks:
    """The marks of a rank, in the order of time, from its first one on. ``profile``: uint64 [warps, 1 + most marks]."""
    warps_of_a_block = PROFILED.threads // 32
    found = [
        (int(mark) // 4, warp, WHAT[int(mark) % 4])
        for warp, (number, *marks) in enumerate(profile)
        for mark in marks[: int(number)]
    ]
    begin = min(ns for ns, _, _ in found)
    return [(rank, *divmod(warp, warps_of_a_block), what, ns - begin) for ns, warp, what in sorted(found)]


def main(rank: ep_lib.Rank) -> tuple[list[Marks], dict[str, Any]]:
    """The marks of each round, and the machine."""
    memory, watch = Memory(rank), watch_of(rank)
    exchange = Exchange(memory, SOURCE, PROFILED)
    kernel = ep_lib.Kernel.from_file(SOURCE, RUNG)
    rounds = []
    for _ in range(ROUNDS if rank.backend == "cuda" else 1):
        profile = kernel.get_global(rank, "profile", np.uint64)
        profile[...] = 0
        memory.reset()
        watch.time(RUNG, lambda: exchange.dispatch(RUNG))
        rank.synchronize()
        rounds.append(marks_of(rank.rank, rank.to_host(profile).reshape(64, -1)))
    np.testing.assert_array_equal(exchange.received()["x"], arrivals(PROFILED)[rank.rank].x)
    rank.barrier()
    return rounds, gpu_machine.machine(rank) if rank.backend == "cuda" else {}


def profile(backend: str) -> dict[str, Any]:
    """The JSON of a run."""
    found = ep_lib.spawn(main, PROFILED.ranks, backend)
    rounds = [[mark for marks in of_ranks for mark in marks] for of_ranks in zip(*(r for r, _ in found), strict=True)]
    rounds = sorted(rounds[WARM_UP:] or rounds, key=lambda marks: max(ns for *_, ns in marks))
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": gpu_machine.git_commit(),
        "backend": backend,
        "machine": found[0][1],
        "rounds_us": [max(ns for *_, ns in marks) / 1e3 for marks in rounds],
        "marks": rounds[0],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--json", type=Path, help="where to write it; without: a line of what it was")
    options = parser.parse_args()
    report = profile(options.backend)
    times = report["rounds_us"]
    print(
        f"{len(times)} rounds: {times[0]:.2f} to {times[-1]:.2f} us; kept: the quickest, {len(report['marks'])} marks"
    )
    if options.json:
        options.json.write_text(json.dumps(report) + "\n")
