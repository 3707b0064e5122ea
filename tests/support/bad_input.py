"""Bad input to Buffer, for every mode: programs for the ranks, and what the errors must say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ep_lib import Rank
from ep_lib.errors import (
    ArgumentError,
    BufferClosedError,
    DeadlockError,
    HandleError,
    PeerTimeout,
    RankMismatchError,
)
from ep_lib.moe import Buffer
from support.dispatch_combine_cases import BF16, to_input, to_numpy
from support.refusals import refused

SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 16, "max_tokens": 3}
X = np.arange(48).reshape(3, 16).astype(BF16)
IDX = np.array([[0, 2], [1, -1], [3, 2]])
W = np.array([[0.5, 0.25], [1, 2], [3, 4]], np.float32)


def changed(array: Any, value: Any) -> Any:
    """A copy whose element [1, 0] is ``value``."""
    copy = array.copy()
    copy[1, 0] = value
    return copy


# Arrays of dispatch, and what the error says.
BAD_DISPATCH: list[tuple[tuple[Any, ...], str]] = [
    ((X, changed(IDX, 4)), r"topk_idx\[1, 0\] is 4; expert ids go from 0 to 3, and -1"),
    ((X, changed(IDX, -2)), r"topk_idx\[1, 0\] is -2; expert ids go from 0 to 3"),
    ((X, changed(IDX, 2**32)), r"topk_idx\[1, 0\] is 4294967296"),
    ((X, IDX.astype(np.float32)), "topk_idx has dtype float32; expert ids must be int64 or int32"),
    ((X, IDX.astype(np.int16)), "topk_idx has dtype int16"),
    ((X, IDX, W.astype(np.float64)), "topk_weights has dtype float64; weights must be float32"),
    ((X.astype(np.float32), IDX), "x has dtype float32; this Buffer carries bfloat16"),
    ((X, IDX, changed(W, np.nan)), r"topk_weights\[1, 0\] is nan; weights must be finite"),
    ((X, IDX, changed(W, -np.inf)), r"topk_weights\[1, 0\] is -inf"),
    ((X[:, :8].copy(), IDX), r"x has shape \(3, 8\); it must be \(T, 16\)"),
    ((X[0].copy(), IDX), r"x has shape \(16,\)"),
    ((X, IDX[:, :1].copy()), r"topk_idx has shape \(3, 1\); it must be \(3, 2\)"),
    ((X, IDX[:2]), r"topk_idx has shape \(2, 2\); it must be \(3, 2\)"),
    ((X, IDX, W[:2]), r"topk_weights has shape \(2, 2\); it must be \(3, 2\)"),
    ((np.tile(X, (2, 1)), np.tile(IDX, (2, 1))), "x has 6 tokens.*max_tokens=3"),
    ((X,), "needs topk_idx, or the handle"),
]


def check_good(buffer: Buffer, rank: Rank, what: str) -> Any:
    """The Buffer still works."""
    recv = buffer.dispatch(to_input(rank, X), to_input(rank, IDX))
    out = to_numpy(buffer.combine(recv.x, recv.handle), "bfloat16").astype(np.float32)
    assert (out == X.astype(np.float32) * np.array([[2], [1], [1]])).all(), what
    return recv


def bad_buffers(rank: Rank, shape: dict[str, Any], table: list[tuple[dict[str, Any], str]]) -> None:
    """``table``: arguments that a Buffer of this shape does not take, and what the error says."""
    for arguments, says in table:
        refused(lambda arguments=arguments: Buffer(rank, **(shape | arguments)), ArgumentError, says)


def bad_dispatches(rank: Rank) -> None:
    with Buffer(rank, **SHAPE) as buffer:
        for arrays, says in BAD_DISPATCH:
            inputs = [to_input(rank, a) for a in arrays]
            refused(lambda inputs=inputs: buffer.dispatch(*inputs), ArgumentError, says)
            check_good(buffer, rank, f"after {says}")


def one_rank_tries_again(rank: Rank) -> None:
    """Rank 1's input is bad at first; the others wait for it in their kernels."""
    with Buffer(rank, **SHAPE) as buffer:
        for _ in range(3):
            if rank.rank == 1:
                for arrays, _ in BAD_DISPATCH[:3]:
                    inputs = [to_input(rank, a) for a in arrays]
                    with pytest.raises(ArgumentError):
                        buffer.dispatch(*inputs)
            recv = check_good(buffer, rank, "after a retry")
            if rank.rank == 0:
                with pytest.raises(HandleError):
                    buffer.combine(recv.x[:0], recv.handle)
            buffer.combine(recv.x, recv.handle)


def disagree(rank: Rank) -> None:
    """Mistakes that only show when the ranks compare what they passed: all get the error, and the Buffer works on."""
    x, idx, w = (to_input(rank, a) for a in (X, IDX, W))
    only_one = "rank 1 passed topk_weights to dispatch, rank 0 did not; pass them on all ranks or on none"
    both = f"rank {rank.rank} and rank {1 - rank.rank}"
    with Buffer(rank, **SHAPE) as buffer:
        handles = [check_good(buffer, rank, "at first").handle for _ in range(2)]
        mine, weights = handles[rank.rank % 2], w if rank.rank else None
        y = to_input(rank, np.ones((mine.num_recv_tokens, 16), BF16))
        for error, says, call in (
            (RankMismatchError, only_one, lambda: buffer.dispatch(x, idx, weights)),
            (HandleError, f"{both}.*dispatch", lambda: buffer.dispatch(x, handle=mine)),
            (RankMismatchError, only_one, lambda: buffer.dispatch(x, None, weights, handle=handles[0])),
            (HandleError, f"{both}.*combine", lambda: buffer.combine(y, mine)),
        ):
            # On GPUs the host does not wait for each call.
            refused(lambda call=call: (call(), buffer.synchronize()), error, says)
        check_good(buffer, rank, "at last")


def use_after_close(rank: Rank) -> None:
    buffer = Buffer(rank, **SHAPE)
    recv = check_good(buffer, rank, "before")
    buffer.close()
    buffer.close()
    with pytest.raises(BufferClosedError, match="cannot be used: it was closed; make a new one"):
        buffer.dispatch(to_input(rank, X), to_input(rank, IDX))
    with pytest.raises(BufferClosedError, match="it was closed"):
        buffer.combine(recv.x, recv.handle)


def one_rank_stays_away(rank: Rank) -> str:
    buffer = Buffer(rank, **SHAPE)
    if rank.rank == 0:
        return "away"
    with pytest.raises((PeerTimeout, DeadlockError)) as caught:
        buffer.dispatch(to_input(rank, X), to_input(rank, IDX))
    assert "rank 0" in str(caught.value)
    with pytest.raises(BufferClosedError, match="out of step; make a new one"):
        buffer.dispatch(to_input(rank, X), to_input(rank, IDX))
    return "noticed"
