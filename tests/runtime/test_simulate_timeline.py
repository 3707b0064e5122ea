"""Timelines: the same every time, consistent in themselves, right results, and files that Perfetto opens."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from support.timed_programs import CX7, Run, body, simulate

import ep_lib
from ep_lib import HARDWARE, Fabric, Timeline

pytestmark = pytest.mark.slow

ALL_TO_ALL = Run("all_to_all", nbytes=20000, grid=4, heap=4 * 4 * 20000)
FABRICS = ["rc", "srd", Fabric("rc", ranks_per_node=2), Fabric("srd", ranks_per_node=2, p2p=False)]


@pytest.fixture(scope="module", params=FABRICS, ids=["rc", "srd", "rc-nodes-of-2", "srd-nodes-of-2"])
def exchange(request: pytest.FixtureRequest) -> Timeline:
    hardware = HARDWARE["p5-efa" if "srd" in str(request.param) else "h100-cx7"]
    return simulate(ALL_TO_ALL, 4, request.param, hardware)


def test_the_same_every_time(exchange: Timeline) -> None:
    again = simulate(ALL_TO_ALL, 4, exchange.fabric, exchange.hardware)
    assert again.spans == exchange.spans
    assert again.messages == exchange.messages
    assert again.samples == exchange.samples


def test_results_are_those_of_spawn(exchange: Timeline) -> None:
    spawned = ep_lib.spawn(body, 4, "emulator", args=(ALL_TO_ALL,), fabric=exchange.fabric)
    for simulated, walked in zip(exchange.results, spawned, strict=True):
        assert np.array_equal(simulated["data"], walked["data"])
        assert simulated["flag"] == walked["flag"] == 16


def test_messages_go_forward_in_time(exchange: Timeline) -> None:
    assert [m.number for m in exchange.messages] == list(range(4 * 4 * 4))
    posted = [m.posted_ns for m in exchange.messages]
    assert posted == sorted(posted)
    for m in exchange.messages:
        assert m.kind == "put_signal" and m.bytes == 20000
        assert m.wire_bytes == pytest.approx(
            exchange.hardware.nic.wire_bytes(m.bytes) + exchange.hardware.nic.wire_bytes(8)
        )
        assert m.posted_ns < m.departed_ns < m.delivered_ns < m.completed_ns <= exchange.end_ns
        assert m.where.startswith("tests/kernels/timed.cu:")


@pytest.mark.parametrize("end", ["source", "target"])
def test_no_link_carries_more_than_its_bandwidth(exchange: Timeline, end: str) -> None:
    """Whatever departed and arrived within a window fits into it, in every window that messages span."""
    rate = exchange.hardware.nic.gbytes_per_s
    links = defaultdict(list)
    for m in exchange.messages:
        links[getattr(m, end)].append(m)
    for messages in links.values():
        for begin in sorted({m.departed_ns for m in messages}):
            inside = sorted((m for m in messages if m.departed_ns >= begin), key=lambda m: m.delivered_ns)
            carried = np.cumsum([m.wire_bytes for m in inside])
            assert np.all(carried <= rate * (np.array([m.delivered_ns for m in inside]) - begin) * (1 + 1e-9))


def test_spans_are_within_their_kernels(exchange: Timeline) -> None:
    kernels = {(s.rank, s.block): s for s in exchange.spans if s.kind == "kernel"}
    assert len(kernels) == 16
    for span in exchange.spans:
        kernel = kernels[span.rank, span.block]
        assert kernel.begin_ns <= span.begin_ns <= span.end_ns <= kernel.end_ns
        assert (span.warp is None) == (span.kind == "kernel")
    assert [s.begin_ns for s in exchange.spans] == sorted(s.begin_ns for s in exchange.spans)
    posts = [s for s in exchange.spans if s.kind == "post"]
    assert len(posts) == len(exchange.messages)
    assert all(s.end_ns - s.begin_ns == pytest.approx(exchange.hardware.nic.overhead_ns) for s in posts)
    waits = [s for s in exchange.spans if s.kind == "wait"]
    assert len(waits) == 16 and all(s.where.startswith("tests/kernels/timed.cu:") for s in waits)


def test_a_wait_ends_when_the_last_signal_is_seen(exchange: Timeline) -> None:
    for rank in range(4):
        last = max(m.delivered_ns for m in exchange.messages if m.target == rank)
        ends = [s.end_ns for s in exchange.spans if s.kind == "wait" and s.rank == rank]
        # The loop may have been woken by the signal before, and sees the last one with its next look.
        assert len(ends) == 4 and all(last <= end <= last + exchange.hardware.gpu.poll_ns + 1e-6 for end in ends)


def test_samples_come_from_where_they_were_taken(exchange: Timeline) -> None:
    assert {(s.rank, s.block, s.name, s.value) for s in exchange.samples} == {
        (rank, block, "peer", float(peer)) for rank in range(4) for block in range(4) for peer in range(4)
    }
    posted = {m.posted_ns for m in exchange.messages}
    assert all(s.at_ns in posted for s in exchange.samples)


def test_the_trace_is_what_perfetto_opens(exchange: Timeline, tmp_path) -> None:
    exchange.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)
    events = trace["traceEvents"]
    assert all({"ph", "pid", "tid", "name"} <= event.keys() for event in events)
    by_phase = defaultdict(list)
    for event in events:
        by_phase[event["ph"]].append(event)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in by_phase["X"])
    named = {(e["pid"], e["tid"]) for e in by_phase["M"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in by_phase["X"] + by_phase["b"]} <= named
    assert {e["args"]["name"] for e in by_phase["M"] if e["name"] == "process_name"} == {f"rank {r}" for r in range(4)}
    numbers = list(range(len(exchange.messages)))
    for phase in "besf":  # a flight begins and ends, an arrow starts and finishes
        assert sorted(event["id"] for event in by_phase[phase]) == numbers
    counters = {(e["pid"], e["ts"], e["args"]["value"]) for e in by_phase["C"]}
    assert counters == {(s.rank, s.at_ns / 1e3, s.value) for s in exchange.samples}
    lanes = defaultdict(list)  # spans of one lane follow each other or are inside each other
    for event in by_phase["X"]:
        lanes[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for spans in lanes.values():
        open_ends: list[float] = []
        for begin, negative in sorted(spans):
            while open_ends and open_ends[-1] <= begin + 1e-6:
                open_ends.pop()
            assert not open_ends or begin - negative <= open_ends[-1] + 1e-6
            open_ends.append(begin - negative)


@pytest.mark.parametrize("k", [4, 16])
def test_short_rows_on_scaled_hardware_take_the_time_of_full_rows(k: int) -> None:
    full = simulate(Run("all_to_all", nbytes=1 << 18, grid=2, heap=8 << 18), 4)
    short = simulate(Run("all_to_all", nbytes=(1 << 18) // k, grid=2, heap=(8 << 18) // k), 4, hardware=CX7.scaled(k))
    assert short.end_ns == pytest.approx(full.end_ns, rel=0.01)
    assert short.hardware.name == f"h20-cx7 / {k}"


def test_elsewhere_trace_value_does_nothing() -> None:
    ep_lib.spawn(body, 4, "emulator", args=(ALL_TO_ALL,), fabric="rc")


def test_dispatch_and_combine_in_virtual_time() -> None:
    """The library's own kernels: right results over NVLink and over NICs, and a time that bandwidth explains."""
    tokens, hidden, ranks = 64, 512, 4

    def main(rank: ep_lib.Rank, nvlink: bool) -> tuple[int, bool]:
        rng = np.random.default_rng(rank.rank)
        x = rng.standard_normal((tokens, hidden)).astype(np.float32)
        topk = np.stack([rng.permutation(16)[:4] for _ in range(tokens)]).astype(np.int64)
        sizes = {"num_experts": 16, "top_k": 4, "hidden": hidden, "max_tokens": tokens, "num_sms": 4}
        with ep_lib.Buffer(rank, dtype="float32", allow_nvlink_for_normal_mode=nvlink, **sizes) as buffer:
            received = buffer.dispatch(x, topk)
            out = buffer.combine(received.x, received.handle)
            copies = np.array([len(set(row // 4)) for row in topk])  # a sum over the ranks that hold experts
            return received.x.shape[0], bool(np.allclose(out, x * copies[:, None], rtol=1e-5))

    over_nvlink = ep_lib.simulate(main, ranks, "p2p", "h100-cx7", args=(True,))
    over_nics = ep_lib.simulate(main, ranks, Fabric("rc", queue_pairs=8), "h100-cx7", args=(False,))
    for timeline in (over_nvlink, over_nics):
        assert all(right for _, right in timeline.results)
    assert not over_nvlink.messages
    rows = sum(rows for rows, _ in over_nics.results)
    assert sum(m.bytes for m in over_nics.messages) >= rows * hidden * 4
    assert over_nics.end_ns > over_nvlink.end_ns
