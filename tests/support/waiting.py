"""Waiting for what another process does, as long as a busy machine may need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ep_lib.processes import OwnTime, descendants

ENOUGH = 120.0  # seconds after which a test gives up waiting
CPU_S = 10 * ENOUGH  # of processes together, their compilers among them: a cold cache takes a minute of it


def wait_until(holds: Callable[[], bool], seconds: float = ENOUGH) -> bool:
    """Whether it holds, at the latest when a test has waited so long."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def said_by(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """What each has printed, on both streams, when it has ended. They may compile for as long as a busy machine lets
    them. Raises TookTooLong where they do nothing for :data:`ENOUGH` seconds, or only run on."""
    own = OwnTime(lambda: [pid for process in processes for pid in (process.pid, *descendants(process.pid))])
    said = []
    for process in processes:
        while len(said) <= processes.index(process):
            try:
                said.append(process.communicate(timeout=1.0))
            except subprocess.TimeoutExpired:  # what it has said so far is kept
                own.require(cpu_s=CPU_S, idle_s=ENOUGH)
    return said


def run_ranks(program: Path, ranks: int, *words: str) -> None:
    """``program RANK RANKS WORDS...`` in so many processes, each of which ends by saying "done" and nothing else."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(ranks), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        said = said_by(processes)
    finally:
        for process in processes:
            process.kill()
    assert [out for out, _ in said] == ["done\n"] * ranks, said
