"""Notebook 02 beside its kernels: cells that need NIXL, the learner's Python pieces, Python shown from its file."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import ROOT

import ep_lib
from ep_lib import Kernel, workshop
from ep_lib.errors import ArgumentError, GradingError
from ep_lib.workshop import exercises
from ep_lib.workshop.lessons import host_setup
from ep_lib.workshop.notebook import show_source


def test_a_cell_that_needs_nixl_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []
    shell = SimpleNamespace(run_cell=lambda cell: ran.append(cell) or SimpleNamespace(raise_error=lambda: None))
    monkeypatch.setattr(host_setup, "missing", lambda: "no NIXL here: pip install nixl")
    host_setup.run_cell(shell, "1 / 0")
    assert not ran and "pip install nixl" in capsys.readouterr().out
    monkeypatch.setattr(host_setup, "missing", lambda: "")
    host_setup.run_cell(shell, "x = 1")
    assert ran == ["x = 1"]


def test_a_finding_behind_a_handle_names_the_kernels_own_lines() -> None:
    """The bytes are moved and the signal is raised deep inside of ep_lib's headers, several calls below the kernel."""
    file = ROOT / "tutorial_kernels" / "02_memory_views.cu"
    broken, receive = Kernel.from_file(file, "signal_first"), Kernel.from_file(file, "wait_and_copy")
    found = ep_lib.check(host_setup.write_by_view, 2, seeds=2, args=(broken, receive)).findings[0]
    assert found.first is not None and found.second is not None
    assert "02_memory_views.cu:18 (in <ep/" in found.first.location
    assert "02_memory_views.cu:26" in found.second.location
    assert "signal (line 17 of" in found.place and "after the data (line 18 of" in found.place


def test_a_finished_python_piece_is_the_learners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "tutorial_kernels").symlink_to(ROOT / "tutorial_kernels")
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(tmp_path))

    def told() -> str:
        assert workshop.python_piece("02_handshake").frame(b"")
        return capsys.readouterr().out

    assert "the course's own, since you have not begun yours" in told()
    file = workshop.start("02_handshake") / "02_handshake.py"
    assert "the course's own, since yours has tasks 1, 2, 3, 4, 5 still to do" in told()
    shutil.copyfile(exercises.find("02_handshake").solution_dir / file.name, file)
    assert "yours, mine/02_handshake/02_handshake.py" in told()
    file.write_text("import numpy\n\nx = 1 / 0\n")
    with pytest.raises(GradingError, match=r"cannot be imported: ZeroDivisionError.* \(line 3 of 02_handshake.py\)"):
        workshop.python_piece("02_handshake")
    with pytest.raises(GradingError, match="kernels include them"):
        workshop.python_piece("08_packets")


def test_python_is_shown_from_its_file() -> None:
    shown = show_source(
        "tutorial_kernels/02_registration.py", "Registration", "RegistrationCache.find", mark="return each"
    )
    assert "@dataclass(eq=False)" in repr(shown) and len(shown.marked) == 1
    assert "def acquire" not in repr(shown) and "None" in shown._repr_html_()
    with pytest.raises(ArgumentError, match=r"does not define 'RegistrationCache\.grow'"):
        show_source("tutorial_kernels/02_registration.py", "RegistrationCache.grow")
