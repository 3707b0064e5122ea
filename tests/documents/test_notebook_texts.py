"""What is committed of the notebooks: no outputs, no counts, no traces of a run, and all that a lesson needs."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from puzzle_answers import WRONG
from support import ROOT

from ep_lib.workshop.course import puzzles
from ep_lib.workshop.course.course_map import MAIN
from ep_lib.workshop.course.puzzles import page
from ep_lib.workshop.course.puzzles.puzzle import CUDA_LINES, PYTHON_LINES
from ep_lib.workshop.notebook import LONGEST

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
PUZZLES = {puzzle.number: puzzle for notebook in puzzles.notebooks() for puzzle in puzzles.puzzles_of(notebook)}
EXPECTED = {
    "00_start_here",
    "01_write_and_signal",
    "01b_for_the_curious",
    "02_host_setup",
    "03_ibgda_efa_shim",
    "04_ring_and_proxy",
    "05_pcie_bounce_buffers",
    "06_dispatch",
    "07_combine",
    "08_fp8_and_low_latency",
    "09_moe_layer",
    "10_beyond_one_machine",
}
PUBLIC = {"ep_lib", "ep_lib.workshop", "ep_lib.workshop.lessons", "ep_lib.workshop.notebook", "ep_lib.compat.nixl"}


each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def read(path: Path) -> Any:
    nbformat = pytest.importorskip("nbformat")  # here: its import takes seconds
    return nbformat.read(path, as_version=4)


def code_of(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")


def test_the_notebooks_are_there() -> None:
    assert {path.stem for path in NOTEBOOKS} == EXPECTED


# ---- as committed ----------------------------------------------------------------------------------------------------
def graded_by_nbgrader(puzzle: str) -> dict[str, Any]:
    """The metadata of a cell that nbgrader takes for an answer with a point (its schema 3)."""
    cell = {"grade": True, "solution": True, "task": False, "locked": False, "points": 1, "schema_version": 3}
    return {"nbgrader": {**cell, "grade_id": f"puzzle-{puzzle.replace('.', '-')}"}}


@each_notebook
def test_it_is_valid_and_stripped(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    pytest.importorskip("nbformat").validate(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info"}, "widgets' state and the like stay out of git"
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[a-z][a-z0-9-]*", cell["id"]), f"{cell['id']}: give the cell a name that stays"
        assert "".join(cell["source"]).strip(), f"cell {cell['id']} is empty"
        puzzle = re.match(r"%%puzzle (\S+)", "".join(cell["source"]))
        assert cell["metadata"] == (graded_by_nbgrader(puzzle[1]) if puzzle else {}), f"cell {cell['id']}: its metadata"
        if cell["cell_type"] == "code":
            strip = f"cell {cell['id']}: clear all outputs before you commit"
            assert cell["outputs"] == [] and cell["execution_count"] is None, strip


@each_notebook
def test_it_is_short(path: Path) -> None:
    cells = read(path).cells
    assert len(cells) <= 60
    long = [cell.id for cell in cells if cell.cell_type == "code" and len(cell.source.split("\n")) > LONGEST]
    assert long == [], "what a cell has to scroll for belongs into ep_lib/workshop/lessons"


def test_the_main_path_is_read_in_an_afternoon() -> None:
    on_it = [path for path in NOTEBOOKS if path.stem.partition("_")[0] in {stage.notebook for stage in MAIN}]
    prose = [cell.source for path in on_it for cell in read(path).cells if cell.cell_type == "markdown"]
    assert len(on_it) == len(MAIN) and sum(len(text.split()) for text in prose) <= 7000


@each_notebook
def test_it_has_what_a_lesson_needs(path: Path) -> None:
    cells = read(path).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = code_of(path)
    assert "**The question of this notebook:**" in cells[0].source
    assert code.count("predict(") >= 2 and code.count(".compare(") == code.count("predict(")
    assert "show_source(" in code and "viz." in code
    assert "with expect(" in code, "a deliberate mistake"
    assert re.search(r"## (Recap|What you take along)", prose)
    assert 'BACKEND = "emulator"' in code
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", prose):
        assert (path.parent / target).exists(), f"a link leads nowhere: {target}"


@each_notebook
def test_files_of_the_learner_are_called_what_they_are(path: Path) -> None:
    for cell in read(path).cells:
        for exercise, piece in re.findall(r"`mine/(\w+)/([\w./]+)`", cell.source):
            assert (ROOT / "solutions" / exercise / piece).is_file(), f"mine/{exercise}/{piece}"


@each_notebook
def test_kernels_are_shown_from_their_files_and_never_pasted(path: Path) -> None:
    for cell in read(path).cells:
        if cell.source.startswith("%%kernel"):
            continue
        assert "__global__" not in cell.source, f"cell {cell.id} contains a kernel: show the file instead"
        assert "from_source" not in cell.source


@each_notebook
def test_its_code_uses_the_public_interface_only(path: Path) -> None:
    for module in re.findall(r"^(?:from|import) (ep_lib[\w.]*)", code_of(path), re.M):
        assert module in PUBLIC, module
    assert not re.search(r"\b\w+\._[a-z]", code_of(path)), "a private name"


# ---- predictions ----
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_cell_shows_the_outcome_before_the_question(path: Path) -> None:
    """The cell behind a question has its run, and prints nothing but into the prediction."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    sources = [re.sub(r"^%%with_nixl\n", "", "".join(cell["source"])) for cell in cells]
    for asks, runs in itertools.pairwise(sources):
        match = re.search(r"^(\w+) = predict\(", asks, re.M)
        if match is None:
            continue
        assert f"{match[1]}.compare(" in runs, f"the cell behind the question of {match[1]} does not run it"
        for call in (node for node in ast.walk(ast.parse(runs)) if isinstance(node, ast.Call)):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            if ast.unparse(call.func) == "print":
                assert given.get("file") == match[1], f"print(..., file={match[1]}) in: {runs}"
            if ast.unparse(call.func) == "expect":
                assert given.get("show_now") == "False", f"expect(..., show_now=False) in: {runs}"


@pytest.mark.parametrize("number", sorted({path.stem[:2] for path in NOTEBOOKS}))
def test_each_question_of_a_notebook_has_its_reason(number: str) -> None:
    paths = [path for path in NOTEBOOKS if path.stem.startswith(number)]  # 01 and 01b share a module
    answers = importlib.import_module(f"ep_lib.workshop.course.answers.nb{number}").ANSWERS
    keys, choices = [], {}
    for cell in (cell for path in paths for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.startswith("%%"):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "predict":
                key = ast.literal_eval(node.args[0])
                keys.append(key.removeprefix(f"{number}."))
                choices[keys[-1]] = ast.unparse(node.args[2])
        why = [text for told in answers.values() for text in ([told] if isinstance(told, str) else told[1:])]
        assert not any(text in re.sub(r"\"\s+\"", "", source) for text in why), "the reason stands in the notebook"
    assert sorted(keys) == sorted(answers)
    for name, told in answers.items():
        assert isinstance(told, str) or repr(told[0]) in choices[name], f"{name}: the answer is none of the choices"


# ---- puzzles ----
@pytest.mark.parametrize("notebook", puzzles.notebooks())
def test_the_notebook_has_its_cells(notebook: str) -> None:
    paths = sorted((ROOT / "notebooks").glob(f"{notebook}*.ipynb"))  # 01.4 is in 01b
    cells = [cell for path in paths for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    numbers = [puzzle.number for puzzle in puzzles.puzzles_of(notebook)]
    assert [source[9:].partition("\n")[0].strip() for source in sources if source.startswith("%%puzzle ")] == numbers
    shown = [match for source in sources for match in re.findall(r"workshop\.puzzle\(\"([\d.]+)\"\)", source)]
    assert shown == numbers
    for source in sources:
        if source.startswith("%%puzzle "):
            puzzle = PUZZLES[source[9:].partition("\n")[0].strip()]
            assert puzzle.attempt(source.partition("\n")[2]).kind == "to do", "the learner's cell is empty"


def test_the_page_of_all_puzzles_has_each_once_and_hardly_prose_before() -> None:
    text = (ROOT / "notebooks" / page.NAME).read_text(encoding="utf-8")
    assert text == page.as_notebook(), "run python -m ep_lib.workshop.course.generate"
    pytest.importorskip("nbformat").validate(json.loads(text))
    cells = json.loads(text)["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    asked = [found for source in sources for found in re.findall(r"%%puzzle (\S+)", source)]
    assert sorted(asked) == sorted(PUZZLES) and asked[0] == "00.1"
    first = next(i for i, source in enumerate(sources) if source.startswith("%%puzzle"))
    assert sum(len(sources[i].split()) for i in range(first) if cells[i]["cell_type"] == "markdown") <= 60
    assert all(
        PUZZLES[each].attempt(source.partition("\n")[2]).kind == "to do"
        for each, source in zip(asked, (source for source in sources if source.startswith("%%puzzle")), strict=True)
    )


@pytest.mark.parametrize("number", PUZZLES)
def test_it_has_what_a_puzzle_needs(number: str) -> None:
    puzzle = PUZZLES[number]
    assert puzzle.template.count(PYTHON_LINES if puzzle.is_python else CUDA_LINES) == 1
    solution = puzzle.solution.strip("\n").split("\n")
    assert 1 <= len(solution) <= 5, "one to five lines"
    assert max(map(len, solution)) <= 88 and max(map(len, puzzle.template.split("\n"))) <= 100
    assert len(puzzle.hints) == 3 and all(puzzle.hints) and puzzle.discussion.strip() and puzzle.title
    assert len(WRONG[number]) >= 2, "mistakes that people really make"
    assert len([line for line in map(str.strip, solution) if line not in puzzle.template]) > 0, "it gives itself away"
    for empty in ("", "\n\n", "# TODO\n" if puzzle.is_python else "// TODO\n"):
        assert puzzle.attempt(empty).kind == "to do"
