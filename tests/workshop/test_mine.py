"""A learner's own pieces run in the library, what goes through them is counted, and whose code is at fault is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

import ep_lib
from ep_lib import errors, workshop
from ep_lib.callers import short_path
from ep_lib.jit import gxx, pieces
from ep_lib.jit.kernel import library_kernel
from ep_lib.workshop import exercises
from ep_lib.workshop.course.mine import Mine, find_pieces
from ep_lib.workshop.grader.grading import as_text, grade, start
from ep_lib.workshop.lessons import two_levels
from ep_lib.workshop.notebook import find

RING = "05_ring/ep/ring.cuh"
TOKENS, HIDDEN, EXPERTS = 24, 16, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, since a compiled kernel knows where its headers were."""
    return tmp_path_factory.mktemp("own") / "mine"


@pytest.fixture
def mine(folder: Path) -> Iterator[Path]:
    """A folder with whole pieces: the solutions."""
    for name in ("01_write_signal", "05_ring"):
        shutil.copytree(ROOT / "solutions" / name, folder / name)
    yield folder
    pieces.use((), None)
    shutil.rmtree(folder)


def states(folder: Path) -> dict[str, str]:
    return {piece.exercise.name: piece.stands_in for piece in find_pieces(folder)}


def exchange(rank: ep_lib.Rank, through_rings: bool) -> int:
    """Tokens to one expert of the next rank and back; how many rows left this rank for others, both ways."""
    x = np.arange(TOKENS * HIDDEN, dtype=np.float32).reshape(TOKENS, HIDDEN) + rank.rank
    away = (rank.rank + 1) % rank.world_size * (EXPERTS // rank.world_size)
    idx = np.full((TOKENS, 1), away, np.int64)
    with ep_lib.Buffer(
        rank,
        num_experts=EXPERTS,
        top_k=1,
        hidden=HIDDEN,
        max_tokens=TOKENS,
        dtype="float32",
        num_sms=2,
        allow_nvlink_for_normal_mode=not through_rings,
    ) as buffer:
        received = buffer.dispatch(x, idx)
        assert np.array_equal(buffer.combine(received.x, received.handle), x)
        return TOKENS + len(received.x)


# ---- in Buffer ------------------------------------------------------------------------------------------------------
@pytest.mark.extended
@pytest.mark.slow
def test_two_nodes_run_on_own_ring_slots_and_sums(mine: Path) -> None:
    for name in ("06_slots", "07_sums"):
        shutil.copytree(ROOT / "solutions" / name, mine / name)
    with workshop.use_mine(mine) as own:
        nodes = ep_lib.Fabric("srd", ranks_per_node=2)
        assert all(ep_lib.spawn(two_levels.through_buffer, 4, "emulator", fabric=nodes))
        amounts = {each.piece.words.piece: each.amount for each in own.carried()}
    # 44 tokens cross to the other node, and as many sums come back; of 126 rows a token's own node adds up what it has
    # at once, the other node sends the sum of what it has, and that is one row more for the token.
    assert (amounts["ring"], amounts["slots"], amounts["sums"]) == (2 * 44, 126, 126 + 44)


@pytest.mark.slow
def test_rows_of_dispatch_and_combine_are_counted(mine: Path) -> None:
    names = {"06_slots": "slots", "06_arrivals": "arrivals", "07_sums": "sums", "07_groups": "groups"}
    for name in names:
        shutil.copytree(ROOT / "solutions" / name, mine / name)
    with workshop.use_mine(mine) as own:
        ep_lib.spawn(exchange, ranks=2, backend="emulator", args=(False,))
        carried = {each.piece.words.piece: each for each in own.carried()}
        assert set(carried) >= set(names.values()) and all(carried[name].launches for name in names.values())
        assert carried["slots"].amount == carried["sums"].amount == 2 * TOKENS  # of each token one row, there and back
        assert f"{2 * TOKENS} rows found their place by your slots" in repr(own)


@pytest.mark.extended
@pytest.mark.slow
def test_every_row_through_a_learners_ring_is_counted(mine: Path) -> None:
    with workshop.use_mine(mine) as own:
        assert [piece.words.piece for piece in own.yours] == ["write and signal", "ring"]
        rows = ep_lib.spawn(exchange, ranks=2, backend="emulator", args=(True,), fabric="srd")
        ring = next(each for each in own.carried() if each.piece.words.piece == "ring")
        assert ring.amount == sum(rows) == 2 * 2 * TOKENS
        assert ring.launches >= 2 * 2  # a dispatch and a combine on each rank
        assert f"{sum(rows)} rows went through your ring ({ring.launches} launches)" in repr(own)
    assert pieces.active() == () and "EP_LIB_MINE" not in os.environ


@pytest.mark.extended
@pytest.mark.slow
def test_counts_go_out_by_a_learners_write_and_signal(mine: Path) -> None:
    with workshop.use_mine(mine) as own:
        ep_lib.spawn(exchange, ranks=2, backend="emulator", args=(False,))
        signals, ring = own.carried()
        assert (signals.amount, ring.amount, ring.launches) == (2 * 2, 0, 0)
        assert "nothing went through your ring here" in repr(own)
        assert ep_lib.check(exchange, ranks=2, seeds=2, args=(False,)).ok


def test_kernels_without_a_piece_are_as_they_were(mine: Path) -> None:
    with_ring = library_kernel("moe/pcie/dispatch.cu", "ep_pcie_dispatch")
    without = library_kernel("moe/low_latency/dispatch.cu", "ep::low_latency::finish")
    before = [gxx.cache_key(kernel) for kernel in (with_ring, without)]
    text = (mine / RING).read_text()
    with workshop.use_mine(mine):
        during = [gxx.cache_key(kernel) for kernel in (with_ring, without)]
        (mine / RING).write_text(text + "// one more line\n")
        edited = gxx.cache_key(with_ring)
        with pieces.unused():
            assert gxx.cache_key(with_ring) == before[0]
    assert during[1] == before[1]
    assert len({before[0], during[0], edited}) == 3
    assert gxx.cache_key(with_ring) == before[0]


def test_an_edit_counts_from_the_next_run_on(mine: Path) -> None:
    file = mine / RING
    with workshop.use_mine(mine):
        ep_lib.spawn(exchange, ranks=2, backend="emulator", args=(True,))
        file.write_text(file.read_text().replace("return message < slots ?", "return messag < slots ?"))
        with pytest.raises(errors.KernelCompileError) as caught:
            ep_lib.spawn(exchange, ranks=2, backend="emulator", args=(True,))
    line = file.read_text().split("messag <")[0].count("\n") + 1
    assert caught.value.file == str(file) and caught.value.line == line
    said = "".join(caught.value.__notes__)
    assert "01_write_signal/ep/write_signal.cuh" in said and "05_ring/ep/ring.cuh" in said
    assert "`ep-lib grade 01_write_signal`, `ep-lib grade 05_ring`" in said


@pytest.mark.extended
@pytest.mark.slow
def test_processes_know_the_pieces_too(mine: Path, tmp_path: Path) -> None:
    program = (
        "import ep_lib, test_mine as t\n"
        "if __name__ == '__main__': ep_lib.spawn(t.exchange, ranks=2, backend='emulator', args=(True,))\n"
    )
    file = tmp_path / "counts"
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/workshop")))
    environment = {"EP_LIB_MINE": str(mine / "05_ring"), "EP_LIB_MINE_COUNTS": str(file), "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env={**os.environ, **environment})
    counts, launches = pieces.told(file)
    assert 4 * TOKENS in counts and launches[str(mine / "05_ring")] >= 4
    with pytest.raises(errors.ArgumentError, match=r"EP_LIB_MINE is .*there is no"):
        ep_lib.config.Config.from_environment({"EP_LIB_MINE": str(tmp_path / "nowhere")})


# ---- what is wrong, and whose mistake it is --------------------------------------------------------------------------
@pytest.mark.slow
def test_a_wrong_result_names_the_piece_the_task_and_the_line(mine: Path) -> None:
    shutil.copytree(ROOT / "solutions" / "07_sums", mine / "07_sums")
    file = mine / RING
    sets = "message + 1,\n                         {phase"  # of what a receiver waits for
    text = file.read_text()
    file.write_text(text.replace(sets, sets.replace(" + 1", "")))

    def claim() -> bool:
        return all(ep_lib.spawn(exchange, ranks=2, backend="emulator", args=(True,), fabric="srd"))

    with workshop.use_mine(mine) as own:
        held = own.holds(claim)
        report = str(ep_lib.check(exchange, ranks=2, seeds=1, args=(True,), fabric="srd"))
    line = text.partition("EXERCISE-BEGIN 3a")[0].count("\n") + 1
    told = str(held)
    assert (
        not held
        and f"{short_path(file)}:{line} and " in told
        and ": your task 3, wait for a message, return its credit" in told
    )
    assert told.count(".cuh:") == 2 and "07_sums" not in told, told  # a place for each hole of the task
    assert "Your own pieces were in use: " in report and "`ep-lib grade 05_ring`" in report
    file.write_text(text)
    with workshop.use_mine(mine) as own:
        assert str(own.holds(claim)) == "True"
        wrong = own.holds(lambda: False)
        assert str(wrong) == "False\nWith the library's pieces alone it is wrong as well: this is not your mistake."


# ---- what is whole, and why the library's stands in ------------------------------------------------------------------
def test_a_piece_that_is_not_whole_is_left_out_and_named(mine: Path) -> None:
    assert states(mine)["05_ring"] == "" and states(mine)["08_packets"] == 'not begun: workshop.start("08_packets")'
    (mine / RING).unlink()
    assert "05_ring" in states(mine)["05_ring"]
    shutil.copy(ROOT / "exercises" / RING, mine / RING)
    assert states(mine)["05_ring"].startswith("unfinished: task 1a is still to do in ")
    (mine / RING).write_text((ROOT / "solutions" / RING).read_text().replace("namespace ep {", "namespace ep", 1))
    half_edited = states(mine)["05_ring"]
    assert half_edited.startswith("it does not compile: ") and f"{RING}:" in half_edited
    whole = (ROOT / "solutions" / RING).read_text()
    (mine / RING).write_text(whole + "constexpr int kMore = 3")
    assert f"{RING}:{whole.count(chr(10)) + 1}: error: " in states(mine)["05_ring"]
    (mine / RING).write_bytes(b"\xff\xfe")
    assert "cannot be read" in states(mine)["05_ring"]
    with Mine(find_pieces(mine)) as own:
        assert "the library's: ring (" in repr(own)
        assert pieces.active() == (mine / "01_write_signal",)


def test_a_comment_about_a_hole_is_no_hole(mine: Path) -> None:
    with (mine / RING).open("a") as file:
        file.write('// assert(!"Task 1a is still to do: when is a slot free?");\n')
    assert states(mine)["05_ring"] == ""


def test_a_wrong_folder_is_refused_with_what_to_name(mine: Path) -> None:
    with pytest.raises(errors.GradingError, match="no folder 'nowhere'"):
        workshop.use_mine("nowhere")
    with pytest.raises(errors.GradingError, match="name the folder above it"):
        workshop.use_mine(mine / "05_ring")


@pytest.mark.slow
def test_a_kernel_file_of_the_tutorial_may_be_a_piece(mine: Path) -> None:
    shutil.copytree(ROOT / "solutions" / "05_pipeline", mine / "05_pipeline")
    shutil.copy(ROOT / "tutorial_kernels" / "05_bounce_buffer.cuh", mine / "05_pipeline")
    name = "tutorial_kernels/05_bounce_buffer.cu"
    assert find(name).resolve() == ROOT / name
    with workshop.use_mine(mine):
        assert find(name).resolve() == mine / "05_pipeline" / "05_bounce_buffer.cu"


def test_a_python_piece_is_theirs_or_the_librarys(mine: Path) -> None:
    shutil.copytree(ROOT / "solutions" / "02_handshake", mine / "02_handshake")
    file = mine / "02_handshake" / "02_handshake.py"
    with workshop.use_mine(mine) as own:
        assert own.module("02_handshake", errors).__file__ == str(file)
        assert own.module("02_registration", errors) is errors
        file.write_text("import math\n\nx = math.nothing\n")
        with pytest.raises(errors.GradingError, match=r"your handshake cannot be imported: .*\(line 3 of 02_handshake"):
            own.module("02_handshake", errors)


# ---- versions, and nothing lost --------------------------------------------------------------------------------------
@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A workshop whose exercise 05_ring has changed since the learner began it."""
    root = tmp_path / "workshop"
    for name in ("exercises", "solutions"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copytree(root / "exercises" / "05_ring" / "ep", root / "mine" / "05_ring" / "ep")
    toml = root / "solutions" / "05_ring" / "exercise.toml"
    toml.write_text('version = 2\nchanged = "a Ring has a queue pair"\n' + toml.read_text())
    exercise = root / "exercises" / RING
    exercise.write_text(exercise.read_text().replace("version 1", "version 2"))
    return root


def test_a_piece_of_an_older_version_is_kept_and_the_new_one_laid_beside(newer: Path) -> None:
    theirs = newer / "mine" / RING
    theirs.write_text("// my own words\n" + theirs.read_text())
    before = theirs.read_text()
    (why,) = [p.stands_in for p in find_pieces(root=newer) if p.exercise.name == "05_ring"]
    assert "is for version 1 of the exercise, and the course has 2 (a Ring has a queue pair)" in why
    start("05_ring", root=newer)
    beside = newer / "mine" / "05_ring" / "ep" / "ring.v2.cuh"
    assert theirs.read_text() == before and "version 2" in beside.read_text()
    beside.write_text("begun")
    start("05_ring", root=newer)
    assert beside.read_text() == "begun"


@pytest.mark.slow
def test_an_unknown_version_is_said_also_by_the_grader(tmp_path: Path) -> None:
    file = tmp_path / "00_first_kernel.cuh"
    text = (ROOT / "exercises/00_first_kernel/00_first_kernel.cuh").read_text()
    file.write_text(text.replace("version 1", "version 0"))
    result = grade("00_first_kernel", tmp_path, tasks=(1,))
    text_of_all = as_text(result)
    assert "Note: 00_first_kernel.cuh is for version 0 of the exercise, and the course has 1" in text_of_all
    assert 'workshop.start("00_first_kernel") puts the file of this course beside yours' in text_of_all
    assert result.notes == result.flags
    file.write_text(text)
    assert not grade("00_first_kernel", tmp_path, tasks=(1,)).notes
    file.write_text(text.partition("\n")[2])
    (note,) = grade("00_first_kernel", tmp_path, tasks=(1,), public=True).notes
    assert "has no line that says its version" in note and text.partition("\n")[0] in note


@pytest.mark.parametrize("version", [0, 99])
def test_beside_a_piece_of_an_unknown_version_comes_the_courses(newer: Path, version: int) -> None:
    theirs = newer / "mine" / RING
    theirs.write_text(theirs.read_text().replace("version 1", f"version {version}"))
    start("05_ring", root=newer)
    assert "version 2" in theirs.with_name("ring.v2.cuh").read_text()


def test_a_folder_that_cannot_be_written_says_what_to_do(newer: Path) -> None:
    shutil.rmtree(newer / "mine")
    (newer / "mine").write_text("no folder")
    with pytest.raises(errors.GradingError, match=r"cannot be written .* copy the workshop to a folder of your own"):
        start("05_ring", root=newer)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("version = 2", "`changed` says what is new"),
        ('version = "2"', "a whole number"),
        ('[mine]\npiece = "ring"\ncount = "kCountRingRows"', "count and carries, or neither"),
        ('[mine]\npeice = "ring"', "and not peice"),
    ],
)
def test_a_wrong_table_in_an_exercise_is_told(newer: Path, line: str, says: str) -> None:
    toml = newer / "solutions" / "05_ring" / "exercise.toml"
    text = (ROOT / "solutions" / "05_ring" / "exercise.toml").read_text()
    old = text[text.index("[mine]") : text.index("[[task]]")]
    toml.write_text(text.replace(old, line + "\n\n") if line.startswith("[") else f"{line}\n{text}")
    with pytest.raises(errors.GradingError, match=says):
        exercises.find("05_ring", newer)
