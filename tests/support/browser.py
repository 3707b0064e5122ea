"""Pages of ep_lib.viz in a headless Chromium: scripts are run in them, and what these put together comes back."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

_ERRORS = "<script>window.errors = []; window.onerror = (text) => { window.errors.push(text); };</script>"
_KEYS = """<script>
function press(key, shiftKey = false) { document.dispatchEvent(new KeyboardEvent("keydown", {key, shiftKey})); }
const text = (id) => document.getElementById(id).textContent;
</script>"""
_COLLECT = """<script>
window.onload = () => {
  const frames = [...document.querySelectorAll("iframe")];
  const told = frames.map((frame) => [frame.name, frame.contentWindow.seen, frame.contentWindow.errors]);
  document.getElementById("answer").textContent = JSON.stringify(told);
};
</script>"""


def run_in_pages(folder: Path, pages: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """``pages[name]`` is a page's HTML and a script, which leaves its answer in ``window.seen``. Returns the answers by
    name. A script of a page that fails is an AssertionError."""
    frames = []
    for name, (page, script) in pages.items():
        whole = page.replace("<head>", f"<head>{_ERRORS}")
        whole = whole.replace("</body>", f"{_KEYS}<script>{script}</script></body>")
        frames.append(f'<iframe name="{name}" width="1240" height="900" srcdoc="{html.escape(whole)}"></iframe>')
    file = folder / "pages.html"
    file.write_text(f'<body>{"".join(frames)}<pre id="answer"></pre>{_COLLECT}</body>', encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, check=True, timeout=300
    )
    answer = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.S)
    assert answer is not None and answer[1], done.stderr
    told = json.loads(html.unescape(answer[1]))
    assert [(name, errors) for name, _, errors in told if errors] == []
    return {name: seen for name, seen, _ in told}
