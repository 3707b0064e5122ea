"""The proxy's ring and ``transport="proxy"`` on the emulator: right programs, and mistakes that the checker finds."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from support import TESTS, buffer_cases, direct_cases, ibgda_shim, pcie_cases
from support.dispatch_combine_cases import make_case
from support.proxy_cases import NO_BARRIER, NO_FENCE, RIGHT, SIGNAL_FIRST, SOURCE_REUSED, add_many, exchange, kernel

from ep_lib import Fabric, Rank, check, cli, spawn
from ep_lib.errors import KernelFault, PeerTimeout
from ep_lib.runtime.emulated import make_machine, run_program
from ep_lib.transports.proxy.rings import COMMAND, CREDITS, PRODUCER, Rings

RELAXED_CREDIT, NO_CREDIT = 1, 2
FABRICS = ("p2p", "rc", "srd")


def fill_slots(rank: Rank, how: int) -> None:
    kernel("fill_slots").launch(rank, 1, 1, rank.symmetric(1, np.uint64), 100, 1 - rank.rank, how)
    rank.barrier()


def test_what_each_side_writes_has_a_cache_line_of_its_own() -> None:
    assert (COMMAND.size, CREDITS.size, PRODUCER.size) == (64, 192, 64)
    assert COMMAND.offsets["number"] == 56
    assert [CREDITS.offsets[name] for name in ("taken", "completed", "posted")] == [0, 64, 128]


@pytest.mark.extended
def test_commands_arrive_whoever_pushes_them() -> None:
    for seed in range(6):
        for by_warps in (False, True):
            fabric, args = FABRICS[seed % 3], (3, by_warps)
            sums = spawn(add_many, 2, "emulator", fabric=fabric, seed=seed, transport="proxy", args=args)
            assert sums == [3 * 3 * 64] * 2  # many times the slots of a ring


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("fabric", FABRICS)
def test_the_right_way_has_no_findings(fabric: str) -> None:
    report = check(exchange, 2, fabric, 6, args=(RIGHT,), transport="proxy")
    assert report.ok, str(report)
    report = check(add_many, 2, fabric, 3, args=(1, True), transport="proxy")
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("how", "fabric", "told", "line"),
    [
        (SIGNAL_FIRST, "rc", "earlier signal", "ep::proxy_push(ring, write);"),
        (SOURCE_REUSED, "rc", "source reused", "outbox[0] = 77;"),
        (NO_BARRIER, "rc", "no barrier comes between them", "outbox[i] = i + 1;"),
        (NO_FENCE, "srd", "signal overtakes data", "ep::proxy_push(ring, write);"),
    ],
)
def test_the_checker_finds_wrong_pushes(how: int, fabric: str, told: str, line: str) -> None:
    report = check(exchange, 2, fabric, 4, args=(how,), transport="proxy", compare_values=False)
    assert told in str(report), str(report)
    assert line in str(report), str(report)
    assert "proxy_ring.cu" in str(report), str(report)


@pytest.mark.parametrize(
    ("how", "told"), [(RELAXED_CREDIT, "loaded without acquire"), (NO_CREDIT, "credit before reuse")]
)
def test_the_checker_finds_slots_that_are_filled_without_a_credit(how: int, told: str) -> None:
    assert check(fill_slots, 2, "rc", 3, args=(RIGHT,), transport="proxy").ok
    report = check(fill_slots, 2, "rc", 3, args=(how,), transport="proxy", compare_values=False)
    assert told in str(report), str(report)
    assert "ep::proxy_fill(ring, add, number);" in str(report), str(report)


def test_without_a_fence_a_queue_pair_of_rc_keeps_the_order() -> None:
    assert check(exchange, 2, "rc", 4, args=(NO_FENCE,), transport="proxy").ok


def test_the_command_line_checks_through_proxies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from support.proxy_cases import SIGNAL_FIRST, exchange
def main(rank):
    exchange(rank, SIGNAL_FIRST)
""")
    assert cli.main(["check", str(script), "--fabric", "rc", "--transport", "proxy", "--seeds", "2"]) == 1
    assert "earlier signal" in capsys.readouterr().out


def test_a_dead_link_fills_the_ring_and_the_push_says_so() -> None:
    fabric = Fabric("rc", broken_links=((0, 1),), queue_depth=2)
    with pytest.raises(PeerTimeout, match=r"rank 0 waited too long for its proxy, which has dealt with \d+ commands"):
        spawn(add_many, 2, "emulator", fabric=fabric, transport="proxy", args=(3, False))


def test_what_is_not_symmetric_is_refused() -> None:
    def outside(rank: Rank) -> None:
        signal = rank.symmetric(1, np.uint64)
        kernel("send").launch(rank, 1, 1, rank.to_device(np.zeros(4, np.uint64)), signal, 1, signal, 1 - rank.rank, 0)
        rank.barrier()

    with pytest.raises(KernelFault, match="not in its own symmetric heap"):
        spawn(outside, 2, "emulator", transport="proxy")


@pytest.mark.extended(after=1)
@ibgda_shim.any_fabric
def test_the_ibgda_shim(fabric: Fabric | None) -> None:
    for seed, args in enumerate(ibgda_shim.LADDER):
        right = spawn(ibgda_shim.ring, 4, "emulator", fabric=fabric, seed=seed, transport="proxy", args=args)
        assert right == [True] * 4


def test_rings_stay_while_the_proxies_run() -> None:
    """They serve them until the last rank has ended: a rank that had closed took its rings' memory along."""
    rings: list[weakref.ref[Rings]] = []
    machine = make_machine(2, seed=0, fabric=Fabric("rc"))
    run_program(lambda rank: rings.append(weakref.ref(rank._backend._transport.rings)), machine, transport="proxy")
    assert all(ring() for ring in rings)
    del machine
    gc.collect()
    assert not any(ring() for ring in rings)


def test_the_ibgda_shim_has_no_findings() -> None:
    for seed, args in enumerate(ibgda_shim.LADDER):
        report = check(ibgda_shim.ring, 2, FABRICS[1 + seed % 2], 3, args=args, transport="proxy")
        assert report.ok, str(report)


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRICS)
def test_pcie_mode_against_the_oracle(fabric: str) -> None:
    for seed in range(4):
        case = make_case(40 + seed, world_size=2 + seed % 3)
        args = (case, seed * 5)
        ranks = case.world_size
        results = spawn(pcie_cases.run_case, ranks, "emulator", fabric=fabric, seed=seed, transport="proxy", args=args)
        buffer_cases.check_case(case, results)


@pytest.mark.extended
@pytest.mark.slow
def test_normal_mode_against_the_oracle() -> None:
    case = make_case(77, world_size=4, dtype="bfloat16", max_tokens=20)
    spawn(direct_cases.run_case, 4, "emulator", transport="proxy", args=(case, None, 4))
