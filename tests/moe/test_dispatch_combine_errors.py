"""Bad input to Buffer: refused before any kernel runs, with a message that helps, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.bad_input import (
    BAD_DISPATCH,
    IDX,
    SHAPE,
    W,
    X,
    bad_dispatches,
    changed,
    check_good,
    check_refused,
    disagree,
    one_rank_stays_away,
    one_rank_tries_again,
    refused,
    use_after_close,
)
from support.dispatch_combine_cases import BF16, to_input

from ep_lib import Rank, spawn
from ep_lib.errors import ArgumentError, DeadlockError, OutOfSymmetricMemory, PeerTimeout, RankMismatchError
from ep_lib.moe import Buffer

Spmd = Callable[..., list[Any]]


def test_bad_dispatches_are_refused_and_the_buffer_works_on(spmd: Spmd) -> None:
    check_refused(BAD_DISPATCH, spmd(bad_dispatches, 2))


def bad_layouts(rank: Rank) -> list[tuple[str, str]]:
    """Strides, kinds of object and devices."""
    with Buffer(rank, **SHAPE) as buffer:
        x, idx = to_input(rank, X), to_input(rank, IDX)
        wide = to_input(rank, np.tile(X, (1, 2)))
        found = [
            refused(lambda: buffer.dispatch(wide[:, ::2], idx)),
            refused(lambda: buffer.dispatch(x, to_input(rank, IDX.T.copy()).T)),
            refused(lambda: buffer.dispatch(X.tolist(), idx)),
            refused(lambda: buffer.dispatch(x, None)),
        ]
        if rank.backend == "cuda":
            found.append(refused(lambda: buffer.dispatch(X.copy(), idx)))
            found.append(refused(lambda: buffer.dispatch(x, IDX)))
        check_good(buffer, rank, "after bad layouts")
    return found


def test_strides_objects_and_devices_are_refused(spmd: Spmd, backend: str) -> None:
    patterns = [
        r"x is not contiguous: shape \(3, 16\), strides \(64, 4\)",
        "topk_idx is not contiguous",
        "must be a NumPy",
    ]
    patterns += ["needs topk_idx"]
    if backend == "cuda":
        patterns += [r"x has dtype bfloat16|x is on cpu", "topk_idx is on cpu; this rank's kernels run on cuda:"]
    for found in spmd(bad_layouts, 2):
        for (kind, message), pattern in zip(found, patterns, strict=True):
            assert kind == "ArgumentError" and re.search(pattern, message), f"{kind}: {message}"


def test_an_address_that_vectors_cannot_read_is_refused() -> None:
    def main(rank: Rank) -> tuple[str, str]:
        with Buffer(rank, **SHAPE) as buffer:
            odd = np.zeros(X.nbytes + 32, np.uint8)[8:]  # NumPy's own memory begins at a multiple of 16
            return refused(lambda: buffer.dispatch(odd[: X.nbytes].view(BF16).reshape(X.shape), IDX))

    ((kind, message),) = spawn(main, 1, "emulator")
    assert kind == "ArgumentError" and "not a multiple of 16 bytes" in message


def bad_handles(rank: Rank) -> dict[str, tuple[str, str]]:
    x, idx, w = (to_input(rank, a) for a in (X, IDX, W))
    with Buffer(rank, **SHAPE) as buffer, Buffer(rank, **SHAPE) as other:
        recv = check_good(buffer, rank, "at first")
        foreign = check_good(other, rank, "the other one").handle
        found = {
            "combine, other buffer": refused(lambda: buffer.combine(recv.x, foreign)),
            "dispatch, other buffer": refused(lambda: buffer.dispatch(x, handle=foreign)),
            "no handle": refused(lambda: buffer.combine(recv.x, None)),
            "rows of y": refused(lambda: buffer.combine(recv.x[:1], recv.handle)),
            "rows of x": refused(lambda: buffer.dispatch(x[:2], handle=recv.handle)),
            "other experts": refused(lambda: buffer.dispatch(x, idx[::-1].copy(), handle=recv.handle)),
            "weights of combine": refused(lambda: buffer.combine(recv.x, recv.handle, w[:1])),
            "NaN in combine": refused(lambda: buffer.combine(recv.x, recv.handle, to_input(rank, changed(W, np.nan))))
            if rank.backend == "emulator"  # a GPU would have to be waited for
            else ("ArgumentError", "topk_weights[1, 0] is nan"),
            "y's dtype": refused(lambda: buffer.combine(to_input(rank, np.zeros((1, 16), np.float32)), recv.handle)),
        }
        buffer.dispatch(x, idx, w, handle=recv.handle)  # the same experts are fine
        check_good(buffer, rank, "at last")
    return found


def test_handles_and_rows_that_do_not_fit(spmd: Spmd) -> None:
    patterns = {
        "combine, other buffer": "HandleError.*belongs to another Buffer",
        "dispatch, other buffer": "HandleError.*belongs to another Buffer",
        "no handle": "HandleError.*handle is a NoneType; it must be recv.handle",
        "rows of y": r"HandleError.*x has 1 rows; this handle's dispatch received [34]",
        "rows of x": "HandleError.*x has 2 rows; this handle's dispatch sent 3",
        "other experts": "HandleError.*topk_idx differs from that of the handle",
        "weights of combine": r"ArgumentError.*topk_weights has shape \(1, 2\)",
        "NaN in combine": r"ArgumentError.*topk_weights\[1, 0\] is nan",
        "y's dtype": "ArgumentError.*x has dtype float32",
    }
    for found in spmd(bad_handles, 2):
        for name, pattern in patterns.items():
            assert re.search(pattern, ": ".join(found[name])), f"{name}: {found[name]}"


def test_one_rank_is_refused_and_tries_again(spmd: Spmd) -> None:
    spmd(one_rank_tries_again, 2)


def test_ranks_that_disagree_about_an_operation(spmd: Spmd) -> None:
    for rank, found in enumerate(spmd(disagree, 2)):
        only_one = "rank 1 passed topk_weights to dispatch, rank 0 did not; pass them on all ranks or on none"
        assert found[0] == found[2] == ("RankMismatchError", only_one)  # without and with a handle
        for (kind, message), what in zip(found[1::2], ["dispatch", "combine"], strict=True):
            assert kind == "HandleError" and what in message and f"rank {rank} and rank {1 - rank}" in message


BAD_BUFFERS: dict[str, tuple[dict[str, Any], str]] = {
    "experts not divisible": ({"num_experts": 5}, "num_experts is 5, which the 2 ranks do not divide.*use 4 or 6"),
    "one expert, two ranks": ({"num_experts": 1, "top_k": 1}, "num_experts is 1, .* use 2 experts"),
    "too many experts": ({"num_experts": 2**15}, "16384 on each rank, the most is 8192"),
    "hidden not 16 bytes": ({"hidden": 12}, "hidden is 12: a row of 24 bytes .* multiple of 8 elements, .* 16"),
    "hidden 0": ({"hidden": 0}, "hidden is 0; it must be at least 1"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    "max_tokens 2.5": ({"max_tokens": 2.5}, "max_tokens is 2.5; it must be a whole number"),
    "max_tokens True": ({"max_tokens": True}, "max_tokens is True; it must be a whole number, at least 1"),
    "top_k 0": ({"top_k": 0}, "top_k is 0; it must be at least 1"),
    "top_k too large": ({"top_k": 5}, "top_k is 5, but there are only 4 experts"),
    "negative experts": ({"num_experts": -4}, "num_experts is -4; it must be at least 1"),
    "dtype": ({"dtype": "float16"}, "dtype is 'float16'; a Buffer carries 'bfloat16' or 'float32'"),
    "num_sms": ({"num_sms": 0}, "num_sms is 0"),
    "too large": ({"max_tokens": 2**29}, r"must be below 2\*\*31: lower max_tokens"),
}


def bad_buffers(rank: Rank) -> dict[str, tuple[str, str]]:
    found = {}
    for name, (arguments, _) in BAD_BUFFERS.items():
        found[name] = refused(lambda a=arguments: Buffer(rank, **(SHAPE | a)))
    with Buffer(rank, **SHAPE) as buffer:
        check_good(buffer, rank, "after all")
    return found


def test_bad_buffers_are_refused(spmd: Spmd) -> None:
    check_refused(BAD_BUFFERS, spmd(bad_buffers, 2))


def different_buffers(rank: Rank) -> tuple[str, str]:
    mine = {"hidden": 32, "max_tokens": 4} if rank.rank == 1 else {}
    found = refused(lambda: Buffer(rank, **(SHAPE | mine)))
    with Buffer(rank, **SHAPE) as buffer:
        check_good(buffer, rank, "after a mismatch")
    return found


def test_ranks_that_disagree_about_sizes(spmd: Spmd) -> None:
    for kind, message in spmd(different_buffers, 2):
        assert kind == "RankMismatchError"
        assert "hidden is 16 on rank 0 but 32 on rank 1; max_tokens is 3 on rank 0 but 4 on rank 1" in message


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
