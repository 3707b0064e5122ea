"""What ranks do in a Buffer of which some ranks may be masked, compared with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ep_lib import Buffer, reference
from support.dispatch_combine_cases import BF16

TOKENS, EXPERTS, HIDDEN, TOP_K, RANKS = 5, 8, 128, 3, 4
SHAPE: dict[str, Any] = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "num_sms": 3}
BOTH = {**SHAPE, "num_max_dispatch_tokens_per_rank": TOKENS}


def tokens(seed: int) -> tuple[list[Any], list[Any], list[Any]]:
    """xs, topk_idxs and topk_weights of all ranks."""
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal((TOKENS, HIDDEN)).astype(BF16) for _ in range(RANKS)]
    idxs = [np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]) for _ in range(RANKS)]
    return xs, idxs, [rng.random((TOKENS, TOP_K)).astype(np.float32) for _ in range(RANKS)]


def normal(buffer: Buffer, me: int, seed: int) -> None:
    """A dispatch, one more with its handle, and a combine, against the oracle."""
    xs, idxs, weights = tokens(seed)
    masked = buffer.masked_ranks
    want = reference.dispatch(xs, idxs, weights, num_experts=EXPERTS, masked=masked)
    recv = buffer.dispatch(xs[me], idxs[me], weights[me])
    again = buffer.dispatch(xs[me], None, weights[me], handle=recv.handle)
    for got in (recv, again):
        assert np.array_equal(got.x.view(np.uint16), want[me].x.view(np.uint16))
        assert np.array_equal(got.topk_weights, want[me].topk_weights)
    assert np.array_equal(recv.src_rank, want[me].src_rank) and np.array_equal(recv.topk_idx, want[me].topk_idx)
    assert np.array_equal(recv.tokens_per_expert, want[me].tokens_per_expert)
    assert not any(recv.handle.recv_tokens_per_rank[r] for r in masked)
    out = buffer.combine(recv.x, recv.handle, weights[me])
    expected = reference.combine([w.x for w in want], idxs, weights, num_experts=EXPERTS, masked=masked)
    assert np.array_equal(out.view(np.uint16), expected[me].view(np.uint16))
    assert np.array_equal(buffer.dropped(idxs[me]), np.isin(idxs[me] // (EXPERTS // RANKS), masked))


def unwatched(buffer: Buffer, me: int, seed: int) -> None:
    """The same where the host does not wait, and experts write what is pulled."""
    xs, idxs, weights = tokens(seed)
    masked = buffer.masked_ranks
    want = reference.dispatch(xs, idxs, weights, num_experts=EXPERTS, masked=masked)
    recv = buffer.dispatch(xs[me], idxs[me], weights[me], num_worst_tokens=RANKS * TOKENS)
    buffer.synchronize()
    count = len(want[me].x)
    assert np.array_equal(recv.x[:count].view(np.uint16), want[me].x.view(np.uint16))
    assert (recv.src_rank[count:] == -1).all()
    recv = buffer.dispatch(xs[me], idxs[me], weights[me])
    y = buffer.combine_input(recv.handle, recv.x)
    y[...] = recv.x
    out = buffer.combine(y, recv.handle)
    expected = reference.combine([w.x for w in want], idxs, num_experts=EXPERTS, masked=masked)
    assert np.array_equal(out.view(np.uint16), expected[me].view(np.uint16))


def low_latency(buffer: Buffer, me: int, seed: int) -> None:
    xs, idxs, weights = tokens(seed)
    rows, counts, handle, _, _ = buffer.low_latency_dispatch(xs[me], idxs[me], False)
    out = buffer.low_latency_combine(rows, idxs[me], weights[me], handle).out
    buffer.synchronize()
    want = reference.low_latency_dispatch(
        xs, idxs, num_experts=EXPERTS, max_tokens=TOKENS, use_fp8=False, masked=buffer.masked_ranks
    )
    assert np.array_equal(counts, want[me].counts)
    expected = reference.low_latency_combine([w.x for w in want], want, weights)
    assert np.array_equal(out.view(np.uint16), expected[me].view(np.uint16))


WAYS: dict[str, Callable[[Buffer, int, int], None]] = {
    "normal": normal,
    "unwatched": unwatched,
    "low latency": low_latency,
}
