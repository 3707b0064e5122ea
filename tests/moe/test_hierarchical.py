"""Hierarchical mode against the oracle: bit for bit, for nodes of any size, on every fabric."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support import ROOT
from support.bad_input import SHAPE, bad_buffers
from support.buffer_cases import check_case
from support.dispatch_combine_cases import Case, assert_same, make_case
from support.hierarchical_cases import arguments, in_nodes, run_case, run_fp8
from support.pcie_cases import at_the_edge, check_fp8, fp8_case, heap_use, routed

from ep_lib import Buffer, Fabric, Rank, reference, simulate, spawn
from ep_lib.errors import ArgumentError, DeadlockError, PeerTimeout
from ep_lib.moe.hierarchical.memory import packet_bytes

NODES = [(2, 1), (4, 2), (6, 2), (6, 3), (8, 4), (8, 2)]  # ranks, ranks of a node


def fabric_of(kind: int, node: int) -> Fabric:
    return Fabric(("rc", "srd")[kind % 2], ranks_per_node=node)


@pytest.mark.extended
@pytest.mark.slow
def test_seeds_against_the_oracle(seeds: int) -> None:
    """Each seed has its own shapes, routing, nodes and interleaving."""
    for seed in range(18 + seeds):
        ranks, node = NODES[seed % len(NODES)]
        case = in_nodes(make_case(300 + seed, world_size=ranks), node)
        fabric = fabric_of(seed // len(NODES), node)
        args = (case, 3 + seed % 5)
        check_case(case, spawn(run_case, ranks, "emulator", fabric=fabric, seed=seed, args=args))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_with_a_transport_that_stores_inside_a_node(kind: str) -> None:
    """As NVSHMEM does on GPUs. Inside a node no NIC is used then: its links are broken."""
    inside = tuple((a, b) for a in range(4) for b in range(4) if a // 2 == b // 2)
    fabric = Fabric(kind, ranks_per_node=2, broken_links=inside)
    for seed in range(4):
        case = in_nodes(make_case(60 + seed, world_size=4), 2)
        check_case(case, spawn(run_case, 4, "emulator", fabric=fabric, seed=seed, args=(case,), transport="by_pair"))


@pytest.mark.gpu(count=4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_gpus_that_count_as_two_nodes(dtype: str) -> None:
    for seed in range(6):
        case = in_nodes(make_case(80 + seed, world_size=4, dtype=dtype), 2)
        check_case(case, spawn(run_case, 4, "cuda", args=(case, 3 + seed % 3, "native", 2)))


def test_fp8_rows() -> None:
    for seed, (ranks, node) in enumerate(NODES[:4]):
        case = in_nodes(fp8_case(seed, ranks), node)
        check_fp8(case, spawn(run_fp8, ranks, "emulator", fabric=fabric_of(seed, node), seed=seed, args=(case,)))


def test_torch_in_torch_out() -> None:
    pytest.importorskip("torch")
    case = in_nodes(make_case(11, world_size=4, dtype="bfloat16"), 2)
    check_case(case, spawn(run_case, 4, "emulator", fabric=Fabric("srd", 2), args=(case, 3, "torch")))


def test_a_rank_without_tokens_hands_on_weights() -> None:
    torch = pytest.importorskip("torch")
    case = in_nodes(make_case(81, world_size=4, dtype="float32"), 2)
    for r in (0, 3):
        for arrays in (case.xs, case.topk_idx, case.topk_weights):
            arrays[r] = arrays[r][:0]

    def main(rank: Rank) -> Any:
        def given(array: Any) -> Any:
            """An empty tensor that has no address, as empty CuPy arrays have none."""
            tensor = torch.from_numpy(array.copy())
            return tensor if len(array) else torch.empty(array.shape, dtype=tensor.dtype)

        arrays = [given(each[rank.rank]) for each in (case.xs, case.topk_idx, case.topk_weights)]
        with Buffer(rank, **arguments(case)) as buffer:
            return buffer.dispatch(*arrays).topk_weights.numpy()

    found = spawn(main, 4, "emulator", fabric=Fabric("rc", 2))
    for weights, want in zip(found, case.expected_dispatch(), strict=True):
        assert_same(weights, want.topk_weights, "weights")


@pytest.mark.extended(after=1)
@at_the_edge
def test_routings_at_the_edge(pattern: list[list[int]], tokens: int) -> None:
    case = in_nodes(routed(pattern, 4, tokens), 2)
    for kind in ("rc", "srd"):
        check_case(case, spawn(run_case, 4, "emulator", fabric=Fabric(kind, 2), args=(case,)))


@pytest.mark.slow
def test_32_ranks() -> None:
    case = in_nodes(make_case(5, world_size=32, dtype="bfloat16", max_tokens=5), 8)
    check_case(case, spawn(run_case, 32, "emulator", fabric=Fabric("srd", 8), args=(case,)))


def test_dispatch_is_that_of_direct_mode_and_combine_is_close() -> None:
    """The same rows in the same order; sums that are rounded once more, by half a unit in the last place."""
    case = make_case(21, world_size=4, dtype="bfloat16", max_tokens=30)
    results = spawn(run_case, 4, "emulator", fabric=Fabric("rc", 2), args=(case,))
    direct = case.expected_combine([r["y"] for r in results], weighted=False)
    ys = [np.abs(r["y"].astype(np.float32)).astype(r["y"].dtype) for r in results]
    sizes = case.expected_combine(ys, weighted=False)
    received = case.expected_dispatch()
    for result, recv, want, size in zip(results, received, direct, sizes, strict=True):
        assert_same(result["first"]["x"], recv.x, "dispatch")
        difference = np.abs(result["plain"].astype(np.float32) - want.astype(np.float32))
        assert (difference <= size.astype(np.float32) * 2.0**-7).all()


# ---- what crosses --------------------------------------------------------------------------------------------------
def test_a_token_crosses_to_another_node_once_and_its_sum_comes_back_once() -> None:
    """Counted at the NICs: bytes of rows, there and back."""
    ranks, node, tokens, hidden = 8, 4, 24, 512
    pattern = [[int(e) for e in np.random.default_rng(t).permutation(ranks)[:4]] for t in range(tokens)]
    case = routed(pattern, ranks, tokens)
    x = [np.tile(rows, (1, hidden // rows.shape[1])) for rows in case.xs]
    case = Case(**{**vars(case), "hidden": hidden, "xs": x})

    def main(rank: Rank) -> None:
        with Buffer(rank, **arguments(case)) as buffer:
            recv = buffer.dispatch(case.xs[rank.rank], case.topk_idx[rank.rank])
            buffer.combine(recv.x, recv.handle)

    messages = simulate(main, ranks, fabric=Fabric("rc", node)).messages
    crossing = sum(len({expert // node for expert in p} - {r // node}) for r in range(ranks) for p in pattern)
    packet = packet_bytes(2 * hidden, 0, 4, ranks_per_node=node, with_routing=True, with_weights=False)
    assert sum(m.bytes for m in messages if m.bytes >= 2 * hidden) == crossing * (packet + 2 * hidden)
    assert all(m.source // node != m.target // node for m in messages if m.bytes >= 2 * hidden)


@pytest.mark.extended
@pytest.mark.slow
def test_fewer_bytes_cross_and_it_is_quicker_on_the_virtual_clock() -> None:
    """The benchmark, with few tokens: 2 x 8 ranks, beside rings whose messages are stores inside a node."""
    benchmark = ROOT / "benchmarks" / "hierarchical.py"
    command = [sys.executable, str(benchmark), "--json", "--tokens", "96", "--scale", "56", "--ways"]
    done = subprocess.run([*command, "one-dimensional", "hierarchical"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = {(row["way"], row["operation"]): row for row in json.loads(done.stdout)["rows"]}
    for operation in ("FP8 dispatch", "FP8 dispatch, handle", "BF16 combine"):
        ours, other = rows["hierarchical", operation], rows["one-dimensional", operation]
        assert ours["payload_ratio"] <= 1.02 < 3 < other["payload_ratio"], operation
        assert ours["us"] < other["us"], operation


# ---- limits --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [4, 8])
def test_memory_is_what_is_said(ranks: int) -> None:
    shape = {"num_experts": 64, "top_k": 8, "hidden": 256, "max_tokens": 32, "hierarchical": True, "num_sms": 6}
    said = Buffer.symmetric_bytes(ranks, **shape, ranks_per_node=2)
    used = spawn(heap_use, ranks, "emulator", fabric=Fabric("rc", 2), args=(shape,))
    assert all(said <= use < said + 512 for use in used)


def test_on_a_single_node_it_is_direct_mode() -> None:
    case = make_case(3, world_size=4, dtype="bfloat16")
    check_case(case, spawn(run_case, 4, "emulator", args=(case,)))
    shape = {**case.buffer_arguments(), "hierarchical": True}
    direct = Buffer.symmetric_bytes(4, **case.buffer_arguments())
    assert Buffer.symmetric_bytes(4, **shape, ranks_per_node=4) == direct


def test_nodes_may_be_given() -> None:
    case = make_case(3, world_size=4, dtype="bfloat16")
    for fabric in ("p2p", Fabric("rc", 4)):
        results = spawn(run_case, 4, "emulator", fabric=fabric, args=(case, 3, "native", 2))
        check_case(in_nodes(case, 2), results)


BAD_BUFFERS: list[tuple[dict[str, Any], str]] = [
    ({"num_sms": 2}, "num_sms is 2; in hierarchical mode a third of the blocks .* pass 3 or more"),
    ({"ranks_per_node": 3}, "4 ranks do not fill nodes of 3; ranks_per_node must be a divisor"),
    ({"ranks_per_node": 4}, "rank 0 does not reach rank 2: it reaches .0, 1.* smaller ranks_per_node"),
    ({"ranks_per_node": 0}, "ranks_per_node is 0"),
    ({"hierarchical": "yes"}, "hierarchical is .yes."),
    ({"hierarchical": False, "ranks_per_node": 2}, "which only hierarchical=True uses"),
    ({"num_max_dispatch_tokens_per_rank": 8, "hidden": 128}, "only NICs connect: leave one of them out"),
    ({"allow_nvlink_for_normal_mode": False}, "hierarchical=True hands tokens on by loads and stores"),
]


def test_bad_buffers_are_refused() -> None:
    shape = {**SHAPE, "num_experts": 4, "num_sms": 3, "hierarchical": True}
    spawn(bad_buffers, 4, "emulator", fabric=Fabric("srd", 2), args=(shape, BAD_BUFFERS))


def operations(rank: Rank, tokens: int) -> None:
    shape = {"num_experts": 4, "top_k": 4, "hidden": 64, "max_tokens": tokens, "num_sms": 3, "hierarchical": True}
    with Buffer(rank, **shape) as buffer:
        recv = buffer.dispatch(np.ones((tokens, 64), np.dtype("bfloat16")), np.tile(np.arange(4), (tokens, 1)))
        buffer.combine(recv.x, recv.handle)


def test_a_rank_that_stops_on_its_way_is_noticed() -> None:
    for sends in (0, 5, 12, 20):
        fabric = Fabric("srd", 2, stopped_ranks={2: sends})
        with pytest.raises((PeerTimeout, DeadlockError)) as caught:
            spawn(operations, 4, "emulator", fabric=fabric, args=(12,), seed=sends)
        assert isinstance(caught.value, PeerTimeout), f"after {sends}: {caught.value}"


def test_the_oracle_refuses_nodes_that_do_not_divide_the_ranks() -> None:
    case = make_case(1, world_size=4)
    with pytest.raises(ArgumentError, match="ranks_per_node is 3, which is no divisor of the 4 ranks"):
        reference.combine(
            [r.x for r in case.expected_dispatch()], case.topk_idx, num_experts=case.num_experts, ranks_per_node=3
        )
