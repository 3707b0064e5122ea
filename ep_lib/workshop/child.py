"""The grader's child: a supervisor, and below it the process that runs a submission within limits and walls.

A fresh fork of :mod:`ep_lib.workshop.zygote`, which has imported the library and run nothing. It holds no expected
values: it compiles the learner's piece, runs scenarios on the emulator and sends the arrays back, all of it after the
limits and walls are set.

The supervisor runs nothing of the submission. Whatever the submission starts, in whatever session and with whatever
environment, stays its descendant and ends with it; and it ends when the worker does, or when the grader is gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ep_lib import processes
from ep_lib.workshop import walls
from ep_lib.workshop.guest import Nursery, Walls, say_in_a_line
from ep_lib.workshop.runner import Runner
from ep_lib.workshop.scenario import answer_each


def supervise(control: int, keep: Sequence[int]) -> None:
    """Forks; returns in the worker. The supervisor stays here until the worker ends or nobody holds ``control``'s end.

    Then it kills all that the worker has left, and ends as the worker did. ``keep`` are the worker's own descriptors.
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
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # it was the worker's fault, and is told by this process's status
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _wait_for_others(worker: int) -> None:
    """What has ended and whose parent has ended before it; until then it counts as a process."""
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
    """Sets hard limits for this process and all that it starts. Processes count per user, and not at all for root."""
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
    """What comes before the submission: the supervisor above it, limits, walls. Returns where the processes of pieces
    in Python come from, if there are any."""
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
    """Answers requests until the parent closes the pipe. ``given``: as for a Runner, ``around``: this process's walls,
    which come around a piece in Python once more."""
    sys.unraisablehook = say_in_a_line
    if nursery is not None:
        nursery.start(mine, around, (requests.fileno(), reply_fd))
    answer_each(requests, reply_fd, Runner(mine, *given, nursery=nursery).answer)
