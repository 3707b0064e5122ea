"""Tools for the notebooks beside the library: source code from its real file, predictions, errors in short form.

All objects display themselves in a notebook and have a readable text form elsewhere. No answer is required: a missing
prediction counts as unanswered, so notebooks run unattended. Predictions are in prediction.py, boxes in notes.py.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from markupsafe import Markup
from tqdm import tqdm

from ep_lib.emulator.findings import Finding
from ep_lib.errors import ArgumentError, EpError
from ep_lib.jit import pieces, sealed
from ep_lib.require import a_path, several, show, text
from ep_lib.workshop import exercises
from ep_lib.workshop.course.notes import ORANGE, RED, Note, code_box, highlight, marked, number_before, show_note
from ep_lib.workshop.course.prediction import predict
from ep_lib.workshop.exercises import Exercise, file_of_the_course, workshop_root

__all__ = ["Caught", "Source", "as_note", "expect", "find", "predict", "show_finding", "show_source", "watched"]

Item = TypeVar("Item")
Block = tuple[int, tuple[str, ...]]  # the first line's number, and the lines

_WRONG = "_broken"  # ends the names of files of deliberate mistakes
LONGEST = 25  # lines of a listing; the rest of a longer one is folded


def find(file: str | Path) -> Path:
    """``file`` of the workshop (``"tutorial_kernels/01_write_signal.cu"``), as a path from the current folder; the
    learner's own file if it is one of their pieces (:func:`ep_lib.workshop.use_mine`).

    The path is relative, so that errors that name the file stay short. Raises ArgumentError if there is no such file.
    """
    a_path("file", file)
    path = Path(file)
    for root in pieces.active():
        exercise = exercises.find(root.name)
        if exercise.runs_as == path.parent.as_posix() and path.name in exercise.pieces:
            return Path(os.path.relpath(root / path.name))
    return _find_given(file)


def _find_given(file: str | Path) -> Path:
    a_path("file", file)
    path = file_of_the_course(file, workshop_root())
    if not path.is_file():
        raise ArgumentError(f"the workshop in {workshop_root()} has no file {str(file)!r}")
    return Path(os.path.relpath(path))


# ---- source code -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Source:
    """Part of a file, with its line numbers. It shows at most ``LONGEST`` lines: those around the marked ones and the
    beginnings of functions; in a notebook the whole is folded below."""

    file: str  # relative to the workshop
    blocks: tuple[Block, ...]
    marked: frozenset[int] = field(default_factory=frozenset)  # line numbers
    is_named: bool = True  # whether to show the file's name; the link is always there

    def __repr__(self) -> str:
        parts = [
            "\n".join(f"{'>' if n in self.marked else ' '}{n:4} {line}" for n, line in enumerate(lines, first))
            for first, lines in self.excerpt
        ]
        return f"{self._title}\n" + "\n  ...\n".join(parts)

    @property
    def excerpt(self) -> tuple[Block, ...]:
        """The visible part of ``blocks``."""
        lines = {n: line for first, block in self.blocks for n, line in enumerate(block, first)}
        if len(lines) <= LONGEST:
            return self.blocks
        code = [next((n for n, line in enumerate(b, first) if _is_code(line)), first) for first, b in self.blocks]
        near = sorted(lines, key=lambda n: (min(abs(n - at) for at in {*code, *self.marked}), n))
        for many in range(LONGEST, 0, -1):
            chosen = set(near[:many])  # and single lines between two of them, or at the end of a block
            chosen |= {n for n in lines if all(beside in chosen or beside not in lines for beside in (n - 1, n + 1))}
            if len(chosen) <= LONGEST:
                break
        found: list[tuple[int, list[str]]] = []
        for n in sorted(chosen):
            if not found or n != found[-1][0] + len(found[-1][1]):
                found.append((n, []))
            found[-1][1].append(lines[n])
        return tuple((first, tuple(block)) for first, block in found)

    @property
    def _title(self) -> str:
        return self.file if self.is_named else f"a kernel of {Path(self.file).parent.as_posix()}"

    def _repr_html_(self) -> Markup:
        first, last = self.blocks[0][0], self.blocks[-1][0] + len(self.blocks[-1][1]) - 1
        link = _link(file_of_the_course(self.file, workshop_root()), self._title)
        head = Markup('<div style="font-size:90%; margin-bottom:0.2em">{}, lines {} to {}</div>')
        body = self._blocks_html(self.excerpt)
        if self.excerpt != self.blocks:
            fold = Markup('<details><summary style="cursor:pointer; font-size:90%">All {} lines</summary>{}</details>')
            body += fold.format(sum(len(lines) for _, lines in self.blocks), self._blocks_html(self.blocks))
        return head.format(link, first, last) + body

    def _blocks_html(self, blocks: Iterable[Block]) -> Markup:
        return Markup().join(self._block_html(number, lines) for number, lines in blocks)

    def _block_html(self, first: int, lines: Sequence[str]) -> Markup:
        colored = enumerate(
            highlight("\n".join(lines), "python" if self.file.endswith(".py") else "cuda").split("\n"), first
        )
        return code_box(self._line_html(number, line) for number, line in colored)

    def _line_html(self, number: int, line: Markup) -> Markup:
        text = number_before(number, line)
        return marked(text) if number in self.marked else text


def _link(path: Path, text: str) -> Markup:
    """A link that opens a file, and looks like one: JupyterLab gives code the colour of plain text."""
    look = "color:var(--jp-content-link-color, #0056b3); text-decoration:underline"
    code = '<code style="color:inherit; background:none; padding:0">{}</code>'
    link = Markup('<a href="{}" target="_blank" style="{}">' + code + "</a>")
    return link.format(os.path.relpath(path), look, text)


def show_source(file: str | Path, *names: str, mark: str | Iterable[str] = (), comments: bool = True) -> Source:
    """Functions or structs ``names`` of a file of the workshop, with the comments above them; without names, the whole
    file.

    ``comments=False`` leaves those comments out, if they would give the answer away, and the name of a file whose
    kernels are wrong (``..._broken.cu``). Lines that contain one of ``mark`` are highlighted. The source is read now,
    from the file that is compiled, so it is never stale. Raises ArgumentError for a name that the file does not define,
    and for a mark that no shown line contains.
    """
    written = _find_given(file).read_text(encoding="utf-8")
    source = sealed.shown(written).rstrip("\n").split("\n")
    ranges = [_definition(source, text("a name", name), str(file)) for name in names] or [(0, len(source))]
    if not comments and names:
        ranges = [(next(n for n in range(*r) if not source[n].startswith("//")), r[1]) for r in ranges]
    blocks = tuple((begin + 1, tuple(source[begin:end])) for begin, end in sorted(ranges))
    marked = set()
    for words in [mark] if isinstance(mark, str) else several("mark", mark, "a piece of a line, or several"):
        text("mark", words)
        hits = {n for first, lines in blocks for n, line in enumerate(lines, first) if words in line}
        if not hits and not sealed.is_sealed(written):  # in a release, the line may be in a hole
            raise ArgumentError(f"no line shown of {file} contains {words!r}")
        marked |= hits
    return Source(Path(file).as_posix(), blocks, frozenset(marked), comments or not Path(file).stem.endswith(_WRONG))


def _definition(text: Sequence[str], name: str, file: str) -> tuple[int, int]:
    """The lines [begin, end) that define ``name``: comments and template lines above it, and its body."""
    if file.endswith(".py"):
        return _python_definition(text, name, file)
    starts = re.compile(rf"(?:[A-Za-z_].*[\s*&]|struct )({re.escape(name)})\b\s*[({{]")
    for number, line in enumerate(text):
        if line.startswith(("//", " ", "#")) or not starts.match(line):
            continue
        end = _end_of_body(text, number)
        if end is None:  # a declaration
            continue
        begin = number
        while begin > 0 and text[begin - 1].startswith(("//", "template")) and not _is_rule(text[begin - 1]):
            begin -= 1
        return begin, end
    raise ArgumentError(f"{file} does not define {name!r}")


def _python_definition(text: Sequence[str], name: str, file: str) -> tuple[int, int]:
    """The same for a function or class ``name`` of a Python file, or ``Class.method``."""
    nodes: list[ast.stmt] = ast.parse("\n".join(text)).body
    found = None
    for part in name.split("."):
        named = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == part]
        if not named:
            raise ArgumentError(f"{file} does not define {name!r}")
        found, nodes = named[0], named[0].body
    assert found is not None and found.end_lineno is not None  # ast.parse gives it
    return min([found.lineno, *(each.lineno for each in found.decorator_list)]) - 1, found.end_lineno


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("//", "#", "template"))


def _is_rule(line: str) -> bool:
    return line.startswith("// ----") and line.endswith("----")


def _end_of_body(text: Sequence[str], number: int) -> int | None:
    depth, seen = 0, False
    for last in range(number, len(text)):
        code = text[last].split("//")[0]
        depth += code.count("{") - code.count("}")
        seen = seen or "{" in code
        if seen and depth <= 0:
            return last + 1
        if not seen and code.rstrip().endswith(";"):
            return None
    return None


@dataclass(frozen=True)
class Files:
    """An exercise's files, with links that open them beside the notebook."""

    exercise: Exercise
    folder: Path

    def _files(self) -> list[Path]:
        return [self.folder / piece for piece in self.exercise.pieces]

    def __repr__(self) -> str:
        files = ", ".join(file.relative_to(self.folder.parents[1]).as_posix() for file in self._files())
        return f"Your copy of exercise {self.exercise.name}: fill in {files}"

    def _repr_html_(self) -> Markup:
        links = [_link(file, file.relative_to(self.folder.parents[1]).as_posix()) for file in self._files()]
        said = Markup("Your copy of exercise {}. Click to open what you fill in: {}")
        return said.format(self.exercise.name, Markup(", ").join(links))


# ---- progress --------------------------------------------------------------------------------------------------------
def watched(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yields ``items``, with a progress bar if they take more than a second in all."""
    return iter(tqdm(items, desc=what, delay=1, leave=False, file=sys.stdout, unit=""))


@contextmanager
def said_meanwhile() -> Iterator[Callable[[str], None]]:
    """A function that shows its texts in one temporary line; in a file it shows nothing."""
    is_seen = sys.stdout.isatty() or "ipykernel" in sys.modules
    with tqdm(bar_format="{desc}", leave=False, file=sys.stdout, disable=not is_seen) as line:
        yield line.set_description_str


# ---- errors ----------------------------------------------------------------------------------------------------------
class Caught:
    """The exception that :func:`expect` caught, or None, and the note that shows it."""

    error: EpError | None = None
    note: Note


@contextmanager
def expect(*kinds: type[EpError], show_now: bool = True) -> Iterator[Caught]:
    """Shows the error that the cell provokes on purpose, without its traceback, and continues.

    ``kinds`` are classes of ``ep_lib.errors``, by default all of them; other errors are not caught. If nothing is
    raised, the note says so. ``show_now=False`` leaves the note to the cell: ``caught.note``.
    """
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, EpError)):
            raise ArgumentError(f"expect() takes classes of ep_lib.errors, got {show(kind)}")
    caught = Caught()
    try:
        yield caught
    except EpError as error:
        if kinds and not isinstance(error, kinds):
            raise
        caught.error = error
        caught.note = as_note(error)
    else:
        names = " or ".join(kind.__name__ for kind in kinds) or "EpError"
        caught.note = Note(f"No {names} this time", "This cell was meant to provoke one.", ORANGE)
    if show_now:
        show_note(caught.note)


def as_note(error: BaseException) -> Note:
    """An exception in short form: its name, its message, and the notes added to it."""
    return Note(type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", ())]), RED)


def show_finding(finding: Finding) -> Note:
    """A finding of the checker, as the last line of a cell: what is too long for the page goes on below itself."""
    headline, _, rest = str(finding).partition("\n")
    return Note(headline, textwrap.dedent(rest), RED)
