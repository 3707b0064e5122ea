"""Where Chromium is, and how patient tests are with it. The fixture ``page`` of conftest.py opens it."""

from __future__ import annotations

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 240_000  # of a loaded machine

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
