"""Finds ranks of this host that have ended before the ranks could meet, among the launcher's children.

A launcher starts its ranks of a host together, each with its number in the environment. A rank whose process is no
longer among the launcher's children will never come. This file uses only the standard library: mpi.py runs it by
itself.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 10.0  # a rank absent for so long is not just late: launchers start all ranks of a host at once
LOOK_S = 0.5  # between two checks

# A launcher's variables: a rank's number among those of its host, their number, and a variable that users do not set by
# hand.
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
    """The siblings of a rank's process; None if /proc does not show them, or no launcher has started it."""
    own = _environment(pid)
    for variable, size, proof in _VARIABLES:
        if proof in own and own.get(variable, "").isdigit() and own.get(size, "").isdigit():
            launcher = _parent(pid)
            with contextlib.suppress(PermissionError):  # it is root's
                while variable in _environment(launcher):  # a script of the launcher's that started the rank
                    launcher = _parent(launcher)
            found = Siblings(launcher, variable, int(own[size]))
            return found if int(own[variable]) not in absent(found) else None
    return None


def absent(siblings: Siblings) -> list[int]:
    """The ranks of this host, by local number, that have no process now; empty if unknown."""
    present = set()
    try:
        for task in Path(f"/proc/{siblings.launcher}/task").iterdir():
            for child in (task / "children").read_text().split():
                present.add(_environment(int(child)).get(siblings.variable, ""))
    except OSError:  # the launcher has ended; or its children belong to another user
        return []
    return [number for number in range(siblings.size) if str(number) not in present]


def _environment(pid: int) -> dict[str, str]:
    """The environment of a process at its start; empty if it has ended. Raises PermissionError."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
