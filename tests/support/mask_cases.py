"""What ranks do in a Buffer of which some ranks may be masked, compared with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ep_lib import Buffer, Rank, reference
from support.dispatch_combine_cases import BF16, to_input, to_numpy

TOKENS, EXPERTS, HIDDEN, TOP_K, RANKS = 5, 8, 128, 3, 4
SHAPE: dict[str, Any] = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "num_sms": 3}
BOTH = {**SHAPE, "num_max_dispatch_tokens_per_rank": TOKENS}


def tokens(seed: int) -> tuple[list[Any], list[Any], list[Any]]:
    """xs, topk_idxs and topk_weights of all ranks."""
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal((TOKENS, HIDDEN)).astype(BF16) for _ in range(RANKS)]
    idxs = [np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]) for _ in range(RANKS)]
    return xs, idxs, [rng.random((TOKENS, TOP_K)).astype(np.float32) for _ in range(RANKS)]


def arrays_of(rank: Rank, seed: int) -> tuple[Any, Any, Any]:
    """A rank's x, topk_idx and topk_weights, where its kernels can use them."""
    xs, idxs, weights = (each[rank.rank] for each in tokens(seed))
    return to_input(rank, xs), to_input(rank, idxs), to_input(rank, weights)


def same(got: Any, want: Any) -> bool:
    """Bit for bit, wherever ``got`` is."""
    return bool(np.array_equal(to_numpy(got).view(np.uint8), np.ascontiguousarray(want).view(np.uint8)))


def normal(buffer: Buffer, rank: Rank, seed: int) -> None:
    """A dispatch, one more with its handle, and a combine, and the same by expert, against the oracle."""
    me, (xs, idxs, weights), (x, idx, weight) = rank.rank, tokens(seed), arrays_of(rank, seed)
    masked = buffer.masked_ranks
    want = reference.dispatch(xs, idxs, weights, num_experts=EXPERTS, masked=masked)
    recv = buffer.dispatch(x, idx, weight)
    again = buffer.dispatch(x, None, weight, handle=recv.handle)
    for got in (recv, again):
        assert same(got.x, want[me].x) and same(got.topk_weights, want[me].topk_weights)
    assert same(recv.src_rank, want[me].src_rank) and np.array_equal(to_numpy(recv.topk_idx), want[me].topk_idx)
    assert np.array_equal(recv.tokens_per_expert, want[me].tokens_per_expert)
    assert not any(recv.handle.recv_tokens_per_rank[r] for r in masked)
    out = buffer.combine(recv.x, recv.handle, weight)
    expected = reference.combine([w.x for w in want], idxs, weights, num_experts=EXPERTS, masked=masked)
    assert same(out, expected[me])
    grouped = buffer.dispatch(x, idx, sorted_by_expert=True)
    back = buffer.combine(grouped.by_expert.x, grouped.handle, sorted_by_expert=True)
    local = {"experts": EXPERTS // RANKS}
    rows = [w.x[reference.expert_rows(w.topk_idx, **local)[0]] for w in want]
    sums = [reference.reduce_expert_rows(r, w.topk_idx, **local) for r, w in zip(rows, want, strict=True)]
    assert same(grouped.by_expert.x, rows[me])
    assert same(back, reference.combine(sums, idxs, num_experts=EXPERTS, masked=masked)[me])
    assert np.array_equal(to_numpy(buffer.dropped(idx)), np.isin(idxs[me] // (EXPERTS // RANKS), masked))


def unwatched(buffer: Buffer, rank: Rank, seed: int) -> None:
    """The same where the host does not wait, and experts write what is pulled."""
    me, (xs, idxs, weights), (x, idx, weight) = rank.rank, tokens(seed), arrays_of(rank, seed)
    masked = buffer.masked_ranks
    want = reference.dispatch(xs, idxs, weights, num_experts=EXPERTS, masked=masked)
    recv = buffer.dispatch(x, idx, weight, num_worst_tokens=RANKS * TOKENS)
    buffer.synchronize()
    count = len(want[me].x)
    assert same(recv.x[:count], want[me].x)
    assert (recv.src_rank[count:] == -1).all()
    recv = buffer.dispatch(x, idx, weight)
    y = buffer.combine_input(recv.handle, recv.x)
    y[...] = recv.x
    out = buffer.combine(y, recv.handle)
    expected = reference.combine([w.x for w in want], idxs, num_experts=EXPERTS, masked=masked)
    assert same(out, expected[me])


def low_latency(buffer: Buffer, rank: Rank, seed: int) -> None:
    me, (xs, idxs, weights), (x, idx, weight) = rank.rank, tokens(seed), arrays_of(rank, seed)
    rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, idx, False)
    out = buffer.low_latency_combine(rows, idx, weight, handle).out
    buffer.synchronize()
    want = reference.low_latency_dispatch(
        xs, idxs, num_experts=EXPERTS, max_tokens=TOKENS, use_fp8=False, masked=buffer.masked_ranks
    )
    assert np.array_equal(to_numpy(counts), want[me].counts)
    expected = reference.low_latency_combine([w.x for w in want], want, weights)
    assert same(out, expected[me])


WAYS: dict[str, Callable[[Buffer, Rank, int], None]] = {
    "normal": normal,
    "unwatched": unwatched,
    "low latency": low_latency,
}
