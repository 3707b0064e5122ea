"""Low-latency mode with bad input, hooks out of order, dead ranks and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.dispatch_combine_cases import BF16, to_input, to_numpy
from support.low_latency_cases import low_latency_case, receive

from ep_lib import Buffer, Rank, reference, spawn
from ep_lib.errors import (
    ArgumentError,
    BufferClosedError,
    HandleError,
    OutOfSymmetricMemory,
    PeerTimeout,
    RankMismatchError,
)

Spmd = Callable[..., list[Any]]

SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 128, "max_tokens": 1}
X = np.arange(3 * 128).reshape(3, 128).astype(BF16)
IDX = np.array([[0, 2], [1, -1], [3, 2]])
W = np.array([[0.5, 0.25], [1, 2], [3, 4]], np.float32)


def make(rank: Rank, **arguments: Any) -> Buffer:
    return Buffer(rank, **(SHAPE | {"num_max_dispatch_tokens_per_rank": 4} | arguments))


BAD_BUFFERS: dict[str, tuple[dict[str, Any], str]] = {
    "too many tokens": ({"num_max_dispatch_tokens_per_rank": 1025}, "is 1025; low-latency mode takes 1 to 1024 tokens"),
    "negative": ({"num_max_dispatch_tokens_per_rank": -1}, "num_max_dispatch_tokens_per_rank is -1"),
    "no number": ({"num_max_dispatch_tokens_per_rank": 1.5}, "num_max_dispatch_tokens_per_rank is 1.5"),
    "true": ({"num_max_dispatch_tokens_per_rank": True}, "num_max_dispatch_tokens_per_rank is True"),
    "float32": ({"dtype": "float32"}, "carries bfloat16, and this Buffer's dtype is float32"),
    "many choices": ({"num_experts": 40, "top_k": 33}, "top_k is 33; low-latency mode .* takes up to 32"),
    "many experts": ({"num_experts": 2**15 - 0, "top_k": 1}, "num_experts is 32768: "),
    "PCIe mode": ({"allow_nvlink_for_normal_mode": False, "num_sms": 2}, "asked to use the NIC only"),
    "no blocks": ({"num_low_latency_sms": 0}, "num_low_latency_sms is 0; it must be 1 to 1024, or None"),
    "blocks without the mode": (
        {"num_max_dispatch_tokens_per_rank": 0, "num_low_latency_sms": 3},
        "num_low_latency_sms is for low-latency mode: pass num_max_dispatch_tokens_per_rank",
    ),
    "mask without the mode": (
        {"num_max_dispatch_tokens_per_rank": 0, "low_latency_mask_on_timeout": True},
        "low_latency_mask_on_timeout is for low-latency mode",
    ),
}


@pytest.mark.parametrize("name", BAD_BUFFERS)
def test_a_mode_that_cannot_be(name: str) -> None:
    arguments, message = BAD_BUFFERS[name]

    def main(rank: Rank) -> None:
        with pytest.raises(ArgumentError, match=message):
            make(rank, **arguments)

    spawn(main, 1, "emulator")


BAD_DISPATCH: dict[str, tuple[Callable[[], tuple[Any, ...]], str]] = {
    "too many tokens": (
        lambda: (np.tile(X, (2, 1)), np.tile(IDX, (2, 1))),
        "x has 6 tokens.*tokens_per_rank=4",
    ),
    "dtype": (lambda: (X.astype(np.float32), IDX), "x has dtype float32; low-latency mode takes bfloat16"),
    "hidden": (lambda: (X[:, :64].copy(), IDX), r"x has shape \(3, 64\); it must be \(T, 128\)"),
    "flat": (lambda: (X[0], IDX), r"x has shape \(128,\)"),
    "strided": (lambda: (np.asfortranarray(X), IDX), "x is not contiguous"),
    "no array": (lambda: (X.tolist(), IDX), "x is a list"),
    "ids of floats": (lambda: (X, IDX.astype(np.float32)), "topk_idx has dtype float32; expert ids must be int64"),
    "top_k": (lambda: (X, IDX[:, :1].copy()), r"topk_idx has shape \(3, 1\); it must be \(3, 2\)"),
    "tokens": (lambda: (X, IDX[:2]), r"topk_idx has shape \(2, 2\); it must be \(3, 2\)"),
    "totals": (
        lambda: (X, IDX, True, False, False, None, False, np.zeros(4)),
        r"recv_totals is .*; it must be a contiguous int32 array of shape \(4,\)",
    ),
    "no expert": (lambda: (X, IDX + 1), r"topk_idx\[2, 0\] is 4; expert ids go from 0 to 3"),
}


@pytest.mark.parametrize("name", BAD_DISPATCH)
def test_bad_input_of_a_dispatch_is_refused_and_the_next_call_works(name: str) -> None:
    arrays, message = BAD_DISPATCH[name]

    def main(rank: Rank) -> None:
        with make(rank) as buffer:
            with pytest.raises(ArgumentError, match=message):
                buffer.low_latency_dispatch(*arrays())
            sent = buffer.low_latency_dispatch(X, IDX)
            rank.synchronize()
            assert receive(sent, True)[2].tolist() == [1, 1, 2, 1]

    spawn(main, 1, "emulator")


def test_bad_input_of_a_combine() -> None:
    def main(rank: Rank) -> None:
        with make(rank) as buffer, make(rank) as other:
            sent = buffer.low_latency_dispatch(X, IDX, False)
            y = buffer.get_next_low_latency_combine_buffer(sent.handle)
            rank.synchronize()
            y[...] = sent.recv_x
            refused: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
                (
                    (y[:2], IDX, W, sent.handle),
                    {},
                    ArgumentError,
                    r"x has shape \(2, 4, 128\); it must be \(4, 4, 128\)",
                ),
                ((y.astype(np.float32), IDX, W, sent.handle), {}, ArgumentError, "x has dtype float32"),
                (
                    (y, IDX[:2], W, sent.handle),
                    {},
                    ArgumentError,
                    r"shape \(2, 2\); .*: a row for each token that this rank sends",
                ),
                ((y, IDX, W[:2], sent.handle), {}, ArgumentError, r"topk_weights has shape \(2, 2\)"),
                ((y, IDX, W.astype(np.float64), sent.handle), {}, ArgumentError, "topk_weights has dtype float64"),
                ((y, IDX, W, None), {}, HandleError, "handle is a NoneType; it must be that of a low_latency_dispatch"),
                ((y, IDX, W, sent.handle), {"out": X[:2].copy()}, ArgumentError, r"out has shape \(2, 128\)"),
                (
                    (y, IDX, W, sent.handle),
                    {"async_finish": True, "return_recv_hook": True},
                    ArgumentError,
                    "exclude each other",
                ),
            ]
            for second in (0, 1):  # the second choice of token 1, which has none
                ids = IDX.copy()
                ids[1, 1] = second
                message = (
                    rf"topk_idx\[1\] is \[1, {second}\], and the handle's dispatch .* to \[1, -1\]: pass the dispatch's"
                )
                refused.append(((y, ids, W, sent.handle), {}, HandleError, message))
            for arguments, options, error, message in refused:
                with pytest.raises(error, match=message):
                    buffer.low_latency_combine(*arguments, **options)
            with pytest.raises(HandleError, match="belongs to another Buffer"):
                other.low_latency_combine(y, IDX, W, sent.handle)
            out = np.zeros_like(X)
            assert buffer.low_latency_combine(y, IDX, W, sent.handle, out=out).out is out
            rank.synchronize()
            rounded = (X.astype(np.float32) * np.array([0.75, 1, 7], np.float32)[:, None]).astype(BF16)
            assert (out == rounded).all()

    spawn(main, 1, "emulator")


def test_fp8_needs_whole_groups() -> None:
    def main(rank: Rank) -> None:
        with make(rank, hidden=64) as buffer, pytest.raises(ArgumentError, match=r"hidden is 64.*use_fp8=False"):
            buffer.low_latency_dispatch(X[:, :64].copy(), IDX)

    spawn(main, 1, "emulator")


def test_no_mode_and_closed() -> None:
    def main(rank: Rank) -> None:
        with (
            Buffer(rank, **SHAPE) as buffer,
            pytest.raises(ArgumentError, match="has no low-latency mode: make it with num_max_dispatch_tokens"),
        ):
            buffer.low_latency_dispatch(X, IDX)
        with make(rank) as buffer:
            sent = buffer.low_latency_dispatch(X, IDX, return_recv_hook=True)
            sent.hook()
        with pytest.raises(BufferClosedError):
            buffer.low_latency_dispatch(X, IDX)

    spawn(main, 1, "emulator")


def test_hooks_in_order_and_not_too_many() -> None:
    def main(rank: Rank) -> None:
        with make(rank) as buffer:
            first = buffer.low_latency_dispatch(X, IDX, False, return_recv_hook=True)
            second = buffer.low_latency_dispatch(X, IDX, False, return_recv_hook=True)
            with pytest.raises(HandleError, match="2 low_latency_dispatches wait for their hooks"):
                buffer.low_latency_dispatch(X, IDX, return_recv_hook=True)
            with pytest.raises(HandleError, match="an earlier low_latency_dispatch waits for its hook"):
                second.hook()
            y = buffer.get_next_low_latency_combine_buffer(first.handle)
            with pytest.raises(HandleError, match="have not been received: call its hook first"):
                buffer.low_latency_combine(y, IDX, W, first.handle)
            first.hook()
            with pytest.raises(HandleError, match="this hook of a low_latency_dispatch was called before"):
                first.hook()
            with pytest.raises(HandleError, match="1 low_latency_dispatch before this one did not receive yet"):
                buffer.low_latency_dispatch(X, IDX)
            second.hook()
            rank.synchronize()
            assert receive(first, False)[0].tobytes() == receive(second, False)[0].tobytes()

    spawn(main, 1, "emulator")


def test_ranks_that_differ_and_too_little_memory() -> None:
    def main(rank: Rank) -> None:
        with pytest.raises(RankMismatchError, match="num_max_dispatch_tokens_per_rank is 4 on rank 0 but 5 on rank 1"):
            make(rank, num_max_dispatch_tokens_per_rank=4 + rank.rank)
        with pytest.raises(OutOfSymmetricMemory, match="Lower num_max_dispatch_tokens_per_rank, or start with"):
            make(rank, num_max_dispatch_tokens_per_rank=1000)
        needed = Buffer.symmetric_bytes(2, **SHAPE, num_max_dispatch_tokens_per_rank=100)
        assert needed > 4 * 2 * 100 * 256

    spawn(main, 2, "emulator", heap_bytes=1 << 20)


def test_a_rank_that_does_not_come_is_a_peer_timeout(spmd: Spmd) -> None:
    def main(rank: Rank) -> Any:
        buffer = make(rank)
        found = None
        if rank.rank == 0:
            buffer.low_latency_dispatch(to_input(rank, X), to_input(rank, IDX))
            with pytest.raises(PeerTimeout, match=r"rank 0 waited too long for rank 1 \(layout"):
                rank.synchronize()
            found = True
        rank.all_gather(None)
        return found

    assert spmd(main, 2, timeout=2)[0]


def survivors(rank: Rank, case: Any, by_timeout: bool) -> Any:
    """Rank 1 is dead; the others go on without it."""
    me = rank.rank
    x, idx, weights = (to_input(rank, a[me]) for a in (case.xs, case.topk_idx, case.topk_weights))
    buffer = make(
        rank,
        **(case.buffer_arguments() | {"max_tokens": 1}),
        num_max_dispatch_tokens_per_rank=case.max_tokens,
        low_latency_mask_on_timeout=by_timeout,
    )
    results = []
    if me != 1:
        assert buffer.low_latency_query_mask_buffer().tolist() == [0, 0, 0]
        if not by_timeout:
            buffer.low_latency_update_mask_buffer(1, True)
        for _ in range(3):
            sent = buffer.low_latency_dispatch(x, idx, False)
            rank.synchronize()
            rows, _, counts = receive(sent, False)
            out = buffer.low_latency_combine(to_input(rank, rows), idx, weights, sent.handle).out
            rank.synchronize()
            results.append((rows, counts, to_numpy(out, "bfloat16")))
        assert buffer.low_latency_query_mask_buffer().tolist() == [0, 1, 0]
    rank.all_gather(None)
    return results


@pytest.mark.parametrize("by_timeout", [False, True])
def test_a_masked_rank_is_left_out(spmd: Spmd, by_timeout: bool) -> None:
    case = low_latency_case(6, fp8=False, world_size=3, max_tokens=8)
    case.xs[1], case.topk_idx[1], case.topk_weights[1] = (a[1][:0] for a in (case.xs, case.topk_idx, case.topk_weights))
    each = case.num_experts // 3
    alive = [np.where(idx // each == 1, -1, idx) for idx in case.topk_idx]
    with np.errstate(invalid="ignore", over="ignore"):
        want = reference.low_latency_dispatch(
            case.xs, alive, num_experts=case.num_experts, max_tokens=case.max_tokens, use_fp8=False
        )
        combined = reference.low_latency_combine([w.x for w in want], want, case.topk_weights)
    results = spmd(survivors, 3, case, by_timeout, timeout=4)
    for me in (0, 2):
        for rows, counts, out in results[me]:
            assert counts.tolist() == want[me].counts.tolist()
            assert rows.tobytes() == want[me].x.tobytes()
            assert np.array_equal(out.astype(np.float32), combined[me].astype(np.float32), equal_nan=True)


def test_masks_of_nobody() -> None:
    def main(rank: Rank) -> None:
        with make(rank) as buffer:
            for wrong in (2, -1, True, 1.0):
                with pytest.raises(ArgumentError, match="there is no rank"):
                    buffer.low_latency_update_mask_buffer(wrong, True)
            with pytest.raises(ArgumentError, match=f"rank {rank.rank} cannot mask itself"):
                buffer.low_latency_update_mask_buffer(rank.rank, True)
            with pytest.raises(ArgumentError, match="mask is 'False'; it must be True"):
                buffer.low_latency_update_mask_buffer(1 - rank.rank, "False")
            other = 1 - rank.rank
            buffer.low_latency_update_mask_buffer(other, True)
            assert buffer.low_latency_query_mask_buffer()[other] == 1
            buffer.low_latency_update_mask_buffer(other)  # False is the default, as in DeepEP
            assert buffer.low_latency_query_mask_buffer().tolist() == [0, 0]

    spawn(main, 2, "emulator")
