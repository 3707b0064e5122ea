"""The child process of the grader: limits itself, then answers requests until its standard input ends.

Started by :mod:`ep_lib.workshop.sandbox` as a fresh interpreter. It holds no expected values: it compiles the learner's
piece, runs scenarios on the emulator and sends the arrays back. What runs a scenario, runner.py, is imported only after
the limits are set.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import struct
from pathlib import Path
from typing import Any, BinaryIO

REQUEST_BYTES = struct.Struct("<Q")


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
        Path("/proc/self/oom_score_adj").write_text(
            "1000"
        )  # if memory runs out nevertheless, this process is killed first


def serve(requests: BinaryIO, reply_fd: int, mine: Path) -> None:
    """Answers pickled requests, one frame each, until the parent closes the pipe."""
    from ep_lib.workshop.runner import Runner  # after the limits

    runner = Runner(mine)
    while True:
        prefix = requests.read(REQUEST_BYTES.size)
        if len(prefix) < REQUEST_BYTES.size:
            return
        request: dict[str, Any] = pickle.loads(requests.read(REQUEST_BYTES.unpack(prefix)[0]))
        _write_all(reply_fd, runner.answer(request))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
