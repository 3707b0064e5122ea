"""Predictions: a question with choices, asked before a run, and compared with the outcome.

The answer is kept in mine/progress.json, so it survives another run of the cell, of the notebook and of the kernel.
Once the outcome is known, it is revealed where the question was answered; the explanation is in answers/, not in the
notebook's cells. Output printed into the prediction (``print(..., file=prediction)``) appears together with the
outcome, so that a learner answers first. Displays have an HTML form beside the buttons, which a saved notebook shows
without a kernel (saving.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ep_lib.errors import ArgumentError
from ep_lib.require import one_of, several, text
from ep_lib.workshop.course import progress
from ep_lib.workshop.course.notes import BLUE, GREEN, ORANGE, Note, framed

METADATA = "ep_lib_prediction"  # of an output, for saving.py to write it anew
_KEY = re.compile(r"\d\d\.[a-z0-9-]+")
_WIDGETS = "application/vnd.jupyter.widget-view+json"

_outcomes: dict[str, str] = {}  # by key: the outcomes of this kernel's runs


class Prediction:
    """A question with choices, asked by :func:`predict`. ``answer`` is the choice, or None."""

    def __init__(self, key: str, question: str, choices: Sequence[str], answer: str | None = None) -> None:
        self.key = key
        self.question = text("question", question)
        self.choices = tuple(text("a choice", choice) for choice in several("choices", choices, "a list of texts"))
        if not _KEY.fullmatch(text("key", key)):
            raise ArgumentError(f"a prediction's key is the notebook's number and a name, '00.greet', got {key!r}")
        if len(self.choices) < 2 or len(set(self.choices)) != len(self.choices):
            raise ArgumentError(f"a prediction needs at least two different choices, got {list(choices)}")
        if answer is not None:
            one_of("answer", answer, self.choices)
        kept = progress.get(progress.PREDICTIONS, key)
        self.answer: str | None = answer or (kept if kept in self.choices else None)
        self._has_changed = kept is not None and kept not in self.choices  # since it was answered
        self._widget: _Buttons | None = None
        self._displays: list[Any] = []
        self._printed = ""  # since the last comparison
        self._told = Markup()  # the comparison's text beside the outcome

    def write(self, printed: str) -> int:
        """Keeps the output of ``print(..., file=prediction)`` for :meth:`compare`."""
        self._printed += text("what is printed into a prediction", printed)
        return len(printed)

    @property
    def outcome(self) -> str | None:
        """The outcome of a run: of this kernel, or of an earlier one if it was revealed then."""
        if self.key in _outcomes:
            return _outcomes[self.key]
        kept = None if self._has_changed else progress.get(progress.OUTCOMES, self.key)
        return kept if isinstance(kept, str) and self.answer is not None else None

    def choose(self, choice: str) -> None:
        """Records the answer. If the outcome is already known, reveals it; the answer is then final."""
        if self.note() is not None:
            return
        self.answer = choice
        if self._has_changed:  # the outcome of the old question may not fit this one
            progress.put(progress.OUTCOMES, self.key, None)
            self._has_changed = False
        progress.put(progress.PREDICTIONS, self.key, choice)
        self._keep_outcome()
        if self._widget is not None:
            # The output is not replaced, so that the button keeps the keyboard's focus.
            self._widget.show(self)

    def _keep_outcome(self) -> None:
        if self.note() is not None:
            progress.put(progress.OUTCOMES, self.key, self.outcome)

    def compare(self, actual: object = None, holds: bool = True, shown: object = None) -> Comparison:
        """Shows the outcome beside the prediction, the explanation, and the output printed into this prediction.

        Without ``actual`` the outcome is from answers/, for a run that can only confirm it; ``holds``: whether it did.
        ``shown``: a further display that would give the answer away.
        """
        printed, self._printed = self._printed.rstrip("\n"), ""
        told, why = _told(self.key)
        happened = (told if actual is None else str(actual)) if holds else "something else, this time"
        if happened is None:
            raise ArgumentError(f"compare() of {self.key} needs what happened: answers/ does not say")
        _outcomes[self.key] = happened
        self._keep_outcome()
        if self.answer is not None:
            self._refresh()
        self._told = _printed_as_html(printed) + _as_html(shown)
        return Comparison(self, happened, why, printed, shown, self._told)

    def note(self) -> Note | None:
        """The prediction and the outcome; None as long as either is unknown."""
        if self.answer is None or self.outcome is None:
            return None
        if self.answer == self.outcome:
            return Note(f"You predicted: {self.answer}. Right!", _told(self.key)[1], GREEN)
        return Note(f"You predicted: {self.answer}. It is: {self.outcome}", _told(self.key)[1], ORANGE)

    # ---- display ---------------------------------------------------------------------------------------------
    def show(self) -> None:
        """Displays the question: with buttons where there are widgets, otherwise as text."""
        if not has_widgets():
            print(self)
            return
        from IPython.display import display

        shown = display(self._bundle(), raw=True, metadata=self._metadata(), display_id=True)  # type: ignore[no-untyped-call]
        if shown is not None:  # outside of a notebook there is nothing to display it
            self._displays.append(shown)

    def _bundle(self) -> dict[str, Any]:
        """The question in all its forms; without buttons once the outcome is revealed."""
        forms = {"text/plain": repr(self), "text/html": self.as_html()}
        if self.note() is not None:
            return forms
        if self._widget is None:
            self._widget = _Buttons(self)
        return {**self._widget.bundle(), **forms}

    def _metadata(self) -> dict[str, Any]:
        return {METADATA: {"key": self.key, "question": self.question, "choices": self.choices}}

    def _refresh(self) -> None:
        """Updates the displayed question with the answer and the outcome."""
        for shown in self._displays:
            shown.update(self._bundle(), raw=True, metadata=self._metadata())

    def as_html(self) -> Markup:
        """The question, the answer and the outcome, as far as known; needs no kernel."""
        marks = [("●" if choice == self.answer else "○", choice) for choice in self.choices]
        lines = Markup().join(Markup('<div style="margin-left:1em">{} {}</div>').format(*each) for each in marks)
        note = self.note()
        if note is not None:
            below = note._repr_html_()
        elif self.answer is None:
            below = Markup("<i>Not answered. Where the notebook runs, run this cell and choose.</i>")
        else:
            below = Markup("You predicted: <b>{}</b>. What happens shows in the cells below.").format(self.answer)
        return framed(title(self.question) + lines + below)

    def __repr__(self) -> str:
        lines = [self.question, *(f"  {'*' if choice == self.answer else '-'} {choice}" for choice in self.choices)]
        if (note := self.note()) is not None:
            return "\n".join([*lines, repr(note)])
        return "\n".join([*lines, "(write your choice into the cell: predict(..., answer=...))"])


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The display of :meth:`Prediction.compare`. Without an answer, it asks again, and reveals the outcome on a
    click."""

    _prediction: Prediction
    _happened: str
    _why: str
    _printed: str
    _shown: object
    _html: Markup  # of _printed and _shown

    def _note(self) -> Note:
        made = self._prediction.note()
        if made is not None:
            return made
        return Note(f"It is: {self._happened}", f"(You made no prediction.)\n{self._why}", BLUE)

    def __repr__(self) -> str:
        shown = "" if self._shown is None else repr(self._shown)
        return "\n".join(part for part in (self._printed, shown, repr(self._note())) if part)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        prediction, outcome = self._prediction, self._html + self._note()._repr_html_()
        forms = {"text/plain": repr(self), "text/html": outcome}
        if prediction.answer is not None or not has_widgets():
            display(forms, raw=True)  # type: ignore[no-untyped-call]
            return
        # Without widgets the outcome is folded, so that the reader does not see it at once.
        fold = Markup("<details><summary>What happened</summary>{}</details>").format(outcome)
        forms["text/html"] = framed(title(prediction.question) + fold)
        bundle = {**prediction._bundle(), **forms}
        shown = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        if shown is not None:
            prediction._displays.append(shown)


class _Buttons:
    """The question with a button for each choice."""

    def __init__(self, prediction: Prediction) -> None:
        import ipywidgets

        wide = ipywidgets.Layout(width="max-content", min_width="8em")
        self._buttons = {
            choice: ipywidgets.Button(description=choice, layout=wide, tooltip="Choose this")
            for choice in prediction.choices
        }
        for choice, button in self._buttons.items():
            button.on_click(lambda _, choice=choice: prediction.choose(choice))
        self._below = ipywidgets.HTML()
        self._box = ipywidgets.VBox([ipywidgets.HTML(title(prediction.question)), *self._buttons.values(), self._below])
        self._box.add_class("ep-lib-prediction")  # jupyter/labextensions knows it by this
        self.show(prediction)

    def bundle(self) -> dict[str, Any]:
        """The form for notebooks with a kernel."""
        return {_WIDGETS: {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}}

    def show(self, prediction: Prediction) -> None:
        """Shows the choice and the outcome, as far as known."""
        note = prediction.note()
        for choice, button in self._buttons.items():
            button.icon = "circle" if choice == prediction.answer else ""
            button.button_style = "info" if choice == prediction.answer else ""
            if note is not None and choice in (prediction.answer, prediction.outcome):
                right = choice == prediction.outcome
                button.icon, button.button_style = ("check", "success") if right else ("times", "warning")
        if note is not None:
            close = Markup('<div style="line-height:1.5">{}</div>')  # a widget's lines lie as far apart as buttons
            self._below.value = close.format(prediction._told + Markup(note._repr_html_()))
        elif prediction.answer is not None:
            kept = Markup("<br>{}").format(progress.problem()) if progress.problem() else ""
            said = Markup("You predicted: <b>{}</b>. Now run the next cells.{}")
            self._below.value = said.format(prediction.answer, kept)


def predict(key: str, question: str, choices: Sequence[str], answer: str | None = None) -> Prediction:
    """Asks the learner what will happen. Shows buttons if ipywidgets is installed, else the choices as text.

    ``key`` is the notebook's number and a name of the question, as in "00.greet". ``answer`` gives the answer in code,
    for those who prefer it or have no widgets. Raises ArgumentError if it is not one of the choices.
    """
    prediction = Prediction(key, question, choices, answer)
    prediction.show()
    return prediction


def _printed_as_html(printed: str) -> Markup:
    from ep_lib.viz.findings import hanging_lines  # and with it Matplotlib, only here

    box = Markup('<pre style="margin:0.3em 0; white-space:pre-wrap">{}</pre>')
    return box.format(Markup(hanging_lines(printed))) if printed else Markup()


def _as_html(shown: object) -> Markup:
    as_html = getattr(shown, "_repr_html_", None)
    return Markup(as_html()) if as_html is not None else _printed_as_html("" if shown is None else repr(shown))


def title(question: str) -> Markup:
    return Markup("<b>Your prediction.</b> {}").format(question)


def has_widgets() -> bool:
    return importlib.util.find_spec("ipywidgets") is not None and importlib.util.find_spec("IPython") is not None


def _told(key: str) -> tuple[str | None, str]:
    """The entry of a question in answers/nbNN.py: the answer, if only it has it, and the explanation."""
    number, _, name = key.partition(".")
    module = f"ep_lib.workshop.course.answers.nb{number}"
    if importlib.util.find_spec(module) is None:
        return None, ""
    told = importlib.import_module(module).ANSWERS.get(name, "")
    return told if isinstance(told, tuple) else (None, told)
