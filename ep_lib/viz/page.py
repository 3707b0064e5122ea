"""The common part of interactive HTML pages with keys and sliders."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ep_lib.errors import ArgumentError

RANK_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")
"""One colour per rank; they repeat from rank 8 on, with hatching where there is room."""

NARROW = 6.7
"""The width, in inches, of a picture that a page of 620 pixels shows whole."""

_PAGES = Path(__file__).parent / "pages"


class Page:
    """A self-contained HTML page: no server, no network. A notebook shows it in place."""

    def __init__(self, html_text: str, height: int) -> None:
        self.html = html_text
        self._height = height

    def save(self, path: str | Path) -> Path:
        """Writes it to a file, for a browser."""
        path = Path(path)
        try:
            path.write_text(self.html, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"the page cannot be written to {path}: {error.strerror}; name another file") from error
        return path

    def _repr_html_(self) -> str:
        # The border counts as width: 2 pixels too many would give the cell's output a scroll bar.
        look = f"display:block; box-sizing:border-box; width:100%; height:{self._height}px; border:1px solid #cccccc"
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" loading="lazy" title="a run, step by '
            f'step" style="{look}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"a page of {len(self.html):,} bytes: .save('run.html') writes it, a notebook shows it"


def make_page(name: str, title: str, data: Mapping[str, Any], height: int) -> Page:
    """The page ``pages/NAME.html`` with its script and style, and with ``data``, which the script reads as JSON."""
    packed = json.dumps({**data, "colors": RANK_COLORS}, separators=(",", ":"), ensure_ascii=False)
    body = (_PAGES / f"{name}.html").read_text(encoding="utf-8")
    script = "\n".join((_PAGES / file).read_text(encoding="utf-8") for file in ("base.js", f"{name}.js"))
    styles = [_PAGES / "base.css", _PAGES / f"{name}.css"]
    style = "\n".join(file.read_text(encoding="utf-8") for file in styles if file.exists())
    text = (_PAGES / "page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(title),
        "CSS": style,
        "BODY": body,
        "JS": script,
        "HASH": base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode(),  # of all between the tags
        "DATA": packed.replace("</", "<\\/"),
    }
    return Page(re.sub("@([A-Z]+)@", lambda mark: parts[mark[1]], text), height)
