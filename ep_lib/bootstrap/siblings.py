"""Which ranks of this host have ended before the ranks could meet: the launcher's children show it.

A launcher starts its ranks of a host together, each with its number in the environment. One whose process is not among
the launcher's children any more will never come. Only the standard library is used: mpi.py runs this file by itself.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 10.0  # a rank that was absent for so long does not start late: launchers start all of a host at a time
LOOK_S = 0.5  # between two looks

# What a launcher sets: a rank's number among those of its host, how many they are, and what no person sets by hand.
_VARIABLES = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK"),
    ("SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"),  # ep_lib's own bootstrap there is for one node
)


class Siblings(NamedTuple):
    """The ranks of this host: their launcher's process, the variable with their numbers, their number."""

    launcher: int
    variable: str
    size: int


def siblings_of(pid: int) -> Siblings | None:
    """Of a rank's process; None where /proc does not say it, or where no launcher has started it."""
    own = _environment(pid)
    for variable, size, proof in _VARIABLES:
        if proof in own and own.get(variable, "").isdigit() and own.get(size, "").isdigit():
            launcher = _parent(pid)
            with contextlib.suppress(PermissionError):  # it is root's
                while variable in _environment(
                    launcher
                ):  # a script that the launcher started, and that started the rank
                    launcher = _parent(launcher)
            found = Siblings(launcher, variable, int(own[size]))
            return found if int(own[variable]) not in absent(found) else None
    return None


def absent(siblings: Siblings) -> list[int]:
    """The ranks of this host, by their numbers among those, that have no process now; none if that cannot be known."""
    present = set()
    try:
        for task in Path(f"/proc/{siblings.launcher}/task").iterdir():
            for child in (task / "children").read_text().split():
                present.add(_environment(int(child)).get(siblings.variable, ""))
    except OSError:  # the launcher has ended; what it has started is another user's
        return []
    return [number for number in range(siblings.size) if str(number) not in present]


def _environment(pid: int) -> dict[str, str]:
    """What a process was started with; nothing of one that has ended. Raises PermissionError."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
