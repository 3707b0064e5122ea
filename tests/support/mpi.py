"""mpiexec as the tests start it: the one that pip installed beside this Python, else the PATH's."""

from __future__ import annotations

import sys

import pytest

from ep_lib.commands.doctor.trials import find_program


def mpiexec(ranks: int) -> list[str]:
    """The words that start ``ranks`` processes of this Python; skips the test where MPI is not installed."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py mpich")
    found = find_program("mpiexec")
    if found is None:
        pytest.skip("needs mpiexec: pip install mpich")
    return [found, "-n", str(ranks), sys.executable]
