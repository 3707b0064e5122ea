"""Exceptions that cross a process boundary with their type, attributes and traceback text."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from ep_lib.bootstrap.base import dumps, loads
from ep_lib.errors import RankFailed


@dataclass(frozen=True)
class RemoteError:
    """What a rank sends when it fails: the exception's pickle (None where it has none) and its words."""

    pickled: bytes | None
    type_name: str
    message: str
    traceback: str


def encode(error: BaseException) -> RemoteError:
    """Pack an exception. Its type is kept where it can be pickled and survives the way back."""
    text = "".join(traceback.format_exception(error))
    pickled: bytes | None = None
    if isinstance(error, Exception):  # SystemExit and KeyboardInterrupt must not end the parent as well
        for form in (error, (type(error), error.args, error.__dict__)):
            try:
                pickled = dumps(form)
                _rebuild(loads(pickled))
                break
            except Exception:  # noqa: BLE001 - whatever a stranger's __reduce__ or __init__ raises: try the next form
                pickled = None
    return RemoteError(pickled, type(error).__name__, str(error), text)


def decode(remote: RemoteError, rank: int) -> Exception:
    """The exception that ``rank`` raised, with notes that say which rank and where; RankFailed where it was lost."""
    error: Exception | None = None
    if remote.pickled is not None:
        try:
            error = _rebuild(loads(remote.pickled))
        except Exception:  # noqa: BLE001 - its type may not be importable here
            error = None
    if error is None:
        error = RankFailed(f"rank {rank} raised {remote.type_name}: {remote.message}", rank=rank)
    error.add_note(f"raised in rank {rank}; its traceback there:\n{remote.traceback.rstrip()}")
    return error


def _rebuild(form: object) -> Exception:
    """Exceptions whose __init__ takes more than ``args`` do not unpickle: those come as (type, args, attributes)."""
    if isinstance(form, Exception):
        return form
    assert isinstance(form, tuple)
    kind, args, attributes = form
    try:
        error: Exception = kind.__new__(kind, *args)
    except TypeError:  # a class of two built-in bases, such as OutOfSymmetricMemory, takes its first base's
        error = Exception.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error
