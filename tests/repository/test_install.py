"""``.ci/install.py``: what pip was told is what uv is told, and pip does the rest."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest
from support import ROOT

SCRIPT = ROOT / ".ci" / "install.py"


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("", []),
        (":env:.quiet='1'\n:env:.timeout='60'\nlist.format='json'\n", []),
        ("global.find-links='/a\\n/b'\n", ["--find-links", "/a", "--find-links", "/b"]),
        ("global.index-url='/a'\ninstall.index-url='/b'\n", ["--index-url", "/b"]),
        (":env:.extra-index-url='/c'\ninstall.extra-index-url='/a'\n", ["--extra-index-url", "/c"]),
        ("global.cert='/with a blank'\n", ["--cert", "/with a blank"]),
        ("global.constraint='/a/pins.txt'\n:env:.cache-dir='/b'\n", ["--constraint", "/a/pins.txt"]),
        ("global.require-hashes='true'\n", None),
        ("global.index-url='/a'\n:env:.no-index='1'\n", None),
    ],
)
def test_uv_gets_pips_configuration(listed: str, expected: object) -> None:
    assert runpy.run_path(str(SCRIPT))["uv_options"](listed) == expected


def test_a_quiet_pip_is_asked_aloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It lists nothing, and uv would look in the wrong places."""
    script = runpy.run_path(str(SCRIPT))
    ran: list[list[str]] = []

    def run(command: list[str], env: dict[str, str] | None = None, **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        quiet = (env or {}).get("PIP_QUIET") != "0"
        return subprocess.CompletedProcess(command, 0, stdout="" if quiet else "global.index-url='/here'\n")

    (tmp_path / "uv").touch()
    monkeypatch.setenv("PIP_QUIET", "1")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setitem(script["pips_options"].__globals__, "UV", tmp_path / "uv")
    assert script["by_uv"](["--editable", "."])
    assert {"--quiet", "--index-url", "/here", "--editable", "."} <= set(ran[1])
