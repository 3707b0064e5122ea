"""Bad input to Buffer, for every mode: programs for the ranks, and what the errors must say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from ep_lib import Rank
from ep_lib.errors import ArgumentError, BufferClosedError, DeadlockError, EpError, HandleError, PeerTimeout
from ep_lib.moe import Buffer
from support.dispatch_combine_cases import BF16, to_input, to_numpy

SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 16, "max_tokens": 3}
X = np.arange(48).reshape(3, 16).astype(BF16)
IDX = np.array([[0, 2], [1, -1], [3, 2]])
W = np.array([[0.5, 0.25], [1, 2], [3, 4]], np.float32)


def changed(array: Any, value: Any) -> Any:
    """A copy whose element [1, 0] is ``value``."""
    copy = array.copy()
    copy[1, 0] = value
    return copy


# name: (arrays of dispatch, what the error says)
BAD_DISPATCH: dict[str, tuple[tuple[Any, ...], str]] = {
    "expert too large": ((X, changed(IDX, 4)), r"topk_idx\[1, 0\] is 4; expert ids go from 0 to 3, and -1"),
    "expert below -1": ((X, changed(IDX, -2)), r"topk_idx\[1, 0\] is -2; expert ids go from 0 to 3"),
    "huge expert": ((X, changed(IDX, 2**32)), r"topk_idx\[1, 0\] is 4294967296"),
    "float experts": ((X, IDX.astype(np.float32)), "topk_idx has dtype float32; expert ids must be int64 or int32"),
    "small ints": ((X, IDX.astype(np.int16)), "topk_idx has dtype int16"),
    "double weights": ((X, IDX, W.astype(np.float64)), "topk_weights has dtype float64; weights must be float32"),
    "x of another dtype": ((X.astype(np.float32), IDX), "x has dtype float32; this Buffer carries bfloat16"),
    "NaN weight": ((X, IDX, changed(W, np.nan)), r"topk_weights\[1, 0\] is nan; weights must be finite"),
    "infinite weight": ((X, IDX, changed(W, -np.inf)), r"topk_weights\[1, 0\] is -inf"),
    "hidden too small": ((X[:, :8].copy(), IDX), r"x has shape \(3, 8\); it must be \(T, 16\)"),
    "x flat": ((X[0].copy(), IDX), r"x has shape \(16,\)"),
    "top_k differs": ((X, IDX[:, :1].copy()), r"topk_idx has shape \(3, 1\); it must be \(3, 2\)"),
    "tokens differ": ((X, IDX[:2]), r"topk_idx has shape \(2, 2\); it must be \(3, 2\)"),
    "weights differ": ((X, IDX, W[:2]), r"topk_weights has shape \(2, 2\); it must be \(3, 2\)"),
    "too many tokens": ((np.tile(X, (2, 1)), np.tile(IDX, (2, 1))), "x has 6 tokens.*max_tokens=3"),
    "no experts": ((X,), "needs topk_idx, or the handle"),
}


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    """Name of the exception's class and its message."""
    try:
        call()
    except EpError as error:
        return type(error).__name__, str(error)
    return "", "no error"


def check_refused(table: Mapping[str, tuple[Any, str]], of_ranks: Iterable[dict[str, tuple[str, str]]]) -> None:
    """Each rank was refused each entry of a table by an ArgumentError that says what the table says."""
    for found in of_ranks:
        for name, (_, pattern) in table.items():
            kind, message = found[name]
            assert kind == "ArgumentError" and re.search(pattern, message), f"{name}: {kind}: {message}"


def check_good(buffer: Buffer, rank: Rank, what: str) -> Any:
    """The Buffer still works."""
    recv = buffer.dispatch(to_input(rank, X), to_input(rank, IDX))
    out = to_numpy(buffer.combine(recv.x, recv.handle), "bfloat16").astype(np.float32)
    assert (out == X.astype(np.float32) * np.array([[2], [1], [1]])).all(), what
    return recv


def bad_dispatches(rank: Rank) -> dict[str, tuple[str, str]]:
    found = {}
    with Buffer(rank, **SHAPE) as buffer:
        for name, (arrays, _) in BAD_DISPATCH.items():
            inputs = [to_input(rank, a) for a in arrays]
            found[name] = refused(lambda inputs=inputs: buffer.dispatch(*inputs))
            check_good(buffer, rank, f"after {name}")
    return found


def one_rank_tries_again(rank: Rank) -> None:
    """Rank 1's input is bad at first; the others wait for it in their kernels."""
    with Buffer(rank, **SHAPE) as buffer:
        for _ in range(3):
            if rank.rank == 1:
                for _, (arrays, _) in zip(range(3), BAD_DISPATCH.values(), strict=False):
                    inputs = [to_input(rank, a) for a in arrays]
                    with pytest.raises(ArgumentError):
                        buffer.dispatch(*inputs)
            recv = check_good(buffer, rank, "after a retry")
            if rank.rank == 0:
                with pytest.raises(HandleError):
                    buffer.combine(recv.x[:0], recv.handle)
            buffer.combine(recv.x, recv.handle)


def disagree(rank: Rank) -> list[tuple[str, str]]:
    """Mistakes that only show when the ranks compare what they passed: all get the error, and the Buffer works on."""
    x, idx, w = (to_input(rank, a) for a in (X, IDX, W))
    with Buffer(rank, **SHAPE) as buffer:

        def refused_at_last(call: Callable[[], Any]) -> tuple[str, str]:
            return refused(lambda: (call(), buffer.synchronize()))  # on GPUs the host does not wait for each call

        handles = [check_good(buffer, rank, "at first").handle for _ in range(2)]
        mine = handles[rank.rank % 2]
        y = to_input(rank, np.ones((mine.num_recv_tokens, 16), BF16))
        found = [
            refused(lambda: buffer.dispatch(x, idx, w if rank.rank else None)),
            refused_at_last(lambda: buffer.dispatch(x, handle=mine)),
            refused_at_last(lambda: buffer.dispatch(x, None, w if rank.rank else None, handle=handles[0])),
            refused_at_last(lambda: buffer.combine(y, mine)),
        ]
        check_good(buffer, rank, "at last")
    return found


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
