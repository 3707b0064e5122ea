"""A learner's own pieces: headers that replace the library's of the same name, and counts of their use.

A piece is a folder, an include root: ``mine/05_ring`` with ``ep/ring.cuh`` in it. Kernels that include that header get
the learner's, on every backend, and count its use (<ep/pieces.cuh>); other kernels are not affected. EP_LIB_MINE lists
the folders, for all processes of a run; at its close every rank writes its counts to the file EP_LIB_MINE_COUNTS.
:mod:`ep_lib.workshop.course.mine` sets both.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ep_lib.callers import short_path
from ep_lib.config import Config
from ep_lib.jit import sealed

_ROOTS, _COUNTS = "EP_LIB_MINE", "EP_LIB_MINE_COUNTS"
_lock = threading.Lock()
_launches: Counter[str] = Counter()  # of this process, since they were last written
_active: tuple[Path, ...] | None = None  # None: not read from the environment yet
in_use = bool(os.environ.get(_ROOTS))  # whether there are any; cheap for each launch to read


def active() -> tuple[Path, ...]:
    """The folders of the pieces in use, in order; usually empty."""
    global _active
    if _active is None:
        _active = Config.from_environment().mine
    return _active


def counts_file() -> Path | None:
    """The file for the counts of ranks; None: none."""
    return Config.from_environment().mine_counts


def use(roots: Sequence[Path], counts: Path | None) -> None:
    """Sets the pieces of this process and of its later child processes. ``counts``: the file for the counts of
    ranks."""
    global _active, in_use
    for name, value in ((_ROOTS, os.pathsep.join(map(str, roots))), (_COUNTS, "" if counts is None else str(counts))):
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    with _lock:
        _launches.clear()
    _active = None
    in_use = bool(active())


@contextlib.contextmanager
def unused() -> Iterator[None]:
    """Inside this context no kernel has a learner's piece."""
    roots, counts = active(), counts_file()
    use((), None)
    try:
        yield
    finally:
        use(roots, counts)


def suspicion() -> str:
    """A sentence for a failed run with pieces in use: it may be the learner's mistake. Else ""."""
    roots = active()
    if not roots:
        return ""
    files = [short_path(file) for root in roots for file in sorted(root.rglob("*.cu*")) if file.is_file()]
    return (
        f"Your own pieces were in use: {', '.join(files)}. A mistake in one of them shows in the library's lines as "
        "well: there, what is waited for may be what a piece has not sent, and what is read may be what it did not "
        f"wait for. Each is tested alone: {', '.join(f'`{sealed.tested_by(root.name)}`' for root in roots)}."
    )


def note(error: BaseException) -> None:
    """Adds the suspicion to an error."""
    if text := suspicion():
        error.add_note(text)


def among(files: Iterable[str]) -> tuple[Path, ...]:
    """The pieces that some of ``files`` belong to, by the piece's name or its path."""
    paths = [Path(file) for file in files]
    places = {root: (root, root.resolve()) for root in active()}
    return tuple(root for root, two in places.items() if any(p.is_relative_to(place) for p in paths for place in two))


def launched(roots: Iterable[Path]) -> None:
    """Counts a launch of a kernel with these pieces."""
    with _lock:
        _launches.update(map(str, roots))


def tell(rank: int, counts: Sequence[int]) -> None:
    """At a rank's end: adds its kernels' counts (PieceCount of <ep/pieces.cuh>) to the run's file."""
    path = counts_file()
    if path is None:
        return
    with _lock:
        line = {"rank": rank, "counts": list(map(int, counts)), "launches": dict(_launches)}
        _launches.clear()
    with path.open("a", encoding="utf-8") as file:  # a short line: the system appends it as a whole
        file.write(json.dumps(line) + "\n")


def told(path: Path) -> tuple[list[int], Counter[str]]:
    """The counts of all ranks: their sums, and launches by the piece's folder."""
    counts: list[int] = []
    launches: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        row = entry["counts"]
        counts = [a + b for a, b in zip(counts or [0] * len(row), row, strict=True)]
        launches.update(entry["launches"])
    return counts, launches
