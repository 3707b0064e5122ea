"""Predictions: an answer is kept and compared, revealed where it was asked, and readable in a saved notebook."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from ep_lib import errors, viz
from ep_lib.workshop.course import prediction, progress
from ep_lib.workshop.course.notes import Note
from ep_lib.workshop.course.prediction import Prediction, predict
from ep_lib.workshop.course.saving import before_saving

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
WIDGETS = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def own_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workshop whose mine/ is the test's own, and a kernel that has run nothing yet."""
    (tmp_path / "solutions").mkdir()
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(tmp_path))
    forget_the_kernel(monkeypatch)
    yield tmp_path / "mine"


def forget_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_unwritten", [])
    monkeypatch.setattr(prediction, "_outcomes", {})


def test_it_is_compared_with_what_happened() -> None:
    assert repr(predict("99.a", "?", ["1", "2"], answer="1").compare(1)).startswith("You predicted: 1. Right!")
    assert repr(predict("99.b", "?", ["1", "2"], answer="2").compare(1)) == "You predicted: 2. It is: 1"
    shown = repr(predict("99.c", "?", ["1", "2"]).compare(1))
    assert "It is: 1" in shown and "no prediction" in shown


def test_a_picture_is_shown_with_the_outcome_and_not_before() -> None:
    picture = viz.outcomes({"ring": {"right": 1}}, title="One <ring>")
    question = predict("99.a", "?", ["1", "2"])
    shown = question.compare("1", shown=picture)
    assert "Picture: One <ring>: ring, 1 right." in repr(shown) and "<img" not in question.as_html()
    assert 'alt="One &lt;ring&gt;: ring, 1 right." src="data:image/png;base64,' in question._told


def test_the_answer_outlives_cell_and_kernel(own_mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict("99.a", "?", ["1", "2"]).choose("2")
    assert predict("99.a", "?", ["1", "2"]).answer == "2"
    forget_the_kernel(monkeypatch)
    assert predict("99.a", "?", ["1", "2"]).answer == "2"
    assert json.loads((own_mine / "progress.json").read_text()) == {"predictions": {"99.a": "2"}}
    assert predict("99.a", "?", ["1", "3"]).answer is None, "a question that has changed is asked again"
    predict("99.a", "?", ["1", "2"]).compare("1")
    forget_the_kernel(monkeypatch)
    assert "It is: 1" in predict("99.a", "?", ["1", "2"]).as_html(), "a saved notebook says what happened, too"


def test_a_question_that_has_changed_forgets_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    old = predict("99.a", "?", ["1", "2"])
    old.choose("1")
    old.compare("1")
    forget_the_kernel(monkeypatch)
    new = predict("99.a", "?!", ["2", "3"])
    assert new.answer is None and new.outcome is None
    new.choose("3")
    forget_the_kernel(monkeypatch)
    again = predict("99.a", "?!", ["2", "3"])
    assert again.answer == "3" and again.outcome is None and again.note() is None


def test_it_is_revealed_on_a_click() -> None:
    pytest.importorskip("ipywidgets")
    asked = predict("99.a", "?", ["1", "2"])
    asked.compare("1")
    assert asked.note() is None, "what happened is not told before it is answered"
    assert "You predicted" not in asked.as_html()
    assert asked._widget is not None
    asked._widget._buttons["2"].click()
    assert "You predicted: 2. It is: 1" in asked.as_html() and "● 2" in asked.as_html()
    assert "It is: 2" not in asked._widget._below.value and "It is: 1" in asked._widget._below.value
    assert [b.button_style for b in asked._widget._buttons.values()] == ["success", "warning"]
    asked._widget._buttons["1"].click()
    assert asked.answer == "2", "what is revealed is answered"
    assert WIDGETS not in asked._bundle(), "no buttons where all is said"


def test_what_would_give_it_away_shows_with_the_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ipywidgets")
    asked = predict("99.a", "?", ["1", "2"])
    print("12 of", 20, "<runs>", file=asked)
    compared = asked.compare("1", shown=Note("A table", "of numbers"))
    assert "12 of" not in capsys.readouterr().out and asked._widget is not None
    assert "12 of" not in asked.as_html() + asked._widget._below.value and "A table" not in asked._widget._below.value
    asked._widget._buttons["2"].click()
    below = asked._widget._below.value
    assert below.index("12 of 20 &lt;runs&gt;") < below.index("A table") < below.index("It is: 1")
    assert repr(compared).startswith("12 of 20 <runs>\nA table\n  of numbers\nYou predicted: 2. It is: 1")
    assert "12 of" not in repr(asked.compare("1")), "what an earlier run has printed is gone"


def test_before_the_run_an_answer_can_be_changed() -> None:
    pytest.importorskip("ipywidgets")
    asked = predict("99.a", "?", ["1", "2"])
    assert asked._widget is not None
    for choice in ("2", "1"):
        asked._widget._buttons[choice].click()
        assert [b.icon for b in asked._widget._buttons.values()] == ["circle" if c == choice else "" for c in "12"]
    assert "<b>1</b>" in asked._widget._below.value and repr(asked.compare("1")).startswith("You predicted: 1. Right!")


def test_the_course_may_know_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_told", lambda key: ("2", "because") if key == "99.a" else (None, ""))
    assert "It is: 2" in repr(predict("99.a", "?", ["1", "2"]).compare())
    assert "something else" in repr(predict("99.a", "?", ["1", "2"]).compare(holds=False))
    with pytest.raises(errors.ArgumentError, match="needs what happened"):
        predict("99.b", "?", ["1", "2"]).compare()


def test_without_widgets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert predict("99.a", "How many?", ["one", "two"]).answer is None
    assert "How many?\n  - one\n  - two\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "choices", "answer"),
    [("99.a", ["1"], None), ("99.a", ["1", "1"], None), ("99.a", ["1", "2"], "3"), ("a", ["1", "2"], None)],
)
def test_it_needs_a_key_and_choices(key: str, choices: list[str], answer: str | None) -> None:
    with pytest.raises(errors.ArgumentError):
        predict(key, "?", choices, answer)


# ---- saved notebooks -------------------------------------------------------------------------------------------------
def saved(output: dict[str, Any]) -> dict[str, Any]:
    model = {"type": "notebook", "content": {"cells": [{"outputs": [output]}, {"cell_type": "markdown"}]}}
    before_saving("x.ipynb", model)
    data: dict[str, Any] = output["data"]
    return data


def test_a_saved_prediction_needs_no_kernel() -> None:
    asked = Prediction("99.a", "How many?", ["one", "two"])
    output = {"data": {WIDGETS: {}, "text/html": asked.as_html()}, "metadata": asked._metadata()}
    assert "Not answered." in saved(json.loads(json.dumps(output)))["text/html"]
    asked.choose("two")
    data = saved(json.loads(json.dumps(output)))
    assert WIDGETS not in data and "How many?" in data["text/html"] and "<b>two</b>" in data["text/html"]


def test_other_outputs_are_saved_as_they_are() -> None:
    assert saved({"data": {WIDGETS: {}, "text/plain": "x"}}) == {WIDGETS: {}, "text/plain": "x"}
    assert saved({"data": {WIDGETS: {}, "text/html": "x"}, "metadata": {}}) == {"text/html": "x"}
    assert saved({"data": {WIDGETS: {}, "text/html": "x"}, "metadata": {prediction.METADATA: {"key": 3}}})
    before_saving("x.txt", {"type": "file", "content": "x"})
