"""Boxes of text and code that display themselves in a notebook, and have a readable text form elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

_WIDTH = 100  # columns of a note as text
# The page's own ink on a tint of its ground, so that it is readable on a dark page too.
_BOX = "border-left:4px solid {color}; padding:0.4em 0.8em; margin:0.3em 0; background:#8888881a"
CODE = "font-family:var(--jp-code-font-family, monospace); font-size:13px; "
GREEN, ORANGE, RED, BLUE = "#009E73", "#E69F00", "#D55E00", "#0072B2"


@dataclass(frozen=True)
class Note:
    """A short coloured box: a headline, and text in which line breaks count, and `code` unless it is an error."""

    headline: str
    text: str = ""
    color: str = BLUE  # red: an error, in a monospaced font

    def __repr__(self) -> str:
        lines = [textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in self.text.split("\n") if line]
        return "\n".join([self.headline, *(textwrap.indent(line, "  ") for line in lines)])

    def _repr_html_(self) -> Markup:
        style = "white-space:pre-wrap"
        if self.color == RED:
            style += f"; padding-left:2em; text-indent:-2em; {CODE}"
        lines = self.text.split("\n") if self.text else []
        shown = [
            Markup().join(_code_in(line)) if self.color != RED and line.count("`") % 2 == 0 else line for line in lines
        ]
        body = Markup().join(Markup('<div style="{}">{}</div>').format(style, line) for line in shown)
        box = _BOX.format(color=self.color)
        return Markup('<div style="{}"><b>{}</b>{}</div>').format(box, self.headline, body)


def show_note(note: Any) -> None:
    """Displays an object that has a text form and an HTML form; prints the text outside of IPython."""
    if importlib.util.find_spec("IPython") is None:
        print(note)
        return
    from IPython.display import display

    display(note)  # type: ignore[no-untyped-call]


# ---- as HTML: text that is put into Markup is escaped ----------------------------------------------------------------
_TAG = re.compile("<[^>]*>")


def framed(inner: Markup) -> Markup:
    frame = "border:1px solid #bbbbbb; border-radius:4px; padding:0.4em 0.9em; margin:0.3em 0"
    return Markup('<div style="{}">{}</div>').format(frame, inner)


def code_box(lines: Iterable[Markup]) -> Markup:
    """A box of code. Where the page is narrow they go on below, comments above all."""
    # By this ink docs/site/wide.css and the JupyterLab extension find it, and turn it around on a dark page.
    box = "background:#f8f8f8; color:#222222; padding:0.5em 0.7em; margin:0 0 0.5em 0; overflow-x:auto; "
    look = f"{box}{CODE}font-size:12px; white-space:pre-wrap; line-height:1.35; border:1px solid #dddddd"
    return Markup('<pre style="{}">{}</pre>').format(look, Markup("\n").join(lines))


def marked(line: Markup) -> Markup:
    return Markup('<span style="display:inline-block; min-width:100%; background:#fff3bf">{}</span>').format(line)


def code_as_html(code: str, language: str, mark: str = "", *, numbered: bool = False) -> Markup:
    """A box of code in a ``language`` that Pygments knows; lines that contain ``mark`` are highlighted."""
    plain, colored = code.split("\n"), highlight(code, language).split("\n")
    if numbered:
        colored = [number_before(number, line) for number, line in enumerate(colored, 1)]
    return code_box(marked(line) if mark and mark in text else line for text, line in zip(plain, colored, strict=True))


def number_before(number: int, line: Markup) -> Markup:
    """A line of code with its number, which is not copied. A long line goes on four columns to the right of it."""
    shown = Markup('<span style="color:#767676; user-select:none">{:4}  </span>{}').format(number, line)
    code = Markup(_TAG.sub("", line)).unescape()
    hang = 6 + len(code) - len(code.lstrip(" ")) + 4
    look = f"display:inline-block; padding-left:{hang}ch; text-indent:-{hang}ch"
    return Markup('<span style="{}">{}</span>').format(look, shown)


def prose_as_html(text: str) -> Markup:
    """Paragraphs, between empty lines, in which `code`, **strong** and *emphasis* count."""
    paragraphs = [_words_as_html(part) for part in re.split(r"\n\s*\n", text.strip()) if part]
    return Markup().join(Markup('<p style="margin:0.4em 0">{}</p>').format(paragraph) for paragraph in paragraphs)


def _words_as_html(text: str) -> Markup:
    parts = _code_in(" ".join(text.split()))
    for number in range(0, len(parts), 2):
        strong = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", str(parts[number]))
        parts[number] = Markup(re.sub(r"\*([^*]+)\*", r"<i>\1</i>", strong))
    return Markup().join(parts)


def _code_in(text: str) -> list[Markup]:
    """The parts of a text: every second one is code."""
    parts = text.split("`")
    return [Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in enumerate(parts)]


def highlight(code: str, language: str) -> Markup:
    """Code as HTML with colours, line by line; without colours if Pygments is missing."""
    if importlib.util.find_spec("pygments") is None:
        return escape(code)
    pygments, lexers, formatters = (
        importlib.import_module(f"pygments{part}") for part in ("", ".lexers", ".formatters")
    )
    lexer = lexers.get_lexer_by_name(language, stripnl=False, ensurenl=False)
    formatter = formatters.HtmlFormatter(nowrap=True, noclasses=True, style="friendly")
    return Markup(pygments.highlight(code, lexer, formatter).rstrip("\n"))
