"""08_fp8_and_low_latency.cu: rows to a peer, words there and back, and a small batch to its experts and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ep_lib import reference
from ep_lib.jit.kernel import Kernel
from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, differing, equal_to
from ep_lib.workshop.lessons import packed

RANKS, TOKENS, TOP_K, EXPERTS_PER_RANK, HIDDEN = 2, 8, 2, 2, 1024
WORDS, ROUNDS = 16, 8
_SLOT_BYTES = 2 * HIDDEN  # room for a row of bfloat16; one of FP8 with its scales needs less
_PLACES = EXPERTS_PER_RANK * RANKS * TOKENS
_AT_EXPERTS, _SCATTER = "receive_at_experts", "receive_and_scatter"
_ROWS, _TRIPS, _BATCH, _ROUNDS = "rows to a peer", "there and back", "a batch to its experts", "rounds"


@cache
def _rows_of(rank: int) -> Any:
    """[tokens, hidden] in bfloat16."""
    return np.random.default_rng(rank).standard_normal((TOKENS, HIDDEN)).astype(ml_dtypes.bfloat16)


def _as_fp8(rows: Any) -> Any:
    """The rows after quantisation to FP8 with a scale for each 128 elements, as float32."""
    numbers, scales = reference.quantize_fp8(rows)
    return numbers.astype(np.float32) * np.repeat(scales, 128, axis=1)


# ---- rungs 0 to 2: rows to a peer ------------------------------------------------------------------------------------
def _to_peer(memory: Memory, file: Path, send: str) -> Prepared:
    rank = memory.rank
    peer, vectors = 1 - rank.rank, _SLOT_BYTES // 16
    slots, flags = memory.symmetric(np.zeros((TOKENS, _SLOT_BYTES), np.uint8)), _zeros(memory, TOKENS)
    x, out = memory.own(_rows_of(rank.rank).view(np.uint16)), memory.own(np.zeros((TOKENS, HIDDEN), np.float32))
    scale = [_one_scale()] if send == "send_fp8_one_scale" else []
    receive = "receive_bf16" if send == "send_bf16" else "receive_fp8"

    def launch() -> None:
        sender, receiver = Kernel.from_file(file, send), Kernel.from_file(file, receive)
        sender.launch(rank, 1, 32, slots, vectors, flags, x, TOKENS, HIDDEN, *scale, peer)
        receiver.launch(rank, 1, 32, slots, vectors, flags, out, TOKENS, HIDDEN, peer)

    return Prepared(launch, lambda: rank.to_host(out))


def _one_scale() -> float:
    largest = max(float(abs(_rows_of(rank).astype(np.float32)).max()) for rank in range(RANKS))
    return float(np.float32(largest / reference.FP8_MAX))


def _zeros(memory: Memory, *shape: int) -> Any:
    """Flags."""
    return memory.symmetric(np.zeros(shape, np.uint64))


def _by_one_scale(rank: int) -> Any:
    scale = np.float32(_one_scale())
    return (_rows_of(rank).astype(np.float32) / scale).astype(reference.FP8).astype(np.float32) * scale


_wrong_bf16 = equal_to(lambda rank: _rows_of(1 - rank).astype(np.float32))
_wrong_one_scale = equal_to(lambda rank: _by_one_scale(1 - rank))
_wrong_fp8 = equal_to(lambda rank: _as_fp8(_rows_of(1 - rank)))


# ---- rungs 3 and 7: words there and back, and round after round ------------------------------------------------------
def _words_of(rank: int) -> Any:
    return np.random.default_rng(10 + rank).integers(0, 1 << 62, (ROUNDS, WORDS)).astype(np.uint64)


def _words(
    memory: Memory, file: Path, name: str, inbox_shape: tuple[int, ...], *, flag: bool, before: tuple[int, ...] = ()
) -> Prepared:
    rank = memory.rank
    inbox, flags = _zeros(memory, *inbox_shape), [_zeros(memory, 1)] if flag else []
    source, out = memory.own(_words_of(rank.rank)), memory.own(np.zeros((ROUNDS, WORDS), np.uint64))
    kernel = Kernel.from_file(file, name)
    args = (inbox, *before, *flags, source, out, WORDS, ROUNDS, 1 - rank.rank)
    return Prepared(lambda: kernel.launch(rank, 1, 32, *args), lambda: rank.to_host(out))


_wrong_words = equal_to(lambda rank: _words_of(1 - rank))


# ---- rungs 4 to 6: a batch to its experts ----------------------------------------------------------------------------
@cache
def _experts_of(rank: int) -> Any:
    rng = np.random.default_rng(20 + rank)
    return np.array([rng.permutation(RANKS * EXPERTS_PER_RANK)[:TOP_K] for _ in range(TOKENS)], np.int32)


def _weights_of(rank: int) -> Any:
    return np.random.default_rng(30 + rank).random((TOKENS, TOP_K), np.float32)


def _batch(memory: Memory, file: Path) -> bytes:
    slot = HIDDEN + HIDDEN // 32  # a byte an element, and the scales
    arrays = {
        "slots": memory.symmetric(np.zeros((_PLACES, slot), np.uint8)),
        "flags": _zeros(memory, _PLACES),
        "ids": _zeros(memory, RANKS * TOKENS, 2),
    }
    numbers = {"tokens": TOKENS, "top_k": TOP_K, "experts_per_rank": EXPERTS_PER_RANK, "hidden": HIDDEN}
    return packed(file.with_suffix(".cuh"), "Batch", **arrays, **numbers)


def _dispatched(memory: Memory, file: Path, send: str, receive: str) -> tuple[Callable[[], None], bytes, Any, Any]:
    """The launcher, the batch, its experts, and the array for arriving rows."""
    rank, batch = memory.rank, _batch(memory, file)
    x, idx = memory.own(_rows_of(rank.rank).view(np.uint16)), memory.own(_experts_of(rank.rank))
    sent, out = memory.own(np.zeros(RANKS, np.int32)), memory.own(np.zeros((_PLACES, HIDDEN), np.float32))

    def launch() -> None:
        Kernel.from_file(file, send).launch(rank, 1, 32, batch, x, idx, sent)
        Kernel.from_file(file, receive).launch(rank, 1, 32, batch, out)

    return launch, batch, idx, out


def _to_experts(memory: Memory, file: Path, send: str, *, receive: str) -> Prepared:
    launch, _, _, out = _dispatched(memory, file, send, receive)
    return Prepared(launch, lambda: memory.rank.to_host(out).reshape(EXPERTS_PER_RANK, RANKS, TOKENS, HIDDEN))


def _there_and_back(memory: Memory, file: Path, name: str) -> Prepared:
    """Rung 5, and the way home: experts do nothing, so a token comes back times the sum of its weights."""
    rank, dispatched = memory.rank, _dispatched(memory, file, "dispatch_to_ranks", _SCATTER)
    dispatch, batch, idx, out = dispatched
    packets, flags = _zeros(memory, RANKS, TOKENS, TOP_K, 2), _zeros(memory, RANKS, TOKENS)
    sums = memory.symmetric(np.zeros((RANKS, TOKENS, HIDDEN), np.float32))
    weights, result = memory.own(_weights_of(rank.rank)), memory.own(np.zeros((TOKENS, HIDDEN), np.float32))

    def launch() -> None:
        dispatch()
        args = (out, packets, sums, flags, idx, weights, result)
        Kernel.from_file(file, name).launch(rank, 1, 32, batch, *args)

    return Prepared(launch, lambda: rank.to_host(result))


def _wrong_at_experts(results: Sequence[Any]) -> str:
    expected = [np.zeros((EXPERTS_PER_RANK, RANKS, TOKENS, HIDDEN), np.float32) for _ in range(RANKS)]
    for source in range(RANKS):
        rows = _as_fp8(_rows_of(source))
        for token, experts in enumerate(_experts_of(source)):
            for expert in experts:
                expected[expert // EXPERTS_PER_RANK][expert % EXPERTS_PER_RANK, source, token] = rows[token]
    return differing(results, expected)


def _wrong_sums(results: Sequence[Any]) -> str:
    for rank, got in enumerate(results):
        want = _as_fp8(_rows_of(rank)) * _weights_of(rank).sum(axis=1, keepdims=True)
        if not np.allclose(got, want, rtol=1e-5, atol=1e-6):
            return f"rank {rank}: the largest difference from the oracle is {abs(got - want).max():.2g}"
    return ""


_in_rounds = partial(_words, inbox_shape=(2, WORDS), flag=True, before=(2,))
LADDER = Ladder(
    "08_fp8_and_low_latency.cu",
    f"Rungs 0 to 2: {TOKENS} rows of {HIDDEN} elements to a peer. 3: {WORDS} words there and back, {ROUNDS} times. 4 "
    f"to 6: {TOKENS} tokens to their {TOP_K} experts (6: and home again). 7: {ROUNDS} rounds of {WORDS} words.",
    RANKS,
    (
        Rung(0, "send_bf16", _to_peer, _wrong_bf16, _ROWS),
        Rung(1, "send_fp8_one_scale", _to_peer, _wrong_one_scale, _ROWS),
        Rung(2, "send_fp8", _to_peer, _wrong_fp8, _ROWS),
        Rung(3, "ping_pong_flag", partial(_words, inbox_shape=(WORDS,), flag=True), _wrong_words, _TRIPS),
        Rung(3, "ping_pong_packets", partial(_words, inbox_shape=(WORDS, 2), flag=False), _wrong_words, _TRIPS),
        Rung(4, "dispatch_to_experts", partial(_to_experts, receive=_AT_EXPERTS), _wrong_at_experts, _BATCH),
        Rung(5, "dispatch_to_ranks", partial(_to_experts, receive=_SCATTER), _wrong_at_experts, _BATCH),
        Rung(6, "combine_sums", _there_and_back, _wrong_sums, "there and home"),
        Rung(7, "exchange_rounds", _in_rounds, _wrong_words, _ROUNDS),
    ),
)
