"""``ep-lib ladder``: every rung of every ladder is right and free of races, and a wrong one is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support import ROOT

import ep_lib
from ep_lib import errors
from ep_lib.cli import main
from ep_lib.workshop.course import ladders
from ep_lib.workshop.lessons import dispatch_combine as lesson

pytestmark = pytest.mark.cuda_rules

IN_NOTEBOOKS = ("06", "07")  # which test_notebooks.py runs
RUNGS = {
    rung.kernel: main
    for number, main in (("06", lesson.dispatch), ("07", lesson.combine))
    for rung in ladders.load(number).rungs
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [number for number in ladders.NUMBERS if number not in IN_NOTEBOOKS])
def test_every_rung_is_right_has_a_time_and_says_what_is_new(number: str) -> None:
    table = ladders.run(number)
    assert table, repr(table)
    assert all(row.microseconds and row.microseconds > 0 and row.idea for row in table.rows)


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_of_06_and_07_has_no_races(name: str) -> None:
    report = ep_lib.check(RUNGS[name], lesson.RANKS, seeds=3, args=(name,), compare_values=False)
    assert report.ok, str(report)


def changed(folder: Path, file: str, old: str, new: str) -> Path:
    """A workshop whose tutorial file has one text in the place of another."""
    shutil.copytree(ROOT / "tutorial_kernels", folder / "tutorial_kernels")
    path = folder / "tutorial_kernels" / file
    assert old in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    return folder


def test_a_wrong_rung_is_told_and_the_others_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = changed(tmp_path, "01_write_signal.cu", "their_target[i] = source[i]", "their_target[i] = source[0]")
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(wrong))
    assert main(["ladder", "01", "--rung", "0", "--rung", "2", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [rung["right"] for rung in report["rungs"]] == [False, True] and not report["right"]
    assert "bytes on rank 0 are wrong" in report["rungs"][0]["problem"]
    assert main(["ladder", "01", "--rung", "0"]) == 1
    out = capsys.readouterr().out
    assert "NO" in out and "write_signal_bare: " in out


def test_a_rung_that_does_not_compile_is_a_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = changed(tmp_path, "01_write_signal.cu", "ep::red_add_release_sys_u64(their_signal, 1);", "oops;")
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(broken))
    table = ladders.run("01", rungs=[0])
    assert "Why rungs 0 to 4 take the same time" in repr(table) and "Why rungs 0 to 4" in table._repr_html_()
    (row,) = table.rows
    assert not row.right and row.microseconds is None and "KernelCompileError" in row.problem


def test_the_ladders_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder"]) == 0
    assert "06: 06_dispatch.cu, 6 rungs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"number": "02"}, "Notebook 02 has none: it is about the host"),
        ({"number": "01", "rungs": [9]}, "has no rung [9]"),
        ({"number": "01", "backend": "gpu"}, "backend is 'gpu'"),
        ({"number": "01", "fabric": "tcp"}, "fabric is 'tcp'"),
        ({"number": "01", "backend": "cuda", "fabric": "rc"}, "leave them out"),
        ({"number": True}, "there is no ladder True"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        ladders.run(**arguments)  # type: ignore[arg-type]
    assert says in str(caught.value)
