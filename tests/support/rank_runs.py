"""Ranks that are processes: started as srun does it, and what they leave."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ep_lib.emulator.shared_heaps import _PREFIX
from ep_lib.runtime.rank_process import RemoteError, decode
from ep_lib.shared_memory import SHARED_MEMORY
from support.waiting import said_by, wait_until

PROGRAM = Path(__file__).parent / "rank_programs.py"


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM"))}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "EP_LIB_BACKEND": "emulator"}


def start(name: str, folder: Path, ranks: int, **options: Any) -> list[subprocess.Popen[str]]:
    """As srun does it: nobody ends the other ranks when one dies, and nothing heavy is imported."""
    step = {"SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_STEP_ID": "0", "SLURM_JOB_ID": f"{os.getpid()}{time.time_ns()}"}
    numbered = [{**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(ranks)]
    return start_in(numbered, name, folder, **options)


def start_in(
    environments: list[dict[str, str]], name: str, folder: Path, **options: Any
) -> list[subprocess.Popen[str]]:
    """A rank for each of the environments, which say who it is."""
    return [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), name, str(folder), json.dumps(options)],
            env={**environment(), **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in environments
    ]


def start_replacements(folder: Path, dead: Sequence[int]) -> list[subprocess.Popen[str]]:
    """A process in the place of each of the ranks ``dead``, by the invitation in that folder."""
    options = [{"replaces": rank, "arguments": {"dead": dead}} for rank in dead]
    return [each for own in options for each in start_in([{}], "replaces", folder, **own)]


def no_heap_is_left() -> bool:
    """Whether the names of all heaps in shared memory go: those of programs that other tests run now go in a moment."""
    left = list(SHARED_MEMORY.glob(f"{_PREFIX}*"))
    return wait_until(lambda: not any(path.exists() for path in left))


def finish(processes: list[subprocess.Popen[str]], folder: Path) -> list[Any]:
    """What each rank left; None for one that was killed."""
    said = [err for _, err in said_by(processes)]
    left = [folder / f"{rank}" for rank in range(len(processes))]
    assert all(file.exists() or process.returncode < 0 for file, process in zip(left, processes, strict=True)), said
    assert no_heap_is_left()
    return [read(file) if file.exists() else None for file in left]


def read(file: Path) -> Any:
    """What a rank's program returned, or the error that it raised."""
    left = pickle.loads(file.read_bytes())
    return decode(left, int(file.name)) if isinstance(left, RemoteError) else left


def run(name: str, folder: Path, ranks: int, **options: Any) -> list[Any]:
    return finish(start(name, folder, ranks, **options), folder)
