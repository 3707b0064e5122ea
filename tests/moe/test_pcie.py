"""PCIe mode against the oracle: bit for bit, on every fabric and on GPUs, with rings of any size, merged or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.buffer_cases import check_case
from support.dispatch_combine_cases import BF16, Case, assert_received, assert_same, make_case, to_numpy, unpack
from support.pcie_cases import (
    FABRIC_NAMES,
    FABRICS,
    at_the_edge,
    check_fp8,
    fp8_case,
    heap_use,
    pcie_arguments,
    routed,
    run_case,
    run_fp8,
    smallest_bounce,
)

from ep_lib import Buffer, Fabric, Rank, simulate, spawn
from ep_lib.transports.nvshmem import build as nvshmem

any_fabric = pytest.mark.parametrize("fabric", FABRICS, ids=FABRIC_NAMES)


@pytest.mark.extended
@pytest.mark.slow
@any_fabric
def test_seeds_against_the_oracle(fabric: Fabric | str, seeds: int) -> None:
    """Each seed has its own shapes, routing, rings and interleaving."""
    for seed in range(18 + 2 * seeds):
        case = make_case(300 + seed, world_size=(2, 4, 6, 8)[seed % 4])
        args = (case, seed)
        check_case(case, spawn(run_case, case.world_size, "emulator", fabric=fabric, seed=seed, args=args))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_each_pair_of_ranks_by_its_own_way(kind: str) -> None:
    """Inside a node no NIC is used (its links are broken), between nodes no store (it would be a fault)."""
    inside = tuple((a, b) for a in range(4) for b in range(4) if a // 2 == b // 2)
    fabric = Fabric(kind, ranks_per_node=2, broken_links=inside)
    for seed in range(4):
        args = (make_case(40 + seed, world_size=4), seed)
        check_case(args[0], spawn(run_case, 4, "emulator", fabric=fabric, seed=seed, args=args, transport="by_pair"))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.integers(0, 17),
    st.sampled_from(["rc", "srd", "p2p"]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, deadline=None)
def test_any_shape_routing_and_interleaving(
    case_seed: int, world_size: int, variety: int, fabric: str, seed: int
) -> None:
    case = make_case(case_seed, world_size=world_size)
    check_case(case, spawn(run_case, world_size, "emulator", fabric=fabric, seed=seed, args=(case, variety)))


@pytest.mark.extended
@pytest.mark.parametrize(("ranks", "merged"), [(16, 0), (17, 1), (32, 0), (32, 1)])
def test_up_to_32_ranks(ranks: int, merged: int) -> None:
    """Warps serve several rings each; with rings of one slot, of one token."""
    case = make_case(5, world_size=ranks, dtype="bfloat16", max_tokens=5)
    for fabric, variety in (("srd", 2 + merged), ("rc", merged)):
        check_case(case, spawn(run_case, ranks, "emulator", fabric=fabric, args=(case, variety)))


@pytest.mark.extended(after=1)
@at_the_edge
def test_routings_at_the_edge(pattern: list[list[int]], tokens: int) -> None:
    case = routed(pattern, 4, tokens)
    for variety in range(4):
        for fabric in ("rc", "srd"):
            check_case(case, spawn(run_case, 4, "emulator", fabric=fabric, seed=variety, args=(case, variety)))


def operations(rank: Rank, seed: int, num_operations: int) -> str:
    """Random operations on one Buffer with several handles; every result is compared here."""
    plan, case = np.random.default_rng(seed), make_case(seed, world_size=rank.world_size, dtype="bfloat16")
    me, known = rank.rank, []
    with Buffer(rank, **pcie_arguments(case, seed)) as buffer:
        for number in range(num_operations):
            kind = "new" if not known else str(plan.choice(["new", "again", "combine", "combine"]))
            scale, what = float(plan.integers(1, 4)), f"operation {number}, {kind}"
            if kind == "new":
                order = [plan.permutation(len(x)) for x in case.xs]
                new = [
                    [a[o] for a, o in zip(arrays, order, strict=True)]
                    for arrays in (case.xs, case.topk_idx, case.topk_weights)
                ]
                case = Case(**case.buffer_arguments(), xs=new[0], topk_idx=new[1], topk_weights=new[2])
                recv = buffer.dispatch(case.xs[me], case.topk_idx[me], case.topk_weights[me])
                known.append((case, recv.handle))
                assert_received(unpack(recv, "bfloat16"), case.expected_dispatch()[me], what)
                continue
            used, handle = known[int(plan.integers(len(known)))]
            if kind == "again":
                x = used.xs[me] * np.array(scale, BF16)
                recv = buffer.dispatch(x, None, used.topk_weights[me], handle=handle)
                assert_received(unpack(recv, "bfloat16"), used.expected_dispatch(scale)[me], what)
            else:
                ys = [r.x * np.array(scale + i, BF16) for i, r in enumerate(used.expected_dispatch())]
                out = to_numpy(buffer.combine(ys[me], handle), "bfloat16")
                assert_same(out, used.expected_combine(ys, weighted=False)[me], what)
    return "done"


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("seed", range(6))
def test_repeated_operations_and_handles(seed: int) -> None:
    ranks = (2, 3, 4, 8)[seed % 4]
    fabric = Fabric(("rc", "srd")[seed % 2], queue_depth=(64, 1)[seed % 2])
    assert spawn(operations, ranks, "emulator", fabric=fabric, seed=seed, args=(seed, 16)) == ["done"] * ranks


# ---- memory --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 8, 16, 32])
def test_memory_is_what_the_formula_says_whatever_max_tokens(ranks: int) -> None:
    shape = {"num_experts": 64, "top_k": 8, "hidden": 256}
    for more in ({"num_sms": 4}, {"num_sms": 3, "merge_sender_receiver": True, "bounce_bytes": 5000}):
        mode = {"allow_nvlink_for_normal_mode": False, **more}
        bytes_of = {m: Buffer.symmetric_bytes(ranks, **shape, **mode, max_tokens=m) for m in (1, 128, 100_000)}
        assert len(set(bytes_of.values())) == 1
        # The formula of Buffer.symmetric_bytes.
        packet = -(-(256 * 2 + 8 * 8 + 4) // 16) * 16
        slots, rows = (8, 8) if "bounce_bytes" not in more else (8, 5000 // packet // 8)
        channels, peers = more["num_sms"] // (1 if more["num_sms"] == 3 else 2), ranks - 1
        message = -(-(8 + 4 * (channels + 1 + 64 // ranks)) // 16) * 16
        parts = [channels * peers * slots * rows * packet] * 2 + [8 * channels * peers * slots, 8 * channels * peers]
        parts += [2 * ranks * message] * 2 + [16 * ranks]
        assert bytes_of[128] == sum(-(-part // 128) * 128 for part in parts)
        used = spawn(heap_use, ranks, "emulator", args=({**shape, **mode, "max_tokens": 128},))
        assert all(bytes_of[128] <= use < bytes_of[128] + 512 for use in used)


def test_the_default_fits_where_the_published_table_was_measured() -> None:
    shape = {"num_experts": 256, "top_k": 8, "hidden": 7168, "max_tokens": 4096, "allow_nvlink_for_normal_mode": False}
    assert Buffer.symmetric_bytes(8, **shape) < 96 << 20 and Buffer.symmetric_bytes(32, **shape) < 400 << 20
    case = Case(8, 8, 7168, 1, "bfloat16", [], [], [])
    assert smallest_bounce(case) == 7168 * 2 + 8 * 8 + 4 + 12


# ---- kernels -------------------------------------------------------------------------------------------------------


def test_no_plain_access_to_another_rank() -> None:
    """On a fabric without P2P a load or store to a peer is a fault; and nothing is sent to oneself."""
    case = make_case(3, world_size=4, dtype="bfloat16")
    fabric = Fabric("srd", ranks_per_node=4, p2p=False, broken_links=tuple((r, r) for r in range(4)))
    check_case(case, spawn(run_case, 4, "emulator", fabric=fabric, args=(case, 0)))


def test_rings_never_hold_more_than_their_slots_on_the_virtual_clock() -> None:
    case = make_case(3, world_size=2, dtype="bfloat16", max_tokens=64)
    timeline = simulate(run_case, 2, fabric="rc", args=(case, 2))
    check_case(case, timeline.results)
    for name, least in (("slots in use", 1), ("credits", 0)):
        values = [sample.value for sample in timeline.samples if sample.name == name]
        assert values and min(values) >= least and max(values) <= 1  # one slot a ring


SEEDS = range(2000, 2006)


def many(rank: Rank, kind: str) -> list[Any]:
    """BF16 and float32 rows, then FP8 rows, each with other shapes and rings; all in one world."""
    plain = [run_case(rank, make_case(seed, world_size=rank.world_size), seed, kind) for seed in SEEDS]
    return [plain, [run_fp8(rank, fp8_case(seed, rank.world_size), seed, kind) for seed in SEEDS]]


def check_many(results: list[Any]) -> None:
    for i, seed in enumerate(SEEDS):
        check_case(make_case(seed, world_size=len(results)), [r[0][i] for r in results])
        check_fp8(fp8_case(seed, len(results)), [r[1][i] for r in results])


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_many_on_the_emulator(kind: str) -> None:
    check_many(spawn(many, 2, "emulator", fabric="srd", args=(kind,)))


@pytest.mark.parametrize(
    ("transport", "kind"),
    [("p2p", "native"), ("p2p", "torch"), ("nvshmem", "torch"), ("proxy", "native"), ("proxy", "torch")],
)
@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.gpu(count=2)), pytest.param(4, marks=pytest.mark.gpu(count=4))]
)
def test_many_on_gpus(ranks: int, transport: str, kind: str) -> None:
    if transport == "nvshmem" and (reason := nvshmem.unusable_reason("whole")):
        pytest.skip(reason)
    check_many(spawn(many, ranks, "cuda", args=(kind,), transport=transport))
