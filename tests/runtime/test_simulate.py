"""Virtual time: what simple programs take is what the model's formulas say."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from support.timed_programs import CX7, Run, acknowledged, before_the_wire, on_wire, simulate, source_read, to_target

import ep_lib
from ep_lib import HARDWARE, Fabric, errors

LAUNCH = CX7.gpu.launch_ns
POLL = CX7.gpu.poll_ns


@pytest.mark.parametrize("nbytes", [8, 4096, 4097, 1 << 20])
def test_one_put(nbytes):
    timeline = simulate(Run("puts", nbytes))
    (message,) = timeline.messages
    departed = LAUNCH + before_the_wire(CX7) + source_read(CX7, nbytes)
    delivered = departed + on_wire(CX7, nbytes) + to_target(CX7)
    assert message.posted_ns == LAUNCH
    assert message.departed_ns == pytest.approx(departed)
    assert message.delivered_ns == pytest.approx(delivered)
    assert message.completed_ns == pytest.approx(delivered + acknowledged(CX7))
    assert timeline.end_ns == pytest.approx(message.completed_ns + POLL)  # the quiet sees it
    assert message.wire_bytes == CX7.nic.wire_bytes(nbytes)
    assert np.all(timeline.results[1]["data"][:nbytes] == 1) and timeline.results[1]["data"][nbytes] == 0


def test_puts_in_a_row_take_what_the_wire_takes():
    nbytes, times = 1 << 18, 8
    timeline = simulate(Run("puts", nbytes, times))
    first = LAUNCH + before_the_wire(CX7) + source_read(CX7, nbytes)
    assert timeline.messages[-1].delivered_ns == pytest.approx(first + times * on_wire(CX7, nbytes) + to_target(CX7))


def test_small_puts_in_a_row_take_what_posting_takes():
    timeline = simulate(Run("puts", 8, 20))
    departed = np.array([m.departed_ns for m in timeline.messages])
    assert np.diff(departed) == pytest.approx(CX7.nic.overhead_ns)


def test_two_senders_to_one_nic_halve():
    nbytes = 1 << 20
    alone, together = (simulate(Run("incast", nbytes), ranks) for ranks in (2, 3))
    departed = alone.messages[0].departed_ns
    assert together.messages[0].departed_ns == together.messages[1].departed_ns == departed
    last = max(m.delivered_ns for m in together.messages)
    assert last == pytest.approx(departed + 2 * on_wire(CX7, nbytes) + to_target(CX7))
    assert min(m.delivered_ns for m in together.messages) > 0.99 * last - LAUNCH  # packet by packet, in turns


def test_all_to_all_takes_what_the_wire_takes():
    nbytes, ranks = 1 << 19, 4
    timeline = simulate(Run("all_to_all", nbytes, heap=ranks * nbytes), ranks)
    first = min(m.departed_ns for m in timeline.messages)
    last = max(m.delivered_ns for m in timeline.messages)
    wire = ranks * (on_wire(CX7, nbytes) + on_wire(CX7, 8))
    # All begin with rank 0, whose NIC is then busy; what waited there comes late at the end.
    assert wire <= last - first - to_target(CX7) <= 1.05 * wire


def test_ping_pong():
    times = 10
    timeline = simulate(Run("ping_pong", times=times))
    one_way = before_the_wire(CX7) + on_wire(CX7, 8) + to_target(CX7) + POLL
    assert timeline.results[0]["flag"] == times
    kernels = [span for span in timeline.spans if span.kind == "kernel" and span.rank == 0]
    assert kernels[0].end_ns - kernels[0].begin_ns == pytest.approx(2 * times * one_way, rel=1e-9)


def test_a_get_asks_and_is_answered():
    nbytes = 10000
    timeline = simulate(Run("get", nbytes))
    (message,) = timeline.messages
    asked = LAUNCH + before_the_wire(CX7) + on_wire(CX7, 0) + CX7.nic.latency_ns
    assert message.kind == "get"
    assert message.delivered_ns == pytest.approx(
        asked + source_read(CX7, nbytes) + on_wire(CX7, nbytes) + to_target(CX7)
    )
    assert message.completed_ns == message.delivered_ns
    assert np.all(timeline.results[0]["data"][:nbytes] == 2)


def test_a_full_queue_pair_makes_the_poster_wait():
    timeline = simulate(Run("puts", 8, 3), fabric=Fabric("rc", queue_depth=1))
    for earlier, later in pairwise(timeline.messages):
        assert later.posted_ns == pytest.approx(earlier.completed_ns + POLL)
    waits = [span.name for span in timeline.spans if span.kind == "wait"]
    assert sum("full queue pair" in name for name in waits) == 2


def test_rc_keeps_order_and_srd_does_not():
    for fabric, overtakes in (("rc", False), ("srd", True)):
        put, add = simulate(Run("overtake", 4096), fabric=fabric).messages
        assert (add.delivered_ns < put.delivered_ns) == overtakes
        put, add = simulate(Run("fenced", 4096), fabric=fabric).messages
        assert add.delivered_ns > put.delivered_ns
        if fabric == "srd":  # nothing else keeps order there but to wait
            assert add.departed_ns >= put.completed_ns


def test_srd_adds_one_after_another():
    timeline = simulate(Run("adds", times=4), ranks=3, fabric="srd")
    assert timeline.results[0]["flag"] == 12
    delivered = np.sort([m.delivered_ns for m in timeline.messages])
    assert np.all(np.diff(delivered) >= 2 * CX7.pcie.latency_ns * (1 - 1e-9))


# ---- threads and memory ------------------------------------------------------------------------------------------


def duration(timeline, rank=0):
    spans = [span for span in timeline.spans if span.kind == "kernel" and span.rank == rank]
    return max(span.end_ns for span in spans) - min(span.begin_ns for span in spans)


def test_a_block_copies_at_the_rate_of_its_sm():
    nbytes = 1 << 18
    for block in (32, 256):
        took = duration(simulate(Run("copy", nbytes, block=block), ranks=1))
        assert took == pytest.approx(2 * nbytes / CX7.gpu.sm_gbytes_per_s)  # loaded and stored


def test_blocks_on_their_own_sms_share_the_memory():
    nbytes = 1 << 21
    one, many = (duration(simulate(Run("copy", nbytes, grid=grid, block=64), ranks=1)) for grid in (8, 64))
    assert one == pytest.approx(2 * nbytes / (8 * CX7.gpu.sm_gbytes_per_s), rel=1e-3)
    assert many == pytest.approx(2 * nbytes / CX7.gpu.memory_gbytes_per_s, rel=0.02)


def test_more_blocks_than_sms_share_sms():
    nbytes = 1 << 19
    few = ep_lib.Hardware("two SMs", dataclasses.replace(CX7.gpu, sms=2), CX7.nvlink, CX7.pcie, CX7.nic)
    took = duration(simulate(Run("copy", nbytes, grid=8, block=32), ranks=1, hardware=few))
    assert took == pytest.approx(2 * nbytes / (2 * CX7.gpu.sm_gbytes_per_s), rel=1e-3)


def test_stores_to_a_peer_take_nvlink_and_the_signal_comes_after_them():
    nbytes = 1 << 20
    timeline = simulate(Run("store", nbytes, block=256), fabric="p2p")
    assert duration(timeline) >= 2 * nbytes / CX7.gpu.sm_gbytes_per_s * (1 - 1e-9)
    stored = max(span.end_ns for span in timeline.spans if span.kind == "copy" and span.rank == 0)
    seen = stored + CX7.nvlink.latency_ns + POLL
    assert float(timeline.results[1]["out"][0]) == pytest.approx(seen, abs=25)  # a look at the clock takes 20 ns
    slow = dataclasses.replace(CX7.nvlink, gbytes_per_s=20.0)
    narrow = ep_lib.Hardware("narrow", CX7.gpu, slow, CX7.pcie, CX7.nic)
    took = duration(simulate(Run("store", nbytes, block=256), fabric="p2p", hardware=narrow))
    assert took == pytest.approx(nbytes * (1 + slow.header_bytes / slow.mtu_bytes) / slow.gbytes_per_s, rel=0.01)


def test_launches_follow_each_other():
    timeline = simulate(Run("copy", 1 << 16, launches=3), ranks=1)
    kernels = [span for span in timeline.spans if span.kind == "kernel"]
    assert kernels[0].begin_ns == LAUNCH
    for earlier, later in pairwise(kernels):
        assert later.begin_ns == pytest.approx(max(LAUNCH, earlier.end_ns + CX7.gpu.launch_gap_ns))


def test_sleeping_takes_time():
    out = simulate(Run("sleep"), ranks=1).results[0]["out"]
    assert 1000 <= int(out[1]) - int(out[0]) <= 1100


# ---- errors ------------------------------------------------------------------------------------------------------


def test_unknown_hardware_names_what_there_is():
    with pytest.raises(errors.ArgumentError, match=r"'h21'.*'h20-cx7', 'h100-cx7', 'p5-efa'"):
        simulate(Run("puts"), hardware="h21")
    with pytest.raises(errors.ArgumentError, match="scaled by 0; it must be a number above zero"):
        CX7.scaled(0)


def test_a_broken_link_is_a_deadlock_here_too():
    with pytest.raises(errors.DeadlockError, match="quiet"):
        simulate(Run("puts"), fabric=Fabric("rc", broken_links=((0, 1),)))


def test_every_constant_has_a_source():
    for hardware in HARDWARE.values():
        for part in (hardware.gpu, hardware.nvlink, hardware.pcie, hardware.nic):
            assert len(part.source) > 100, f"{hardware.name}: {part.name}"
            assert all(not isinstance(v, float) or math.isfinite(v) for v in vars(part).values())
