"""Reads submitted files in a separate process that can be stopped.

Python's parser and its regular expressions cannot be interrupted, and some texts keep them busy for hours, or use all
memory. So a submission's text is not examined in the instructor's process: :func:`read` does it in a child with the
grader's usual limits and walls, which changes no file and runs no code of a submission. The child is kept for the next
text, since starting one takes longer than most texts. :mod:`ep_lib.workshop.classroom.handed_in` unpacks archives in
children of this kind that write into one folder and are used once.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ep_lib.errors import EpError
from ep_lib.workshop.grader.process.sandbox import ChildFailed, ChildTookTooLong, ChildUsedItsTime, Limits, Sandbox
from ep_lib.workshop.grader.scenario import BadReply, answer_each, pack

SECONDS = 10.0  # of CPU for one text; the course's own take some hundredths
_LIMITS = Limits(cpu_s=1 << 20, resident_bytes=1 << 30)  # its seconds are limited for each text
_LATE = (ChildTookTooLong, ChildUsedItsTime)
_MOST_SAID = 16 << 20  # bytes of an answer
_COMPILERS_LIBRARIES = "LD_LIBRARY_PATH"  # as for the grader's children: all are forks of one process


class Unreadable(EpError):
    """A text that takes too long, or too much memory. ``kind``: the name of the child's error."""

    def __init__(self, error: Exception) -> None:
        why = f"that takes more than {SECONDS:g} s" if isinstance(error, _LATE) else str(error)
        super().__init__(
            f"its text cannot be read ({why}): a piece is some hundred lines of plain code, without long lists and "
            "without parts in parts in parts"
        )
        self.kind = type(error).__name__


def read(function: Callable[..., Any], *given: Any) -> Any:
    """Calls a function of this library, given by name, in the other process; returns its result through JSON. Raises
    Unreadable, and sandbox.Stopped."""
    try:
        reader = _idle.pop()
    except IndexError:  # none, or all are busy: an executor's workers are threads
        reader = Reader()
    if not reader.is_ours():
        reader.leave()
        reader = Reader()
    try:
        said = reader.call(function, *given, seconds=SECONDS)
    except (ChildFailed, BadReply) as error:
        raise Unreadable(error) from error
    atexit.unregister(_end)
    atexit.register(_end)  # registered after the zygote's end, so it runs first: the zygote then still waits for it
    _idle.append(reader)
    return said


class Reader(Sandbox):
    """A child that reads any file of this machine, and writes into the folders ``writable`` only."""

    def __init__(self, limits: Limits = _LIMITS, *writable: Path) -> None:
        environment = {name: os.environ[name] for name in (_COMPILERS_LIBRARIES,) if name in os.environ}
        super().__init__(Path("/"), limits, Path("/"), environment, {"readable": [Path("/")], "writable": writable})
        self._owner = os.getpid()

    def call(self, function: Callable[..., Any], *given: Any, seconds: float) -> Any:
        """Calls ``function`` there; returns its result through JSON. Raises ChildFailed, BadReply and
        sandbox.Stopped."""
        _, said = self.ask({"call": (function, given)}, reply_bytes=_MOST_SAID, seconds=seconds)
        try:
            self._watch()  # too much may have been written since the last check
        except ChildFailed:
            self.end()
            raise
        return json.loads(said)

    def is_ours(self) -> bool:
        """Whether this process made it, and was not forked from the one that did."""
        return self._owner == os.getpid()

    def leave(self) -> None:
        """Releases one that belongs to another process."""
        os.close(self._control_fd)
        self._close()

    def _program(self) -> str:
        return "from ep_lib.workshop.grader import reading; reading.serve(sys.stdin.buffer, reply)"


_idle: list[Reader] = []


def _end() -> None:
    for reader in _idle:
        if reader.is_ours():
            reader.end()


# ---- the other process -----------------------------------------------------------------------------------------------
def serve(requests: BinaryIO, reply: int) -> None:
    """Executes calls until the grader closes the pipe, or an unexpected error ends it."""

    def answer(request: Mapping[str, Any]) -> bytes:
        function, given = request["call"]
        return pack({}, json.dumps(function(*given), default=list).encode())

    answer_each(requests, reply, answer)
