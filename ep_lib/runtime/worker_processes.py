"""An executor of processes on this machine, for work that threads cannot do in parallel.

Fresh interpreters, for the reasons that spawn_cuda.py gives. They end with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from ep_lib.bootstrap.base import dumps, loads
from ep_lib.errors import BackendUnavailable
from ep_lib.processes import Guard, Identity, end_group, guarded, is_stopped
from ep_lib.runtime.rank_process import socket_pair

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from ep_lib.runtime.worker_processes import serve; serve(int(sys.argv[1]))"
)


class Workers(Executor):
    def __init__(self, processes: list[tuple[subprocess.Popen[bytes], Connection]]) -> None:
        self._free: queue.SimpleQueue[tuple[subprocess.Popen[bytes], Connection]] = queue.SimpleQueue()
        self._pids = [process.pid for process, _ in processes]
        for process in processes:
            self._free.put(process)
        self._threads = ThreadPoolExecutor(len(processes), thread_name_prefix="ep_lib-worker")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._call, dumps((fn, args, kwargs)))

    def _call(self, call: bytes) -> Any:
        process, connection = self._free.get()
        try:
            connection.send_bytes(call)
            answer = connection.recv_bytes()
        except (OSError, EOFError):
            raise BackendUnavailable(
                f"a worker process ended before its answer (exit code {process.wait()}): the program ended it, or the "
                f"machine has no memory for so many; use fewer jobs"
            ) from None
        finally:
            self._free.put((process, connection))
        return loads(answer)

    def stopped(self) -> list[int]:
        """The processes that a signal has stopped."""
        return [pid for pid in self._pids if is_stopped(Identity.of(pid))]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[Workers]:
    """An executor of so many processes. Functions, arguments and results travel through cloudpickle."""
    with guarded() as guard:
        processes = [_start(guard) for _ in range(jobs)]
        executor = Workers(processes)
        try:
            yield executor
        finally:
            for process, _ in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            executor.shutdown(cancel_futures=True)
            for process, connection in processes:
                end_group(process)
                connection.close()


def _start(guard: Guard) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket_pair()
    try:
        process = guard.start(
            [sys.executable, "-P", "-c", _START, str(theirs), json.dumps(sys.path)],
            pass_fds=(theirs,),
            process_group=0,  # Ctrl-C in a terminal is for the parent, which ends them all
        )
    finally:
        os.close(theirs)
    return process, ours


def serve(control_fd: int) -> None:
    """Entry point of the process: runs the calls that its parent sends, until the parent ends."""
    faulthandler.enable()
    control = Connection(os.dup(control_fd))
    os.close(control_fd)
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, args, kwargs = loads(control.recv_bytes())
            control.send_bytes(dumps(function(*args, **kwargs)))
