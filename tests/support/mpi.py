"""mpiexec as the tests start it: the one that pip installed beside this Python, else the PATH's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ep_lib.commands.doctor.trials import find_program
from ep_lib.shared_memory import SHARED_MEMORY


def mpich_memory() -> set[Path]:
    """What has a name of MPICH's in shared memory now."""
    return set(SHARED_MEMORY.glob("mpich*"))


def mpiexec(ranks: int) -> list[str]:
    """The words that start ``ranks`` processes of this Python; skips the test where MPI is not installed."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py mpich")
    found = find_program("mpiexec")
    if found is None:
        pytest.skip("needs mpiexec: pip install mpich")
    return [found, "-n", str(ranks), sys.executable]
