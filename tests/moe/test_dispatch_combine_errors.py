"""Bad input to Buffer: refused before any kernel runs, with a message that helps, and nothing is lost."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support import Spmd
from support.bad_input import (
    IDX,
    SHAPE,
    W,
    X,
    bad_buffers,
    bad_dispatches,
    changed,
    check_good,
    disagree,
    one_rank_stays_away,
    one_rank_tries_again,
    use_after_close,
)
from support.dispatch_combine_cases import BF16, to_input
from support.refusals import refused

from ep_lib import Rank, spawn
from ep_lib.errors import (
    ArgumentError,
    DeadlockError,
    HandleError,
    OutOfSymmetricMemory,
    PeerTimeout,
    RankMismatchError,
)
from ep_lib.moe import Buffer


def test_bad_dispatches_are_refused_and_the_buffer_works_on(spmd: Spmd) -> None:
    spmd(bad_dispatches, 2)


def bad_layouts(rank: Rank) -> None:
    """Strides, kinds of object and devices."""
    with Buffer(rank, **SHAPE) as buffer:
        x, idx = to_input(rank, X), to_input(rank, IDX)
        wide, by_column = to_input(rank, np.tile(X, (1, 2))), to_input(rank, IDX.T.copy()).T
        strides = r"x is not contiguous: shape \(3, 16\), strides \(64, 4\)"
        refused(lambda: buffer.dispatch(wide[:, ::2], idx), ArgumentError, strides)
        refused(lambda: buffer.dispatch(x, by_column), ArgumentError, "topk_idx is not contiguous")
        refused(lambda: buffer.dispatch(X.tolist(), idx), ArgumentError, "must be a NumPy")
        refused(lambda: buffer.dispatch(x, None), ArgumentError, "needs topk_idx")
        if rank.backend == "cuda":
            refused(lambda: buffer.dispatch(X.copy(), idx), ArgumentError, "x has dtype bfloat16|x is on cpu")
            on_cpu = "topk_idx is on cpu; this rank's kernels run on cuda:"
            refused(lambda: buffer.dispatch(x, IDX), ArgumentError, on_cpu)
        check_good(buffer, rank, "after bad layouts")


def test_strides_objects_and_devices_are_refused(spmd: Spmd) -> None:
    spmd(bad_layouts, 2)


def test_an_address_that_vectors_cannot_read_is_refused() -> None:
    def main(rank: Rank) -> None:
        with Buffer(rank, **SHAPE) as buffer:
            odd = np.zeros(X.nbytes + 32, np.uint8)[8:]  # NumPy's own memory begins at a multiple of 16
            x = odd[: X.nbytes].view(BF16).reshape(X.shape)
            refused(lambda: buffer.dispatch(x, IDX), ArgumentError, "not a multiple of 16 bytes")

    spawn(main, 1, "emulator")


def bad_handles(rank: Rank) -> None:
    x, idx, w = (to_input(rank, a) for a in (X, IDX, W))
    with Buffer(rank, **SHAPE) as buffer, Buffer(rank, **SHAPE) as other:
        recv = check_good(buffer, rank, "at first")
        handle, foreign = recv.handle, check_good(other, rank, "the other one").handle
        nan, floats = to_input(rank, changed(W, np.nan)), to_input(rank, np.zeros((1, 16), np.float32))
        elsewhere, other_ids = "belongs to another Buffer", "topk_idx differs from that of the handle"
        refused(lambda: buffer.combine(recv.x, foreign), HandleError, elsewhere)
        refused(lambda: buffer.dispatch(x, handle=foreign), HandleError, elsewhere)
        refused(lambda: buffer.combine(recv.x, None), HandleError, "handle is a NoneType; it must be recv.handle")
        refused(lambda: buffer.combine(recv.x[:1], handle), HandleError, "x has 1 rows; this handle's .* received [34]")
        refused(lambda: buffer.dispatch(x[:2], handle=handle), HandleError, "x has 2 rows; this handle's .* sent 3")
        refused(lambda: buffer.dispatch(x, idx[::-1].copy(), handle=handle), HandleError, other_ids)
        refused(lambda: buffer.combine(recv.x, handle, w[:1]), ArgumentError, r"topk_weights has shape \(1, 2\)")
        if rank.backend == "emulator":  # a GPU would have to be waited for
            refused(lambda: buffer.combine(recv.x, handle, nan), ArgumentError, r"topk_weights\[1, 0\] is nan")
        refused(lambda: buffer.combine(floats, handle), ArgumentError, "x has dtype float32")
        buffer.dispatch(x, idx, w, handle=handle)  # the same experts are fine
        check_good(buffer, rank, "at last")


def test_handles_and_rows_that_do_not_fit(spmd: Spmd) -> None:
    spmd(bad_handles, 2)


def test_one_rank_is_refused_and_tries_again(spmd: Spmd) -> None:
    spmd(one_rank_tries_again, 2)


def test_ranks_that_disagree_about_an_operation(spmd: Spmd) -> None:
    spmd(disagree, 2)


def impossible_buffers(rank: Rank) -> None:
    bad_buffers(
        rank,
        SHAPE,
        [
            ({"num_experts": 5}, "num_experts is 5, which the 2 ranks do not divide.*use 4 or 6"),
            ({"num_experts": 1, "top_k": 1}, "num_experts is 1, .* use 2 experts"),
            ({"num_experts": 2**15}, "16384 on each rank, the most is 8192"),
            ({"hidden": 12}, "hidden is 12: a row of 24 bytes .* multiple of 8 elements, .* 16"),
            ({"hidden": 0}, "hidden is 0; it must be at least 1"),
            ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
            ({"max_tokens": 2.5}, "max_tokens is 2.5; it must be a whole number"),
            ({"max_tokens": True}, "max_tokens is True; it must be a whole number, at least 1"),
            ({"top_k": 0}, "top_k is 0; it must be at least 1"),
            ({"top_k": 5}, "top_k is 5, but there are only 4 experts"),
            ({"num_experts": -4}, "num_experts is -4; it must be at least 1"),
            ({"dtype": "float16"}, "dtype is 'float16'; a Buffer carries 'bfloat16' or 'float32'"),
            ({"num_sms": 0}, "num_sms is 0"),
            ({"max_tokens": 2**29}, r"must be below 2\*\*31: lower max_tokens"),
        ],
    )
    mine = {"hidden": 32, "max_tokens": 4} if rank.rank == 1 else {}
    differ = "hidden is 16 on rank 0 but 32 on rank 1; max_tokens is 3 on rank 0 but 4 on rank 1"
    refused(lambda: Buffer(rank, **(SHAPE | mine)), RankMismatchError, differ)
    with Buffer(rank, **SHAPE) as buffer:
        check_good(buffer, rank, "after all")


def test_impossible_buffers_are_refused(spmd: Spmd) -> None:
    spmd(impossible_buffers, 2)


def too_little_memory(rank: Rank) -> None:
    shape = SHAPE | {"max_tokens": 100_000}
    with pytest.raises(OutOfSymmetricMemory) as caught:
        Buffer(rank, **shape)
    error = caught.value
    need = Buffer.symmetric_bytes(rank.world_size, **shape)
    assert need <= error.requested < need + 4096 and error.short_by == error.requested - error.available > 0
    assert f"{error.short_by} bytes are missing" in str(error)
    fits = re.search(r"Lower max_tokens \(max_tokens=(\d+) would fit\)", str(error))
    assert fits is not None
    with pytest.raises(OutOfSymmetricMemory):
        Buffer(rank, **(SHAPE | {"max_tokens": int(fits[1]) + 8}))
    with Buffer(rank, **(SHAPE | {"max_tokens": int(fits[1])})) as buffer:
        check_good(buffer, rank, "the largest that fits")
    for _ in range(5):  # closing gives everything back
        with Buffer(rank, **(SHAPE | {"max_tokens": int(fits[1])})):
            pass


def test_a_heap_that_is_too_small_says_by_how_much(spmd: Spmd) -> None:
    spmd(too_little_memory, 2, heap_bytes=2 << 20)


def test_a_closed_buffer(spmd: Spmd) -> None:
    spmd(use_after_close, 2)


def test_a_rank_that_does_not_come_is_named() -> None:
    assert spawn(one_rank_stays_away, 2, "emulator") == ["away", "noticed"]


def test_a_dispatch_that_meets_a_combine_ends() -> None:
    """The ranks wait for different signals: an error that names the other rank, not wrong data."""

    def main(rank: Rank) -> None:
        buffer = Buffer(rank, **SHAPE)
        recv = check_good(buffer, rank, "at first")
        if rank.rank == 0:
            buffer.dispatch(X, IDX)
        else:
            buffer.combine(recv.x, recv.handle)

    with pytest.raises((PeerTimeout, DeadlockError, RankMismatchError)):
        spawn(main, 2, "emulator")


def test_symmetric_bytes_is_what_a_buffer_takes() -> None:
    bf16 = Buffer.symmetric_bytes(8, num_experts=64, top_k=8, hidden=7168, max_tokens=128)
    rows = 8 * 128 * (2 * 7168 * 2 + 7168 // 128 * 4 + 8 * 8 + 8)  # arrive here, come back here; scales, top-k, source
    assert rows <= bf16 < rows + 32768
    assert Buffer.symmetric_bytes(1, num_experts=1, top_k=1, hidden=4, max_tokens=1, dtype="float32") < 2048
    with pytest.raises(ArgumentError, match="do not divide"):
        Buffer.symmetric_bytes(3, num_experts=64, top_k=8, hidden=7168, max_tokens=128)
