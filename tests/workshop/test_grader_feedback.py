"""What a learner is told: the checker's findings in short, and none of the hidden test's own lines."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ep_lib.workshop.grader.feedback import CHECKER_IS_OFF, advice_for, says_all, what_failed
from ep_lib.workshop.grader.pieces import load
from ep_lib.workshop.grader.process import guest
from ep_lib.workshop.grader.scenario import (
    RETURNED_NOTHING,
    BadReply,
    Complaint,
    Failure,
    Outputs,
    Scenario,
    Side,
    pack,
    unpack_outputs,
)
from ep_lib.workshop.hidden import ex01_write_signal
from ep_lib.workshop.hidden.cases import of_kernels

SCENARIO = Scenario(ranks=2, seed=1, launches=((), ()), outputs=(), check_seeds=(1, 2))
WORK = Path("/tmp/ep_grade_x")
OWN = Side("../mine/ep/x.cuh:7 (in <ep/put.cuh>:77)", "put_thread(a, b, c, d);")
TEST = Side("/x/ep_lib/workshop/hidden/ex.cu:9", "seen[i] = area[i];  // role: the receiver")
SECRET = Side("/x/ep_lib/workshop/hidden/ex.cu:10", "if (secret == 42) return;")
CANARY = Side("/x/ep_lib/workshop/hidden/grader.cuh:20", "*seen = *seen;  // canary")


def complaint(*sides: Side, kind: str = "race", remedy: str = "credit before reuse", detail: str = "") -> Complaint:
    return Complaint(kind, "rank 1 reads what rank 0 writes", remedy, detail, "3", sides)


def said(*complaints: Complaint, failure: Failure | None = None) -> str:
    return what_failed(SCENARIO, Outputs(failure=failure, complaints=complaints), WORK)


def test_a_finding_shows_the_learners_line_and_hides_the_tests() -> None:
    text = said(complaint(CANARY, CANARY), complaint(OWN, TEST), complaint(SECRET, TEST))
    assert text.splitlines() == [
        "race: rank 1 reads what rank 0 writes",
        "your line   ep/x.cuh:7: put_thread(a, b, c, d);",
        "against     the receiver",
        "remedy      credit before reuse",
    ]
    assert "secret" not in said(complaint(SECRET, OWN))
    assert "secret" not in said(complaint(SECRET, TEST))


def test_what_ended_a_run_gives_no_advice_where_a_race_is_told() -> None:
    stuck = Failure("PeerTimeout", "rank 1 waits")
    assert "never written" in advice_for(Outputs(failure=stuck, complaints=(complaint(CANARY, CANARY),)))
    assert advice_for(Outputs(failure=stuck, complaints=(complaint(OWN, TEST),))) == ""


def test_lines_of_a_checkout_in_a_folder_named_mine_are_no_learners() -> None:
    ours = Side("/x/mine/ep_lib/workshop/hidden/ex.cu:9", TEST.source)
    assert "against     the receiver" in said(complaint(OWN, ours))
    given = Side("/x/mine/tutorial_kernels/05_b.cuh:75 (in <ep/cpu/primitives.cuh>:86)", "copy();")
    assert "against     tutorial_kernels/05_b.cuh:75 (in" in said(complaint(OWN, given))


def test_the_finding_that_names_the_missing_barrier_comes_first() -> None:
    exact = complaint(OWN, TEST, remedy="missing __syncwarp", detail="another thread has signalled")
    assert "missing __syncwarp" in said(complaint(OWN, TEST), exact)
    assert "because     another thread has signalled" in said(complaint(OWN, TEST), exact)


def test_a_function_that_was_renamed_is_told_in_the_compilers_words() -> None:
    error = "'wait' is not a member of 'ep'"
    message = f"<workshop/hidden/ex01_write_signal.cu>:98: error: {error}\n    if (secret == 42) ep::wait();"
    text = said(failure=Failure("KernelCompileError", message))
    assert text.startswith(f"KernelCompileError: {error}\n")
    assert "names and parameters" in text and "secret" not in text and "hidden" not in text
    text = said(failure=Failure("KernelCompileError", message.replace(error, "expected ';' before 'namespace'")))
    assert "names and parameters" not in text and "at its end" in text


@pytest.mark.parametrize("file", ["ex.cu", "calls/ex.cuh"])
def test_an_endless_loop_is_told_by_the_function_that_the_test_calls(file: str, tmp_path: Path) -> None:
    (tmp_path / "mine" / "ep").mkdir(parents=True)
    (tmp_path / "mine" / "ep" / "x.cuh").write_text(
        "// send(a)\n\nEP_DEVICE void send(int* a,\n    int b) {\n    for (;;) {}\n}\n"
    )
    place = f"/x/ep_lib/workshop/hidden/{file}:9: if (secret == 42) ep::send(a, 1);"
    message = f"kernels still ran (spawn's timeout=):\n  rank 0 loops without any access to memory at {place}"
    text = what_failed(SCENARIO, Outputs(failure=Failure("KernelTimeout", message)), tmp_path)
    assert "loops without any access to memory in your send, which begins at ep/x.cuh:3" in text
    assert "secret" not in text and "spawn" not in text


def test_what_was_written_and_overwritten_is_not_said_never_to_be_written() -> None:
    def advice(text: str, kind: str = "DeadlockError") -> str:
        return advice_for(Outputs(failure=Failure(kind, text)))

    assert "never written" in advice("rank 0 waits on a[0] (sees 0)\nrank 1 waits on b[0] (sees 9)")
    assert "overwritten before it was taken" in advice("rank 1 waits on b[0] (sees 9)\nrank 0 waits in barrier()")
    assert "must come" in advice("rank 0 block 0 thread 0 and 7 more threads wait in __shfl_xor_sync (mask 0xff)")
    assert "never written" in advice("rank 0 waits in __syncwarp\nrank 0 waits on a[0] (sees 0)")
    assert "in the test's barrier()" in said(failure=Failure("DeadlockError", "rank 0 waits in barrier()"))


def test_a_list_of_waits_of_which_all_are_the_tests_has_no_heading() -> None:
    waits = "deadlock: none can go on. Who waits where:\n  rank 0 waits at /x/workshop/hidden/ex.cu:9: secret(1)"
    assert said(failure=Failure("DeadlockError", waits)) == "DeadlockError: deadlock: none can go on"


@pytest.mark.parametrize(
    ("own", "whose"), [({"own_receive": 1}, "pipe_send_warp waited"), ({"own_send": 1}, "pipe_receive_warp gave")]
)
def test_bytes_of_a_pipe_are_told_as_too_early_or_too_late(own: dict[str, int], whose: str) -> None:
    """Round 1 of one slot: the bytes of round 2 came too early, those of round 0 are what was there before."""
    case = ex01_write_signal.pipe_case(np.random.default_rng(1), ex01_write_signal._Job(bytes=64, steps=3, **own))
    scenario = of_kernels(case)
    rounds = scenario.local["source"][0].reshape(3, 64)

    def told(taken: list[int]) -> str:
        seen = [scenario.local["seen"][0], rounds[taken].reshape(-1)]
        return case.verdict(Outputs({**scenario.symmetric, "seen": seen, "noted": scenario.local["noted"]})) or ""

    scenario.symmetric["counters"][0][5] = 3  # credits

    early, late = told([0, 2, 2]), told([0, 0, 2])
    assert "received in round 1 are those of round 2: slot 0 was overwritten too early" in early and whose in early
    assert "what was in slot 0 before: they were taken before they had arrived" in late and "pipe_" not in late


def test_a_renamed_method_in_python_is_told_and_the_tests_advice_is_not() -> None:
    gone = Outputs(failure=Failure("AttributeError", "'Proxy' object has no attribute 'complete'"))
    assert "keep their names" in advice_for(gone) and says_all(gone)
    own = Outputs(failure=Failure("AttributeError", "'int' object has no attribute 'x' (line 9 of a.py)"))
    assert advice_for(own) == "" and says_all(own)


def test_a_function_in_python_that_returns_nothing_is_all_that_is_said() -> None:
    nothing = Outputs(failure=Failure("TypeError", f"route() {RETURNED_NOTHING}"))
    assert said(failure=nothing.failure) == "TypeError: route() returned nothing: is a `return` missing?"
    assert says_all(nothing) and not advice_for(nothing)


def test_an_endless_loop_in_python_is_told_with_its_task_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also sooner, in a function where one was found before; other calls of long ones have all the time."""
    monkeypatch.setattr(guest, "_LOOK_S", 0.01)
    monkeypatch.setattr(guest, "_ENDLESS_S", 0.3)
    monkeypatch.setattr(guest, "_ENDLESS_AGAIN_S", 0.02)
    text = "def post():\n    # TASK 3 (2 points): post\n    while True:\n        pass\n    # end of TASK 3\n"
    (tmp_path / "piece.py").write_text(text + "def own():\n    while True: pass\n")
    piece = load(tmp_path / "piece.py")
    worker: Any = SimpleNamespace(cpu_s=0.0)
    for known, share, seconds in (("post", 1.0, r"0\.0[2-9]"), ("take", 1.0, r"0\.[3-5]"), ("take", 0.5, r"0\.[12]")):
        with pytest.raises(guest._Endless) as ended, guest._ended_in_time(tmp_path, [known], share, worker):
            piece.post()
        said_first = rf"post\(\), of task 3, does not end: it still ran after {seconds}\d* s, in line "
        assert re.match(said_first, str(ended.value)), ended.value
        assert re.search(r"[34] of piece.py: (while True:|pass)$", str(ended.value))
    with pytest.raises(guest._Endless) as ended, guest._ended_in_time(tmp_path, [], 1.0, worker):
        piece.own()
    assert re.search(r"^own\(\) does not end: .* line 7 of piece.py: while True: pass$", str(ended.value))
    failed = Outputs(failure=Failure(guest.ENDLESS, str(ended.value)))
    assert says_all(failed) and said(failure=failed.failure) == str(ended.value)


def test_memory_that_changed_unseen_counts_for_nothing() -> None:
    seen = Outputs(complaints=(complaint(CANARY, CANARY),), unseen=7)
    assert "could not be watched: 7 bytes" in what_failed(SCENARIO, seen, WORK)


def test_a_finding_explains_more_than_its_deadlock_and_a_hole_more() -> None:
    deadlock = Failure("deadlock", "nobody can go on")
    todo = Failure("fault", 'assert(!"Task 2 is still to do: wait")')
    assert said(complaint(CANARY, CANARY), failure=deadlock) == "deadlock: nobody can go on"
    assert said(complaint(OWN, TEST), failure=deadlock).startswith("race")
    assert said(complaint(OWN, TEST), failure=todo) == "Task 2 is still to do: wait"


def test_a_checked_run_without_the_canary_counts_for_nothing() -> None:
    assert said() == CHECKER_IS_OFF
    assert said(complaint(CANARY, CANARY)) == ""
    assert what_failed(Scenario(2, ((), ()), ()), Outputs(), WORK) == ""


@pytest.mark.parametrize("forged", [[3], ["x"], [{"kind": "race"}], 7, {"a": 1}])
def test_complaints_that_are_none_are_not_believed(forged: object) -> None:
    scenario = Scenario(1, ((),), ("a",), symmetric={"a": [np.zeros(1, np.uint8)]})
    frame = pack({"nonce": "n", "failure": None, "complaints": forged})
    with pytest.raises(BadReply):
        unpack_outputs(scenario, "n", frame[16:], b"\0")
