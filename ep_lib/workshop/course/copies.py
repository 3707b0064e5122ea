"""The learner's copies of the notebooks, in ``mine/notebooks/``: git stays clean, and an update of the course loses no
work.

A copy that the learner has not edited is replaced when the course's notebook changes. An edited copy stays, and the new
one is put beside it as ``NN_topic.new.ipynb``. Outputs do not count as edits.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.errors import GradingError

FOLDER = Path("mine") / "notebooks"
LANGUAGE = {  # as ipykernel has it
    "codemirror_mode": {"name": "ipython", "version": sys.version_info[0]},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": sys.version.split()[0],
}
_RECORD = ".course.json"  # by file: the copied version of the course's notebook, and the digest of the copy then
_NEW = ".new.ipynb"


@dataclass(frozen=True)
class Copies:
    """The folder of the copies, and messages about them."""

    folder: Path
    messages: tuple[str, ...]


def update(root: Path) -> Copies:
    """Brings ``root/mine/notebooks`` up to date with ``root/notebooks``.

    Raises GradingError, which says what to do, if the folder cannot be written.
    """
    folder = root / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another `ep-lib lab` may be copying
            return Copies(folder, _update(root, folder))
    except OSError as error:
        raise GradingError(
            f"your copies of the notebooks cannot be written to {folder} ({error.strerror}): make that folder "
            "writable, or set EP_LIB_WORKSHOP to a copy of the workshop that is"
        ) from error


def _update(root: Path, folder: Path) -> tuple[str, ...]:
    record = _read(folder / _RECORD)
    messages = []
    for source in sorted((root / "notebooks").glob("*.ipynb")):
        known, copy = record.get(source.name, {}), folder / source.name
        version = hashlib.sha256(source.read_bytes()).hexdigest()
        if copy.exists() and known.get("course") == version:
            continue
        text = _moved(source.read_text(encoding="utf-8"))
        if copy.exists() and known.get("copy") != _written(copy):
            beside = _free_name(copy, text)
            _write(beside, text)
            messages.append(
                f"The course has a newer {source.name}. You have worked in yours, so it stays as it is; the new one is "
                f"beside it: {FOLDER / beside.name}"
            )
            record[source.name] = {"course": version}  # the copy counts as edited from now on
            continue
        if copy.exists():
            messages.append(f"{FOLDER / copy.name} is now the course's newer version (you had not edited yours).")
        _write(copy, text)
        record[source.name] = {"course": version, "copy": _written(copy)}
    _write(folder / _RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return tuple(messages)


def _moved(text: str) -> str:
    """The notebook with its relative links adjusted to one folder further down, and with this Python's kernel metadata:
    JupyterLab would otherwise write the metadata, and show a freshly opened notebook as changed."""
    language = f'"language_info": {json.dumps(LANGUAGE)}'
    text = re.sub(r'"language_info":\s*\{\s*"name":\s*"python"\s*\}', lambda _: language, text)
    return re.sub(r"\]\(\.\./", "](../../", text)


def _written(notebook: Path) -> str:
    """A digest of a notebook's content, without outputs and other traces of a run."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        said = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError):  # broken or no notebook: it counts as the learner's
        return hashlib.sha256(notebook.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _free_name(copy: Path, text: str) -> Path:
    """A path beside the copy that is free, or already has this content."""
    for number in range(1, 1000):
        beside = copy.with_name(copy.stem + (_NEW if number == 1 else f".new{number}.ipynb"))
        if not beside.exists() or beside.read_text(encoding="utf-8") == text:
            return beside
    raise GradingError(f"there are a thousand new versions of {copy.name} in {copy.parent}: remove those you know")


def _write(path: Path, text: str) -> None:
    """Writes a file atomically: a reader never sees half of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    if path.exists():
        shutil.copymode(path, part)
    part.replace(path)


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
