"""Notebook 08: rows, packets and rounds between two ranks, a batch among four, and pictures of what was measured."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ep_lib import reference, viz
from ep_lib.errors import ArgumentError, EpError
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn
from ep_lib.workshop.notebook import find

BF16, FP8 = np.dtype(ml_dtypes.bfloat16), reference.FP8
TOKENS, HIDDEN = 5, 640  # of the rows between two ranks
WORDS, ROUNDS, EXCHANGED = 8, 6, 40  # of the packets, and of the words in an inbox
RANKS, EXPERTS, TOP_K, BATCH, WIDTH = 4, 16, 4, 12, 256  # of the batch
PER_RANK = EXPERTS // RANKS
ROW_BYTES = WIDTH + WIDTH // 32  # in FP8, with its scales

_SLOT_VECTORS = 2 * HIDDEN // 16  # room for a bfloat16 row
_KERNELS = "tutorial_kernels/08_fp8_and_low_latency.cu"
_WORDS_OF = np.random.default_rng(3).integers(1, 1 << 62, (2, ROUNDS, WORDS), dtype=np.uint64)
_EXCHANGED = np.random.default_rng(4).integers(1, 1 << 62, (2, ROUNDS, EXCHANGED), dtype=np.uint64)
_TOKENS_DRAWN = 4096

Row = Mapping[str, Any]  # of a report of benchmarks/gpu.sh


def _kernel(name: str) -> Kernel:
    return Kernel.from_file(find(_KERNELS), name)


def on_device(rank: Rank, x: NDArray[Any]) -> Any:
    """bfloat16 for kernels: two bytes per number."""
    return rank.to_device(np.ascontiguousarray(x).view(np.uint16))


def rows_to_others(ranks: int, tokens: int, once_a: str, experts: int = 256, top_k: int = 8) -> float:
    """Rows that leave a rank if they go once per "expert" or once per "rank": the average over random routing."""
    rng = np.random.default_rng(8)
    chosen = np.argsort(rng.random((_TOKENS_DRAWN, experts)), axis=1)[:, :top_k] // (experts // ranks)
    if once_a == "expert":
        sent = (chosen != 0).sum()
    else:
        sent = sum((chosen == rank).any(axis=1).sum() for rank in range(1, ranks))
    return float(sent) / _TOKENS_DRAWN * tokens


# ---- rows between two ranks ------------------------------------------------------------------------------------------
def rows(outlier: float | None = None) -> NDArray[Any]:
    """bfloat16 [2 ranks, TOKENS, HIDDEN]; with ``outlier`` as one number of the first group of every row."""
    drawn = np.random.default_rng(1).standard_normal((2, TOKENS, HIDDEN)).astype(BF16)
    if outlier is not None:
        drawn[:, :, 77] = outlier
    return drawn


def to_the_peer(rank: Rank, send: Kernel, receive: Kernel, data: NDArray[Any], *scale: float) -> Any:
    """Every rank sends its rows to the other one; returns the received rows as float32."""
    peer, shape = 1 - rank.rank, data.shape[1:]
    slots = rank.symmetric((TOKENS, _SLOT_VECTORS * 16), np.uint8)
    flags, out = rank.symmetric(TOKENS, np.uint64), rank.to_device(np.zeros(shape, np.float32))
    x = on_device(rank, data[rank.rank])
    send.launch(rank, 1, 32, slots, _SLOT_VECTORS, flags, x, *shape, *scale, peer)
    receive.launch(rank, 1, 32, slots, _SLOT_VECTORS, flags, out, *shape, peer)
    return rank.to_host(out)


def spoilt(arrived: NDArray[Any], sent: NDArray[Any]) -> str:
    """The groups without an outlier, after the exchange."""
    got, wanted = arrived[:, 128:], sent[:, 128:]
    error = np.sqrt(((got - wanted) ** 2).mean() / (wanted**2).mean())
    return f"the groups without outlier are {error:5.1%} off, {(got == 0).mean():.1%} of their numbers became zero"


def error_of_the_others(outlier: float, group: int) -> float:
    """Error of the 1023 other numbers of a row, as a share of their size, with a scale for each ``group`` numbers."""
    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    x[:, 300] = outlier
    groups = x.reshape(64, -1, group)
    scale = abs(groups).max(axis=-1, keepdims=True) / 448
    back = ((groups / scale).astype(FP8).astype(np.float32) * scale).reshape(x.shape)
    others = np.arange(1024) != 300
    return float(abs(back - x)[:, others].sum() / abs(x[:, others]).sum())


def e4m3_picture() -> Any:
    """All numbers of E4M3 that are not negative, and how far apart they lie."""
    numbers = np.arange(0x7F, dtype=np.uint8).view(FP8).astype(np.float32)  # 0x7f is NaN; there is no infinity
    picture = viz.new_picture(6.7, 3.2)
    axes = picture.add_subplot()
    axes.plot(numbers[1:-1], np.diff(numbers)[1:] / numbers[1:-1] * 100, ".", color=viz.rank_color(0))
    axes.set(xscale="log", yscale="log", xlabel="E4M3 number", ylabel="distance to the next one, %")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks([7, 12, 25, 50, 100], ["7", "12", "25", "50", "100"])
    axes.minorticks_off()
    axes.axvspan(numbers[1], 2.0**-6, color="#F2F2F2")
    axes.text(0.02, 60, "grey: subnormal numbers, ever coarser", fontsize=9)
    axes.text(0.3, 17, "7 to 12 %, so at most 6 % off after rounding", fontsize=9)
    title = f"{numbers.size - 1} numbers from {numbers[1]:.3f} to {numbers[-1]:.0f}"
    axes.set_title(title, loc="left", fontsize=11)
    picture.describe(f"E4M3: {title}; from 0.016 on each is 7 to 12 % from the next one, below ever more.")
    return picture


def outlier_picture(sizes: NDArray[Any], curves: Mapping[str, Sequence[float]]) -> Any:
    picture = viz.new_picture(6.7, 3.4)
    axes = picture.add_subplot()
    for number, (name, errors) in enumerate(curves.items()):
        axes.plot(sizes, np.array(errors) * 100, "os"[number] + "-", color=viz.rank_color(number), label=name)
    axes.set(xscale="log", ylim=(0, 105), xlabel="the outlier, times a typical number", ylabel="error of the others, %")
    axes.set_xticks(sizes[::2], [f"{size:,.0f}" for size in sizes[::2]])
    axes.minorticks_off()
    title = "What one outlier does to the 1023 other numbers of its row"
    axes.set_title(title, loc="left", fontsize=11)
    told = (f"{name}: error of {100 * e[0]:.1f} to {100 * e[-1]:.0f} %" for name, e in curves.items())
    picture.describe(f"{title}: {'; '.join(told)}.")
    axes.legend(frameon=False)
    return picture


# ---- packets and rounds ----------------------------------------------------------------------------------------------
def ping_pong(rank: Rank, program: Kernel) -> Any:
    """Whether each word of each round is right."""
    peer = 1 - rank.rank
    inbox = rank.symmetric((WORDS, 2), np.uint64)  # [data, tag] each
    memory = (inbox, rank.symmetric(1, np.uint64)) if "flag" in program.name else (inbox,)
    source, out = rank.to_device(_WORDS_OF[rank.rank]), rank.to_device(np.zeros((ROUNDS, WORDS), np.uint64))
    program.launch(rank, 1, 32, *memory, source, out, WORDS, ROUNDS, peer)
    return rank.to_host(out) == _WORDS_OF[peer]


def exchange(rank: Rank, buffers: int) -> Any:
    """Rounds through so many inboxes; returns whether each word of each round is right."""
    peer = 1 - rank.rank
    inbox, flag = rank.symmetric((buffers, EXCHANGED), np.uint64), rank.symmetric(1, np.uint64)
    source, out = rank.to_device(_EXCHANGED[rank.rank]), rank.to_device(np.zeros((ROUNDS, EXCHANGED), np.uint64))
    _kernel("exchange_rounds").launch(rank, 1, 32, inbox, buffers, flag, source, out, EXCHANGED, ROUNDS, peer)
    return rank.to_host(out) == _EXCHANGED[peer]


def outcomes(seeds: Iterable[int], main: Callable[..., Any], *args: object) -> Counter[str]:
    """How often a program of two ranks goes right, wrong, or not to its end."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            results = spawn(main, 2, "emulator", seed=seed, args=args)
        except EpError as error:
            happened[type(error).__name__] += 1
            continue
        happened["right" if all(result.all() for result in results) else "wrong data"] += 1
    return happened


# ---- a batch among four ranks ----------------------------------------------------------------------------------------
@functools.cache
def batch() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """x (bfloat16 [RANKS, BATCH, WIDTH]), topk_idx (int32 [RANKS, BATCH, TOP_K]) and weights (float32, the same)."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((RANKS, BATCH, WIDTH)).astype(BF16)
    idx = np.argsort(rng.random((RANKS, BATCH, EXPERTS)), axis=2)[:, :, :TOP_K].astype(np.int32)
    return x, idx, rng.random((RANKS, BATCH, TOP_K)).astype(np.float32)


def _batch_of(rank: Rank) -> bytes:
    """struct Batch of the kernels: three symmetric arrays, and four numbers."""
    slot_bytes = -(-ROW_BYTES // 16) * 16
    places = PER_RANK * RANKS * BATCH
    arrays = (
        rank.symmetric((places, slot_bytes), np.uint8),
        rank.symmetric(places, np.uint64),
        rank.symmetric((RANKS * BATCH, 2), np.uint64),
    )
    addresses = [rank.peer_address(array, rank.rank) for array in arrays]
    return np.array(addresses, np.uint64).tobytes() + np.array([BATCH, TOP_K, PER_RANK, WIDTH], np.int32).tobytes()


def dispatch(rank: Rank, send: Kernel, receive: Kernel) -> tuple[Any, Any]:
    """The rows that arrived at this rank's experts (float32 [PER_RANK, RANKS, BATCH, WIDTH]), and the rows sent to each
    rank."""
    (x, idx, _), me = batch(), rank.rank
    described = _batch_of(rank)
    sent = rank.to_device(np.zeros(RANKS, np.int32))
    out = rank.to_device(np.zeros((PER_RANK, RANKS, BATCH, WIDTH), np.float32))
    send.launch(rank, 1, 32, described, on_device(rank, x[me]), rank.to_device(idx[me]), sent)
    receive.launch(rank, 1, 32, described, out)
    arrived, counts = rank.to_host(out), rank.to_host(sent)
    rank.barrier()  # so that no rank frees memory that others still write
    return arrived, counts


def _back_from_fp8(x: NDArray[Any]) -> NDArray[Any]:
    return reference.dequantize_fp8(*reference.quantize_fp8(x))


def expected(rank: int) -> NDArray[np.float32]:
    """The expected rows at this rank's experts."""
    x, idx, _ = batch()
    want = np.zeros((PER_RANK, RANKS, BATCH, WIDTH), np.float32)
    for source in range(RANKS):
        arrived = _back_from_fp8(x[source])
        for expert in range(PER_RANK):
            chosen = (idx[source] == rank * PER_RANK + expert).any(axis=1)
            want[expert, source, chosen] = arrived[chosen]
    return want


def there_and_back(rank: Rank) -> Any:
    """Dispatch, experts (those of rank r multiply by r + 1) and combine: float32 [BATCH, WIDTH]."""
    (x, idx, weights), me = batch(), rank.rank
    described = _batch_of(rank)
    sums, flags = rank.symmetric((RANKS, BATCH, WIDTH), np.float32), rank.symmetric((RANKS, BATCH), np.uint64)
    packets = rank.symmetric((RANKS, BATCH, TOP_K, 2), np.uint64)
    out = rank.to_device(np.zeros((PER_RANK, RANKS, BATCH, WIDTH), np.float32))
    rows_in, chosen, w = on_device(rank, x[me]), rank.to_device(idx[me]), rank.to_device(weights[me])
    result, sent = (
        rank.to_device(np.zeros(shape, kind)) for shape, kind in (((BATCH, WIDTH), np.float32), (RANKS, np.int32))
    )
    _kernel("dispatch_to_ranks").launch(rank, 1, 32, described, rows_in, chosen, sent)
    _kernel("receive_and_scatter").launch(rank, 1, 32, described, out)
    rank.synchronize()
    y = out * np.float32(1 + me)
    _kernel("combine_sums").launch(rank, 1, 32, described, y, packets, sums, flags, chosen, w, result)
    combined = rank.to_host(result)
    rank.barrier()
    return combined


def wanted() -> NDArray[Any]:
    """The expected result, as one sum over all experts: [RANKS, BATCH, WIDTH]."""
    x, idx, weights = batch()
    factors = (weights * (1 + idx // PER_RANK)).sum(axis=2)
    back: NDArray[Any] = factors[..., None] * np.array([_back_from_fp8(each) for each in x])
    return back


# ---- the same by ep_lib.Buffer ---------------------------------------------------------------------------------------
def _to_library(rank: Rank, x: NDArray[Any]) -> Any:
    """Converts for the library: NumPy has bfloat16 through ml_dtypes; CuPy on GPUs lacks it, and gets the bits."""
    return x if rank.backend == "emulator" else rank.to_device(x.view(np.uint16))


def on_rank(rank: Rank) -> tuple[Any, Any, Any]:
    """A rank's part of the batch, on its device: x, topk_idx, weights."""
    x, idx, weights = (each[rank.rank] for each in batch())
    return _to_library(rank, x), rank.to_device(idx), rank.to_device(weights)


def experts(rank: Rank, received: tuple[Any, Any], counts: Any) -> Any:
    """The results of a rank's experts for the FP8 rows and scales: each row times (1 + rank), in bfloat16."""
    numbers, scales = rank.to_host(received[0]).copy().view(FP8), rank.to_host(received[1]).copy()
    behind = np.arange(numbers.shape[1]) >= rank.to_host(counts)[:, None]
    numbers[behind], scales[behind] = 0, 0  # behind the count, rows mean nothing
    rows_ = numbers.astype(np.float32) * np.repeat(scales, 128, axis=-1)
    return _to_library(rank, (rows_ * (1 + rank.rank)).astype(BF16))


def as_float32(rank: Rank, out: Any) -> NDArray[Any]:
    """Combine's result, on the host."""
    back: NDArray[Any] = rank.to_host(out).copy().view(BF16).astype(np.float32)
    return back


# ---- measurements ----------------------------------------------------------------------------------------------------
def link_gb_s(report: Iterable[Row]) -> float:
    """The bandwidth of bare stores when all GPUs send at once: the ceiling of the pictures."""
    return max(float(row["wire_gb_s"]) for row in report if (row["group"], row["what"]) == ("ceiling", "stores"))


def measured_us(report: Sequence[Row], what: str, dtype: str, note: str, tokens: int) -> float:
    """The time of low-latency mode in the report, on as many SMs as it likes, in microseconds. ``note``: "graph",
    "launch" or "graph, two launches" (with a hook)."""
    asked = {"group": "low latency", "what": what, "note": note, "dtype": dtype, "tokens": tokens, "sms": None}
    return float(next(row["us"] for row in report if all(row.get(name) == value for name, value in asked.items())))


def picture_of(draw: Callable[..., Any], report: Sequence[Row], **options: Any) -> Any:
    """The picture, or a line that names the numbers that the report lacks."""
    try:
        return draw(report, **options)
    except ArgumentError as error:
        print("not measured:", error)
        return None
