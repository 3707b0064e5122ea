"""Executors for grading submissions and exploring schedules: threads of this machine, the processes of mpiexec, or the
workers of a Dask cluster.

Each is an executor of ``concurrent.futures`` that runs :func:`ep_lib.workshop.classroom.marking.work`; any other one
can be passed to :func:`ep_lib.workshop.classroom.marking.run`, or to :func:`ep_lib.check`. A worker needs the same
version of ep_lib and a compiler, but no files: a job contains the submission. Each worker applies walls and limits
itself.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.processes import stop_by
from ep_lib.require import installs
from ep_lib.workshop.grader.process.sandbox import stopping

HELP = "threads (of this machine), mpi (under mpiexec), or dask://HOST:PORT (a Dask scheduler)"
_PATIENCE = "10s"  # for a scheduler to answer


@contextmanager
def open_executor(name: str = "threads", jobs: int = 1) -> Iterator[tuple[Executor, int] | None]:
    """The executor called ``name``, and the number of submissions that it grades concurrently: ``jobs`` for threads.

    Under mpiexec rank 0 gets the executor. The others serve it within this call, and then get None. Raises
    ArgumentError for a name that is not in :data:`HELP`, and BackendUnavailable where a package is missing, no
    scheduler answers, or it has no workers.
    """
    if name == "threads":
        with ThreadPoolExecutor(max(1, jobs), initializer=stop_by, initargs=(stopping,)) as threads:
            yield threads, max(1, jobs)
    elif name == "mpi":
        with _mpi() as found:
            yield found
    elif name.startswith("dask://"):
        with _dask(name) as found:
            yield found
    else:
        raise ArgumentError(f"the executor is {name!r}; there are: {HELP}")


@contextmanager
def _mpi() -> Iterator[tuple[Executor, int] | None]:
    _require("mpi4py", "mpi", "mpi4py")
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    workers = MPI.COMM_WORLD.Get_size() - 1
    if workers < 1:
        raise BackendUnavailable(
            "--executor mpi needs at least two processes, one that hands out and others that work: "
            "mpiexec -n 5 ep-lib ..."
        )
    executor: Any
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        yield None if executor is None else (executor, workers)


@contextmanager
def _dask(name: str) -> Iterator[tuple[Executor, int]]:
    address = urlsplit(name)
    if not address.hostname or address.path not in ("", "/"):
        raise ArgumentError(f"the executor is {name!r}; a Dask scheduler is dask://HOST:PORT, as in dask://node1:8786")
    _require("distributed", "dask://", "distributed")
    distributed: Any = importlib.import_module("distributed")
    try:
        client: Any = distributed.Client(f"tcp://{address.netloc}", timeout=_PATIENCE)
    except OSError as error:
        raise BackendUnavailable(
            f"no Dask scheduler answers at {address.netloc} ({type(error).__name__}): start one by `dask scheduler`, "
            f"and workers by `dask worker tcp://{address.netloc}`"
        ) from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise BackendUnavailable(
                f"the Dask scheduler at {address.netloc} has no workers: start some, `dask worker tcp://{address.netloc}`"
            )
        yield client.get_executor(pure=False, retries=0), workers


def _require(module: str, executor: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise BackendUnavailable(f"--executor {executor} needs {package}: {installs('cluster')}, or {package} alone")
