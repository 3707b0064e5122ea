"""Puzzles in a notebook: ``workshop.puzzle("00.1")`` shows one, the cell magic ``%%puzzle 00.1`` runs an answer."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

import ep_lib
from ep_lib import viz
from ep_lib.errors import ArgumentError
from ep_lib.runtime.check import record
from ep_lib.viz.page import Page
from ep_lib.viz.time_travel import page_of
from ep_lib.workshop.course import progress, puzzles
from ep_lib.workshop.course.notes import BLUE, GREEN, ORANGE, Note, code_as_html, framed, prose_as_html, show_note
from ep_lib.workshop.course.puzzles.puzzle import CUDA_LINES, PYTHON_LINES, Puzzle, Verdict

_HINTS = ("Where to look", "What to think of", "Nearly the code")
_COSTS = {
    "accesses": "accesses of the busiest thread",
    "messages": "messages to other ranks",
    "steps": "synchronising steps",
}
_COLORS = {"to do": BLUE, "right": GREEN, "wrong": ORANGE}
_FOLD = "margin:0.3em 0 0.3em 0.2em"


@dataclass(frozen=True)
class Shown:
    """A puzzle in a notebook: task, template, folded hints and solution."""

    puzzle: Puzzle

    def __repr__(self) -> str:
        lines = [f"Puzzle {self.puzzle.number}: {self.puzzle.title}", self.puzzle.task.strip(), ""]
        lines += [
            *(f"{n:3}  {line}" for n, line in enumerate(self.puzzle.template.strip("\n").split("\n"), 1)),
            "",
            f"Hints: workshop.puzzle({self.puzzle.number!r}).hint(1) to (3)",
        ]
        return "\n".join(lines)

    def hint(self, number: int) -> Note:
        """Hint 1, 2 or 3, for pages without folding. Raises ArgumentError for another number."""
        if number not in (1, 2, 3):
            raise ArgumentError(f"hint is {number!r}; there are hints 1, 2 and 3")
        return Note(f"Hint {number}: {_HINTS[number - 1].lower()}", self.puzzle.hints[number - 1])

    def solution(self) -> Note:
        """A solution and its discussion; a release has none."""
        if not self.puzzle.solution:
            return Note("The solution", "is with your instructor.")
        return Note("A solution", f"{self.puzzle.solution.strip()}\n{' '.join(self.puzzle.discussion.split())}")

    def _repr_html_(self) -> Markup:
        puzzle = self.puzzle
        language = "python" if puzzle.is_python else "cuda"
        mark = PYTHON_LINES if puzzle.is_python else CUDA_LINES
        template = code_as_html(puzzle.template.strip("\n"), language, mark=mark, numbered=True)
        inner = Markup()  # the ladder: each hint unfolds inside the one before
        for head, hint in reversed(list(zip(_HINTS, puzzle.hints, strict=True))):
            inner = _fold(f"Hint: {head.lower()}", prose_as_html(hint) + inner)
        solution = code_as_html(puzzle.solution.strip("\n"), language) + prose_as_html(puzzle.discussion)
        last = _fold("A solution, discussed", solution) if puzzle.solution else Markup()
        parts = prose_as_html(puzzle.task) + template + inner + last
        return framed(Markup("<b>Puzzle {}: {}</b>{}").format(puzzle.number, puzzle.title, parts))


def _fold(head: str, body: Markup) -> Markup:
    box = Markup('<details style="{}"><summary style="cursor:pointer">{}</summary>{}</details>')
    return box.format(_FOLD, head, body)


@dataclass(frozen=True)
class Answer:
    """An attempt in a notebook: the verdict, the cost of a right one and how many are solved, the picture of its
    accesses, and the task if no cell above has it."""

    puzzle: Puzzle
    verdict: Verdict
    score: str = ""
    solved: str = ""
    task: Shown | None = None

    @property
    def note(self) -> Note:
        text = "\n".join(part for part in (self.verdict.text, self.score, self.solved) if part)
        if self.verdict.kind == "wrong" and self.verdict.main is not None:
            text += "\nTo see it happen, step by step: workshop.watch()"
        return Note(f"{self.puzzle.number}: {self.verdict.headline}", text, _COLORS[self.verdict.kind])

    @property
    def discussion(self) -> str:
        """The discussion of the solution, once the answer is right."""
        return self.puzzle.discussion.strip() if self.verdict.kind == "right" else ""

    @property
    def description(self) -> str:
        """The picture in words."""
        return viz.describe_accesses(self.verdict.accesses, self.verdict.arrays) if self.verdict.arrays else ""

    def __repr__(self) -> str:
        parts = (repr(self.note), self.discussion, self.description, repr(self.task) if self.task else "")
        return "\n".join(part for part in parts if part)

    def _repr_html_(self) -> Markup:
        task = self.task._repr_html_() if self.task else Markup()
        return self.note._repr_html_() + self._picture() + prose_as_html(self.discussion) + task

    def _picture(self) -> Markup:
        if not self.verdict.arrays:
            return Markup()
        title = "What your lines touched"
        return Markup(viz.access_map(self.verdict.accesses, self.verdict.arrays, title=title)._repr_html_())


_last: Answer | None = None  # of this kernel
_with_task: set[str] = set()  # the puzzles whose task a cell of this kernel has shown


def show(number: str) -> Shown:
    """The puzzle ``number``, for display in a notebook. Raises ArgumentError for an unknown one."""
    puzzle = puzzles.find(number)
    _with_task.add(puzzle.number)
    return Shown(puzzle)


def answer(number: str, lines: str) -> Answer:
    """Runs ``lines`` as an answer to a puzzle, and keeps it in mine/progress.json if it is right."""
    global _last
    puzzle = puzzles.find(number)
    verdict = puzzle.attempt(lines)
    _last = Answer(puzzle, verdict, task=None if puzzle.number in _with_task else Shown(puzzle))
    if verdict.kind == "right":
        progress.put(progress.PUZZLES, puzzle.number, lines)
        _last = Answer(puzzle, verdict, _score(puzzle, lines), _solved())
    return _last


def _solved() -> str:
    every = [puzzle.number for notebook in puzzles.notebooks() for puzzle in puzzles.puzzles_of(notebook)]
    kept = progress.all_of(progress.PUZZLES)
    return f"Solved: {sum(number in kept for number in every)} of {len(every)} puzzles."


def _score(puzzle: Puzzle, lines: str) -> str:
    """The cost of a right answer, beside the course's own."""
    score = puzzle.score(lines)
    if score is None:
        return ""
    best = puzzle.score(puzzle.solution) if puzzle.solution else None  # a release has none
    parts = []
    for what, words in _COSTS.items():
        number = getattr(score, what)
        known = "" if best is None else f" ({min(number, getattr(best, what))})"
        parts.append(f"{number}{known} {words}")
    return f"Score{' (best known)' if best else ''}: {', '.join(parts)}."


def watch() -> Page:
    """Shows the run of the last answer, step by step. Raises ArgumentError if there is none."""
    if _last is None or _last.verdict.main is None:
        raise ArgumentError("there is no run to look at: run a cell with %%puzzle first")
    puzzle, verdict, main = _last.puzzle, _last.verdict, _last.verdict.main

    def run(rank: ep_lib.Rank) -> None:
        main(rank)

    run.__name__ = f"puzzle {puzzle.number}: {puzzle.title}"  # the page's heading
    recording = record(run, puzzle.ranks, puzzle.fabric, verdict.seed)
    return page_of(recording, tell=verdict.tell, line_names={puzzle.filename: verdict.line_names})


def run_cell(line: str, cell: str) -> None:
    """``%%puzzle 00.1``: IPython calls it with the rest of the first line, and the lines below it."""
    try:
        show_note(answer(line.strip(), cell))
    except ArgumentError as error:
        show_note(Note(f"%%puzzle {line}".strip(), str(error), ORANGE))
