"""The oracle: routing, dispatch and combine of expert parallelism in plain NumPy.

Read this first: it defines the kernels' results, for all ranks at once and with the same order of additions, so that
tests compare bit for bit. It is written for reading, not for speed.

There are ``world_size`` ranks and ``num_experts`` experts; rank ``r`` holds the experts ``r * E .. r * E +
E - 1`` with ``E = num_experts // world_size``. A router chose ``top_k`` experts for each token (-1: not routed).

- :func:`layout` gives the ranks that one rank's tokens go to, and their order.
- :func:`dispatch` moves them: every rank gets one row for each token that chose at least one of its experts.
- (the experts work on their rows)
- :func:`combine` brings the rows back and adds up the results of each token's ranks.

Ranks that are ``masked`` (:meth:`ep_lib.Buffer.mask_ranks`) have no tokens, and choices of their experts are dropped.

Rows of few bits are two or three arrays, numbers and scales (:func:`quantize`): dispatch each of them as ``xs``, with
the same layout.

A plural name is a list over ranks: ``xs[r]`` is ``[tokens of rank r, hidden]``, any float dtype. The algorithm is that
of GShard (Lepikhin et al., 2020); names follow DeepEP (github.com/deepseek-ai/DeepEP).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ep_lib.errors import ArgumentError
from ep_lib.require import flag, instance, refuse, several, whole_number

Array = NDArray[Any]
IntArray = NDArray[np.int32]

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
FP8_MAX = 448.0  # the largest E4M3 number
FP8_GROUP = 128  # elements that share a scale
E8M0_BIAS = 127  # a byte of UE8M0 means 2 ** (byte - 127); 255 is NaN
MXFP8_GROUP = 32
FP4_MAX = 6.0  # the largest E2M1 number
NVFP4_GROUP = 16


# Checks of arguments. They raise ArgumentError, as a Buffer does.


def _world(num_experts: Any, world_size: Any) -> int:
    """The number of experts on each rank."""
    experts, ranks = (
        whole_number("num_experts", num_experts, 1, 1 << 24),
        whole_number("world_size", world_size, 1, 4096),
    )
    if experts % ranks:
        raise ArgumentError(f"num_experts is {experts}, which {ranks} ranks do not divide evenly")
    return experts // ranks


def _by_rank(name: str, value: Any, ranks: int | None = None) -> list[Any]:
    arrays = several(name, value, "a list with an array for each rank")
    if not arrays or len(arrays) != (ranks or len(arrays)):
        raise ArgumentError(f"{name} has {len(arrays)} arrays; it must have one for each of {ranks or 'the'} ranks")
    return arrays


def _table(name: str, value: Any, shape: tuple[int | None, ...], *, ids: int | None = None) -> Array:
    """A NumPy array of this shape (None: any size): of floating-point numbers, or of expert ids below ``ids``."""
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    what = "floating-point numbers" if ids is None else "int32 or int64 ids"
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray) or value.ndim != len(shape):
        refuse(name, value, f"a NumPy array [{sizes}] of {what}")
    if any(want not in (None, size) for want, size in zip(shape, value.shape, strict=True)):
        refuse(name, value, f"of shape [{sizes}]")
    if ids is None:
        is_float = value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat16", "float8"))
        if not is_float or not value.dtype.isnative:
            refuse(name, value, f"an array of {what}")
        return value
    if value.dtype not in (np.int32, np.int64) or not value.dtype.isnative:
        refuse(name, value, f"an array of {what}")
    if bool(((value < -1) | (value >= ids)).any()):
        wrong = value[(value < -1) | (value >= ids)][0]
        raise ArgumentError(f"{name} has {wrong}; ids go from 0 to {ids - 1}, and -1 means none")
    return value


def _choices(
    topk_idxs: Any, topk_weights: Any, num_experts: int, tokens: Sequence[int | None]
) -> tuple[list[Array], list[Array] | None]:
    """Checked ids of each rank's ``tokens``, and weights if there are any."""
    idxs = [
        _table("topk_idxs", idx, (rows, None), ids=num_experts)
        for idx, rows in zip(_by_rank("topk_idxs", topk_idxs, len(tokens)), tokens, strict=True)
    ]
    if topk_weights is None:
        return idxs, None
    weights = _by_rank("topk_weights", topk_weights, len(tokens))
    return idxs, [_table("topk_weights", w, idx.shape) for w, idx in zip(weights, idxs, strict=True)]


@dataclass(frozen=True)
class Layout:
    """The destinations of one rank's tokens. T tokens, R ranks."""

    slot: IntArray  # [T, R]: number of earlier tokens to that rank; -1 if this token does not go there
    tokens_per_rank: IntArray  # [R]: a token counts once per rank, for any number of its experts there
    tokens_per_expert: IntArray  # [num_experts]: every choice counts


@dataclass(frozen=True)
class Received:
    """One rank's result of dispatch: N rows, sorted by source rank, then by token."""

    x: Array  # [N, hidden]
    topk_idx: Array  # [N, top_k]: experts as this rank numbers its own, 0 .. E - 1; -1 for experts elsewhere
    topk_weights: NDArray[np.float32] | None  # [N, top_k]: 0 where topk_idx is -1
    tokens_per_expert: IntArray  # [E]: choices of each of this rank's experts
    src_rank: IntArray  # [N]: the rank that the row comes from
    src_token: IntArray  # [N]: the token's number there


@dataclass(frozen=True)
class LowLatencyReceived:
    """One rank's result of dispatch in low-latency mode: E experts with room for C = ranks * max_tokens rows."""

    x: Array  # [E, C, hidden]; rows from the count on are undefined
    scales: NDArray[np.float32] | None  # [E, C, hidden / 128] of FP8 rows
    counts: IntArray  # [E]
    places: IntArray  # [ranks, max_tokens, top_k]: expert * C + row of each choice of each token; -1: not here


def _require_columns(arrays: Sequence[Array]) -> None:
    if len({array.shape[1] for array in arrays}) > 1:
        raise ArgumentError(f"the ranks' arrays have different numbers of columns: {[a.shape for a in arrays]}")


def _taking_part(
    masked: Any, num_experts: int, idxs: list[Array], xs: Sequence[Array], weights: list[Array] | None
) -> tuple[list[Array], list[Array], list[Array] | None]:
    """The ranks' choices, rows and weights without those of ranks that are ``masked``."""
    out = {whole_number("masked", r, 0, len(idxs) - 1) for r in several("masked", masked, "a list of ranks")}
    lost = [np.isin(idx // (num_experts // len(idxs)), list(out)) for idx in idxs]
    kept = [np.where(gone, -1, idx).astype(idx.dtype) for gone, idx in zip(lost, idxs, strict=True)]

    def present(arrays: Sequence[Array]) -> list[Array]:
        return [array[:0] if r in out else array for r, array in enumerate(arrays)]

    return present(kept), present(xs), None if weights is None else present(weights)


def layout(topk_idx: Array, *, num_experts: int, world_size: int) -> Layout:
    """Counts and prefix sums of ``topk_idx`` ``[T, top_k]`` (global expert ids, -1: not routed)."""
    experts_per_rank = _world(num_experts, world_size)
    _table("topk_idx", topk_idx, (None, None), ids=num_experts)
    goes = np.zeros((len(topk_idx), world_size), dtype=bool)
    tokens_per_expert = np.zeros(num_experts, dtype=np.int32)
    for token, experts in enumerate(topk_idx):
        for expert in experts[experts >= 0]:
            goes[token, expert // experts_per_rank] = True
            tokens_per_expert[expert] += 1
    earlier = np.cumsum(goes, axis=0) - goes  # exclusive prefix sum over the tokens
    return Layout(
        slot=np.where(goes, earlier, -1).astype(np.int32),
        tokens_per_rank=goes.sum(axis=0).astype(np.int32),
        tokens_per_expert=tokens_per_expert,
    )


def dispatch(
    xs: Sequence[Array],
    topk_idxs: Sequence[Array],
    topk_weights: Sequence[Array] | None = None,
    *,
    num_experts: int,
    masked: Collection[int] = (),
) -> list[Received]:
    """Every rank's received rows. ``xs[r]`` is ``[T_r, hidden]``, the other two ``[T_r, top_k]``.

    An expert that a token names twice counts as two choices, but the token still arrives as one row.
    """
    xs = [_table("xs", x, (None, None)) for x in _by_rank("xs", xs)]
    world_size = len(xs)
    experts_per_rank = _world(num_experts, world_size)
    topk_idxs, topk_weights = _choices(topk_idxs, topk_weights, num_experts, [len(x) for x in xs])
    for arrays in (xs, topk_idxs):
        _require_columns(arrays)
    topk_idxs, xs, topk_weights = _taking_part(masked, num_experts, topk_idxs, xs, topk_weights)
    layouts = [layout(idx, num_experts=num_experts, world_size=world_size) for idx in topk_idxs]
    received = []
    for rank in range(world_size):
        # Tokens of each source that come here, in token order: that is the order of the rows.
        tokens = [np.flatnonzero(sent.slot[:, rank] >= 0) for sent in layouts]
        local = np.concatenate([idx[t] for idx, t in zip(topk_idxs, tokens, strict=True)]) - rank * experts_per_rank
        here = (local >= 0) & (local < experts_per_rank)
        weights = None
        if topk_weights is not None:
            theirs = np.concatenate([w[t] for w, t in zip(topk_weights, tokens, strict=True)])
            weights = np.where(here, theirs, 0).astype(np.float32)
        mine = slice(rank * experts_per_rank, (rank + 1) * experts_per_rank)
        received.append(
            Received(
                x=np.concatenate([x[t] for x, t in zip(xs, tokens, strict=True)]),
                topk_idx=np.where(here, local, -1).astype(topk_idxs[rank].dtype),
                topk_weights=weights,
                tokens_per_expert=np.sum([sent.tokens_per_expert[mine] for sent in layouts], axis=0, dtype=np.int32),
                src_rank=np.repeat(np.arange(world_size), [len(t) for t in tokens]).astype(np.int32),
                src_token=np.concatenate(tokens).astype(np.int32),
            )
        )
    return received


def combine(
    ys: Sequence[Array],
    topk_idxs: Sequence[Array],
    topk_weights: Sequence[Array] | None = None,
    *,
    num_experts: int,
    biases: Sequence[Sequence[Array]] | None = None,
    ranks_per_node: int | None = None,
    masked: Collection[int] = (),
    quantize: str | None = None,
    sum_order: str = "ranks",
) -> list[Array]:
    """Every rank's combined tokens ``[T_r, hidden]``, in the dtype of ``ys[r]`` ``[rows received by rank r, hidden]``.

    A token's result is the sum of its rows over the ranks it went to, in ascending order of ranks, starting from zero,
    in float32, rounded once at the end. With weights each row is first multiplied by the token's weight on that rank
    (:func:`weights_per_rank`). A token that went nowhere gets zeros. ``biases[r]``: arrays ``[T_r, hidden]`` that the
    sum begins with.

    ``ranks_per_node``: for hierarchical mode. The rows of another node's ranks are summed there, in the same order, and
    rounded to the dtype of the rows before they are added: an error of at most half a unit in the last place of each of
    these sums, besides the final rounding.

    ``quantize``, "ue8m0": rows from another rank are cast during transfer (:func:`quantize_ue8m0`). That changes an
    element ``y`` of a row by at most ``max(|y| / 16, a / 2**17)``, where ``a`` is the largest magnitude of its 128; a
    token's result by the sum of these, times the weights, besides the final rounding.

    ``sum_order``, "choices": in the order in which the ranks' last ones of a token's choices stand, as DeepEP V2's
    combine_reduce_epilogue.cuh adds them up; not with ``ranks_per_node``.
    """
    if quantize not in (None, "ue8m0"):
        refuse("quantize", quantize, "None or 'ue8m0'")
    if sum_order not in ("ranks", "choices") or (sum_order == "choices" and ranks_per_node is not None):
        refuse("sum_order", sum_order, "'ranks', or 'choices' without ranks_per_node")
    ys = [_table("ys", y, (None, None)) for y in _by_rank("ys", ys)]
    world_size = len(ys)
    _world(num_experts, world_size)
    if ranks_per_node is not None and world_size % whole_number("ranks_per_node", ranks_per_node, 1, world_size):
        raise ArgumentError(f"ranks_per_node is {ranks_per_node}, which is no divisor of the {world_size} ranks")
    topk_idxs, topk_weights = _choices(topk_idxs, topk_weights, num_experts, [None] * world_size)
    topk_idxs, _, topk_weights = _taking_part(masked, num_experts, topk_idxs, topk_idxs, topk_weights)
    _require_columns(ys)
    layouts = [layout(idx, num_experts=num_experts, world_size=world_size) for idx in topk_idxs]
    for rank, y in enumerate(ys):
        _table(f"ys[{rank}]", y, (sum(int(sent.tokens_per_rank[rank]) for sent in layouts), None))
    if biases is not None:
        biases = [several("biases", each, "a list of arrays") for each in _by_rank("biases", biases, world_size)]
        for each, idx, y in zip(biases, topk_idxs, ys, strict=True):
            for bias in each:
                _table("biases", bias, (len(idx), y.shape[1]))
    results = []
    for source, sent in enumerate(layouts):
        total = np.zeros((len(sent.slot), ys[source].shape[1]), dtype=np.float32)
        for bias in () if biases is None else biases[source]:
            total += bias.astype(np.float32)
        weights = None
        if topk_weights is not None:
            weights = weights_per_rank(topk_idxs[source], topk_weights[source], num_experts // world_size, world_size)
        node_size = world_size if ranks_per_node is None else ranks_per_node
        for first_rank in range(0, world_size, node_size):
            is_own = source // node_size == first_rank // node_size
            partial, node_went = (total if is_own else np.zeros_like(total)), np.zeros(len(total), bool)
            turns = [(rank, sent.slot[:, rank] >= 0) for rank in range(first_rank, first_rank + node_size)]
            if sum_order == "choices":
                homes = np.floor_divide(topk_idxs[source], num_experts // world_size)
                last = np.array([np.where(homes == rank, np.arange(homes.shape[1]), -1).max(1) for rank, _ in turns])
                turns = [(rank, went & (last[rank] == k)) for k in range(homes.shape[1]) for rank, went in turns]
            for rank, went in turns:
                # On `rank` the rows of the sources before this one come first.
                first_row = sum(int(other.tokens_per_rank[rank]) for other in layouts[:source])
                rows = ys[rank][first_row + sent.slot[went, rank]]
                if quantize is not None and rank != source:
                    rows = dequantize_ue8m0(*quantize_ue8m0(rows)).astype(rows.dtype)
                rows = rows.astype(np.float32)
                partial[went] += rows if weights is None else weights[went, rank, None] * rows
                node_went |= went
            if not is_own:
                total[node_went] += partial[node_went].astype(ys[source].dtype).astype(np.float32)
        results.append(total.astype(ys[source].dtype))
    return results


def expert_rows(topk_idx: Array, *, experts: int, alignment: int = 1) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Received rows grouped by expert: the row for each position (-1: a row of zeros), and the beginning of each
    expert.

    ``topk_idx`` ``[N, top_k]``: the receiving rank's numbers of its own ``experts``, -1 for experts elsewhere. A row
    appears once for each choice, in the order of rows and of k; each expert's part is padded to a multiple of
    ``alignment``. Returns int32 ``[M]`` and ``[experts + 1]``.
    """
    experts = whole_number("experts", experts, 1, 1 << 20)
    alignment = whole_number("alignment", alignment, 1, (1 << 27) // experts)
    _table("topk_idx", topk_idx, (None, None), ids=experts)
    parts = []
    for expert in range(experts):
        rows = np.nonzero(topk_idx == expert)[0]
        parts.append(np.concatenate([rows, np.full(-len(rows) % alignment, -1)]))
    offsets = np.cumsum([0, *map(len, parts)])
    return np.concatenate([*parts, []]).astype(np.int32), offsets.astype(np.int32)


def reduce_expert_rows(y: Array, topk_idx: Array, *, experts: int, alignment: int = 1) -> Array:
    """The inverse path: ``[N, hidden]``, the sum of the rows of ``y`` ``[M, hidden]`` for each choice of a row, in the
    order of k, in float32, rounded once."""
    row, offsets = expert_rows(topk_idx, experts=experts, alignment=alignment)
    _table("y", y, (len(row), None))
    total = np.zeros((len(topk_idx), y.shape[1]), np.float32)
    for n, choices in enumerate(topk_idx):
        used: dict[int, int] = {}  # per expert, how many of this row's choices are added already
        for expert in choices[choices >= 0].tolist():
            places = offsets[expert] + np.nonzero(row[offsets[expert] : offsets[expert + 1]] == n)[0]
            total[n] += y[places[used.get(expert, 0)]].astype(np.float32)
            used[expert] = used.get(expert, 0) + 1
    return total.astype(y.dtype)


def low_latency_dispatch(
    xs: Sequence[Array],
    topk_idxs: Sequence[Array],
    *,
    num_experts: int,
    max_tokens: int,
    use_fp8: bool,
    masked: Collection[int] = (),
) -> list[LowLatencyReceived]:
    """Every rank's rows in low-latency mode, packed from the front of each expert: sorted by source rank, then token.

    ``xs[r]`` is ``[T_r, hidden]`` bfloat16, T_r up to ``max_tokens``. An expert that a token names twice gets one row.
    """
    xs = [_table("xs", x, (None, None)) for x in _by_rank("xs", xs)]
    world_size = len(xs)
    experts_per_rank = _world(num_experts, world_size)
    topk_idxs, _ = _choices(topk_idxs, None, num_experts, [len(x) for x in xs])
    max_tokens, use_fp8 = whole_number("max_tokens", max_tokens, max(map(len, xs)), 1 << 16), flag("use_fp8", use_fp8)
    for arrays in (xs, topk_idxs):
        _require_columns(arrays)
    topk_idxs, xs, _ = _taking_part(masked, num_experts, topk_idxs, xs, None)
    hidden = xs[0].shape[1]
    sent = [quantize_fp8(x) if use_fp8 else (x, np.zeros((len(x), 0), np.float32)) for x in xs]
    received = []
    for rank in range(world_size):
        capacity = world_size * max_tokens
        rows = np.zeros((experts_per_rank, capacity, hidden), sent[0][0].dtype)
        scales = np.zeros((experts_per_rank, capacity, sent[0][1].shape[1]), np.float32)
        counts = np.zeros(experts_per_rank, np.int32)
        places = np.full((world_size, max_tokens, topk_idxs[rank].shape[1]), -1, np.int32)
        for source, (idx, (x, s)) in enumerate(zip(topk_idxs, sent, strict=True)):
            for token, experts in enumerate(idx):
                for k, expert in enumerate(experts - rank * experts_per_rank):
                    if not 0 <= expert < experts_per_rank:
                        continue
                    first = int(np.flatnonzero(experts == experts[k])[0])  # where this expert is named first
                    if first < k:
                        places[source, token, k] = places[source, token, first]
                        continue
                    row = counts[expert]
                    rows[expert, row], scales[expert, row] = x[token], s[token]
                    places[source, token, k] = expert * capacity + row
                    counts[expert] += 1
        received.append(LowLatencyReceived(rows, scales if use_fp8 else None, counts, places))
    return received


def low_latency_combine(
    ys: Sequence[Array], received: Sequence[LowLatencyReceived], topk_weights: Sequence[Array]
) -> list[Array]:
    """Every rank's combined tokens ``[T_r, hidden]`` bfloat16 in low-latency mode, from the experts' results for
    ``received``: ``ys[r]`` is ``[experts_per_rank, capacity, hidden]`` bfloat16, ``topk_weights[r]`` ``[T_r, top_k]``.

    The rank of the experts adds up weight times row over a token's choices there, in the order of k, starting from
    zero, in float32, rounds the sum to bfloat16, and sends it back. The token's rank adds these up in ascending order
    of ranks, from zero, in float32, and rounds once more. A choice made twice counts with both weights.
    """
    received = _by_rank("received", received)
    for arrived in received:
        instance("received", arrived, LowLatencyReceived, "what low_latency_dispatch returned, for each rank")
    ys = [
        _table("ys", y, (*arrived.x.shape[:2], None))
        for y, arrived in zip(_by_rank("ys", ys, len(received)), received, strict=True)
    ]
    topk_weights = [
        _table("topk_weights", weights, (None, received[0].places.shape[2]))
        for weights in _by_rank("topk_weights", topk_weights, len(received))
    ]
    if max(map(len, topk_weights)) > received[0].places.shape[1]:
        raise ArgumentError(f"topk_weights has more tokens than the {received[0].places.shape[1]} of the dispatch")
    results = []
    for source, weights in enumerate(topk_weights):
        hidden = ys[source].shape[2]
        total = np.zeros((len(weights), hidden), np.float32)
        for y, arrived in zip(ys, received, strict=True):
            rows = y.reshape(-1, hidden)
            for token in range(len(weights)):
                places = arrived.places[source, token]
                if (places < 0).all():
                    continue
                partial = np.zeros(hidden, np.float32)
                for k in np.flatnonzero(places >= 0):
                    partial += weights[token, k] * rows[places[k]].astype(np.float32)
                total[token] += partial.astype(BF16).astype(np.float32)
        results.append(total.astype(BF16))
    return results


def weights_per_rank(
    topk_idx: Array, topk_weights: Array, experts_per_rank: int, world_size: int
) -> NDArray[np.float32]:
    """``[T, R]``: a token's weight on each rank, the float32 sum of its weights there in the order of k."""
    experts_per_rank = whole_number("experts_per_rank", experts_per_rank, 1, 1 << 24)
    world_size = whole_number("world_size", world_size, 1, 4096)
    _table("topk_idx", topk_idx, (None, None), ids=experts_per_rank * world_size)
    _table("topk_weights", topk_weights, topk_idx.shape)
    weights = np.zeros((len(topk_idx), world_size), dtype=np.float32)
    for k in range(topk_idx.shape[1]):
        routed = np.flatnonzero(topk_idx[:, k] >= 0)
        weights[routed, topk_idx[routed, k] // experts_per_rank] += topk_weights[routed, k]
    return weights


# ---- rows of few bits ------------------------------------------------------------------------------------------------
def _groups(x: Any, size: int, what: str) -> Array:
    """``[T, hidden / size, size]`` in float32; elements that are not finite become NaN."""
    tokens, hidden = _table("x", x, (None, None)).shape
    if hidden % size:
        raise ArgumentError(f"hidden is {hidden}; {what} takes a multiple of {size} elements, which share a scale")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        x = x.astype(np.float32)
    groups = x.reshape(tokens, hidden // size, size)
    return np.where(np.isfinite(groups), groups, np.float32(np.nan))


def _largest(groups: Array) -> Array:
    """The largest magnitude in each group, without NaN; 0 if there is none."""
    largest: Array = np.max(np.abs(groups), axis=-1, initial=0, where=~np.isnan(groups))
    return largest


def quantize_fp8(x: Array) -> tuple[Array, NDArray[np.float32]]:
    """``x`` ``[T, hidden]``, any float dtype, as E4M3 ``[T, hidden]`` and float32 scales ``[T, hidden / 128]``.

    Each 128 consecutive elements of a row share the scale ``amax / 448``: their largest magnitude over the largest
    E4M3 number, as in DeepEP and DeepSeek-V3. An element is ``x / scale``, rounded to nearest even. A group of zeros,
    or of numbers too small for a float32 scale (below 5.3e-36), gets the scale 1 and becomes zeros. E4M3 has no
    infinity: infinities and NaN become NaN, and the scale comes from the finite elements of their group, which keep
    their precision. Raises ArgumentError if hidden is not a multiple of 128.
    """
    groups = _groups(x, FP8_GROUP, "FP8")
    scales: Array = _largest(groups) / np.float32(FP8_MAX)
    scales = np.where(scales < np.finfo(np.float32).tiny, np.float32(1), scales)
    return (groups / scales[..., None]).reshape(x.shape).astype(FP8), scales


def dequantize_fp8(q: Array, scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """The inverse of :func:`quantize_fp8`, as float32 ``[T, hidden]``: each element times the scale of its group."""
    _table("q", q, (None, None))
    _table("scales", scales, (len(q), q.shape[1] // FP8_GROUP))
    if q.shape[1] % FP8_GROUP:
        refuse("q", q, f"rows of a multiple of {FP8_GROUP} elements")
    return q.astype(np.float32) * np.repeat(scales, FP8_GROUP, axis=-1)


def quantize_ue8m0(x: Array, group: int = FP8_GROUP) -> tuple[Array, NDArray[np.uint8]]:
    """``x`` ``[T, hidden]``, any float dtype, as E4M3 ``[T, hidden]`` and UE8M0 scales: uint8 ``[T, hidden / group]``.

    A scale is the smallest power of two by which the group's largest magnitude is at most 448, so nothing is clipped:
    byte ``b`` means ``2 ** (b - 127)``, and 0 is the least. An element is ``x / scale``, rounded to nearest even. A
    group of zeros gets the scale 1. Infinities and NaN become NaN and do not count, as in :func:`quantize_fp8`.
    Elements above 3.3e38 may be rounded up beyond float32's range: times the scale they are infinite.

    With groups of 128 these are the scales of DeepGEMM and DeepEP (``use_ue8m0``), with groups of 32 MXFP8
    (:func:`quantize_mxfp8`). The numbers are those of the OCP Microscaling Formats (MX) Specification, version 1.0
    (5.3 has E4M3, 5.4 E8M0). It rounds the scale's exponent down (6.3), which clips; rounding up, as here, is what
    NVIDIA does ("Recipes for Pre-training LLMs with MXFP8", arXiv 2506.08027).
    """
    group = whole_number("group", group, 1, 1 << 16)
    groups = _groups(x, group, "UE8M0")
    largest = _largest(groups)
    fraction, exponent = np.frexp(largest.astype(np.float64) / FP8_MAX)  # fraction * 2 ** exponent, from 0.5 to below 1
    exponent = np.maximum(np.where(fraction == 0.5, exponent - 1, exponent), -E8M0_BIAS)
    exponent = np.where(largest == 0, 0, exponent)
    numbers = np.ldexp(groups.astype(np.float64), -exponent[..., None]).astype(np.float32)
    return numbers.reshape(x.shape).astype(FP8), (exponent + E8M0_BIAS).astype(np.uint8)


def dequantize_ue8m0(q: Array, scales: NDArray[np.uint8], group: int = FP8_GROUP) -> NDArray[np.float32]:
    """The inverse of :func:`quantize_ue8m0`, as float32 ``[T, hidden]``."""
    group = whole_number("group", group, 1, 1 << 16)
    _table("q", q, (None, None))
    _bytes("scales", scales, (len(q), q.shape[1] // group))
    powers = np.where(scales == 255, np.nan, np.exp2(scales.astype(np.float64) - E8M0_BIAS))
    found: NDArray[np.float32] = (q.astype(np.float64) * np.repeat(powers, group, axis=-1)).astype(np.float32)
    return found


def quantize_mxfp8(x: Array) -> tuple[Array, NDArray[np.uint8]]:
    """:func:`quantize_ue8m0` with a scale for each 32 elements."""
    return quantize_ue8m0(x, MXFP8_GROUP)


def dequantize_mxfp8(q: Array, scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The inverse of :func:`quantize_mxfp8`, as float32 ``[T, hidden]``."""
    return dequantize_ue8m0(q, scales, MXFP8_GROUP)


def pack_ue8m0(scales: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Four scales in each int32, the first in the lowest byte, zeros behind the last: ``[T, groups]`` becomes ``[T,
    groups / 4, rounded up]``, as in DeepGEMM and DeepEP."""
    _bytes("scales", scales, (None, None))
    return np.pad(scales, ((0, 0), (0, -scales.shape[1] % 4))).view("<i4").astype(np.int32)


def quantize_nvfp4(x: Array) -> tuple[NDArray[np.uint8], Array, NDArray[np.float32]]:
    """``x`` ``[T, hidden]``, any float dtype, as NVFP4: two E2M1 numbers a byte ``[T, hidden / 2]``, the first in the
    lower half; E4M3 scales ``[T, hidden / 16]``; and a float32 scale ``[T]`` for each row.

    The row's scale is its largest finite magnitude over 6 * 448 (1 if that is below the smallest normal float32). A
    block's scale is its largest finite magnitude over 6, over the row's scale, rounded to E4M3. An element is
    ``x / (block scale * row scale)``, rounded to nearest even, at most 6 in magnitude; all divisions and the product
    are those of float32. E2M1 has no NaN: a block with an infinity or a NaN gets the scale NaN and zeros. So does, with
    the scale 0, a block whose numbers are too small for a scale.

    NVIDIA's NVFP4 (Transformer Engine and cuDNN documentation; "Pretraining LLMs with NVFP4", arXiv 2509.25149) has a
    float32 scale for a whole tensor, computed alike; one for each row needs no agreement between ranks. E2M1 is that of
    the OCP MX Specification, version 1.0 (5.3).
    """
    groups = _groups(x, NVFP4_GROUP, "NVFP4")
    largest, lost = _largest(groups), np.isnan(groups).any(axis=-1)
    row_scale = np.max(largest, axis=-1, initial=0) / np.float32(FP4_MAX * FP8_MAX)
    row_scale = np.where(row_scale < np.finfo(np.float32).tiny, np.float32(1), row_scale)
    scales = np.minimum(largest / np.float32(FP4_MAX) / row_scale[:, None], np.float32(FP8_MAX)).astype(FP8)
    divisor = (scales.astype(np.float32) * row_scale[:, None])[..., None]
    usable = ~lost & (divisor[..., 0] > 0)
    numbers = np.divide(groups, divisor, out=np.zeros_like(groups), where=usable[..., None])
    codes: NDArray[np.uint8] = np.clip(numbers, -FP4_MAX, FP4_MAX).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    codes = codes.reshape(x.shape) & np.uint8(15)
    scales = np.where(lost, np.float32(np.nan), scales.astype(np.float32)).astype(FP8)
    return codes[:, ::2] | codes[:, 1::2] << np.uint8(4), scales, row_scale


def dequantize_nvfp4(q: Array, scales: Array, row_scale: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """The inverse of :func:`quantize_nvfp4`, as float32 ``[T, hidden]``; without ``row_scale`` it is 1."""
    _bytes("q", q, (None, None))
    _table("scales", scales, (len(q), q.shape[1] * 2 // NVFP4_GROUP))
    codes: NDArray[np.uint8] = np.stack([q & 15, q >> 4], axis=-1).reshape(len(q), 2 * q.shape[1])
    numbers: NDArray[np.float32] = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    factor = scales.astype(np.float32)
    if row_scale is not None:
        factor = factor * _table("row_scale", row_scale, (len(q),))[:, None]
    return numbers * np.repeat(factor, NVFP4_GROUP, axis=-1)


def _bytes(name: str, value: Any, shape: tuple[int | None, ...]) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != len(shape):
        refuse(name, value, f"a NumPy array of uint8 with {len(shape)} dimensions")
    if any(want not in (None, size) for want, size in zip(shape, value.shape, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        refuse(name, value, f"of shape [{sizes}]")
    return value


# The casts of Buffer.dispatch(quantize=...) for bfloat16 rows, and their inverses.
QUANTIZERS: dict[str, tuple[Callable[..., tuple[Any, ...]], Callable[..., NDArray[np.float32]]]] = {
    "fp8": (quantize_fp8, dequantize_fp8),
    "ue8m0": (quantize_ue8m0, dequantize_ue8m0),
    "mxfp8": (quantize_mxfp8, dequantize_mxfp8),
    "nvfp4": (quantize_nvfp4, dequantize_nvfp4),
}


def quantize(x: Array, name: str) -> tuple[Array, ...]:
    """``x`` as "fp8", "ue8m0", "mxfp8" or "nvfp4": numbers and their scales."""
    return _quantizer(name)[0](x)


def dequantize(parts: tuple[Array, ...], name: str) -> NDArray[np.float32]:
    """The inverse of :func:`quantize`, as float32 ``[T, hidden]``."""
    return _quantizer(name)[1](*parts)


def _quantizer(name: Any) -> tuple[Callable[..., tuple[Any, ...]], Callable[..., NDArray[np.float32]]]:
    if not isinstance(name, str) or name not in QUANTIZERS:
        refuse("name", name, f"one of {', '.join(QUANTIZERS)}")
    return QUANTIZERS[name]
