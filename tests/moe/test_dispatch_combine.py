"""Buffer against the oracle: bit for bit, for any shape, seed and timing, on the emulator and on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Spmd
from support.buffer_cases import check_case, run_case
from support.dispatch_combine_cases import (
    BF16,
    Case,
    assert_received,
    assert_same,
    expert_output,
    make_case,
    to_input,
    to_numpy,
    unpack,
)

from ep_lib import Rank, spawn
from ep_lib.jit.kernel import Kernel
from ep_lib.moe import Buffer

DELAY = """
#include <ep/memory.cuh>
extern "C" __global__ void delay(int rounds) {
    for (int i = 0; i < rounds; ++i) ep::sleep_ns(1000);
}
"""


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_many_seeds_against_the_oracle(part: int, seeds: int) -> None:
    """Each seed has its own shapes, routing and interleaving."""
    for seed in range(part, 3 * seeds, 3):
        case = make_case(seed)
        check_case(case, spawn(run_case, case.world_size, "emulator", seed=seed, args=(case,)))


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_any_shape_routing_and_interleaving(case_seed: int, world_size: int, seed: int) -> None:
    case = make_case(case_seed, world_size=world_size)
    check_case(case, spawn(run_case, world_size, "emulator", seed=seed, args=(case,)))


def many_cases(rank: Rank, seeds: range, kind: str) -> list[dict[str, Any]]:
    return [run_case(rank, make_case(seed, world_size=rank.world_size), kind) for seed in seeds]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(("kind", "ranks"), [("native", 1), ("native", 2), ("torch", 2)])
def test_many_cases_in_one_world(spmd: Spmd, kind: str, ranks: int) -> None:
    """The same on both backends; torch tensors in, torch tensors out."""
    seeds = range(1000, 1020)
    results = spmd(many_cases, ranks, seeds, kind)
    for i, seed in enumerate(seeds):
        check_case(make_case(seed, world_size=ranks), [per_rank[i] for per_rank in results])


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")

    def main(rank: Rank) -> None:
        with Buffer(rank, num_experts=4, top_k=2, hidden=16, max_tokens=8) as buffer:
            x = torch.ones(3, 16, dtype=torch.bfloat16)
            recv = buffer.dispatch(x, torch.tensor([[0, 2], [1, -1], [3, 2]]), torch.ones(3, 2))
            assert recv.x.dtype == torch.bfloat16 and recv.topk_idx.dtype == torch.int64
            assert recv.topk_weights is not None and recv.topk_weights.dtype == torch.float32
            assert isinstance(recv.tokens_per_expert, np.ndarray)
            out = buffer.combine(recv.x, recv.handle)
            assert out.dtype == torch.bfloat16 and out[:, 0].tolist() == [2, 1, 1]

    spawn(main, 2, "emulator")


def operations(rank: Rank, seed: int, num_operations: int) -> str:
    """Random operations on one Buffer, the ranks slowed down at random; every result is compared here."""
    plan, mine = np.random.default_rng(seed), np.random.default_rng([seed, rank.rank])
    delay = Kernel.from_source(DELAY, "delay")
    cases = [make_case(seed, world_size=rank.world_size, dtype="bfloat16")]
    shape = cases[0].buffer_arguments()
    with Buffer(rank, **shape, num_sms=int(plan.integers(1, 25))) as buffer:
        handle, case = None, cases[0]
        for number in range(num_operations):
            kind = "new" if handle is None else str(plan.choice(["new", "again", "combine", "combine", "weighted"]))
            scale = float(plan.integers(1, 4))
            order = [plan.permutation(len(x)) for x in case.xs]
            delay.launch(rank, 1, 32, int(mine.choice([0, 0, 30, 300])))
            what = f"operation {number}, {kind}"
            if kind == "new":  # the same tokens in another order
                case = Case(
                    **shape,
                    xs=[x[o] for x, o in zip(case.xs, order, strict=True)],
                    topk_idx=[i[o] for i, o in zip(case.topk_idx, order, strict=True)],
                    topk_weights=[w[o] for w, o in zip(case.topk_weights, order, strict=True)],
                )
                inputs = (to_input(rank, a[rank.rank]) for a in (case.xs, case.topk_idx, case.topk_weights))
                recv = buffer.dispatch(*inputs)
                handle = recv.handle
                assert_received(unpack(recv, "bfloat16"), case.expected_dispatch()[rank.rank], what)
            elif kind == "again":
                x = to_input(rank, case.xs[rank.rank] * np.array(scale, BF16))
                recv = buffer.dispatch(x, None, to_input(rank, case.topk_weights[rank.rank]), handle=handle)
                assert_received(unpack(recv, "bfloat16"), case.expected_dispatch(scale)[rank.rank], what)
            else:
                ys = [r.x * np.array(scale + i, BF16) for i, r in enumerate(case.expected_dispatch())]
                weights = to_input(rank, case.topk_weights[rank.rank]) if kind == "weighted" else None
                assert handle is not None
                out = buffer.combine(to_input(rank, ys[rank.rank]), handle, weights)
                want = case.expected_combine(ys, weighted=kind == "weighted")[rank.rank]
                assert_same(to_numpy(out, "bfloat16"), want, what)
    return "done"


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("seed", range(8))
def test_repeated_operations_with_slow_ranks(spmd: Spmd, backend: str, seed: int) -> None:
    ranks = 2 if backend == "cuda" else [2, 3, 4, 8][seed % 4]
    assert spmd(operations, ranks, seed, 15, seed=seed) == ["done"] * ranks


def two_handles(rank: Rank) -> None:
    """Handles stay valid while others are made, and may be used in any order."""
    a, b = make_case(1, world_size=2, dtype="float32"), make_case(1, world_size=2, dtype="float32")
    for array in b.topk_idx:
        array[:] = array[::-1]
    with Buffer(rank, **a.buffer_arguments()) as buffer:
        handles = []
        for case in (a, b):
            recv = buffer.dispatch(*(to_input(rank, s[rank.rank]) for s in (case.xs, case.topk_idx)))
            assert recv.topk_weights is None
            handles.append(recv.handle)
        for case, handle in ((a, handles[0]), (b, handles[1]), (a, handles[0])):
            ys = [r.x for r in case.expected_dispatch()]
            out = buffer.combine(to_input(rank, ys[rank.rank]), handle)
            assert_same(to_numpy(out), case.expected_combine(ys, weighted=False)[rank.rank], "combine")


def test_several_handles_at_once(spmd: Spmd) -> None:
    spmd(two_handles, 2)


def special_values(rank: Rank) -> None:
    """NaN with its payload, infinities and -0.0 arrive as they were sent; combine follows IEEE."""
    bits = np.array([[0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x8000, 0x0001, 0x3F80, 0x0000]], np.uint16)
    x = bits.view(BF16)
    with Buffer(rank, num_experts=2, top_k=2, hidden=8, max_tokens=1) as buffer:
        recv = buffer.dispatch(to_input(rank, x), to_input(rank, np.array([[0, 1]])))
        got = to_numpy(recv.x, "bfloat16")
        assert got.view(np.uint16).tolist() == [bits[0].tolist()] * 2
        out = to_numpy(buffer.combine(recv.x, recv.handle), "bfloat16").astype(np.float32)
        assert np.isnan(out[0, :2]).all() and out[0, 2] == np.inf and out[0, 3] == -np.inf
        assert out[0, 4] == 0 and not np.signbit(out[0, 4])  # the sum starts from +0
        assert out[0, 6] == 2 and out[0, 7] == 0


def test_special_values(spmd: Spmd) -> None:
    spmd(special_values, 2)


def nothing_to_send(rank: Rank) -> None:
    with Buffer(rank, num_experts=4, top_k=4, hidden=8, max_tokens=3) as buffer:
        for tokens in (0, 3):
            x = to_input(rank, np.ones((tokens, 8), BF16))
            idx = to_input(rank, np.full((tokens, 4), -1, np.int32))
            recv = buffer.dispatch(x, idx, to_input(rank, np.ones((tokens, 4), np.float32)))
            assert to_numpy(recv.x).shape == (0, 8) and to_numpy(recv.topk_idx).shape == (0, 4)
            assert recv.tokens_per_expert.tolist() == [0, 0]
            out = buffer.combine(recv.x, recv.handle)
            assert to_numpy(out, "bfloat16").astype(float).tolist() == [[0.0] * 8] * tokens


def test_nothing_to_send(spmd: Spmd) -> None:
    spmd(nothing_to_send, 2)


def test_many_ranks_and_all_experts() -> None:
    """64 ranks: more than a warp's lanes; every token goes everywhere."""

    def main(rank: Rank) -> None:
        with Buffer(rank, num_experts=64, top_k=64, hidden=8, max_tokens=2, dtype="float32", num_sms=1) as buffer:
            x = np.full((2, 8), rank.rank, np.float32)
            recv = buffer.dispatch(x, np.tile(np.arange(64), (2, 1)))
            assert recv.x[:, 0].tolist() == np.repeat(np.arange(64), 2).tolist()
            assert recv.tokens_per_expert.tolist() == [128]
            assert (buffer.combine(recv.x, recv.handle) == 64 * x).all()

    spawn(main, 64, "emulator")


def narrow_rows(rank: Rank, case: Case, ways: dict[str, Any]) -> list[Any]:
    """Combines of rows that are narrower than the Buffer's, between whole ones."""
    me, dtype = rank.rank, case.dtype
    with Buffer(rank, **(case.buffer_arguments() | ways)) as buffer:
        recv = buffer.dispatch(to_input(rank, case.xs[me]), to_input(rank, case.topk_idx[me]))
        y = expert_output(rank, to_numpy(recv.x, dtype))
        found = []
        for width in (case.hidden, 8, 16, case.hidden, 8):
            part = np.ascontiguousarray(y[:, :width])
            found.append((y, to_numpy(buffer.combine(to_input(rank, part), recv.handle), dtype)))
        return found


@pytest.mark.parametrize("pcie", [False, True])
def test_narrow_rows_come_back_like_the_columns_of_whole_ones(spmd: Spmd, pcie: bool) -> None:
    case = make_case(7, world_size=2, dtype="bfloat16", max_tokens=9)
    ways = {"allow_nvlink_for_normal_mode": False, "num_sms": 4} if pcie else {}
    results = spmd(narrow_rows, 2, case, ways)
    for turn in range(5):
        expected = case.expected_combine([r[turn][0] for r in results], weighted=False)
        for rank, result in enumerate(results):
            out = result[turn][1]
            assert_same(out, np.ascontiguousarray(expected[rank][:, : out.shape[1]]), f"rank {rank}, turn {turn}")
