"""What a learner has answered and solved, kept in ``mine/progress.json``, so that it outlives the notebook's kernel.

Notebooks and terminals write at the same time, so the file is read whenever something is asked, and changed under a
lock. Where it cannot be written, the changes are remembered until it can be or the kernel ends, and :func:`problem`
says so.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ep_lib.errors import EpError
from ep_lib.workshop.exercises import workshop_root

PREDICTIONS, OUTCOMES, PUZZLES, EXERCISES = "predictions", "outcomes", "puzzles", "exercises"

Change = Callable[[Any], Any]  # from what was kept under a key, None for nothing, to what is kept from now on

_unwritten: list[tuple[str, str, Change]] = []  # kind, key and change, in order: the file could not be written
_problem = ""


def file() -> Path:
    """Where it is kept. Raises GradingError if there is no workshop here."""
    return workshop_root() / "mine" / "progress.json"


def problem() -> str:
    """Why the last answer could not be kept, and what to do; "" if it was."""
    return _problem


def get(kind: str, key: str) -> Any:
    """What was kept under ``key``, or None."""
    return all_of(kind).get(key)


def all_of(kind: str) -> dict[str, Any]:
    """All that was kept of a kind, by key."""
    try:
        kept = _read(file())
    except (OSError, EpError):  # it cannot be read; no workshop here
        kept = {}
    return _changed(kept, _unwritten).get(kind, {})


def put(kind: str, key: str, value: Any) -> None:
    """Keeps ``value``, which must fit into JSON."""
    update(kind, key, lambda _: value)


def update(kind: str, key: str, change: Change) -> None:
    """Keeps what ``change`` makes of what the file has now, since another process may have written it meanwhile."""
    global _problem
    _unwritten.append((kind, key, change))
    try:
        path = file()
        path.parent.mkdir(exist_ok=True)
        with (path.parent / ".progress.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another notebook may be writing
            everything = _changed(_read(path), _unwritten)
            new = path.with_suffix(".new")
            new.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            new.replace(path)
    except (OSError, EpError) as error:
        _problem = f"This answer is kept only until the kernel ends ({error}): make the folder mine/ writable."
    else:
        _unwritten.clear()
        _problem = ""


def _changed(
    everything: dict[str, dict[str, Any]], changes: list[tuple[str, str, Change]]
) -> dict[str, dict[str, Any]]:
    for kind, key, change in changes:
        part = everything.setdefault(kind, {})
        part[key] = change(part.get(key))
    return everything


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The file's contents; nothing if there is none, or if somebody has edited it into something else."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(contents, dict) or not all(isinstance(part, dict) for part in contents.values()):
        return {}
    return contents
