"""mine/notebooks: copies are brought up to date, and nothing that a learner wrote is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import ROOT

from ep_lib.commands import lab
from ep_lib.errors import GradingError
from ep_lib.workshop.course.copies import update


def notebook(*sources: str, output: str = "") -> str:
    outputs = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
    cells = [{"cell_type": "code", "source": [source], "outputs": outputs} for source in sources]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_a.ipynb").write_text(notebook("one"))
    return tmp_path


def course(root: Path, text: str) -> None:
    (root / "notebooks" / "00_a.ipynb").write_text(text)


def test_a_copy_is_made_once_and_kept(root: Path) -> None:
    copies = update(root)
    copy = copies.folder / "00_a.ipynb"
    assert copy == root / "mine" / "notebooks" / "00_a.ipynb" and copies.messages == ()
    copy.write_text(notebook("mine"))
    assert update(root).messages == () and copy.read_text() == notebook("mine")


def test_what_nobody_edited_is_replaced(root: Path) -> None:
    copy = update(root).folder / "00_a.ipynb"
    copy.write_text(notebook("one", output="it ran"))
    course(root, notebook("two"))
    (message,) = update(root).messages
    assert "newer version (you had not edited yours)" in message and copy.read_text() == notebook("two")


def test_what_was_edited_stays_and_the_new_one_is_beside_it(root: Path) -> None:
    copy = update(root).folder / "00_a.ipynb"
    copy.write_text(notebook("mine"))
    course(root, notebook("two"))
    (message,) = update(root).messages
    assert "yours, so it stays as it is" in message and "mine/notebooks/00_a.new.ipynb" in message
    assert copy.read_text() == notebook("mine") and (copy.parent / "00_a.new.ipynb").read_text() == notebook("two")
    assert update(root).messages == (), "it is said once"
    (copy.parent / "00_a.new.ipynb").write_text(notebook("worked in this one"))
    course(root, notebook("three"))
    update(root)
    assert (copy.parent / "00_a.new.ipynb").read_text() == notebook("worked in this one")
    assert (copy.parent / "00_a.new2.ipynb").read_text() == notebook("three")


def test_a_broken_copy_is_the_learners_too(root: Path) -> None:
    copy = update(root).folder / "00_a.ipynb"
    copy.write_text("half of a notebo")
    course(root, notebook("two"))
    assert update(root).messages and copy.read_text() == "half of a notebo"


def test_links_out_of_the_folder_lead_there_from_the_copy(root: Path) -> None:
    course(root, notebook("[a](../ep_lib/a.cuh) [b](01_b.ipynb)"))
    assert "[a](../../ep_lib/a.cuh) [b](01_b.ipynb)" in (update(root).folder / "00_a.ipynb").read_text()


def test_a_copy_says_of_its_language_what_the_kernel_will_say(root: Path) -> None:
    """Else JupyterLab calls it changed as soon as its kernel has started."""
    ipkernel = pytest.importorskip("ipykernel.ipkernel")
    course(root, (ROOT / "notebooks" / "00_start_here.ipynb").read_text())
    copy = json.loads((update(root).folder / "00_a.ipynb").read_text())
    assert copy["metadata"]["language_info"] == ipkernel.IPythonKernel.language_info


def test_without_a_place_to_write(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "mine").write_text("a file in the place of the folder")
    with pytest.raises(GradingError, match="make that folder writable"):
        update(root)
    source = root / "notebooks" / "00_a.ipynb"
    assert lab.own_copy(source, root) == source
    assert "are opened where they are" in capsys.readouterr().err


def test_a_read_only_disk(root: Path) -> None:
    update(root)
    course(root, notebook("two"))
    folder = root / "mine" / "notebooks"
    folder.chmod(0o555)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("this user writes everywhere")
        with pytest.raises(GradingError, match="make that folder writable"):
            update(root)
    finally:
        folder.chmod(0o755)
