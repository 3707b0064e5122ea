"""What a learner has answered and solved, kept in ``mine/progress.json``, so that it outlives the notebook's kernel.

Several notebooks may write at the same time. Where the file cannot be written, what was answered is remembered until
the kernel ends, and :func:`problem` says so.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from ep_lib.errors import EpError
from ep_lib.workshop.exercises import workshop_root

PREDICTIONS, OUTCOMES, PUZZLES, EXERCISES = "predictions", "outcomes", "puzzles", "exercises"

_in_memory: dict[str, dict[str, Any]] = {}
_problem = ""


def file() -> Path:
    """Where it is kept. Raises GradingError if there is no workshop here."""
    return workshop_root() / "mine" / "progress.json"


def problem() -> str:
    """Why the last answer could not be kept, and what to do; "" if it was."""
    return _problem


def get(kind: str, key: str) -> Any:
    """What was kept under ``key``, or None."""
    if key in _in_memory.get(kind, {}):
        return _in_memory[kind][key]
    try:
        return _read(file()).get(kind, {}).get(key)
    except EpError:  # no workshop here: nothing was kept
        return None


def all_of(kind: str) -> dict[str, Any]:
    """All that was kept of a kind, by key."""
    try:
        kept = _read(file()).get(kind, {})
    except EpError:  # no workshop here
        kept = {}
    return {**kept, **_in_memory.get(kind, {})}


def put(kind: str, key: str, value: Any) -> None:
    """Keeps ``value``, which must fit into JSON."""
    global _problem
    _in_memory.setdefault(kind, {})[key] = value
    try:
        path = file()
        path.parent.mkdir(exist_ok=True)
        with (path.parent / ".progress.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another notebook may be writing
            everything = _read(path)
            everything.setdefault(kind, {})[key] = value
            new = path.with_suffix(".new")
            new.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            new.replace(path)
    except (OSError, EpError) as error:
        _problem = f"This answer is kept only until the kernel ends ({error}): make the folder mine/ writable."
    else:
        _problem = ""


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The file's contents; nothing if there is none, or if somebody has edited it into something else."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(contents, dict) or not all(isinstance(part, dict) for part in contents.values()):
        return {}
    return contents
