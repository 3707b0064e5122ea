"""The grader's child: a supervisor, and below it the process that runs a submission within limits and walls.

It is a fresh fork of :mod:`ep_lib.workshop.grader.process.zygote`, which has imported the library and run nothing. It
holds no expected values: after setting limits and walls it compiles the learner's piece, runs scenarios on the emulator
and sends the arrays back.

The supervisor runs no code of the submission. All processes that the submission starts, in any session and environment,
stay its descendants and end with it; it ends when the worker or the grader ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ep_lib import processes
from ep_lib.workshop.grader.process import walls
from ep_lib.workshop.grader.process.guest import Nursery, Walls, say_in_a_line
from ep_lib.workshop.grader.process.runner import Runner
from ep_lib.workshop.grader.scenario import answer_each


def supervise(control: int, keep: Sequence[int]) -> None:
    """Forks; returns in the worker. The supervisor stays here until the worker ends, or the other end of ``control`` is
    closed.

    Then it kills the worker's remaining processes, and ends with the worker's status. ``keep`` are the worker's own
    descriptors.
    """
    walls.become_subreaper()
    worker = os.fork()
    if worker == 0:
        os.close(control)
        return
    for fd in (0, 1, 2, *keep):
        os.close(fd)
    ended = os.pidfd_open(worker)
    signal.signal(signal.SIGCHLD, lambda *_: _wait_for_others(worker))
    ready, _, _ = select.select([ended, control], [], [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if ended not in ready:
        os.kill(worker, signal.SIGKILL)
    status = os.waitpid(worker, 0)[1]
    _kill_the_rest()
    processes.end_like(status)


def _wait_for_others(worker: int) -> None:
    """Reaps ended orphans, which count as processes until then."""
    while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid != worker:
        os.waitpid(found.si_pid, 0)


def _kill_the_rest() -> None:
    """Kills this process's descendants, and waits for them, until it has none."""
    while True:
        for pid in processes.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def limit_self(*, cpu_s: int, data_bytes: int, file_bytes: int, processes: int) -> None:
    """Sets hard limits for this process and its children. The limit on processes is per user, and does not apply to
    root."""
    wanted = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_DATA: data_bytes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: processes,
    }
    for which, value in wanted.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    with contextlib.suppress(OSError):  # some containers forbid this; the parent watches memory anyway
        # If memory runs out nevertheless, this process is killed first.
        Path("/proc/self/oom_score_adj").write_text("1000")


def begin(settings: Mapping[str, Any], control: int, reply_fd: int) -> Nursery | None:
    """Sets up the process for a submission: the supervisor above it, limits, walls. Returns the nursery for processes
    of Python pieces, if there are any."""
    supervise(control, [reply_fd])
    limit_self(**settings["limits"])
    nursery = Nursery() if settings["guests"] else None
    walls.confine(**settings["walls"])
    return nursery


def serve(
    requests: BinaryIO,
    reply_fd: int,
    mine: Path,
    given: Sequence[Path] = (),
    nursery: Nursery | None = None,
    around: Walls | None = None,
) -> None:
    """Answers requests until the parent closes the pipe. ``given``: as for a Runner; ``around``: this process's walls,
    which are set up again around a Python piece."""
    sys.unraisablehook = say_in_a_line
    if nursery is not None:
        nursery.start(mine, around, (requests.fileno(), reply_fd))
    answer_each(requests, reply_fd, Runner(mine, *given, nursery=nursery).answer)
