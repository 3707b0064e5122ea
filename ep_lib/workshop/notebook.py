"""What the notebooks need beside the library: source code from its real file, predictions, errors in short form.

Everything displays itself in a notebook and has a readable text form elsewhere. Nothing here needs an answer: a missing
prediction counts as unanswered, so notebooks run unattended.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ep_lib.errors import ArgumentError, EpError
from ep_lib.workshop.exercises import workshop_root

UNANSWERED = "unanswered"
_WIDTH = 100  # columns of a note as text
_BOX = "border-left:4px solid {color}; padding:0.4em 0.8em; margin:0.3em 0; background:#f7f7f7; color:#222222"
_CODE = "font-family:var(--jp-code-font-family, monospace); font-size:13px; "
GREEN, ORANGE, RED, BLUE = "#009E73", "#E69F00", "#D55E00", "#0072B2"


def find(file: str | Path) -> Path:
    """``file`` of the workshop (``"tutorial_kernels/01_write_signal.cu"``), as a path from the current folder.

    The path is relative, so that errors that name the file stay short. Raises ArgumentError if there is no such file.
    """
    path = workshop_root() / file
    if not path.is_file():
        raise ArgumentError(f"the workshop in {workshop_root()} has no file {str(file)!r}")
    return Path(os.path.relpath(path))


# ---- source code -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Source:
    """Part of a file, with the line numbers it has there: ``blocks`` of (first line, lines)."""

    file: str  # relative to the workshop
    blocks: tuple[tuple[int, tuple[str, ...]], ...]
    marked: frozenset[int] = field(default_factory=frozenset)  # line numbers

    def __repr__(self) -> str:
        parts = [
            "\n".join(f"{'>' if n in self.marked else ' '}{n:4} {line}" for n, line in enumerate(lines, first))
            for first, lines in self.blocks
        ]
        return f"{self.file}\n" + "\n  ...\n".join(parts)

    def _repr_html_(self) -> str:
        link = html.escape(os.path.relpath(workshop_root() / self.file))
        first, last = self.blocks[0][0], self.blocks[-1][0] + len(self.blocks[-1][1]) - 1
        head = f'<a href="{link}" target="_blank"><code>{html.escape(self.file)}</code></a>, lines {first} to {last}'
        body = "".join(self._block_html(number, lines) for number, lines in self.blocks)
        return f'<div style="font-size:90%; margin-bottom:0.2em">{head}</div>{body}'

    def _block_html(self, first: int, lines: Sequence[str]) -> str:
        colored = enumerate(_highlight("\n".join(lines), "cuda").split("\n"), first)
        return _pre(self._line_html(number, line) for number, line in colored)

    def _line_html(self, number: int, line: str) -> str:
        text = f'<span style="color:#999999; user-select:none">{number:4}  </span>{line}'
        return _marked(text) if number in self.marked else text


def _pre(lines: Iterable[str]) -> str:
    """A box of code, of lines that are HTML already."""
    box = "background:#f8f8f8; color:#222222; padding:0.5em 0.7em; margin:0 0 0.5em 0; overflow-x:auto; "
    look = f"{box}{_CODE}font-size:12px; white-space:pre; line-height:1.35; border:1px solid #dddddd"
    return f'<pre style="{look}">' + "\n".join(lines) + "</pre>"


def _marked(line: str) -> str:
    return f'<span style="display:inline-block; min-width:100%; background:#fff3bf">{line}</span>'


def code_as_html(code: str, language: str, mark: str = "") -> str:
    """A box of code in a ``language`` that Pygments knows; lines that contain ``mark`` are highlighted."""
    plain, colored = code.split("\n"), _highlight(code, language).split("\n")
    return _pre(_marked(line) if mark and mark in text else line for text, line in zip(plain, colored, strict=True))


def prose_as_html(text: str) -> str:
    """Paragraphs, between empty lines, in which `code`, **strong** and *emphasis* count."""
    paragraphs = [_words_as_html(part) for part in re.split(r"\n\s*\n", text.strip()) if part]
    return "".join(f'<p style="margin:0.4em 0">{paragraph}</p>' for paragraph in paragraphs)


def _words_as_html(text: str) -> str:
    parts = html.escape(" ".join(text.split())).split("`")  # every second one is code
    for number in range(0, len(parts), 2):
        strong = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", parts[number])
        parts[number] = re.sub(r"\*([^*]+)\*", r"<i>\1</i>", strong)
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def show_source(file: str | Path, *names: str, mark: str | Iterable[str] = (), comments: bool = True) -> Source:
    """Functions or structs ``names`` of a file of the workshop, with the comments above them; without names, all of it.

    ``comments=False`` leaves those comments out, if they would give away what a prediction asks. Lines that contain one
    of ``mark`` are highlighted. The source is read now, from the file that is compiled, so it is never stale. Raises
    ArgumentError for a name that the file does not define, and for a mark that is in no line shown.
    """
    text = find(file).read_text(encoding="utf-8").rstrip("\n").split("\n")
    ranges = [_definition(text, name, str(file)) for name in names] or [(0, len(text))]
    if not comments and names:
        ranges = [(next(n for n in range(*r) if not text[n].startswith("//")), r[1]) for r in ranges]
    blocks = tuple((begin + 1, tuple(text[begin:end])) for begin, end in sorted(ranges))
    marked = set()
    for words in [mark] if isinstance(mark, str) else mark:
        hits = {n for first, lines in blocks for n, line in enumerate(lines, first) if words in line}
        if not hits:
            raise ArgumentError(f"no line shown of {file} contains {words!r}")
        marked |= hits
    return Source(Path(file).as_posix(), blocks, frozenset(marked))


def _definition(text: Sequence[str], name: str, file: str) -> tuple[int, int]:
    """The lines [begin, end) that define ``name``: comments and template lines above it, and its body."""
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


def _is_rule(line: str) -> bool:
    return line.startswith("// ----") and line.endswith("----") and len(line.strip("/- ")) == 0


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


def _highlight(code: str, language: str) -> str:
    """Code as HTML with colours, line by line; without colours if Pygments is missing."""
    if importlib.util.find_spec("pygments") is None:
        return html.escape(code)
    pygments, lexers, formatters = (
        importlib.import_module(f"pygments{part}") for part in ("", ".lexers", ".formatters")
    )
    lexer = lexers.get_lexer_by_name(language, stripnl=False, ensurenl=False)
    formatter = formatters.HtmlFormatter(nowrap=True, noclasses=True, style="friendly")
    return str(pygments.highlight(code, lexer, formatter)).rstrip("\n")


# ---- predictions -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Note:
    """A short coloured box: a headline, and text in which line breaks count."""

    headline: str
    text: str = ""
    color: str = BLUE  # red: an error, in a monospaced font

    def __repr__(self) -> str:
        lines = [textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in self.text.split("\n") if line]
        return "\n".join([self.headline, *(textwrap.indent(line, "  ") for line in lines)])

    def _repr_html_(self) -> str:
        style = "white-space:pre-wrap"
        if self.color == RED:
            style += f"; padding-left:2em; text-indent:-2em; {_CODE}"
        lines = self.text.split("\n") if self.text else []
        body = "".join(f'<div style="{style}">{html.escape(line)}</div>' for line in lines)
        return f'<div style="{_BOX.format(color=self.color)}"><b>{html.escape(self.headline)}</b>{body}</div>'


class Prediction:
    """A question with choices, asked by :func:`predict`. ``answer`` is the choice, or ``"unanswered"``."""

    def __init__(self, question: str, choices: Sequence[str], answer: str | None) -> None:
        self.question = question
        self.choices = tuple(choices)
        if len(self.choices) < 2 or len(set(self.choices)) != len(self.choices):
            raise ArgumentError(f"a prediction needs at least two different choices, got {list(choices)}")
        if answer is not None and answer not in self.choices:
            raise ArgumentError(f"answer is {answer!r}; it must be one of {', '.join(map(repr, self.choices))}")
        self._answer = answer
        self._widget: Any = None

    @property
    def answer(self) -> str:
        value = self._answer if self._widget is None else self._widget.value
        return UNANSWERED if value is None else str(value)

    def compare(self, actual: object, why: str = "") -> Note:
        """What happened, beside what was predicted; ``why`` explains it in a sentence or two."""
        happened = str(actual)
        if self.answer == UNANSWERED:
            return Note(f"It is: {happened}", f"(You made no prediction: choose one above and run this again.)\n{why}")
        if self.answer == happened:
            return Note(f"You predicted: {self.answer}. Right!", why, GREEN)
        return Note(f"You predicted: {self.answer}. It is: {happened}", why, ORANGE)

    def __repr__(self) -> str:
        lines = [self.question, *(f"  - {choice}" for choice in self.choices)]
        return "\n".join([*lines, "(write your choice into the cell: predict(..., answer=...))"])


def predict(question: str, choices: Sequence[str], answer: str | None = None) -> Prediction:
    """Asks the learner what will happen. Shows buttons if ipywidgets is installed, else the choices as text.

    ``answer`` gives the answer in code, for those who prefer it or have no widgets. Raises ArgumentError if it is not
    one of the choices.
    """
    prediction = Prediction(question, choices, answer)
    if importlib.util.find_spec("ipywidgets") is None or importlib.util.find_spec("IPython") is None:
        print(prediction)
        return prediction
    import ipywidgets
    from IPython.display import display

    prediction._widget = ipywidgets.RadioButtons(
        options=list(prediction.choices),
        value=answer,
        layout=ipywidgets.Layout(width="max-content"),
    )
    title = ipywidgets.HTML(f"<b>Your prediction.</b> {html.escape(question)}")
    display(ipywidgets.VBox([title, prediction._widget]))  # type: ignore[no-untyped-call]
    return prediction


# ---- errors ----------------------------------------------------------------------------------------------------------
class Caught:
    """The exception that :func:`expect` caught, or None."""

    error: EpError | None = None


@contextmanager
def expect(*kinds: type[EpError]) -> Iterator[Caught]:
    """Shows the error that the cell provokes on purpose, without its traceback, and goes on.

    ``kinds`` are classes of ``ep_lib.errors``, by default all of them; other errors are not caught. If nothing is
    raised, the note says so.
    """
    caught = Caught()
    try:
        yield caught
    except EpError as error:
        if kinds and not isinstance(error, kinds):
            raise
        caught.error = error
        show_note(as_note(error))
    else:
        names = " or ".join(kind.__name__ for kind in kinds) or "EpError"
        show_note(Note(f"No {names} this time", "This cell was meant to provoke one.", ORANGE))


def as_note(error: BaseException) -> Note:
    """An exception in short form: its name, its message, and the notes added to it."""
    return Note(type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", ())]), RED)


def show_note(note: Any) -> None:
    """Displays what has a readable text form and an HTML one; prints it outside of IPython."""
    if importlib.util.find_spec("IPython") is None:
        print(note)
        return
    from IPython.display import display

    display(note)  # type: ignore[no-untyped-call]
