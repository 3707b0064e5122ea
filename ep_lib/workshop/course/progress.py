"""A learner's answers and solutions, kept in ``mine/progress.json``, so that they outlive the notebook's kernel.

Notebooks and terminals write at the same time, so the file is read for every query, and changed under a lock. If it
cannot be written, the changes are kept until it can be or the kernel ends. An invalid file is renamed, never
overwritten. Both are reported on stderr, and by :func:`problem`.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ep_lib.errors import EpError
from ep_lib.jit.cache import say
from ep_lib.workshop.exercises import workshop_root

PREDICTIONS, OUTCOMES, PUZZLES, EXERCISES = "predictions", "outcomes", "puzzles", "exercises"

Change = Callable[[Any], Any]  # from the old value of a key (None: none) to the new one

_unwritten: list[tuple[str, str, Change]] = []  # kind, key and change, in order: the file could not be written
_problem = ""


class _Damaged(Exception):
    """The file has invalid content; the text describes it."""


def file() -> Path:
    """The path of the file. Raises GradingError if there is no workshop here."""
    return workshop_root() / "mine" / "progress.json"


def problem() -> str:
    """Why the last answer could not be saved, or the file cannot be read, and what to do; "" if neither."""
    return _problem


def get(kind: str, key: str) -> Any:
    """The value of ``key``, or None."""
    return all_of(kind).get(key)


def all_of(kind: str) -> dict[str, Any]:
    """All values of a kind, by key."""
    try:
        kept = _read(file())
    except _Damaged as error:
        _tell(f"{file()} {error}: mend it, or the next answer puts it beside and begins a new one")
        kept = {}
    except (OSError, EpError):  # it cannot be read; no workshop here
        kept = {}
    return _changed(kept, _unwritten).get(kind, {})


def put(kind: str, key: str, value: Any) -> None:
    """Keeps ``value``, which must fit into JSON."""
    update(kind, key, lambda _: value)


def update(kind: str, key: str, change: Change) -> None:
    """Applies ``change`` to the file's current value, since another process may have written it meanwhile."""
    _unwritten.append((kind, key, change))
    problem = ""
    try:
        path = file()
        path.parent.mkdir(exist_ok=True)
        with (path.parent / ".progress.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another notebook may be writing
            try:
                kept = _read(path)
            except _Damaged as error:
                kept, beside = {}, _put_beside(path)
                problem = (
                    f"{path} {error}, and now lies beside as {beside.name}; a new one begins with this answer. To have "
                    f"the earlier ones back, mend {beside.name} and give it the name {path.name}."
                )
            everything = _changed(kept, _unwritten)
            new = path.with_suffix(".new")
            new.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            new.replace(path)
    except (OSError, EpError) as error:
        lost = f"This answer is kept only until the kernel ends ({error}): make the folder mine/ writable."
        _tell(f"{problem} {lost}".lstrip())
    else:
        _unwritten.clear()
        _tell(problem)


def _tell(text: str) -> None:
    """Sets :func:`problem`, and prints a new one."""
    global _problem
    if text not in ("", _problem):
        say(text)
    _problem = text


def _put_beside(path: Path) -> Path:
    """Renames the file; returns the new name."""
    names = (path.with_name(f"{path.stem}-damaged-{number}{path.suffix}") for number in itertools.count(1))
    beside = next(name for name in names if not os.path.lexists(name))
    return path.rename(beside)


def _changed(
    everything: dict[str, dict[str, Any]], changes: list[tuple[str, str, Change]]
) -> dict[str, dict[str, Any]]:
    for kind, key, change in changes:
        part = everything.setdefault(kind, {})
        part[key] = change(part.get(key))
    return everything


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The file's contents; nothing if there is none. Raises _Damaged."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"is damaged ({error})") from None
    if not isinstance(contents, dict) or not all(isinstance(part, dict) for part in contents.values()):
        raise _Damaged("is damaged (it holds other JSON than ep_lib writes)")
    return contents
