"""Pieces in Python that reach for the grader's half of their process: a flag for the instructor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ep_lib import Kernel
from ep_lib.workshop import seal
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader import grade
from ep_lib.workshop.scenario import CHECKER_IS_OFF

EXERCISE = find("00_first_main")
PIECE = "00_first_main.py"
HEAD = """
import ep_lib
def neighbours(me, ranks): return (me - 1) % ranks, (me + 1) % ranks
def pass_on(*_): raise RuntimeError
def pass_far(*_): raise RuntimeError
"""
CHEATS = {
    "the library's function replaced": ("ep_lib.check = lambda *_, **__: None", "ep_lib.check has another meaning"),
    "its code replaced": (
        "ep_lib.spawn.__code__ = ep_lib.check.__code__",
        "spawn has another meaning",
    ),
    "a method replaced during a run": (
        "def pass_on(rank, kernel, mine): ep_lib.Rank.to_host = lambda *_: mine",
        "Rank.to_host has another meaning",
    ),
    "a note on a class": (
        "def pass_on(rank, kernel, mine): rank.__class__.mro()[1].heard = {rank.rank: mine}",
        "Rank.heard is new",
    ),
    "a note on a function": (
        "import json\ndef pass_on(rank, kernel, mine): json.dumps.heard = {rank.rank: mine}",
        "json.dumps has a new attribute",
    ),
    "all objects": ("import gc\ndef pass_on(*_): gc.get_objects()", "gc.get_objects() looks through"),
    "a program": ("import os\nos.system('true')", "os.system() compiles or starts"),
}


def submitted(folder: Path, code: str) -> Path:
    (folder / PIECE).write_text(HEAD + code + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("cheat", CHEATS)
def test_what_changes_the_library_has_a_flag(cheat: str, tmp_path: Path) -> None:
    code, says = CHEATS[cheat]
    found = grade("00_first_main", submitted(tmp_path, code), tasks=[2], seed=1)
    assert any(says in flag for flag in found.flags), found


OUTSIDE = {
    "the cases of a test": (
        "open(ep_lib.__path__[0] + '/workshop/hidden/ex00_first_main.py')",
        "Permission denied",
    ),
    "the machine's files": ("open('/etc/shadow')", "Permission denied"),
    "a file elsewhere": ("open('/tmp/own', 'w')", "Permission denied"),
    "the network": ("import socket\nsocket.create_connection(('127.0.0.1', 22))", "not permitted"),
    "processes": (
        "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(20); os._exit(0)\ntime.sleep(3)",
        "started more than 32 processes",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("cheat", OUTSIDE)
def test_what_reaches_out_of_the_process_meets_a_wall(cheat: str, tmp_path: Path) -> None:
    code, says = OUTSIDE[cheat]
    found = grade("00_first_main", submitted(tmp_path, code), tasks=[1], seed=1)
    assert not found.points and says in found.problem, found.problem


@pytest.mark.slow
def test_the_numbers_of_other_ranks_are_not_in_the_frames_of_a_rank(tmp_path: Path) -> None:
    code = """
import sys
def pass_on(rank, kernel, mine):
    frame = sys._getframe(1)
    while "numbers" not in frame.f_locals and "waiting" not in frame.f_locals: frame = frame.f_back
    before = (rank.rank - 1) % rank.world_size
    return list(frame.f_locals.get("waiting", {}).get(before) or frame.f_locals["numbers"][before])
"""
    found = grade("00_first_main", submitted(tmp_path, code), tasks=[2], seed=1)
    assert found.points == 0


REACHES = """
def _frames():
    try: 1 / 0
    except ZeroDivisionError as error: frame = getattr(error.__traceback__, "tb_" + "frame")
    while frame is not None:
        yield frame
        frame = getattr(frame, "f_" + "back")
"""


@pytest.mark.slow
def test_a_generator_that_does_not_close_is_said_in_a_line(tmp_path: Path) -> None:
    code = """
def _numbers():
    try: yield 1
    finally: raise ValueError("not closed")
next(_numbers())
"""
    found = grade("00_first_main", submitted(tmp_path, code), tasks=[1], seed=1)
    assert found.tasks[0].passed and not found.flags and "ValueError: not closed" in found.output, found


POINTLESS = """
    flag, box, out = rank.symmetric(1, "uint64"), rank.symmetric(len(mine), "int32"), rank.empty(len(mine), "int32")
    nothing = rank.symmetric(len(mine), "int32")
    kernel.launch(rank, 1, 64, box, nothing, len(mine), flag, out, *neighbours(rank.rank, rank.world_size)[::-1])
"""


WITH_NUMBERS = POINTLESS.replace("box, nothing", "box, rank.to_device(np.int32(mine))")
NOT_SENT, NOT_BROUGHT = "did not send its own numbers by the kernel", "returned numbers that no kernel brought"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launches", "says"),
    [("", NOT_SENT), (POINTLESS, NOT_SENT), (WITH_NUMBERS, NOT_BROUGHT)],
    ids=["no launch", "launches with nothing to send", "launches as it should"],
)
def test_numbers_that_no_kernel_brought_count_for_nothing(launches: str, says: str, tmp_path: Path) -> None:
    """Each rank has variables of its own; the library's are everybody's."""
    code = f"""
import numpy as np
import json
_shared = json.decoder.BACKSLASH
def pass_on(rank, kernel, mine):
    _shared[rank.rank] = mine
    {launches}
    rank.barrier()
    return _shared[(rank.rank - 1) % rank.world_size]
"""
    (result,) = grade("00_first_main", submitted(tmp_path, code), tasks=[2], seed=1).tasks
    assert says in result.message


@pytest.mark.slow
def test_each_rank_has_variables_and_kernels_of_its_own(tmp_path: Path) -> None:
    code = """
_shared = []
def pass_on(rank, kernel, mine):
    _shared.append(rank.rank)
    there = "shared" in vars(kernel)
    vars(kernel)["shared"] = rank.shared = 1
    rank.barrier()
    raise RuntimeError(f"another one's: {there}, {_shared != [rank.rank]}")
"""
    (result,) = grade("00_first_main", submitted(tmp_path, code), tasks=[2], seed=1).tasks
    assert "another one's: False, False" in result.message


def test_a_number_is_one_number_however_often_it_is_asked() -> None:
    class Shifty(int):
        def __index__(self) -> int:
            return 7

    class Larger(np.ndarray[Any, Any]):
        nbytes = 1 << 30

    asked = iter(range(5))
    shifty = type("Asked", (), {"__index__": lambda self: next(asked)})()
    array, view = np.arange(3), np.arange(3).view(Larger)
    settled = seal.settled((shifty, Shifty(3), np.int64(4), True, None, array, view))
    assert settled[:5] == [0, 3, 4, True, None] and [type(each) for each in settled[:3]] == [int] * 3
    assert [type(each) for each in settled[5:]] == [np.ndarray] * 2 and settled[6].nbytes == array.nbytes


OWN_CODE = """
import copy
import os
import ep_lib.jit.gxx, ep_lib.jit.kernel
TEXT = 'extern "C" __global__ void own(int* p) { *p = 7; }'
def _own(): return ep_lib.Kernel(TEXT, "own", path=None, filename="k.cu")
def _image(): return ep_lib.jit.gxx.EmulatorImage("/usr/lib/libc.so.6", "system", (), False, 0)
def _launched(rank, kernel): kernel.launch(rank, 1, 1, rank.empty(1, "int32"))
_ways = {
    "launched": lambda rank, kernel: _launched(rank, _own()),
    "in a world of its own": lambda rank, kernel: _launched(ep_lib.init(), _own()),
    "in ranks of its own": lambda rank, kernel: ep_lib.spawn(lambda each: _launched(each, _own()), 2),
    "one of the library's": lambda rank, kernel: ep_lib.jit.kernel.library_kernel("moe/layout.cu", "x").compile(),
    "compiled": lambda rank, kernel: _own().compile(),
    "for a GPU": lambda rank, kernel: _own().compile("sm_90"),
    "compiled below": lambda rank, kernel: ep_lib.jit.gxx.build_emulator_kernel(_own()),
    "the text replaced": lambda rank, kernel: setattr(kernel, "source", TEXT),
    "a macro": lambda rank, kernel: kernel.defines.update(EP_WARP="1"),
    "the handed one, compiled": lambda rank, kernel: kernel.compile(),
    "the handed one elsewhere": lambda rank, kernel: _launched(ep_lib.init(), kernel),
    "the handed one, copied": lambda rank, kernel: _launched(rank, copy.copy(kernel)),
    "a library": lambda rank, kernel: rank._backend._machine.load(_image(), 0),
    "a file": lambda rank, kernel: open(os.environ["EP_LIB_CACHE_DIR"] + "/x", "w"),
    "a file in its folder": lambda rank, kernel: open("x", "w"),
}
def pass_on(rank, kernel, mine):
    done = []
    for name, way in _ways.items():
        try: way(rank, kernel)
        except Exception: continue
        done.append(name)
    raise RuntimeError(f"done: {done}")
"""


@pytest.mark.slow
def test_a_piece_launches_no_kernels_but_the_tests_and_writes_no_file(tmp_path: Path) -> None:
    (result,) = grade("00_first_main", submitted(tmp_path, OWN_CODE), tasks=[2], seed=1).tasks
    assert "done: []" in result.message


@pytest.mark.slow
def test_what_a_piece_changes_of_its_rank_the_grader_does_not_see(tmp_path: Path) -> None:
    code = (
        (EXERCISE.solution_dir / PIECE).read_text("utf-8")
        + """
_pass_on = pass_on
def pass_on(rank, kernel, mine):
    got = _pass_on(rank, kernel, mine)
    rank.rank, rank.heap_bytes, rank.note = 1 - rank.rank, 0, mine
    try: rank.to_device = None
    except AttributeError: return got
"""
    )
    (tmp_path / PIECE).write_text(code)
    (result,) = grade("00_first_main", tmp_path, tasks=[2], seed=1).tasks
    assert result.passed, result.message


ONE_INBOX = """
def all_to_all(rank, send, wait, epochs):
    inbox, signals = rank.symmetric(epochs[0].shape, np.uint8), rank.symmetric(rank.world_size, np.uint64)
    received = []
    for epoch, chunks in enumerate(epochs):
        send_to_all(rank, send, inbox, signals, rank.to_device(chunks))
        received.append(receive_from_all(rank, wait, inbox, signals, epoch))
        {meet}
    return received
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("meet", "says"),
    [
        ("getattr(rank, 'barrier')()", "it calls rank.barrier(): signals alone"),
        ("rank.all_gather(None)", "it calls rank.all_gather(): signals alone"),
        ("rank._backend.all_gather(None)", "has no attribute '_backend'"),
        ("ep_lib.Rank.barrier(rank)", "has no attribute '_backend'"),
        ("rank.free(rank.symmetric(1, np.uint8))", "it calls rank.symmetric() after a launch"),
    ],
)
def test_where_ranks_meet_is_counted_however_they_ask_for_it(meet: str, says: str, tmp_path: Path) -> None:
    exercise = find("01_all_to_all")
    code = (exercise.solution_dir / exercise.pieces[0]).read_text("utf-8")
    (tmp_path / exercise.pieces[0]).write_text(code + ONE_INBOX.format(meet=meet))
    (result,) = grade("01_all_to_all", tmp_path, tasks=[3], seed=1).tasks
    assert says in result.message


@pytest.mark.slow
def test_a_wait_for_nothing_on_an_array_of_ones_own_is_none(tmp_path: Path) -> None:
    exercise = find("01_all_to_all")
    code = (exercise.solution_dir / exercise.pieces[0]).read_text("utf-8")
    cheat = """
def receive_from_all(rank, wait, inbox, signals, epoch):
    rank.barrier()  # so it has come
    mine, nothing = rank.to_device(rank.to_host(inbox)), rank.to_device(np.zeros(1, np.uint64))
    out = rank.empty(inbox.shape, np.uint8)
    for sender in range(rank.world_size):
        wait.launch(rank, 1, 64, nothing, 0, mine[sender], mine[sender].nbytes, out[sender], sender)
    return rank.to_host(out).copy()
"""
    (tmp_path / exercise.pieces[0]).write_text(code + cheat)
    (result,) = grade("01_all_to_all", tmp_path, tasks=[2], seed=1).tasks
    assert "did not launch the kernel that waits" in result.message


@pytest.mark.slow
def test_chunks_that_meet_outside_of_the_kernels_count_for_nothing(tmp_path: Path) -> None:
    exercise = find("01_all_to_all")
    code = (exercise.solution_dir / exercise.pieces[0]).read_text("utf-8")
    cheat = """
def all_to_all(rank, send, wait, epochs):
    inbox, signals = rank.symmetric(epochs[0].shape, np.uint8), rank.symmetric(rank.world_size, np.uint64)
    for epoch, chunks in enumerate(epochs):
        send_to_all(rank, send, inbox, signals, rank.to_device(chunks))
    everybody = rank.all_gather(epochs)
    return [np.array([epochs[e][rank.rank] for epochs in everybody]) for e in range(len(epochs))]
"""
    (tmp_path / exercise.pieces[0]).write_text(code + cheat)
    (result,) = grade("01_all_to_all", tmp_path, tasks=[3], seed=1).tasks
    assert "did not launch the kernel that waits" in result.message


@pytest.mark.slow
def test_what_ranks_tell_each_other_otherwise_counts_for_nothing(tmp_path: Path) -> None:
    exercise = find("00_first_main")
    code = (exercise.solution_dir / exercise.pieces[0]).read_text("utf-8")
    cheat = """
def pass_far(rank, kernel, numbers, hops):
    everybody = rank.all_gather(numbers)
    for hop in range(hops):
        pass_on(rank, kernel, everybody[(rank.rank - hop) % rank.world_size])
    return everybody[(rank.rank - hops) % rank.world_size]
"""
    (tmp_path / exercise.pieces[0]).write_text(code + cheat)
    (result,) = grade("00_first_main", tmp_path, tasks=[3], seed=1).tasks
    assert "rank.all_gather() was called" in result.message


def carried(*journeys: tuple[Any, ...]) -> seal.Carried:
    return seal.Carried({"carried": [(*each[:3], each[3].hex(), each[4].hex(), *each[5:]) for each in journeys]})


def test_what_was_carried_in_parts_was_carried() -> None:
    parts = carried(
        ("sent", 0, 1, b"abcd", b"ABCD", 0, 0),
        ("sent", 0, 1, b"efgh", b"EFGH", 4, 0),
        ("sent", 0, 2, b"xabcdefghx", b"XABCDEFGHX", 0, 0),
    )
    assert parts.sent(0, 1, b"abcdefgh") == parts.sent(0, 2, b"abcdefgh") == {b"ABCDEFGH"}
    assert parts.sent(0, 1, b"abcdefghi") == parts.sent(1, 0, b"abcd") == set()
    assert parts.whose({b"abcd": 7})[b"ABCD"] == 7
    bytewise = carried(*(("sent", 0, 1, bytes([byte]), bytes([byte]), 0, 0) for byte in range(256)))
    assert bytewise.sent(0, 1, bytes(range(8))) == set()


@pytest.mark.parametrize(("at", "signal", "awaited"), [(64, 8, True), (68, 8, True), (72, 8, False), (64, 16, False)])
def test_a_wait_is_one_for_the_signal_and_the_place_that_were_sent_to(at: int, signal: int, awaited: bool) -> None:
    came = ("received", 1, 0, b"EFGH", b"EFGH", at, signal, 1)
    both = carried(("sent", 0, 1, b"abcdefgh", b"ABCDEFGH", 64, 8), came)
    assert both.was_awaited(1, 0, b"EFGH") == awaited
    assert not both.was_awaited(0, 1, b"EFGH")


@pytest.mark.parametrize(("least", "awaited"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_wait_is_one_for_the_signal_that_was_sent_with_it(least: int, awaited: bool) -> None:
    sent = [("sent", 0, 1, name, name.upper(), 64, 8) for name in (b"first", b"other")]
    both = carried(*sent, ("received", 1, 0, b"OTHER", b"OTHER", 64, 8, least))
    assert both.was_awaited(1, 0, b"OTHER") == awaited


PROXY = find("04_proxy_loop")
PROXY_SOLUTION = (PROXY.solution_dir / PROXY.pieces[0]).read_text("utf-8")


def proxy_with(folder: Path, old: str, new: str) -> Path:
    assert old in PROXY_SOLUTION
    (folder / PROXY.pieces[0]).write_text(PROXY_SOLUTION.replace(old, new, 1) + REACHES)
    return folder


@pytest.mark.slow
def test_what_happened_cannot_be_taken_back(tmp_path: Path) -> None:
    each = """for n in range(count): self.ring.taken = first + n + 1
            for value in vars(self.ring).values():
                if isinstance(value, list) and value and isinstance(value[0], list) and value[0][0] == "taken":
                    del value[:-1]
"""
    submission = proxy_with(tmp_path, "self.ring.taken = first + count", each)
    (result,) = grade("04_proxy_loop", submission, tasks=[2], seed=1).tasks
    assert "wrote ring.taken 3 times" in result.message


def test_a_silent_checker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        findings = ()

    monkeypatch.setattr(seal, "check", lambda *_, **__: Silent)
    canary = Kernel.from_source('extern "C" __global__ void canary(int* word) {}', "canary")
    assert seal.findings_of(lambda rank: None, 2, canary, seeds=1, heap_bytes=1 << 16) == [CHECKER_IS_OFF]


def test_a_call_that_changes_what_it_is_given_is_told() -> None:
    given = {"rows": [np.arange(6).reshape(2, 3)[:, 1]], "names": {"a": [1.0, float("nan")]}}
    with seal.unchanged(**given):
        given["rows"][0].sum()
    with pytest.raises(seal.GivenWasChanged, match="has changed `rows`"), seal.unchanged(**given):
        given["rows"][0][1] += 1
    with pytest.raises(seal.GivenWasChanged, match="has changed `names`"), seal.unchanged(**given):
        given["names"]["a"].reverse()
