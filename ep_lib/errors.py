"""Every error that ep_lib raises on purpose.

Each message names the mistake, with the value, and the remedy. Attributes have the same facts for programs. All inherit
from :class:`EpError`; special cases of a built-in exception inherit from it too, so ``except ValueError`` and ``except
TimeoutError`` work as expected.
"""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from ep_lib.callers import is_cell

__all__ = [
    "ArgumentError",
    "BackendUnavailable",
    "BufferClosedError",
    "DeadlockError",
    "EpError",
    "GradingError",
    "HandleError",
    "KernelCompileError",
    "KernelFault",
    "KernelLaunchError",
    "KernelNotFoundError",
    "KernelTimeout",
    "LivelockError",
    "NotSupportedError",
    "OutOfSymmetricMemory",
    "PeerTimeout",
    "RankFailed",
    "RankMismatchError",
    "ThreadId",
    "Waiter",
]

_PACKAGE = Path(__file__).resolve().parent
_STDLIB = Path(traceback.__file__).resolve().parent


class EpError(Exception):
    """Base class of all errors of this library. ``is_everywhere``: all ranks raise it, so one report is enough."""

    is_everywhere = False

    def _render_traceback_(self) -> list[str]:
        """IPython's display of an error in a cell: the message and the learner's own line. ``%tb`` gets all."""
        if _is_asked_for_all():
            return "".join(traceback.format_exception(self)).splitlines()
        lines = [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]
        # messages of cell magics name lines themselves
        if (place := last_own_line(self)) and not place.startswith("in %%"):
            lines.append(place)
        return [*lines, "(%tb shows the whole traceback)"]


def everywhere(error: EpError) -> EpError:
    """Marks the error as one that all ranks raise."""
    error.is_everywhere = True
    return error


def _is_asked_for_all() -> bool:
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]  # None ends the loop
        if frame.f_code.co_name == "tb" and "IPython" in frame.f_code.co_filename:
            return True
    return False


def last_own_line(error: BaseException) -> str:
    """The last line of a cell or of a file that led to this error, outside of this library and of installed
    packages."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE) or file.is_relative_to(_STDLIB) or "site-packages" in file.parts:
            continue
        name = "this cell" if is_cell(str(file)) else file.name
        text = linecache.getline(str(file), line).strip()
        if text.startswith("get_ipython().run_cell_magic("):  # IPython's words, with all of the cell in one line
            magic = ast.parse(text, mode="eval").body.args[:2]  # type: ignore[attr-defined]
            return "in %%" + " ".join(filter(None, map(ast.literal_eval, magic)))
        return f"in {name}, line {line}: {text}" if text else f"in {name}, line {line}"
    return ""


class ArgumentError(EpError, ValueError):
    """A value, shape, dtype, device or stride that is invalid; refused before any kernel runs."""


class RankMismatchError(EpError, ValueError):
    """The ranks called a collective operation with arguments that should be equal but are not."""


class OutOfSymmetricMemory(EpError, MemoryError):
    """The symmetric heap is too small.

    Attributes: ``requested``, ``available`` and ``short_by``, all in bytes.
    """

    def __init__(self, message: str, *, requested: int, available: int) -> None:
        super().__init__(message)
        self.requested = requested
        self.available = available
        self.short_by = requested - available


class BufferClosedError(EpError):
    """A Buffer, Rank or array was used after it was closed or freed."""


class HandleError(EpError, ValueError):
    """A dispatch handle that belongs to another Buffer, another rank or another shape of input."""


class BackendUnavailable(EpError):
    """This machine lacks what the backend needs; the message names the package or setting to add."""


class NotSupportedError(EpError, NotImplementedError):
    """A feature of another library that this one lacks; the message names an alternative."""


class KernelCompileError(EpError):
    """The compiler refused a kernel. ``file`` and ``line`` (or None) point into the user's own source; ``remedy`` says
    what to write instead, if the source violates a CUDA rule ("" else)."""

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, log: str = "", remedy: str = ""
    ) -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.log = log
        self.remedy = remedy


class KernelNotFoundError(EpError, LookupError):
    """No ``__global__`` function of that name in the source; the message lists the existing ones."""


class KernelLaunchError(EpError, ValueError):
    """A launch with the wrong number or types of arguments, or an impossible grid, block or shared memory size."""


@dataclass(frozen=True)
class ThreadId:
    """One CUDA thread: rank, block index and thread index (x, y, z)."""

    rank: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]

    def __str__(self) -> str:
        return f"rank {self.rank} block {_short(self.block)} thread {_short(self.thread)}"


def _short(index: tuple[int, int, int]) -> str:
    """(3, 0, 0) reads better as 3; two- and three-dimensional indices stay tuples."""
    return str(index[0]) if index[1:] == (0, 0) else str(index)


class KernelFault(EpError):
    """A kernel failed: bad address, trap, failed assert, stack overflow, division by zero.

    Attributes: ``thread`` (:class:`ThreadId` or None), ``kernel``, ``location`` (``file:line``) and ``source`` (the
    text of that line), the latter two empty where unknown.
    """

    def __init__(
        self, message: str, *, thread: ThreadId | None = None, kernel: str = "", location: str = "", source: str = ""
    ) -> None:
        super().__init__(message)
        self.thread = thread
        self.kernel = kernel
        self.location = location
        self.source = source


@dataclass(frozen=True)
class Waiter:
    """A group of CUDA threads (or one host thread) that wait at the same place for the same thing."""

    thread: ThreadId  # the first of them
    count: int
    what: str  # "__syncthreads", "spin on rank 1 heap+0x40 (sees 0)", ...
    location: str
    source: str = ""
    address: int | None = None
    called: str = ""  # file:line: text, of the call that leads there

    def __str__(self) -> str:
        who = str(self.thread) + (
            f" and {self.count - 1} more thread{'s' * (self.count > 2)}" if self.count > 1 else ""
        )
        at = f" at {self.location}" if self.location else ""
        text = f": {self.source}" if self.source else ""
        text += f"\n    called at {self.called}" if self.called else ""
        if self.what.startswith("("):  # (still running), (not started)
            seen = f", last seen{at}{text}" if at else ""
            return f"{who} {'is' if self.count == 1 else 'are'} {self.what.strip('()')}{seen}"
        return f"{who} wait{'s' if self.count == 1 else ''} in {self.what}{at}{text}"


class DeadlockError(EpError):
    """No thread can make progress any more. ``waiters`` lists the waiting threads, their places, and what they wait
    for.

    ``remedy`` and ``place`` say what to change, if known (under :func:`ep_lib.check`), else they are empty.
    """

    def __init__(self, message: str, *, waiters: tuple[Waiter, ...] = (), remedy: str = "", place: str = "") -> None:
        super().__init__(message)
        self.waiters = waiters
        self.remedy = remedy
        self.place = place


class LivelockError(DeadlockError):
    """Threads can repeat the same steps for ever: the run returned to an earlier state. Exhaustive checks find that;
    ``waiters`` lists the places of these threads."""


class KernelTimeout(EpError, TimeoutError):
    """Kernels ran longer than the limit; ``waiters`` lists the places of unfinished threads, if known."""

    def __init__(self, message: str, *, waiters: tuple[Waiter, ...] = ()) -> None:
        super().__init__(message)
        self.waiters = waiters


class PeerTimeout(EpError, TimeoutError):
    """A wait for another rank reached its limit. Attributes name the waiting rank, the awaited rank, and the value
    seen."""

    def __init__(
        self, message: str, *, rank: int, peer: int, phase: str, slot: int = -1, seen: int = 0, expected: int = 1
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.phase = phase
        self.slot = slot
        self.seen = seen
        self.expected = expected


class RankFailed(EpError):
    """Another rank's process ended or raised; ``rank`` is its number, the message says how."""

    def __init__(self, message: str, *, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class GradingError(EpError):
    """The grader itself could not work (unknown exercise, unreadable submission), as opposed to a wrong answer."""
