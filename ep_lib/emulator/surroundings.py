"""The relation of two lines of a kernel in its source: loops around both, branches that separate them.

Advice depends on a line's place: a barrier between the two branches of an ``if`` hangs, and a line "runs again" only in
a loop. The source is read as text (:mod:`ep_lib.jit.cuda_source`), so macros and calls hide their content; in doubt
there is no advice.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ep_lib.jit.cuda_source import Node, blank, bodies

_RETURN = re.compile(r"\breturn\b")
# In a condition: its value may differ between threads of a block
_OF_A_THREAD = re.compile(r"threadIdx|\b\w*(?:lane|warp|tid|thread|leader|elect)\w*", re.IGNORECASE)
_MADE_OF_IT = re.compile(r"\b(\w+) = [^;,=]*\bthreadIdx\b")

_OF_BLOCK = re.compile(r"\b__syncthreads\w*\s*\(|\.sync\(|\bsync\(|arrive_and_wait\(")
_BARRIER = re.compile(_OF_BLOCK.pattern + r"|\b__syncwarp\s*\(")


@dataclass(frozen=True)
class Between:
    """The surroundings of two lines of one function. All fields are line numbers, 0 if there is none.

    ``loop``: the innermost loop around both. ``parted``: an ``if`` with the two lines in different branches.
    ``inside``: a branch or loop around both that threads of one block may take differently. ``deeper``: one that
    is around only one of the two, and begins before it. ``meets``: a barrier on the way from one to the other;
    ``around``: one on the way back, through the loop's end and beginning. ``full``: one on the way that all threads
    come to (without a loop, the function runs again). ``left``: of a ``return`` before both.
    """

    loop: int = 0
    parted: int = 0
    inside: int = 0
    deeper: int = 0
    meets: int = 0
    around: int = 0
    full: int = 0
    left: int = 0


def between(file: Path, first: int, second: int, group: str = "block") -> Between | None:
    """The surroundings of these two lines of ``file``; None unless they are in one function. ``group``: whose barriers
    ``around`` and ``full`` are to be: of a "warp", "block" or "grid"."""
    if (code := _code_of(file)) is None:
        return None
    one, other = code.path_to(first), code.path_to(second)
    if not one or not other or one[0] is not other[0]:
        return None
    shared = [a for a, b in zip(one, other, strict=False) if a is b]
    common = shared[-1]
    loops = [node for node in shared if node.kind == "loop"]
    # A line in the condition of a branch comes before the branch's content
    taken = [node for node, below in pairwise([*shared, *one[len(shared) : len(shared) + 1]]) if below in node.parts]
    uneven = [code.first_line(node) for node in taken if code.may_be_skipped(node)]
    a, b = (path[len(shared)] if len(path) > len(shared) else None for path in (one, other))
    low, high = sorted((first, second))
    around = [(high, code.last_line(loops[-1]) + 1), (code.first_line(loops[-1]), low)] if loops else []
    skipped = [code.first_line(node) for node in (b, a) if node and code.may_be_skipped(node)]
    pattern, certain = code.of_group[group]
    met = (line for way in around for line in code.lines_with(pattern, *way) if code.always_comes(loops[-1], line))
    full = (line for line in code.lines_with(certain, low, high) if code.always_comes(common, line))
    return Between(
        loop=code.first_line(loops[-1]) if loops else 0,
        parted=code.first_line(common) if common.kind == "branch" and a and b else 0,
        inside=uneven[-1] if uneven else 0,
        deeper=next((line for line in skipped if line not in (low, high)), 0),
        meets=code.line_with(code.of_grid if group == "grid" else _BARRIER, low, high),
        around=next(met, 0),
        full=0 if code.line_with(_RETURN, low - 1, high) else next(full, 0),
        left=code.line_with(_RETURN, code.first_line(one[0]), low),
    )


def in_a_loop(file: Path, line: int) -> bool | None:
    """Whether a loop of its own function is around this line; None if unknown."""
    found = between(file, line, line)
    return None if found is None else bool(found.loop)


def last_use(file: Path, first: int, second: int, name: str) -> int:
    """The last line with this variable, from the second line to the end of the loop around both, or of their function;
    the second itself if there is none behind it."""
    code, near = _code_of(file), between(file, first, second)
    if code is None or near is None:
        return second
    path = code.path_to(second)
    around = next((node for node in path if node.kind == "loop" and code.first_line(node) == near.loop), path[0])
    return max(code.lines_with(re.compile(rf"\b{name}\b"), second, code.last_line(around) + 1), default=second)


_STORES = (
    r"(?:st_\w+|red_\w+|atom_\w+|atomic\w+|signal_\w+|net_\w+)\s*\([^;]*\b{name}\b|\b{name}\b(?:\[[^]]*\])?\s*=[^=]"
)


def stored_behind(file: Path, line: int, name: str) -> int:
    """The first line behind this one, in its function and not in another branch, that stores to ``name`` or signals
    through it; 0 if there is none."""
    code = _code_of(file)
    path = code.path_to(line) if code else []
    if code is None or not path:
        return 0
    stores = re.compile(_STORES.replace("{name}", re.escape(name)))
    found = code.lines_with(stores, line, code.last_line(path[0]) + 1)
    return next((other for other in found if (near := between(file, line, other)) and not near.parted), 0)


class _Code:
    """A file's functions, and the path from each of them to a line."""

    def __init__(self, text: str) -> None:
        self._text = blank(text)
        self._bodies = bodies(self._text)
        self._of_a_thread = set(_MADE_OF_IT.findall(self._text))
        self.of_grid = self._barriers_of("grid_group", "this_grid")
        of_block = re.compile(
            rf"\b__syncthreads\w*\s*\(|{self._barriers_of('thread_block', 'this_thread_block').pattern}"
        )
        self.of_group = {  # its barriers, and those that are no smaller group's for certain
            "grid": (self.of_grid, self.of_grid),
            "block": (_OF_BLOCK, of_block),
            "warp": (_BARRIER, re.compile(rf"{of_block.pattern}|\b__syncwarp\s*\(\s*\)")),
        }
        self._line_ends = [found.start() for found in re.finditer("\n", self._text)]

    def _barriers_of(self, group: str, made_by: str) -> re.Pattern[str]:
        """Barriers of the variables of this type of group."""
        names = re.findall(rf"\b{group}\s*(?:const\s*)?&?\s*(\w+)|\b(\w+)\s*[={{(]\s*(?:\w+::)*{made_by}\b", self._text)
        any_of = "|".join([rf"{made_by}\(\)", *(a or b for a, b in names)])
        return re.compile(rf"\b(?:{any_of})\s*\.\s*(?:sync|barrier_wait)\(|\bsync\((?:\w+::)*(?:{any_of})\)")

    def first_line(self, node: Node) -> int:
        return self._line_of(node.begin)

    def last_line(self, node: Node) -> int:
        return self._line_of(max(node.begin, node.end - 1))

    def may_be_skipped(self, node: Node) -> bool:
        """A branch or loop that threads of one block may take differently."""
        differs = _OF_A_THREAD.search(node.condition) or self._of_a_thread & set(re.findall(r"\w+", node.condition))
        return node.kind in ("branch", "loop") and bool(differs)

    def _line_of(self, at: int) -> int:
        return bisect.bisect_left(self._line_ends, at) + 1

    def line_with(self, pattern: re.Pattern[str], first: int, last: int) -> int:
        """The first line after ``first`` and before ``last`` with what is looked for, 0 if there is none."""
        return next(self.lines_with(pattern, first, last), 0)

    def lines_with(self, pattern: re.Pattern[str], first: int, last: int) -> Iterator[int]:
        lines = self._text.splitlines()
        return (n for n in range(first + 1, last) if pattern.search(lines[n - 1]))

    def always_comes(self, loop: Node, line: int) -> bool:
        """Whether each turn of the loop comes to this line."""
        path = self.path_to(line)
        return loop in path and all(node.kind != "branch" for node in path[path.index(loop) :])

    def path_to(self, line: int) -> list[Node]:
        """The body of the function with this line, and the path from there to the line's statement."""
        path: list[Node] = []
        parts = self._bodies
        while found := next((node for node in parts if self.first_line(node) <= line <= self.last_line(node)), None):
            path.append(found)
            parts = found.parts
        return path


def _code_of(file: Path) -> _Code | None:
    """None if the file cannot be read."""
    try:
        status = file.stat()
        return _read(str(file), status.st_mtime_ns, status.st_size)
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _read(file: str, mtime_ns: int, size: int) -> _Code:
    return _Code(Path(file).read_text(encoding="utf-8", errors="replace"))
