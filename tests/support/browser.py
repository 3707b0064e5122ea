"""Where Chromium is, and how patient tests are with it. The fixture ``page`` of conftest.py opens it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 240_000  # of a loaded machine

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@contextlib.contextmanager
def page_of(chromium: Any, name: str) -> Iterator[Any]:
    """A page in a context of its own; errors on its console fail the test, and EP_LIB_SCREENSHOTS names a folder for
    what it looked like."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1100})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    if (folder := os.environ.get("EP_LIB_SCREENSHOTS")) and opened.url != "about:blank":
        opened.screenshot(path=str(Path(folder) / f"{name}.png"))
    context.close()
    assert errors == []
