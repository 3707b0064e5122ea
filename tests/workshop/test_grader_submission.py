"""What the grader takes from a submission's folder, and what it says to pieces that reach for others' files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ep_lib.errors import GradingError
from ep_lib.processes import descendants
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader.grading import grade
from ep_lib.workshop.grader.process.sandbox import Limits
from ep_lib.workshop.grader.submission import copy_pieces, not_text, reaches_out

EXERCISE = find("01")
PIECE = "ep/write_signal.cuh"
SOLUTION = EXERCISE.solution_dir / PIECE
LIBRARYS = EXERCISE.root / EXERCISE.runs_as / PIECE


def submission(folder: Path, text: str) -> Path:
    (folder / "ep").mkdir(parents=True)
    (folder / PIECE).write_text(text)
    return folder


def link_to_the_file(folder: Path) -> None:
    (folder / "ep").mkdir()
    (folder / PIECE).symlink_to(SOLUTION)


def link_to_the_folder(folder: Path) -> None:
    (folder / "ep").symlink_to(SOLUTION.parent)


def fifo(folder: Path) -> None:
    (folder / "ep").mkdir()
    os.mkfifo(folder / PIECE)


def directory(folder: Path) -> None:
    (folder / PIECE).mkdir(parents=True)


def huge(folder: Path) -> None:
    submission(folder, " " * (1 << 20) + "\n")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (link_to_the_file, "write_signal.cuh is a link to"),
        (link_to_the_folder, "ep is a link to"),
        (fifo, "is no file but a FIFO"),
        (directory, "is no file but a folder"),
        (huge, "has 1048577 bytes; a piece has at most 262144"),
        (lambda folder: None, "no file ep/write_signal.cuh in"),
        (lambda folder: (folder / "ep").touch(), "no file ep/write_signal.cuh in"),  # a file in a folder's place
    ],
)
def test_only_files_of_its_own_are_taken(tmp_path: Path, make, says: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path)
    with pytest.raises(GradingError, match=says):
        copy_pieces(EXERCISE, tmp_path, tmp_path / "target")


@pytest.mark.parametrize(
    "line",
    [
        "#include_next <ep/write_signal.cuh>",
        "#include P",
        "#  include_next <ep/write_signal.cuh>",
        f'#include "{LIBRARYS}"',
        "#include <ep/../../../solutions/01_write_signal/ep/write_signal.cuh>",
        '__asm__(".incbin \\"x\\"");',
        '#line 1 "/somewhere/ex01_write_signal.cu"',
        '#embed "x"',
        '#if __has_include("/x/hidden/ex01_write_signal.cu")',
        "#if __has_include(<ep/../../x.cuh>)",
        "#if __has_include_next(<ep/peer.cuh>)",
        "#if __has_include(P)",
        "#define P __has_include",
        '#import "/x/solutions/01_write_signal/ep/write_signal.cuh"',
    ],
)
def test_a_piece_that_asks_for_others_files_is_told(tmp_path: Path, line: str) -> None:
    mine = submission(tmp_path, f"// first\n{line}\n")
    assert "write_signal.cuh:2: `" in reaches_out(EXERCISE, mine)


def test_comments_and_the_librarys_headers_are_free(tmp_path: Path) -> None:
    mine = submission(
        tmp_path,
        '// #include_next <x>\n/* .incbin */\n#include <ep/peer.cuh>\n#include "ep/wait.cuh"\n'
        "#if defined(__has_include) && __has_include(<version>) // of /x/\n#endif\n",
    )
    assert reaches_out(EXERCISE, mine) == ""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("// x\n".encode("utf-16"), "is stored as UTF-16: save it as UTF-8"),
        (b"// x\x00", "is no text: its byte 4 is zero"),
        (b"// f\xfcr\n", ""),
        (b"", "is empty: hand in what you wrote"),
        (b" \r\n", "is empty"),
    ],
)
def test_what_is_no_text_is_said_before_the_compiler_says_it(tmp_path: Path, data: bytes, says: str) -> None:
    mine = submission(tmp_path, "")
    (mine / PIECE).write_bytes(data)
    assert says in not_text(EXERCISE, mine) and bool(says) == bool(not_text(EXERCISE, mine))


@pytest.mark.parametrize(("name", "first"), [("01", '#include "my.h"'), ("10_plan", "import my")])
def test_a_file_beside_the_piece_is_said_not_to_count(tmp_path: Path, name: str, first: str) -> None:
    piece = tmp_path / find(name).pieces[0]
    piece.parent.mkdir(parents=True, exist_ok=True)
    piece.write_text(f"{first}\n")
    for beside in ("my.h", "my.py"):
        (piece.parent / beside).write_text("")
    problem = grade(name, tmp_path).problem
    assert "write what you need of it into your file, since no other file of yours" in problem, problem
    assert "include=" not in problem


@pytest.mark.parametrize(
    ("end", "kept"), [(b"\x1a", b""), (b"\r\n\x1a\r\n", b"\r\n"), (b"\n", b"\n"), (b" \x1a x\n", None)]
)
def test_a_byte_order_mark_and_a_last_control_z_are_left_out(tmp_path: Path, end: bytes, kept: bytes | None) -> None:
    mine = submission(tmp_path / "mine", "")
    (mine / PIECE).write_bytes(b"\xef\xbb\xbf// x" + end)
    copy_pieces(EXERCISE, mine, tmp_path / "copy")
    assert (tmp_path / "copy" / PIECE).read_bytes() == b"// x" + (end if kept is None else kept)


def test_what_a_file_does_when_it_is_imported_has_a_limit_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "10_plan.py").write_text("while True:\n    pass\n")
    result = grade("10_plan", tmp_path, limits=Limits(import_s=0.2))
    assert result.problem.startswith("10_plan.py was not imported within 0.2 s, in which each test imports it anew")
    assert result.points == 0 and all(each.timed_out and each.used_cpu for each in result.tasks)


@pytest.mark.slow
def test_a_long_import_takes_no_time_from_the_calls(tmp_path: Path) -> None:
    text = (find("10_plan").solution_dir / "10_plan.py").read_text()
    computes = "\nimport time\nwhile time.process_time() < 0.5:\n    pass\n"
    (tmp_path / "10_plan.py").write_text(text + computes)
    (first,) = grade("10_plan", tmp_path, limits=Limits(request_s=0.45), tasks=[1], seed=1).tasks
    assert first.passed, first.message


@pytest.mark.slow
def test_a_compiler_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    held_a_place_for_minutes = "const char big[1ul << 30] = {1}; EP_DEVICE char at(int i) { return big[i]; }\n"
    submission(tmp_path, SOLUTION.read_text() + held_a_place_for_minutes)
    result = grade("01", tmp_path, limits=Limits(compile_s=2))
    assert "not compiled within 2 s: is there a large array of constants" in result.problem
    assert all(each.timed_out and each.used_cpu for each in result.tasks), "so it is not tried again"
    left = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())]
    assert not any(b"cc1plus" in line or b"clang" in line for line in left)


def test_what_is_no_text_is_not_read_as_code(tmp_path: Path) -> None:
    mine = submission(tmp_path, "")
    (mine / PIECE).write_bytes(SOLUTION.read_text("utf-8").encode("utf-16"))
    result = grade("01", mine)
    assert result.problem == f"{PIECE} is stored as UTF-16: save it as UTF-8 in your editor" and not result.flags


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        f"#define WHERE <{LIBRARYS}>\n#include WHERE\n",
        f"#define WHERE <{EXERCISE.root / 'ep_lib/workshop/hidden/ex01_write_signal.py'}>\n#include WHERE\n",
    ],
)
def test_a_name_put_together_meets_the_wall_and_is_flagged(tmp_path: Path, text: str) -> None:
    result = grade("01", submission(tmp_path, text))
    assert result.points == 0
    assert "Permission denied" in result.flags[0]
    assert result.as_json()["flags"] == list(result.flags)


@pytest.mark.slow
def test_a_piece_that_includes_its_answer_gets_nothing(tmp_path: Path) -> None:
    result = grade("01", submission(tmp_path, "#include_next <ep/write_signal.cuh>\n"))
    assert result.points == 0 and result.flags[0] == result.problem
    assert "Permission denied" in result.problem and "`#include_next` asks for a file" in result.flags[1]
