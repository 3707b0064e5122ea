"""Recorded runs and the page that goes through them: deterministic, complete, and the same states in the browser."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from support.browser import needs_chromium

import ep_lib
from ep_lib import viz
from ep_lib.emulator import recording as rec
from ep_lib.emulator.recording import Recording, parameter_names
from ep_lib.errors import ArgumentError
from ep_lib.runtime.check import record
from ep_lib.viz import time_travel
from ep_lib.viz.steps import ABSENT, CAN_RUN, DONE, FLAG_BITS, ORDERED, RACE, STATE_BITS, WAITS, Steps, make_steps
from ep_lib.viz.time_travel import page_of

SOURCE = """
#include <ep/net.cuh>
#include <ep/write_signal.cuh>

// Data, then a signal; the receiver waits for it, or does not.
__device__ void exchange(int* inbox, uint64_t* arrived, int n, bool waits) {
    const int peer = 1 - ep::rank();
    ep::peer_ptr(inbox, peer)[threadIdx.x] = 100 + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        ep::st_release_sys_u64(ep::peer_ptr(arrived, peer), 1);
        while (waits && ep::ld_acquire_sys_u64(arrived) == 0) {
        }
    }
    __syncthreads();
    atomicAdd(&inbox[n], inbox[threadIdx.x]);
}
extern "C" __global__ void right(int* inbox, uint64_t* arrived, int n) { exchange(inbox, arrived, n, true); }
extern "C" __global__ void wrong(int* inbox, uint64_t* arrived, int n) { exchange(inbox, arrived, n, false); }
extern "C" __global__ void stuck(int* inbox, uint64_t* arrived, int n) {
    while (ep::ld_acquire_sys_u64(arrived) == 0) {
    }
}
extern "C" __global__ void early(int* inbox, uint64_t* arrived, int n) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x) return;
    ep::signal_add(arrived, 1, peer);
    *ep::peer_ptr(inbox, peer) = 7;
    if (ep::wait_until_ge(arrived, 1, {ep::kPhaseSignal, peer, -1})) inbox[n] = inbox[0];
}
extern "C" __global__ void by_nic(int* inbox, uint64_t* arrived, int n) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_put_signal_nbi(inbox + n, inbox, n * sizeof(int), arrived, 1, peer);
        while (ep::ld_acquire_sys_u64(arrived) == 0) {
        }
        ep::net_quiet();
    }
}
"""
THREADS = 40
KERNELS = {name: ep_lib.Kernel.from_source(SOURCE, name) for name in ("right", "wrong", "stuck", "early", "by_nic")}


def main(rank: ep_lib.Rank, kernel: str) -> None:
    inbox = rank.symmetric(2 * THREADS, np.int32, fill=0)
    arrived = rank.symmetric(1, np.uint64, fill=0)
    KERNELS[kernel].launch(rank, 1, THREADS, inbox, arrived, THREADS)
    rank.synchronize()


def recorded(kernel: str, seed: int = 1, fabric: str = "p2p") -> Recording:
    return record(main, 2, fabric, seed, (kernel,))


def data_of(html: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def cells(steps: Steps, rank: int, name: str, step: int) -> list[int]:
    array = next(a for a in steps.arrays if (a.rank, a.name) == (rank, name))
    return steps.state(step)[array.slot : array.slot + array.slots]


def told(steps: Steps, step: int) -> str:
    return f"{steps.whos[steps.who[step]]}: {steps.whats[steps.what[step]]}"


@pytest.mark.parametrize("fabric", ["p2p", "srd"])
def test_the_same_seed_gives_the_same_page(fabric: str) -> None:
    kernel = "by_nic" if fabric == "srd" else "wrong"
    pages = [page_of(recorded(kernel, seed, fabric)).html for seed in (2, 2, 3)]
    assert pages[0] == pages[1] != pages[2]


def test_a_recorded_run_is_the_one_that_was_checked() -> None:
    for seed in (0, 1, 6):
        checked = ep_lib.check(main, 2, seeds=[seed], args=("wrong",))
        found = [one.finding for one in recorded("wrong", seed).found]
        assert [(f.key, f.count, f.first) for f in found] == [(f.key, f.count, f.first) for f in checked.findings]


def test_the_page_has_every_step() -> None:
    run = recorded("wrong")
    data = data_of(page_of(run).html)
    assert len(data["steps"]["kind"]) == run.steps == data["total"] == len(data["offsets"]) - 1
    kinds = run.events["kind"]
    assert data["steps"]["kind"] == kinds[kinds < rec.ORDERED].tolist()
    for column in data["steps"].values():
        assert len(column) == run.steps
    assert [data["files"][file]["lines"][line - 1].strip() for file, line, _ in data["places"]].count(
        "__syncthreads();"
    )


def test_every_thread_starts_waits_and_ends() -> None:
    steps = make_steps(recorded("right"), 10_000)
    seen = [set() for _ in range(2 * THREADS)]  # type: ignore[var-annotated]
    for step in range(-1, len(steps)):
        for slot, value in enumerate(steps.state(step)[: 2 * THREADS]):
            seen[slot].add(value & (1 << STATE_BITS) - 1)
    assert all({ABSENT, CAN_RUN, DONE} <= states for states in seen)
    assert sum(WAITS in states for states in seen) > THREADS
    assert [(g.rank, g.threads, g.unit) for g in steps.groups] == [(0, THREADS, 1), (1, THREADS, 1)]
    polls = [text for kind, text in steps.waits if kind == "polls"]
    assert all("arrived[0] of rank" in text and "which is 0" in text for text in polls)


def test_memory_is_ordered_when_the_reader_has_waited() -> None:
    steps = make_steps(recorded("right"), 10_000)
    waited = next(i for i in range(len(steps)) if re.match(r"rank 0.*load \(acquire.*sees 1$", told(steps, i)))
    before, after = cells(steps, 0, "inbox", waited - 1)[:THREADS], cells(steps, 0, "inbox", waited)[:THREADS]
    assert all(before) and not any(value & ORDERED for value in before)
    assert all(value & ORDERED for value in after) and not steps.marks


def test_a_race_is_marked_where_it_is_seen() -> None:
    steps = make_steps(recorded("wrong"), 10_000)
    mark = steps.marks[0]
    assert 0 <= mark.first < mark.step and mark.text.startswith("race: ")
    first, second = told(steps, mark.first), told(steps, mark.step)
    assert "inbox" in first and "inbox" in second and first[:6] != second[:6]
    slot, number = steps.touched[mark.step]
    racing = [value for value in steps.state(mark.step)[slot : slot + number] if value & RACE]
    assert racing and not any(value & ORDERED for value in racing)


@pytest.mark.parametrize("seed", range(4))
def test_a_finding_leads_to_the_access_that_it_names(seed: int) -> None:
    run = recorded("early", seed)  # each rank reads what the other writes: two pairs at the same two lines
    steps = make_steps(run, 10_000)
    assert run.found
    for found, mark in zip(run.found, steps.marks, strict=True):
        for side, step in ((found.finding.first, mark.first), (found.finding.second, mark.step)):
            assert side is not None
            assert steps.whos[steps.who[step]].replace(",", "") == str(side.thread)
            assert run.places[steps.place[step]].location == side.location
            assert bool(steps.write[step]) is side.what.startswith("writes")
        slot, number = steps.touched[mark.step]
        last = max(value >> FLAG_BITS for value in steps.state(mark.step - 1)[slot : slot + number])
        assert last // (2 * run.ranks) - 2 == mark.first  # the key `w`: who wrote this?


@pytest.mark.slow
def test_a_deadlock_is_at_the_end() -> None:
    run = recorded("stuck")
    steps = make_steps(run, 10_000)
    assert [one.finding.kind for one in run.found] == ["deadlock"]
    assert steps.marks[0].step == len(steps) - 1 and "arrived[0] of rank" in steps.waits[0][1]


def test_messages_go_from_posted_to_complete() -> None:
    run = recorded("by_nic", fabric="rc")
    steps = make_steps(run, 10_000)
    assert [m.kind for m in run.messages] == ["put_signal", "put_signal"]
    for message in range(2):
        slot = steps.message_slot + message
        stages = [steps.state(step)[slot] & 7 for step in range(-1, len(steps))]
        assert stages == sorted(stages) and {0, 1, 3, 4} <= set(stages)
        assert steps.state(len(steps) - 1)[slot] >> 3 == THREADS * 4
    assert {lane.kind for lane in steps.lanes} == {"host", "block", "nic"}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 40), limit=st.integers(20, 200))
def test_changes_rebuild_each_state_also_of_a_part(seed: int, limit: int) -> None:
    """A part of the run begins with what happened before it: threads are in the same states as in the whole run."""
    run = recorded("wrong", seed)
    whole, part = make_steps(run, 10_000), make_steps(run, limit)
    assert len(part) == min(limit, whole.total) and len(whole) == whole.total
    assert not run.found or part.begin <= whole.marks[0].step < part.begin + limit
    state = list(part.base)
    for step in range(len(part)):
        for slot, value in part.changes[part.offsets[step] : part.offsets[step + 1]]:
            assert state[slot] != value
            state[slot] = value
        assert state == part.state(step)
        assert told(part, step) == told(whole, part.begin + step)
    for group in part.groups:
        same = next(g for g in whole.groups if (g.rank, g.label) == (group.rank, group.label))
        full = whole.state(part.begin + len(part) - 1)
        low = (1 << STATE_BITS) - 1
        assert [v & low for v in state[group.slot : group.slot + group.slots]] == [
            v & low for v in full[same.slot : same.slot + same.slots]
        ]


def test_names_of_parameters() -> None:
    source = "template <int N, class T> __global__ void __launch_bounds__(64) f(T (*g)[3], pair<int, 4> a, int* b = 0)"
    assert parameter_names(source, "f<2, int>") == ["g", "a", "b"]
    commented = "void g(const float* __restrict__ x,  // what, and (how)\n int /* n, */ n)"
    assert parameter_names(commented, "g") == ["x", "n"]
    assert parameter_names("void h()", "h") == [] and parameter_names("void h(int)", "other") == []


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="launched no kernel"):
        time_travel(lambda rank: None, 1)
    with pytest.raises(ArgumentError, match="steps is 0"):
        time_travel(main, steps=0, args=("right",))
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="cannot be written to"):
        time_travel(main, args=("right",)).save(tmp_path / "file" / "page.html")


def test_a_click_on_a_finding_leads_to_its_run() -> None:
    report = ep_lib.check(main, 2, seeds=2, args=("wrong",))
    assert "record" not in report.to_dict()
    shown = viz.findings(report)
    assert str(shown) == str(report) and shown._repr_html_().count("<details>") == 2
    assert "Go through its run, step by step</summary><iframe srcdoc=" in shown._repr_html_()
    assert "<details>" not in viz.findings(ep_lib.check(main, 2, seeds=1, args=("right",)))._repr_html_()
    with pytest.raises(ArgumentError, match="what ep_lib"):
        viz.findings(3)  # type: ignore[arg-type]


def test_above_the_fold_is_what_is_wrong_and_where() -> None:
    report = ep_lib.check(main, 2, seeds=1, args=("wrong",))
    above, below = viz.findings(report)._repr_html_().split("<details>")[:2]
    assert "race: " in above and "remedy" in above and "writes at &lt;kernel&gt;:8: " in above
    assert "where " not in above and "thread" not in above.partition("race: ")[2].replace("threadIdx", "")
    assert 'replay  "default"' in html.unescape(below)
    assert 'padding-left:7ch; text-indent:-7ch">   remedy' in above  # what wraps stands further in


def test_the_line_of_a_finding_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the program is called, and whether it takes arguments."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    programs: list[tuple[Any, tuple[str, ...]]] = [(main, ("wrong",)), (lambda rank: main(rank, "wrong"), ())]
    for program, args in programs:
        finding = ep_lib.check(program, 2, seeds=2, args=args).findings[0]
        line = re.search(r"replay .*: (from ep_lib import viz); (viz\..*)", str(finding))
        assert line is not None
        namespace: dict[str, Any] = {}
        exec(line[1], namespace)
        page = eval(line[2], namespace)
        assert data_of(page.html)["marks"][0]["text"].startswith("race: ")
    with pytest.raises(ArgumentError, match=r"'nobody #1' is the name of no finding .*the last ones are .*'main #"):
        time_travel("nobody #1")


@pytest.mark.parametrize(
    ("program", "args", "fabric"),
    [
        (main, ("wrong",), "p2p"),
        (main, ("wrong",), ep_lib.Fabric(ranks_per_node=2)),
        (main, (np.str_("wrong"),), "p2p"),
        (lambda rank: main(rank, "wrong"), (), "p2p"),
    ],
    ids=["words", "a fabric's settings", "no literal", "lambda"],
)
@pytest.mark.parametrize(
    "how", [{"seeds": 2}, {"exhaustive": True, "stop_at_first": True}], ids=["seeds", "exhaustive"]
)
def test_the_line_of_a_finding_works_in_the_script(
    program: Any, args: tuple[Any, ...], fabric: Any, how: dict[str, Any]
) -> None:
    finding = ep_lib.check(program, 2, fabric, args=args, heap_bytes=1 << 20, **how).findings[0]
    statement, _, call = finding.replay.partition("; ")
    namespace: dict[str, Any] = {"main": main}
    exec(statement, namespace)
    page = eval(call, namespace)
    assert data_of(page.html)["marks"][0]["text"].startswith(f"{finding.kind}: ")


def test_the_line_of_a_finding_says_its_run() -> None:
    told = [
        ep_lib.check(main, 2, seeds=2, args=("wrong",), reduce=reduce).findings[0].replay for reduce in (True, False)
    ]
    assert 'time_travel(main, ranks=2, schedule="default"' in told[0] and "time_travel(main, ranks=2, seed=" in told[1]


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    page = time_travel(main, args=("right",))
    assert page._repr_html_().startswith("<iframe srcdoc=") and "://" not in re.sub(
        r"http://www.w3.org\S*", "", page.html
    )


@pytest.mark.extended
@pytest.mark.slow
def test_the_command_of_a_finding_writes_its_page(tmp_path: Path) -> None:
    script = tmp_path / "race.py"
    script.write_text(
        f"import numpy as np, ep_lib\nkernel = ep_lib.Kernel.from_source('''{SOURCE}''', 'wrong')\n"
        f"def main(rank):\n    inbox = rank.symmetric({2 * THREADS}, np.int32, fill=0)\n"
        f"    kernel.launch(rank, 1, {THREADS}, inbox, rank.symmetric(1, np.uint64, fill=0), {THREADS})\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ep_lib", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    checked = run("check", "race.py", "--fabric", "rc", "--ranks-per-node", "2", "--seeds", "2", "--first-seed", "3")
    line = checked.stdout.strip().split("\n")[-1]
    assert line.startswith('    replay  "default" (seen in 2 runs): ep-lib replay race.py')
    replayed = run(*shlex.split(line.partition(": ep-lib ")[2]))
    assert replayed.returncode == 0 and replayed.stdout.startswith("1. race: "), replayed.stderr
    data = data_of((tmp_path / "replay.html").read_text())
    assert data["about"].startswith("2 ranks on rc") and data["marks"]
    assert "there is no folder" in run("replay", "race.py", "--html", "no/page.html").stderr
    assert "there is no file" in run("replay", "other.py").stderr


@pytest.mark.extended
@pytest.mark.slow
@needs_chromium
def test_the_page_in_a_browser(page: Any, tmp_path: Path) -> None:
    run = recorded("wrong", 2)
    steps = make_steps(run, 10_000)
    mark, last = steps.marks[0], len(steps) - 1
    page.goto(page_of(run).save(tmp_path / "page.html").as_uri())
    keys = {"Home": 0, "ArrowRight": 1, "Shift+ArrowRight": 11, "ArrowLeft": 10, "End": last, "n": mark.step}
    for key, step in {**keys, "w": mark.first}.items():
        page.keyboard.press(key)
        assert page.input_value("#slider") == str(step), key
        assert page.inner_text("#now").startswith(told(steps, step))
        assert page.get_attribute("#slider", "aria-valuetext").endswith(told(steps, step))
    page.keyboard.press("p")
    assert page.input_value("#slider") == str(mark.step) and page.locator("#source .racing").count() >= 2
    assert any("in a race" in text for text in page.locator(".sum").all_inner_texts())
    page.locator("#findings summary").press("Enter")
    page.get_by_text("remedy").wait_for()
    page.locator("#findings summary").press("Enter")
    page.pdf()
    assert page.locator("details[open]").count() == 0  # unfolded for the paper alone
    page.set_viewport_size({"width": 900, "height": 640})  # what a notebook gives it: nothing has to be scrolled
    for part in [*page.locator("#source .racing").all(), *page.locator(".rank h2").all(), page.locator("i.race").first]:
        box = part.bounding_box()
        assert box["y"] + box["height"] < 640 and page.evaluate("document.documentElement.scrollWidth") <= 900
    for step in sorted({0, 1, 255, 256, 257, last // 2, last} & set(range(len(steps))), reverse=True):
        assert page.evaluate("step => [...stateAfter(step)]", step) == steps.state(step)
