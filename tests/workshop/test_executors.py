"""Grading by executors: threads, the processes of mpiexec, a Dask cluster on this machine, and what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support import grading_jobs
from support.mpi import mpiexec

from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.workshop.classroom import executors, marking


def points(name: str, jobs_at_a_time: int = 2) -> dict[str, int]:
    with executors.open_executor(name, jobs_at_a_time) as found:
        assert found is not None
        executor, workers = found
        assert workers == jobs_at_a_time
        results = marking.run(grading_jobs.jobs(), executor, workers)
        return {result.job.learner: result.record["points"] for result in results}


@pytest.mark.extended
@pytest.mark.slow
def test_processes_of_mpiexec_give_the_same_points() -> None:
    command = [*mpiexec(3), grading_jobs.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2, grading_jobs.RIGHT]


@pytest.fixture
def scheduler() -> Iterator[str]:
    """The address of a Dask cluster of this machine, with two workers, on loopback alone."""
    distributed = pytest.importorskip("distributed", reason="needs Dask: pip install distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address.removeprefix("tcp://")


@pytest.mark.slow
def test_workers_of_dask_give_the_same_points(scheduler: str) -> None:
    assert points(f"dask://{scheduler}") == grading_jobs.RIGHT


def test_threads_of_this_machine() -> None:
    with executors.open_executor("threads", 0) as found:
        assert found is not None and found[1] == 1
        results = list(marking.run(grading_jobs.jobs(), *found, lambda each: marking.Result(each, {"points": 3})))
    assert [result.record["points"] for result in results] == [3] * len(grading_jobs.LEARNERS)


def test_names_and_packages_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="'slurm'; there are: threads"), executors.open_executor("slurm"):
        pass
    with pytest.raises(ArgumentError, match="is dask://HOST:PORT"), executors.open_executor("dask:///x"):
        pass
    monkeypatch.setattr(executors.importlib.util, "find_spec", lambda name: None)
    for name, package in (("mpi", "mpi4py"), ("dask://127.0.0.1:8786", "distributed")):
        with pytest.raises(BackendUnavailable, match=f"needs {package}: pip install"), executors.open_executor(name):
            pass


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs Dask: pip install distributed")
    monkeypatch.setattr(executors, "_PATIENCE", "100ms")
    with (
        pytest.raises(BackendUnavailable, match="no Dask scheduler answers"),
        executors.open_executor("dask://127.0.0.1:1"),
    ):
        pass


def test_mpi_outside_of_mpiexec_says_how_to_start_it() -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install mpi4py mpich")
    program = "from ep_lib.workshop.classroom.executors import open_executor\nwith open_executor('mpi'): pass"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "mpiexec -n 5 ep-lib ..." in done.stderr
