"""``ep_lib.spawn(backend="cuda")``: one process per rank, watched by this one until all have ended.

Fresh interpreters instead of multiprocessing's ``spawn``: that one imports the caller's script again, so a script
without ``if __name__ == "__main__"`` would start itself over and over. ``main`` travels by value, so the script is
not needed, and the same two lines work in a notebook, a script and on the emulator.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, dumps, loads, rank_list
from ep_lib.bootstrap.hub import Hub
from ep_lib.errors import BackendUnavailable, KernelTimeout, PeerTimeout, RankFailed
from ep_lib.processes import Guard, Identity
from ep_lib.runtime.rank_process import Job, MakeRank, Outcome, decode, make_cuda_rank, socket_pair

_POLL_SECONDS = 0.1  # a process that dies silently is noticed after this
_ROOT_CAUSE_SECONDS = 1.0  # after "rank 2 is gone" on rank 0, this long for rank 2 to say why
_END_SECONDS = 3.0  # from SIGTERM to SIGKILL

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from ep_lib.runtime.rank_process import run; run(int(sys.argv[1]), int(sys.argv[2]))"
)


def spawn_processes(
    main: Callable[..., Any],
    ranks: int,
    args: Sequence[Any] = (),
    *,
    heap_bytes: int | None = None,
    timeout: float | None = None,
    total_timeout: float | None = None,
    transport: str = "auto",
    make_rank: MakeRank | None = None,
    gpus: int | None = None,
) -> list[Any]:
    """Call ``main(rank, *args)`` in ``ranks`` processes and return the results in rank order.

    ``heap_bytes`` and ``timeout`` (seconds that a rank waits for its kernels) go to the backend; ``total_timeout``
    (seconds, None: no limit) bounds the whole run. ``make_rank`` makes the object that main gets: by default a Rank on
    a GPU, with this ``transport``. ``gpus``: the ranks share so many GPUs.

    Raises the exception of the rank that failed first, its type kept and its traceback in a note; RankFailed when a
    process was killed; KernelTimeout after ``total_timeout``. All processes have ended when this returns or raises.
    """
    if make_rank is None:
        from ep_lib.cuda.devices import unusable_reason

        if (reason := unusable_reason(gpus or ranks)) is not None:  # before any process starts; ranks check the rest
            raise BackendUnavailable(f'{reason}. backend="emulator" runs the same program without a GPU.')
        make_rank = functools.partial(make_cuda_rank, transport=transport, gpus=gpus)
    call = dumps((make_rank, main, tuple(args)))
    with contextlib.ExitStack() as stack:
        environment = None
        if gpus is not None:
            from ep_lib.cuda import mps

            environment = stack.enter_context(mps.service())
        crew = _Crew(ranks, environment)
        stack.callback(crew.end)
        for rank in range(ranks):
            crew.start(Job(rank, ranks, heap_bytes, timeout, list(sys.argv), call))
        return crew.collect(total_timeout)


class _Crew:
    """The processes of one spawn."""

    def __init__(self, ranks: int, environment: dict[str, str] | None = None) -> None:
        self._environment = environment  # None: this process's
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: list[Connection] = []
        self._guard = Guard()
        pairs = [socket_pair() for _ in range(ranks)]
        self._hub_ends = [theirs for _, theirs in pairs]
        self._hub = Hub({rank: ours for rank, (ours, _) in enumerate(pairs)})
        self._results: dict[int, Any] = {}
        self._failures: list[tuple[Exception, bool]] = []  # in the order of arrival; True: surely a cause

    def start(self, job: Job) -> None:
        control, theirs = socket_pair()
        hub_end = self._hub_ends[job.rank]
        try:
            process = self._guard.start(
                [sys.executable, "-P", "-u", "-c", _START, str(theirs), str(hub_end), json.dumps(sys.path)],
                pass_fds=(theirs, hub_end),
                env=self._environment,
                process_group=0,  # Ctrl-C in a terminal is for the parent, which ends them all
            )
        finally:
            os.close(theirs)
            os.close(hub_end)
            self._hub_ends[job.rank] = -1
        self._processes.append(process)
        self._hub.watch(job.rank, Identity.of(process.pid), DEFAULT_TIMEOUT if job.timeout is None else job.timeout)
        self._controls.append(control)
        with contextlib.suppress(OSError):  # it died at once: collect() finds out how
            control.send_bytes(dumps(job))

    def collect(self, total_timeout: float | None) -> list[Any]:
        running = set(range(len(self._processes)))
        deadline = None if total_timeout is None else time.monotonic() + total_timeout
        give_up = float("inf")  # when to stop waiting for the root cause of a failure
        while running and time.monotonic() < give_up:
            if deadline is not None and time.monotonic() > deadline:
                raise KernelTimeout(
                    f"{rank_list(running)} of {len(self._processes)} did not finish within {total_timeout:g} s; ended"
                )
            # A process that is dead now has sent all that it will send: look before reading.
            dead = {rank for rank in running if self._processes[rank].poll() is not None}
            by_connection = {self._controls[rank]: rank for rank in running}
            for ready in wait(list(by_connection), 0.0 if dead else _POLL_SECONDS):
                rank = by_connection[ready]  # type: ignore[index]
                if self._receive(rank):
                    running.discard(rank)
            for rank in dead & running:
                self._fail(rank, self._obituary(rank), is_cause=True)
                running.discard(rank)
            if self._failures and give_up == float("inf"):
                give_up = time.monotonic() + _ROOT_CAUSE_SECONDS
            if any(is_cause for _, is_cause in self._failures):
                break
        if self._failures:
            causes = [error for error, is_cause in self._failures if is_cause]
            raise causes[0] if causes else self._failures[0][0]
        return [self._results[rank] for rank in range(len(self._processes))]

    def _receive(self, rank: int) -> bool:
        """Read what a rank sent; False where its connection ended, which means that the process is ending."""
        try:
            outcome: Outcome = loads(self._controls[rank].recv_bytes())
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[rank].wait(_POLL_SECONDS)
            return False
        if outcome.error is not None:
            error = decode(outcome.error, rank)
            # These two may only report another rank's failure, and that rank's own error is still to come.
            self._fail(rank, error, is_cause=not isinstance(error, RankFailed | PeerTimeout))
        else:
            assert outcome.result is not None
            self._results[rank] = loads(outcome.result)
        return True

    def _fail(self, rank: int, error: Exception, *, is_cause: bool) -> None:
        self._failures.append((error, is_cause))
        self._hub.rank_ended(rank, f"{type(error).__name__}: {error}")

    def _obituary(self, rank: int) -> RankFailed:
        code = self._processes[rank].returncode
        if code >= 0:
            how = f"ended with exit code {code} before main returned"
        else:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
            how = f"was killed by {name}"
            if name == "SIGKILL":
                how += " (if it was not you: the system does that when memory runs out)"
        return RankFailed(f"rank {rank}'s process {how}", rank=rank)

    def end(self) -> None:
        """End all running processes at once; none stays behind, even after a second Ctrl-C."""
        try:
            for rank, process in enumerate(self._processes):
                if rank not in self._results:  # one with a result only has to exit, in its own time
                    process.terminate()
            deadline = time.monotonic() + _END_SECONDS
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._processes:
                process.kill()  # does nothing to those that have ended
                process.wait()
            self._guard.done()
            self._hub.close()
            for control in self._controls:
                control.close()
            for descriptor in self._hub_ends:
                if descriptor >= 0:
                    os.close(descriptor)
