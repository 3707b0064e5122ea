"""<ep/ring.cuh>: streams through bounded memory, on every fabric, silent under the checker; each mistake is flagged."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import pytest
from support.ring_stream import SOURCE, kernel, stream

import ep_lib
from ep_lib import Fabric, Kernel
from ep_lib.errors import PeerTimeout

RING = Path(ep_lib.__file__).parent / "device" / "ep" / "ring.cuh"
FABRICS = ["p2p", "rc", "srd", Fabric("rc", ranks_per_node=2, p2p=False), Fabric("srd", 2, queue_depth=1)]
any_fabric = pytest.mark.parametrize("fabric", FABRICS, ids=["p2p", "rc", "srd", "rc-2-nop2p", "srd-2-depth1"])


@any_fabric
def test_streams_through_bounded_memory(fabric: Fabric | str) -> None:
    for seed, (ranks, slots) in enumerate([(2, 1), (2, 2), (4, 3), (6, 5)]):
        args = (kernel(), slots, 64, (1000, 0, 64, 517))
        assert ep_lib.spawn(stream, ranks, "emulator", fabric=fabric, seed=seed, args=args) == [[True] * 4] * ranks


def test_a_broken_link_names_who_waits_for_whom() -> None:
    with pytest.raises(PeerTimeout) as caught:
        fabric = Fabric("rc", broken_links=((0, 1),))
        ep_lib.spawn(stream, 2, "emulator", fabric=fabric, args=(kernel(), 2, 64, (600,)))
    assert {caught.value.rank, caught.value.peer} == {0, 1} and caught.value.phase in ("signal", "credit")


# ---- a word for every mistake --------------------------------------------------------------------------------------
NET_RACE = frozenset({"race", "signal overtakes data", "source reused", "read before arrival"})


class Mistake(NamedTuple):
    """``old``, which is there once, becomes ``new``; a report must have one of ``kinds`` and contain ``remedy``."""

    name: str
    old: str
    new: str
    kinds: frozenset[str] = NET_RACE
    remedy: str = ""
    fabric: str = "rc"


_ROOM = """wait_until_ge(ring.credits, ring_credits_needed(ring, message),
                         {kPhaseCredit, ring.peer, ring_slot(ring, message)})"""
_ARRIVAL = """wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1,
                         {phase, ring.peer, ring_slot(ring, message)})"""
_POST = """net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), bytes,
                       ring.arrived + ring_slot(ring, message), message + 1, ring.peer, ring.queue_pair,
                       NetSignal::kSet);"""
_TWO_POSTS = """net_put_nbi(ring_received(ring, message), ring_staging(ring, message), bytes, ring.peer, 0);
    net_put_signal_nbi(ring_staging(ring, message), ring_staging(ring, message), 0,
                       ring.arrived + ring_slot(ring, message), message + 1, ring.peer, 0, NetSignal::kSet);"""
_READ = "copy_bytes<kWarpUnroll>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);"
_ALL_READ = "__syncwarp();  // all lanes have read their part before the slot is given back"
_CREDIT = "if (lane_id() == 0) ring_return_credit(ring);"
_SENT = "ring.arrived + ring_slot(ring, message), message + 1, ring.peer"
MISTAKES = [
    Mistake("no wait for a credit", _ROOM, "true", remedy="credit"),
    Mistake("one credit too few", "message - slots + 1;", "message - slots;", remedy="credit"),
    Mistake("two credits per message", "_nbi(ring.credits, 1,", "_nbi(ring.credits, 2,"),
    Mistake("credit before the read", f"{_READ}\n    {_ALL_READ}\n    {_CREDIT}", f"{_CREDIT}\n    {_READ}"),
    Mistake("credit before all lanes read", _ALL_READ, ""),
    Mistake("no credits", _CREDIT, "", frozenset({"deadlock", "timeout"})),
    Mistake("posted before all lanes filled", "__syncwarp();  // all lanes have filled", "//"),
    Mistake("filled before all lanes may", "__syncwarp();  // the credit that", "//"),
    Mistake("read before all lanes may", "__syncwarp();  // the message that", "//"),
    Mistake("no wait for the message", _ARRIVAL, "true"),
    Mistake("waits for the slot's previous message", _ARRIVAL, _ARRIVAL.replace("message + 1", "message")),
    Mistake("put, then its signal", _POST, _TWO_POSTS, remedy="quiet", fabric="srd"),
    Mistake("a later message's signal", _SENT, _SENT.replace("message + 1", "message + 3")),
    Mistake("staging is one slot", "ring.staging + ring_slot(ring, message) * ring.slot_bytes", "ring.staging"),
]


@functools.cache
def mistakes() -> Kernel:
    """All variants in one kernel, so that the compiler runs once."""
    ring = RING.read_text().replace("namespace ep {", "").replace("}  // namespace ep", "")
    test = SOURCE.read_text().replace('extern "C" __global__', "EP_DEVICE")
    program = "#include <ep/net.cuh>\n"
    parameters = "char* g, char* s, uint64_t* c, int n, int b, const char* from, char* to, int bytes, uint64_t* m"
    cases = ""
    for number, mistake in enumerate(MISTAKES):
        assert ring.count(mistake.old) == 1, f"{mistake.name}: its line is there {ring.count(mistake.old)} times"
        lines = ("using namespace ep;\n" + ring.replace(mistake.old, mistake.new) + test).splitlines()
        body = "\n".join(line for line in lines if not line.startswith("#"))
        program += f"namespace v{number} {{\n{body}\n}}\n"
        cases += f"        case {number}: return v{number}::stream(g, s, c, n, b, from, to, bytes, m);\n"
    program += f'extern "C" __global__ void stream(int which, {parameters}) {{\n    switch (which) {{\n'
    return Kernel.from_source(f"{program}{cases}    }}\n}}\n", "stream", filename="ring_mistakes.cu")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[m.name for m in MISTAKES])
def test_every_mistake_is_flagged(number: int) -> None:
    mistake, args = MISTAKES[number], (mistakes(), 2, 256, (1500,), number)
    report = ep_lib.check(
        stream, 2, mistake.fabric, 40, args, compare_values=False, stop_at_first=not mistake.remedy, timeout=20
    )
    assert {f.kind for f in report.findings} & mistake.kinds, str(report)
    assert any(mistake.remedy in f.remedy + f.detail for f in report.findings), str(report)


def test_one_count_for_the_whole_ring_is_right_on_rc_only() -> None:
    """Why every slot has a signal of its own."""
    text = RING.read_text().replace(_ARRIVAL, _ARRIVAL.replace(" + ring_slot(ring, message), message", ", message"))
    one = _POST.replace("ring.arrived + ring_slot(ring, message), message + 1", "ring.arrived, 1")
    text = text.replace(_POST, one.replace("kSet", "kAdd")).replace("#pragma once", "")
    counted = SOURCE.read_text().replace("#include <ep/ring.cuh>", text)
    args = (Kernel.from_source(counted, "stream", filename="ring_with_one_count.cu"), 3, 64, (700,))
    assert ep_lib.check(stream, 2, "rc", 10, args).ok
    report = ep_lib.check(stream, 2, "srd", 10, args)
    assert {f.kind for f in report.findings} & NET_RACE, str(report)
