"""Every puzzle: its solution is accepted, wrong answers are told what is wrong, an empty cell is no error."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from puzzle_answers import WRONG

import ep_lib
from ep_lib import errors, viz, workshop
from ep_lib.emulator.accesses import MemoryAccess
from ep_lib.workshop.course import progress, puzzles
from ep_lib.workshop.course.puzzles import cell
from ep_lib.workshop.course.puzzles.cell import Answer, answer, run_cell, watch
from ep_lib.workshop.course.puzzles.puzzle import CUDA_LINES, Bench, Puzzle

pytestmark = pytest.mark.cuda_rules

ALL = {puzzle.number: puzzle for notebook in puzzles.notebooks() for puzzle in puzzles.puzzles_of(notebook)}
IN_BRIEF = 3  # repetitions (--rounds) up to which NVRTC is not asked about every answer
each_puzzle = pytest.mark.parametrize("number", ALL)
_KERNEL = re.compile(r'^extern "C" __global__ void (?:__launch_bounds__\([^)\n]*\) )?(\w+)\(', re.M)


@pytest.fixture
def own_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workshop whose mine/ is the test's own."""
    (tmp_path / "solutions").mkdir()
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(tmp_path))
    monkeypatch.setattr(progress, "_unwritten", [])
    return tmp_path / "mine"


def compile_together(puzzle: Puzzle, answers: list[str]) -> list[Callable[[str], ep_lib.Kernel]]:
    """The kernels of several answers, compiled in one piece: that takes a tenth of the time."""
    head: dict[str, None] = {}
    body = ""
    for number, lines in enumerate(answers):
        text = puzzle.source(lines)
        for name in _KERNEL.findall(text):
            text = re.sub(rf"\b{name}\b", f"{name}_{number}", text)
        head |= dict.fromkeys(line for line in text.splitlines() if line.startswith("#include"))
        rest = "\n".join("" if line.startswith("#include") else line for line in text.splitlines())
        body += f"namespace answer_{number} {{\n{rest}\n}}\nusing namespace answer_{number};\n"
    source = "\n".join([*head, body])

    @functools.cache
    def kernel(name: str) -> ep_lib.Kernel:
        return ep_lib.Kernel.from_source(source, name, filename=puzzle.filename)

    return [lambda name, number=number: kernel(f"{name}_{number}") for number in range(len(answers))]  # type: ignore[misc]


@pytest.mark.slow
@each_puzzle
def test_the_solution_is_accepted_and_mistakes_are_told(
    number: str, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """`make nightly` asks NVRTC, too, whether each answer is CUDA."""
    if rounds <= IN_BRIEF:
        monkeypatch.setenv("EP_LIB_CUDA_RULES", "0")
    puzzle = ALL[number]
    answers = {puzzle.solution: "", **WRONG[number]}
    alone = [lines for lines, words in answers.items() if puzzle.is_python or words.startswith("line ")]
    together = [lines for lines in answers if lines not in alone]
    verdicts = {lines: puzzle.attempt(lines) for lines in alone}
    for lines, kernel in zip(together, compile_together(puzzle, together) if together else [], strict=True):
        verdicts[lines] = puzzle.judge(lines, kernel)
    for lines, words in answers.items():
        shown = repr(Answer(puzzle, verdicts[lines]))
        assert verdicts[lines].kind == ("right" if lines == puzzle.solution else "wrong"), f"{lines}\n{shown}"
        assert words in " ".join(shown.split()) or words in shown, f"{lines}\n{shown}"


def hinted_answers(puzzle: Puzzle) -> set[str]:
    """What somebody pastes into the cell who writes nothing: the code in each hint, alone, one piece below the other
    (below a `:`, indented) and in one line. Not what cannot be right: C++ with a hole, or without a call that the
    solution makes."""
    found = set()
    for hint in puzzle.hints:
        pieces = re.findall(r"`([^`]+)`", hint)
        begun = [sum(each.rstrip().endswith(":") for each in pieces[:at]) for at in range(len(pieces))]
        below = [4 * " " * depth + piece for depth, piece in zip(begun, pieces, strict=True)]
        found |= {*pieces, "\n".join(pieces), "\n".join(below), " ".join(pieces), "; ".join(pieces), hint}
    if puzzle.is_python:
        return found - {""}
    calls = set(re.findall(r"\w+(?=[(<])", puzzle.solution))
    return {each for each in found - {""} if "..." not in each and calls <= set(re.findall(r"\w+", each))}


@pytest.mark.extended(after=4)
@each_puzzle
def test_no_hint_is_the_answer(number: str) -> None:
    for lines in hinted_answers(ALL[number]):
        assert ALL[number].attempt(lines).kind != "right", lines


def test_a_hint_that_is_the_answer_is_seen() -> None:
    """Every solution, cut into the pieces of a hint, is among what :func:`hinted_answers` pastes."""
    for number, puzzle in ALL.items():
        lines = [line.strip() for line in puzzle.solution.strip("\n").split("\n")]
        hint = ", then ".join(f"`{line}`" for line in lines)
        pasted = hinted_answers(dataclasses.replace(puzzle, hints=("", "", hint)))
        assert " ".join(puzzle.solution.split()) in {" ".join(each.split()) for each in pasted}, number


def test_a_puzzle_that_is_not_there() -> None:
    with pytest.raises(errors.ArgumentError, match=r"no puzzle '00\.9'; there are: 00\.1, "):
        workshop.puzzle("00.9")
    with pytest.raises(errors.ArgumentError, match="notebook '77' has no puzzles"):
        workshop.puzzle("77.1")


def test_it_shows_itself_as_text_and_as_html() -> None:
    shown = workshop.puzzle("00.1")
    assert CUDA_LINES in repr(shown) and "hint(1)" in repr(shown)
    page = shown._repr_html_()
    assert page.count("<details") == page.count("</details>") == 4
    # The ladder: each hint unfolds inside the one before it.
    first, second, third = (page.index(head) for head in ("where to look", "what to think of", "nearly the code"))
    assert first < second < third < page.index("</details>")
    assert "<code>box</code>" in page and "<b>of the peer</b>" in page
    assert "peer_ptr" in repr(shown.hint(1)) and "100 + me" in repr(shown.solution())
    with pytest.raises(errors.ArgumentError, match="hints 1, 2 and 3"):
        shown.hint(4)


def test_an_answer_shows_the_task_that_no_cell_has_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the page of all puzzles, which has one cell for each."""
    monkeypatch.setattr(cell, "_with_task", set())
    for lines in ("// your lines", "*box = 7;"):
        assert CUDA_LINES in repr(answer("00.1", lines)) and CUDA_LINES in answer("00.1", lines)._repr_html_()
    assert CUDA_LINES not in repr(answer("00.1", ALL["00.1"].solution))
    workshop.puzzle("00.1")
    assert CUDA_LINES not in repr(answer("00.1", "// your lines"))


def test_lines_of_the_template_are_called_as_they_are_shown() -> None:
    """However many lines the learner's own answer has."""
    puzzle = ALL["00.3"]
    shown = repr(workshop.puzzle("00.3"))
    (number,) = re.findall(r"^ *(\d+) .*wait_until_ge", shown, re.M)
    for own in ("ep::signal_add(flag, 1, peer);", "\n// one\n// two\nep::signal_add(flag, 1, peer);"):
        lines = puzzle.source(own).split("\n")
        (at,) = (n for n, line in enumerate(lines, 1) if "wait_until_ge" in line)
        assert puzzle._line(at, own) == f"line {number} of the template"
        assert f">{number:>4}  </span>" in workshop.puzzle("00.3")._repr_html_()


def test_one_numbering_of_lines_in_the_finding_and_step_by_step() -> None:
    lines = ALL["00.3"].solution.strip().split("\n")
    said = answer("00.3", "\n".join([lines[2], lines[0], lines[1]])).verdict.text  # the signal goes first
    assert "stored in line 2 of your cell, and waited for in line 9 of the template" in said
    page = json.loads(watch().html.partition('id="data">')[2].partition("</script>")[0])
    assert page["marks"][0]["text"].splitlines()[0] in said and page["marks"][0]["places"][0] >= 0
    text = json.dumps([page["marks"], page["places"], page["waits"], page["whats"]])
    assert "line 3 of your cell" in text and "puzzle 00.3" not in text and "heap+" not in text
    [file] = page["files"]
    shown = dict(zip(file["names"], file["lines"], strict=True))
    assert shown["cell 2"].strip() == lines[2] and shown["template 9"].strip().startswith("if (!ep::wait_until_ge")


def test_a_stray_brace_is_said() -> None:
    said = ALL["00.1"].attempt("*ep::peer_ptr(box, peer) = 100 + me;\n}").text
    assert said.endswith("Your lines open 0 braces { and close 1 }: one is missing, or too many.")


def test_a_header_inside_a_function_is_told_with_its_line() -> None:
    lines = "/* one\n   two */\n// #include <a>\n#include <fstream>\n*box = 1;"
    said = ALL["00.1"].attempt(lines)
    assert said.kind == "wrong" and said.text.startswith("line 5 of your cell: ") and "no header" in said.text


@pytest.mark.slow
def test_a_right_answer_is_kept(own_mine: Path) -> None:
    assert answer("00.1", "*box = 7;").verdict.kind == "wrong"
    assert progress.get(progress.PUZZLES, "00.1") is None
    unread = answer("01.1", "for (int i = 0; i < 4; ++i) heard[i] = 100 * peer + i;\nreturn;")
    assert "No thread has looked at its own <code>flag</code>" in unread._repr_html_()
    got = answer("00.1", "*ep::peer_ptr(box, peer) = 100 + me;")
    assert "Score (best known): 1 (1) accesses of the busiest thread, 2 (2) messages" in repr(got)
    assert f"Solved: 1 of {len(ALL)} puzzles." in repr(got)
    assert got.verdict.kind == "right" and "base64" in got._repr_html_()
    assert "box of rank 0 holds [101] at the end: word 0 written by rank 1 block 0 thread 0" in got.description
    assert json.loads((own_mine / "progress.json").read_text()) == {
        "puzzles": {"00.1": "*ep::peer_ptr(box, peer) = 100 + me;"}
    }


def test_a_score_beside_the_best_known() -> None:
    """One lane that does the work of 32 is right, and costs as much; what a wrong answer costs is not said."""
    puzzle = dataclasses.replace(ALL["01.2"], flows=())
    one_lane = """
    if (lane == 0) {
        for (int i = 0; i < 32; ++i) ep::peer_ptr(box, peer)[i] = 100 * me + i;
        ep::signal_add(flag, 1, peer);
    }"""
    ours, theirs = puzzle.score(puzzle.solution), puzzle.score(one_lane)
    assert ours is not None and theirs is not None
    assert theirs.accesses >= ours.accesses + 30 and theirs.messages == ours.messages == 66
    assert cell._score(puzzle, one_lane).startswith(
        f"Score (best known): {theirs.accesses} ({ours.accesses}) accesses of the busiest thread, 66 (66) messages to "
    )
    handed_out = dataclasses.replace(puzzle, solution="")
    assert cell._score(handed_out, one_lane).startswith(f"Score: {theirs.accesses} accesses of the busiest thread, 66")
    assert puzzle.score(puzzle.solution) == ours, "it is the same each time"
    on_a_network = ALL["03.1"].score(ALL["03.1"].solution)
    assert on_a_network is not None and on_a_network.messages == 4, "of two ranks: data and signal, by the NICs"
    assert ALL["00.1"].attempt("*box = 7;").kind == "wrong" and "Score" not in repr(answer("00.1", "*box = 7;"))
    assert SUMS.score(SUMS.solution) is None


def test_a_cell_with_a_wrong_number_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    run_cell("00.8", "x")
    assert "there is no puzzle '00.8'" in capsys.readouterr().out


# ---- puzzles in Python -----------------------------------------------------------------------------------------------
def _sums(bench: Bench) -> None:
    got = bench.call([3, 1, 2])
    bench.require(got == [0, 3, 4], f"the offsets of [3, 1, 2] are {got}")


SUMS = Puzzle(
    number="99.1",
    title="Offsets",
    task="",
    template="def puzzle(counts):\n    offsets = []\n    # YOUR LINES\n    return offsets\n",
    main=_sums,
    hints=("", "", ""),
    solution="for k in range(len(counts)):\n    offsets.append(sum(counts[:k]))",
    discussion="",
    ranks=0,
)


def test_python_lines_are_run_and_their_errors_told() -> None:
    assert SUMS.attempt(SUMS.solution).kind == "right"
    assert "the offsets of [3, 1, 2] are []" in SUMS.attempt("pass").text
    assert "ZeroDivisionError: division by zero\n  in your line: 1 / 0" in SUMS.attempt("1 / 0").text
    said = ALL["09.1"].attempt("pass").text
    assert "name 'experts' is not defined\n  in a line of the template: return experts" in said
    assert SUMS.attempt("\nfor k in counts").text.startswith("line 3 of your cell: expected ':'")
    assert SUMS.attempt("for k in counts:\npass").text.endswith("after 'for' statement in line 2 of your cell")


@pytest.mark.parametrize("number", [number for number, puzzle in ALL.items() if puzzle.is_python])
def test_any_value_of_a_function_is_told(number: str) -> None:
    for value in ("None", "3", "'x'", "[]", "lambda: 0"):
        verdict = ALL[number].attempt(f"return {value}")
        assert verdict.kind == "wrong" and verdict.text, value
    assert "value is None" in ALL["05.2"].attempt("return None").text


# Values of a class that says it equals everything, alone and inside of others.
_EQUALS_ALL = """
class E({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    __hash__ = {base}.__hash__
return {value}
"""


@pytest.mark.parametrize("number", [number for number, puzzle in ALL.items() if puzzle.is_python])
def test_an_object_that_equals_everything_is_no_answer(number: str) -> None:
    values = {
        "int": ("E()", "[E()]", "(E(), E(), E())", "[[E()]]", "np.array([E()], object)", "(E() for _ in 'x')"),
        "list": ("E()", "(E([0]), E([1.0]))"),
        "np.float32": ("(E(1), E(2), E(3))",),
        "np.ndarray": ("np.zeros(4).view(E)",),
    }
    for base in values:
        for value in values[base]:
            verdict = ALL[number].attempt(_EQUALS_ALL.format(base=base, value=value))
            assert verdict.kind == "wrong" and "of the class E: give plain values" in verdict.text, (base, value)


def test_a_list_that_an_answer_was_given_is_its_own() -> None:
    assert ALL["08.3"].attempt("topk_idx.clear()").kind == "wrong"
    assert ALL["10.2"].attempt("topk_ranks[:] = mine * ranks_per_node\nrows = 0").kind == "wrong"


def test_numbers_of_numpy_and_what_gives_rows_are_plain() -> None:
    chunks = "begins = range(0, max(rows, 1), slot_rows)\n"
    many = "[min(slot_rows, rows - b) for b in begins]"
    for number, lines in {
        "02.1": "inside = np.bool_(begin <= address and address + nbytes <= begin + size)",
        "05.2": f"{chunks}chunks = zip(begins, {many})",
        "05.3": "slots = np.int64(budget // (2 * ranks * (16 + slot_rows * row_bytes)))",
        "10.1": "partner = float(node * ranks_per_node + rank % ranks_per_node)",
    }.items():
        assert ALL[number].attempt(lines).kind == "right", lines
    assert ALL["05.2"].attempt(f"{chunks}chunks = ([b, n] for b, n in zip(begins, {many}))").kind == "right"
    assert "more than 8192 values" in ALL["05.2"].attempt("chunks = (1 for _ in iter(int, 1))").text


def test_an_endless_loop_in_python_is_ended() -> None:
    said = SUMS.attempt("while True: pass").text
    assert "TimeoutError: a loop that does not end?" in said and "in your line: while True: pass" in said


# ---- progress --------------------------------------------------------------------------------------------------------
def test_progress_outlives_the_kernel(own_mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress.put(progress.PREDICTIONS, "a", "1")
    progress.put(progress.PUZZLES, "a", "2")
    monkeypatch.setattr(progress, "_unwritten", [])
    assert (progress.get(progress.PREDICTIONS, "a"), progress.get(progress.PUZZLES, "a")) == ("1", "2")


@pytest.mark.parametrize("slip", [lambda text: text[:-3] + ",\n}}\n", lambda text: text[:-9], lambda text: f"[{text}]"])
def test_damaged_progress_is_put_beside_and_said(
    own_mine: Path, capsys: pytest.CaptureFixture[str], slip: Callable[[str], str]
) -> None:
    file = own_mine / "progress.json"
    damaged = []
    for number in (1, 2):
        progress.put(progress.PUZZLES, "a", "2")
        damaged.append(slip(file.read_text()))
        file.write_text(damaged[-1])
        capsys.readouterr()
        assert progress.get(progress.PUZZLES, "a") is None and progress.get(progress.PUZZLES, "a") is None
        assert capsys.readouterr().err.count(f"{file} is damaged") == 1 and "mend it" in progress.problem()
        progress.put(progress.PUZZLES, "b", str(number))
        assert json.loads(file.read_text()) == {"puzzles": {"b": str(number)}}
        assert f"now lies beside as progress-damaged-{number}.json" in capsys.readouterr().err
        assert "mend progress-damaged-" in progress.problem()
    assert [(own_mine / f"progress-damaged-{number}.json").read_text() for number in (1, 2)] == damaged
    progress.put(progress.PUZZLES, "c", "4")
    assert progress.problem() == "" and capsys.readouterr().err == ""


def test_progress_without_a_place_to_write(own_mine: Path) -> None:
    own_mine.write_text("a file in the place of the folder")
    progress.put(progress.PUZZLES, "a", "2")
    assert progress.get(progress.PUZZLES, "a") == "2"
    assert "make the folder mine/ writable" in progress.problem()
    own_mine.unlink()
    progress.put(progress.PUZZLES, "b", "3")
    assert json.loads((own_mine / "progress.json").read_text()) == {"puzzles": {"a": "2", "b": "3"}}
    assert progress.problem() == ""


# ---- the picture -----------------------------------------------------------------------------------------------------
def test_accesses_are_drawn_and_described() -> None:
    arrays = [viz.NamedArray("box", 0, 0, 40, 4), viz.NamedArray("box", 1, 1000, 40, 4, (1.25, 2**64 - 1, *range(38)))]
    seen = [
        MemoryAccess(1, 0, 0, 0, 8, reads=False, writes=True, is_atomic=False),
        MemoryAccess(0, 0, 3, 4, 4, reads=True, writes=False, is_atomic=False),
        MemoryAccess(0, 0, -1, 1000 + 39 * 4, 4, reads=True, writes=True, is_atomic=True),
        MemoryAccess(0, 0, 3, 4000, 4, reads=True, writes=False, is_atomic=False),  # elsewhere
    ]
    assert viz.describe_accesses(seen, arrays) == (
        "box of rank 0: words 0 to 1 written by rank 1 block 0 thread 0; word 1 read by rank 0 block 0 thread 3\n"
        "box of rank 1 holds [1.25, 2e19, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ..., 37] at the end: word 39 written "
        "by rank 0's NIC atomically"
    )
    assert viz.access_map(seen, arrays, title="x").png().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(errors.ArgumentError, match="at least one array"):
        viz.access_map([], [])


@pytest.mark.parametrize("words", [2, 15, 40])
def test_a_map_has_room_for_its_names(words: int) -> None:
    arrays = [viz.NamedArray("topk_idx", 0, 0, words, 4), viz.NamedArray("rows", 0, 1000, 2, 4)]
    figure = viz.access_map([], arrays, title="x")
    figure.draw_without_rendering()
    names = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 2 and all(name.x0 >= 0 for name in names)
