"""Faults on demand in virtual time: their seconds are the virtual clock's."""

from __future__ import annotations

import math

import pytest
from support.fault_injection import noticing
from support.timed_programs import CX7, Run, acknowledged, on_wire, simulate, source_read, to_target

from ep_lib import Fabric
from ep_lib import simulate as simulate_main
from ep_lib.errors import PeerTimeout

LATE_NS = 50_000


@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_a_delayed_message_leaves_later_and_on_rc_so_does_what_follows(kind: str) -> None:
    late = Fabric(kind, delayed_messages={(0, 1, 1): LATE_NS / 1e9})
    usual, delayed = (simulate(Run("puts", 64, 3), fabric=f).messages for f in (Fabric(kind), late))
    assert delayed[1].departed_ns == pytest.approx(delayed[1].posted_ns + LATE_NS + source_read(CX7, 64), abs=2)
    assert delayed[0].delivered_ns == usual[0].delivered_ns
    if kind == "rc":
        assert delayed[2].departed_ns > delayed[1].departed_ns
    else:
        assert delayed[2].departed_ns < usual[2].departed_ns + 100


@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_a_link_that_stalls_holds_back_all_that_is_posted_then(kind: str) -> None:
    fabric = Fabric(kind, stalled_links={(0, 1, 1): LATE_NS / 1e9})
    timeline = simulate(Run("puts", 64, 3), fabric=fabric)
    until = timeline.messages[1].posted_ns + LATE_NS
    # Number 0 was posted just before: its packet had not left its NIC yet.
    assert all(until <= m.departed_ns < until + 3000 for m in timeline.messages)
    assert timeline.end_ns > until + on_wire(CX7, 64) + to_target(CX7) + acknowledged(CX7)


@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_a_message_that_never_leaves_is_noticed_by_the_receiver(kind: str) -> None:
    fabric = Fabric(kind, delayed_messages={(0, 1, 2): math.inf})
    timeline = simulate_main(noticing, 2, fabric, args=("patient", 5))
    rounds, error = timeline.results[1]
    assert rounds == {"rc": 2, "srd": 4}[kind] and isinstance(error, PeerTimeout) and error.peer == 0
    lost = [m for m in timeline.messages if math.isinf(m.delivered_ns)]
    assert len(lost) == {"rc": 2, "srd": 1}[kind] and {m.source for m in lost} == {0}


@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_a_rank_that_stops_is_noticed_by_the_next(kind: str) -> None:
    timeline = simulate_main(noticing, 3, Fabric(kind, stopped_ranks={1: 3}), args=("patient", 9))
    assert timeline.results[1] is None
    rounds, error = timeline.results[2]
    assert rounds <= 3 and isinstance(error, PeerTimeout) and error.peer == 1
