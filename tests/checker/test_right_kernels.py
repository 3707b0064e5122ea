"""The checker has nothing to say of any right kernel of the library and the tutorials, on every fabric: 6 schedules,
1,000 in `make nightly`. A new kernel joins by a line in :data:`CASES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support import bounce_buffer_cases as bounce
from support import direct_cases, hierarchical_cases, pcie_cases, ring_stream, simple_exchange
from support import ibgda_shim as shim
from support import low_latency_cases as low_latency
from support import write_signal as write
from support.buffer_cases import run_case
from support.direct_cases import features
from support.dispatch_combine_cases import make_case
from support.proxy_cases import LADDER, through_proxy
from wrong_variants import variants

from ep_lib import Fabric, Rank, check

pytestmark = pytest.mark.slow

NVLINK = {"p2p": Fabric()}  # kernels of loads and stores
NICS = {
    **{kind: Fabric(kind) for kind in ("rc", "srd")},
    **{f"{kind}-2": Fabric(kind, ranks_per_node=2) for kind in ("rc", "srd")},
    **{f"{kind}-2-nop2p": Fabric(kind, ranks_per_node=2, p2p=False) for kind in ("rc", "srd")},
}
ALL = {**NVLINK, **NICS}


@dataclass(frozen=True)
class RightKernel:
    """A program without mistakes. ``main(rank, *args)`` runs on ``ranks`` ranks on each of ``fabrics``.

    A large one takes one schedule where small ones take ``share``: 1 in `make test`, 20 in `make nightly` with 50.
    """

    name: str
    main: Callable[..., Any]
    ranks: int
    fabrics: dict[str, Fabric]
    args: tuple[Any, ...] = ()
    share: int = 1


def _shim(rank: Rank, send: str, receive: str) -> None:
    if receive:
        assert shim.ring(rank, send, receive)
    else:
        shim.counted(rank, send)


def _bounce(rank: Rank, *args: Any) -> None:
    assert bounce.exchange(rank, *args)


def _through_proxy(rank: Rank, name: str) -> None:
    assert through_proxy(rank, name)


def _stream(rank: Rank, slots: int) -> None:
    assert all(ring_stream.stream(rank, ring_stream.kernel(), slots, 64, (300, 100)))


def _simple_kernels(rank: Rank) -> None:
    simple_exchange.run_simple(rank, make_case(4, world_size=2, dtype="bfloat16", max_tokens=6))


def _direct(rank: Rank, which: int) -> None:
    case = make_case(5, world_size=3, dtype="bfloat16", max_tokens=6)
    direct_cases.run_case(rank, case, direct_cases.TUNINGS[which])


def _features(rank: Rank) -> None:
    features(rank, make_case(9, world_size=2, dtype="float32", max_tokens=4), 7)


def _nvlink_mode(rank: Rank) -> None:
    run_case(rank, make_case(4, world_size=rank.world_size, dtype="bfloat16", max_tokens=6))


def _hierarchical_mode(rank: Rank) -> None:
    ranks = rank.world_size
    hierarchical_cases.run_case(rank, make_case(ranks, world_size=ranks, max_tokens=10, dtype="bfloat16"))


def _pcie_mode(rank: Rank, variety: int, tokens: int = 4) -> None:
    ranks = rank.world_size
    pcie_cases.run_case(rank, make_case(variety, world_size=ranks, dtype="bfloat16", max_tokens=tokens), variety)


def _low_latency(rank: Rank, fp8: bool, hooks: bool, sms: int | None) -> None:
    case = low_latency.low_latency_case(4, fp8=fp8, world_size=rank.world_size, max_tokens=4)
    low_latency.run_case(rank, case, fp8, 3, hooks, sms=sms)


def _write(rank: Rank, way: str) -> None:
    write.ring(rank, write.kernel(f"write_signal_{way}"), write.kernel("wait_and_read"), 130)


def _pipeline(rank: Rank, slots: int) -> None:
    write.pipeline(rank, write.kernel("pipelined_send"), write.kernel("pipelined_receive"), 40, slots, 4)


_SHIM = [*shim.LADDER, ("count_by_source", "")]
_BOUNCE = [("unbounded", 1), ("with_credits", 1), ("pipelined", 3), ("merged", 1), ("merged", 3), ("by_rings", 2)]
CASES = [
    *(
        RightKernel(
            name, variants.run, *((4, NICS) if "net_" in name else (3, NVLINK)), (name, variants.BLOCKS.get(name, 1))
        )
        for name in variants.functions()
    ),
    *(RightKernel(f"01 {way}", _write, 3, NVLINK, (way,)) for way in write.RIGHT),
    RightKernel("01 many writes", write.several, 2, NVLINK, ([0, 1, 1, 500, 4096, 4099],)),
    *(RightKernel(f"01 pipeline of {slots}", _pipeline, 2, NVLINK, (slots,)) for slots in (1, 3)),
    *(RightKernel(f"03 {send}", _shim, 4, ALL, (send, receive)) for send, receive in _SHIM),
    *(RightKernel(f"04 {name}", _through_proxy, 2, ALL, (name,)) for name in LADDER),
    *(
        RightKernel(f"05 {name} {slots}", _bounce, 2, ALL, (f"exchange_{name}", bounce.counts_of(1, 2, 5), slots))
        for name, slots in _BOUNCE
    ),
    *(RightKernel(f"ring of {slots}", _stream, 2, ALL, (slots,)) for slots in (1, 3)),
    *(RightKernel(f"dispatch and combine on {ranks}", _nvlink_mode, ranks, NVLINK) for ranks in (2, 4)),
    RightKernel("06 dispatch and combine", _simple_kernels, 2, NVLINK),
    *(
        RightKernel(f"direct writes {which}", _direct, 3, NVLINK, (which,))
        for which in range(len(direct_cases.TUNINGS))
    ),
    RightKernel("rows by expert, bias, views", _features, 2, NVLINK),
    *(
        RightKernel(f"low latency {ranks} {fp8} {hooks} {sms}", _low_latency, ranks, NVLINK, (fp8, hooks, sms))
        for ranks, fp8, hooks, sms in (
            *((1, True, False, None), (2, True, False, 2), (2, False, True, 2), (2, False, False, 1)),
            *((3, False, True, None), (4, True, False, 2), (8, False, False, None)),
        )
    ),
    *(
        RightKernel(f"hierarchical mode of {ranks} by {node}", _hierarchical_mode, ranks, {kind: Fabric(kind, node)})
        for ranks, node in ((2, 1), (4, 2), (6, 2), (8, 4))
        for kind in ("rc", "srd")
    ),
    *(RightKernel(f"PCIe mode {variety}", _pcie_mode, 2, NICS, (variety,)) for variety in (2, 3)),
    *(
        RightKernel(
            f"PCIe mode of {ranks} ranks {variety}",
            _pcie_mode,
            ranks,
            {fabric: Fabric(fabric)},
            (variety, 3),
            share=50 if ranks > 8 else 1,
        )
        for ranks, variety, fabric in (
            *((3, 0, "srd"), (4, 1, "rc"), (4, 3, "srd"), (8, 2, "rc"), (8, 1, "srd")),
            *((16, 2, "rc"), (16, 1, "srd"), (32, 2, "rc"), (32, 3, "srd")),
        )
    ),
]


@pytest.mark.extended(after=20)
@pytest.mark.parametrize(
    ("case", "fabric"),
    [pytest.param(case, fabric, id=f"{case.name}-{fabric}") for case in CASES for fabric in case.fabrics],
)
def test_nothing_is_said(case: RightKernel, fabric: str, seeds: int) -> None:
    seeds = max(1, seeds // case.share)
    report = check(case.main, case.ranks, case.fabrics[fabric], seeds=seeds, args=case.args, timeout=300)
    assert report.ok, str(report)
    assert len(report.seeds) == seeds
