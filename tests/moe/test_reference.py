"""The oracle itself: small examples worked out by hand, and what must hold for any routing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatch_combine_cases import BF16, Case, make_case

from ep_lib import reference

cases = st.builds(make_case, st.integers(0, 2**32 - 1))

# Two ranks, two experts each. Of rank 0, token 0 wants an expert on each rank, token 1 both of rank 1, token 2 none.
IDX = [np.array([[0, 3], [2, 3], [-1, -1]]), np.array([[1, -1]])]
WEIGHTS = [np.array([[0.5, 0.25], [1, 2], [9, 9]], np.float32), np.array([[4, 9]], np.float32)]
XS = [np.array([[1], [2], [3]], np.float32), np.array([[10]], np.float32)]


def test_layout_by_hand() -> None:
    layout = reference.layout(IDX[0], num_experts=4, world_size=2)
    assert layout.slot.tolist() == [[0, 0], [-1, 1], [-1, -1]]
    assert layout.tokens_per_rank.tolist() == [1, 2]
    assert layout.tokens_per_expert.tolist() == [1, 0, 1, 2]


def test_dispatch_by_hand() -> None:
    first, second = reference.dispatch(XS, IDX, WEIGHTS, num_experts=4)
    assert first.x.tolist() == [[1], [10]]
    assert first.topk_idx.tolist() == [[0, -1], [1, -1]]
    assert first.topk_weights is not None and first.topk_weights.tolist() == [[0.5, 0], [4, 0]]
    assert first.tokens_per_expert.tolist() == [1, 1]
    assert (first.src_rank.tolist(), first.src_token.tolist()) == ([0, 1], [0, 0])
    assert second.x.tolist() == [[1], [2]]
    assert second.topk_idx.tolist() == [[-1, 1], [0, 1]]
    assert second.topk_weights is not None and second.topk_weights.tolist() == [[0, 0.25], [1, 2]]
    assert second.tokens_per_expert.tolist() == [1, 2]
    assert (second.src_rank.tolist(), second.src_token.tolist()) == ([0, 0], [0, 1])


def test_combine_by_hand() -> None:
    ys = [np.array([[100], [1000]], np.float32), np.array([[1], [7]], np.float32)]
    plain = reference.combine(ys, IDX, num_experts=4)
    assert [out.tolist() for out in plain] == [[[101], [7], [0]], [[1000]]]
    weighted = reference.combine(ys, IDX, WEIGHTS, num_experts=4)
    assert [out.tolist() for out in weighted] == [[[50.25], [21], [0]], [[4000]]]


def test_the_order_of_choices_is_that_of_each_ranks_last_one() -> None:
    ys = [np.array([[value]], np.float32) for value in (1, 2.0**24, -(2.0**24))]  # of ranks 0, 1 and 2
    for order, choices, total in (("ranks", [2, 1, 0], 0), ("choices", [2, 1, 0], 1), ("choices", [2, 1, 0, 2], 0)):
        idx = [np.array([choices])] + 2 * [np.zeros((0, len(choices)), np.int64)]
        assert reference.combine(ys, idx, num_experts=3, sum_order=order)[0].tolist() == [[total]]


def test_an_expert_named_twice_is_two_choices_and_one_row() -> None:
    idx, weights = [np.array([[1, 1]])], [np.array([[2, 3]], np.float32)]
    (recv,) = reference.dispatch([np.ones((1, 4), np.float32)], idx, weights, num_experts=2)
    assert recv.x.shape == (1, 4)
    assert recv.topk_idx.tolist() == [[1, 1]]
    assert recv.tokens_per_expert.tolist() == [0, 2]
    (out,) = reference.combine([recv.x], idx, weights, num_experts=2)
    assert out.tolist() == [[5, 5, 5, 5]]


def test_bfloat16_is_rounded_once() -> None:
    """1 + 2^-8 + 2^-8 is 1 + 2^-7 in float32; rounding after every addition would lose both small terms."""
    idx = [np.array([[0, 1, 2]])] + [np.zeros((0, 3), np.int64)] * 2
    ys = [np.array([[v]], BF16) for v in (1, 2**-8, 2**-8)]
    out = reference.combine(ys, idx, num_experts=3)
    assert float(out[0][0, 0]) == 1 + 2**-7


@given(cases)
@settings(max_examples=50, deadline=None)
def test_rows_are_counted_and_sorted(case: Case) -> None:
    experts_per_rank = case.num_experts // case.world_size
    for rank, recv in enumerate(case.expected_dispatch()):
        for row, (source, token) in enumerate(zip(recv.src_rank, recv.src_token, strict=True)):
            assert (recv.x[row] == case.xs[source][token]).all()
            local = case.topk_idx[source][token] - rank * experts_per_rank
            here = (local >= 0) & (local < experts_per_rank)
            assert here.any()
            assert (recv.topk_idx[row] == np.where(here, local, -1)).all()
        order = recv.src_rank.astype(np.int64) * case.max_tokens + recv.src_token
        assert (np.diff(order) > 0).all()
        chosen, counts = np.unique(recv.topk_idx[recv.topk_idx >= 0], return_counts=True)
        assert recv.tokens_per_expert[chosen].tolist() == counts.tolist()
        assert recv.tokens_per_expert.sum() == counts.sum()


@given(cases)
@settings(max_examples=50, deadline=None)
def test_weighted_combine_is_the_dense_formula(case: Case) -> None:
    """With experts that scale by a number of their rank, a token's result is a dense sum over its choices."""
    received = case.expected_dispatch()
    ys = [recv.x * np.array(r + 1, recv.x.dtype) for r, recv in enumerate(received)]
    experts_per_rank = case.num_experts // case.world_size
    for source, out in enumerate(case.expected_combine(ys, weighted=True)):
        idx, weights = case.topk_idx[source], case.topk_weights[source].astype(np.float64)
        factor = np.where(idx >= 0, weights * (idx // experts_per_rank + 1), 0).sum(axis=1, keepdims=True)
        bound = np.where(idx >= 0, np.abs(weights) * (idx // experts_per_rank + 1), 0).sum(axis=1, keepdims=True)
        x = case.xs[source].astype(np.float64)
        tolerance = (2**-8 if case.dtype == "bfloat16" else 1e-6) * 2 * bound * np.abs(x) + 1e-30
        assert (np.abs(out.astype(np.float64) - factor * x) <= tolerance).all()
