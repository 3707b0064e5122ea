"""Low-latency mode with bad input, hooks out of order, dead ranks and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Spmd
from support.bad_input import bad_buffers
from support.dispatch_combine_cases import BF16, to_input, to_numpy
from support.low_latency_cases import low_latency_case, receive
from support.refusals import refused

from ep_lib import Buffer, Rank, reference, spawn
from ep_lib.errors import (
    ArgumentError,
    BufferClosedError,
    HandleError,
    OutOfSymmetricMemory,
    PeerTimeout,
    RankMismatchError,
)

SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 128, "max_tokens": 1}
X = np.arange(3 * 128).reshape(3, 128).astype(BF16)
IDX = np.array([[0, 2], [1, -1], [3, 2]])
W = np.array([[0.5, 0.25], [1, 2], [3, 4]], np.float32)


def make(rank: Rank, **arguments: Any) -> Buffer:
    return Buffer(rank, **(SHAPE | {"num_max_dispatch_tokens_per_rank": 4} | arguments))


BAD_BUFFERS: list[tuple[dict[str, Any], str]] = [
    ({"num_max_dispatch_tokens_per_rank": 1025}, "is 1025; low-latency mode takes 1 to 1024 tokens"),
    ({"num_max_dispatch_tokens_per_rank": -1}, "num_max_dispatch_tokens_per_rank is -1"),
    ({"num_max_dispatch_tokens_per_rank": 1.5}, "num_max_dispatch_tokens_per_rank is 1.5"),
    ({"num_max_dispatch_tokens_per_rank": True}, "num_max_dispatch_tokens_per_rank is True"),
    ({"dtype": "float32"}, "carries bfloat16, and this Buffer's dtype is float32"),
    ({"num_experts": 40, "top_k": 33}, "top_k is 33; low-latency mode .* takes up to 32"),
    ({"num_experts": 2**15 - 0, "top_k": 1}, "num_experts is 32768: "),
    ({"allow_nvlink_for_normal_mode": False, "num_sms": 2}, "asked to use the NIC only"),
    ({"num_low_latency_sms": 0}, "num_low_latency_sms is 0; it must be 1 to 1024, or None"),
    (
        {"num_max_dispatch_tokens_per_rank": 0, "num_low_latency_sms": 3},
        "num_low_latency_sms is for low-latency mode: pass num_max_dispatch_tokens_per_rank",
    ),
    (
        {"num_max_dispatch_tokens_per_rank": 0, "low_latency_mask_on_timeout": True},
        "low_latency_mask_on_timeout is for low-latency mode",
    ),
]


def test_a_mode_that_cannot_be() -> None:
    spawn(bad_buffers, 1, "emulator", args=(SHAPE | {"num_max_dispatch_tokens_per_rank": 4}, BAD_BUFFERS))


BAD_DISPATCH: list[tuple[tuple[Any, ...], str]] = [
    ((np.tile(X, (2, 1)), np.tile(IDX, (2, 1))), "x has 6 tokens.*tokens_per_rank=4"),
    ((X.astype(np.float32), IDX), "x has dtype float32; low-latency mode takes bfloat16"),
    ((X[:, :64].copy(), IDX), r"x has shape \(3, 64\); it must be \(T, 128\)"),
    ((X[0], IDX), r"x has shape \(128,\)"),
    ((np.asfortranarray(X), IDX), "x is not contiguous"),
    ((X.tolist(), IDX), "x is a list"),
    ((X, IDX.astype(np.float32)), "topk_idx has dtype float32; expert ids must be int64"),
    ((X, IDX[:, :1].copy()), r"topk_idx has shape \(3, 1\); it must be \(3, 2\)"),
    ((X, IDX[:2]), r"topk_idx has shape \(2, 2\); it must be \(3, 2\)"),
    (
        (X, IDX, True, False, False, None, False, np.zeros(4)),
        r"recv_totals is .*; it must be a contiguous int32 array of shape \(4,\)",
    ),
    ((X, IDX + 1), r"topk_idx\[2, 0\] is 4; expert ids go from 0 to 3"),
]


def test_bad_input_of_a_dispatch_is_refused_and_the_next_call_works() -> None:
    def main(rank: Rank) -> None:
        with make(rank) as buffer:
            for arrays, says in BAD_DISPATCH:
                refused(lambda arrays=arrays: buffer.low_latency_dispatch(*arrays), ArgumentError, says)
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
            handle, combine = sent.handle, buffer.low_latency_combine
            of_two = r"\(2, 2\); .*: a row for each token that this rank sends"
            no_handle = "handle is a NoneType; it must be that of a low_latency_dispatch"
            refused(lambda: combine(y[:2], IDX, W, handle), ArgumentError, r"has shape \(2, 4, 128\); .*\(4, 4, 128\)")
            refused(lambda: combine(y.astype(np.float32), IDX, W, handle), ArgumentError, "x has dtype float32")
            refused(lambda: combine(y, IDX[:2], W, handle), ArgumentError, of_two)
            refused(lambda: combine(y, IDX, W[:2], handle), ArgumentError, r"topk_weights has shape \(2, 2\)")
            refused(lambda: combine(y, IDX, W.astype(float), handle), ArgumentError, "topk_weights has dtype float64")
            refused(lambda: combine(y, IDX, W, None), HandleError, no_handle)
            refused(lambda: combine(y, IDX, W, handle, out=X[:2].copy()), ArgumentError, r"out has shape \(2, 128\)")
            both = {"async_finish": True, "return_recv_hook": True}
            refused(lambda: combine(y, IDX, W, handle, **both), ArgumentError, "exclude each other")
            for second in (0, 1):  # the second choice of token 1, which has none
                ids = IDX.copy()
                ids[1, 1] = second
                says = rf"topk_idx\[1\] is \[1, {second}\], and the handle's .* to \[1, -1\]: pass the dispatch's"
                refused(lambda ids=ids: combine(y, ids, W, handle), HandleError, says)
            refused(lambda: other.low_latency_combine(y, IDX, W, handle), HandleError, "belongs to another Buffer")
            out = np.zeros_like(X)
            assert buffer.low_latency_combine(y, IDX, W, sent.handle, out=out).out is out
            rank.synchronize()
            rounded = (X.astype(np.float32) * np.array([0.75, 1, 7], np.float32)[:, None]).astype(BF16)
            assert (out == rounded).all()

    spawn(main, 1, "emulator")


def test_fp8_needs_whole_groups() -> None:
    def main(rank: Rank) -> None:
        rows = X[:, :64].copy()
        with make(rank, hidden=64) as buffer:
            refused(lambda: buffer.low_latency_dispatch(rows, IDX), ArgumentError, r"hidden is 64.*use_fp8=False")

    spawn(main, 1, "emulator")


def test_no_mode_and_closed() -> None:
    def main(rank: Rank) -> None:
        with Buffer(rank, **SHAPE) as other:
            none = "has no low-latency mode: make it with num_max_dispatch_tokens"
            refused(lambda: other.low_latency_dispatch(X, IDX), ArgumentError, none)
        with make(rank) as buffer:
            sent = buffer.low_latency_dispatch(X, IDX, return_recv_hook=True)
            sent.hook()
        refused(lambda: buffer.low_latency_dispatch(X, IDX), BufferClosedError, "")

    spawn(main, 1, "emulator")


def test_hooks_in_order_and_not_too_many() -> None:
    def main(rank: Rank) -> None:
        with make(rank) as buffer:
            first = buffer.low_latency_dispatch(X, IDX, False, return_recv_hook=True)
            second = buffer.low_latency_dispatch(X, IDX, False, return_recv_hook=True)
            dispatch, combine = buffer.low_latency_dispatch, buffer.low_latency_combine
            y = buffer.get_next_low_latency_combine_buffer(first.handle)
            received = "have not been received: call its hook first"
            refused(lambda: dispatch(X, IDX, return_recv_hook=True), HandleError, "2 low_latency_dispatches wait for")
            refused(second.hook, HandleError, "an earlier low_latency_dispatch waits for its hook")
            refused(lambda: combine(y, IDX, W, first.handle), HandleError, received)
            first.hook()
            refused(first.hook, HandleError, "this hook of a low_latency_dispatch was called before")
            refused(lambda: dispatch(X, IDX), HandleError, "1 low_latency_dispatch before this one did not receive yet")
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
            me, other = rank.rank, 1 - rank.rank
            bad = [*((wrong, True, "there is no rank") for wrong in (2, -1, True, 1.0))]
            bad += [(me, True, f"rank {me} cannot mask itself"), (other, "False", "mask is 'False'; it must be True")]
            for *given, says in bad:
                refused(lambda given=given: buffer.low_latency_update_mask_buffer(*given), ArgumentError, says)
            buffer.low_latency_update_mask_buffer(other, True)
            assert buffer.low_latency_query_mask_buffer()[other] == 1
            buffer.low_latency_update_mask_buffer(other)  # False is the default, as in DeepEP
            assert buffer.low_latency_query_mask_buffer().tolist() == [0, 0]

    spawn(main, 2, "emulator")
