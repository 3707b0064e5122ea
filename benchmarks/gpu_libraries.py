"""ep_lib and its peers behind one interface: what each does in a case, for gpu_compare and gpu_vary to check and time.

DeepEP is imported from a folder that the caller names; none of it is in this repository.
Every library gets the same rows, routing and number of SMs. A dispatch with a cached handle knows which row goes where;
a counted one gets only the experts of each token, and its host learns how many rows came. Outputs are "owned" (tensors
that no later call changes) or a "view" of memory that the library uses again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gpu_inputs
import gpu_peers
from gpu_inputs import SETS, Shape

import ep_lib

CACHED, COUNTED = "cached handle", "counted"
BY_EXPERT = "by expert"  # rows grouped for a grouped GEMM as well
OWNED, VIEW = "owned", "view"
LOW_LATENCY_TOKENS = 128
CHAIN = 10  # operations in a graph; an even number, because DeepEP V1 has two buffers and takes turns
V1_RING = 256  # tokens in DeepEP V1's ring of each channel, as in its own tests
V1_BYTES = 1 << 30  # of its rings; half of what its own tests take
V1_CHUNKS = {"dispatch": (4, 8, 12, 16, 20, 24, 28, 32), "combine": (1, 2, 4, 6, 8, 10, 12, 16)}
TUNING_CALLS = 10


class Operation(NamedTuple):
    """Something to time: ``turns`` are calls with different rows, to be made one after the other."""

    what: str
    note: str
    outputs: str
    turns: Sequence[Callable[[], Any]]
    right: Callable[[Any], bool]  # whether what the first turn returned is right
    waits: bool = False  # the host waits for the GPU inside the call
    divide: int = 1  # operations in a call


class Limits(NamedTuple):
    """The largest case, which sizes what a library allocates once."""

    tokens: int
    hidden: int
    num_sms: int


class Case:
    """One size and one way of routing: what all libraries are given, and what has to come out.

    ``turn``: which of many routings; ``fewer``: with as many tokens as :func:`gpu_inputs.tokens_of` says.
    """

    def __init__(self, rank: ep_lib.Rank, shape: Shape, routing: str, turn: int = 0, fewer: bool = False) -> None:
        self.rank, self.shape, self.routing, self.me = rank, shape, routing, rank.rank
        self.device, sources = gpu_inputs.device_of(rank), range(shape.ranks)
        self.every = [gpu_inputs.routing(shape, source, routing, self.device, turn) for source in sources]
        if fewer:
            self.every = [idx[: gpu_inputs.tokens_of(shape, source, turn)] for source, idx in enumerate(self.every)]
        self.idx = self.every[self.me]
        self.weights = gpu_inputs.weights(shape, self.me, self.device)[: len(self.idx)]
        self.goes = [gpu_inputs.goes_to(shape, idx) for idx in self.every]

    @functools.lru_cache(maxsize=1)  # noqa: B019 - one dtype's rows at a time; a Case is short-lived
    def sets(self, dtype: str) -> list[Any]:
        """Rows of this rank, SETS times: tensors, or pairs with scales."""
        pairs = [gpu_inputs.rows(self.shape, self.me, turn, dtype, self.device) for turn in range(SETS)]
        n = len(self.idx)
        return [x[:n] if scales is None else (x[:n], scales[:n]) for x, scales in pairs]

    def in_order(self) -> tuple[Any, Any]:
        """Source and token of the rows that come here, sorted by both."""
        import torch

        tokens = [goes[:, self.me].nonzero()[:, 0] for goes in self.goes]
        sources = [torch.full_like(token, source) for source, token in enumerate(tokens)]
        return torch.cat(sources), torch.cat(tokens)

    def arrived(self, x: Any, source: Any, token: Any, turn: int = 0) -> bool:
        """Whether ``x`` (a pair in FP8) has each row of set ``turn`` that must come here, once, as it was sent."""
        import torch

        got = x if isinstance(x, tuple) else (x,)
        dtype = "fp8" if isinstance(x, tuple) else "bf16"
        numbers = source.long() * self.shape.tokens + token.long()
        want_source, want_token = self.in_order()
        if not torch.equal(numbers.sort().values, want_source * self.shape.tokens + want_token):
            return False
        right = all(len(part) == len(numbers) for part in got)
        for number in range(self.shape.ranks):
            here = source == number
            sent = gpu_inputs.rows(self.shape, number, turn, dtype, self.device)
            for part, want in zip(got, sent, strict=False):
                right &= torch.equal(_bytes(part[here]), _bytes(want[token[here].long()]))
        return right

    def combined(self, out: Any, turn: int = 0) -> bool:
        """Whether ``out`` is what a combine of set ``turn``'s BF16 rows gives."""
        import torch

        copies = self.goes[self.me].sum(1, keepdim=True)
        return torch.equal(out, (self.sets("bf16")[turn].float() * copies).bfloat16())

    def traffic(self, dtype: str) -> dict[str, int]:
        """The bytes that every library's GB/s are counted from: a row once for each rank that it goes to."""
        return gpu_inputs.traffic(self.shape, self.goes[self.me], self.me, dtype)


def _bytes(rows: Any) -> Any:
    """The rows as bytes; what has no rows may have no strides either."""
    import torch

    return rows.reshape(-1).view(torch.uint8)


def _grouped(recv: Any, experts: int) -> bool:
    """Whether by_expert has the received rows once for each choice, by expert and then in the order of rows."""
    import torch

    chosen = [(recv.topk_idx == expert).nonzero()[:, 0] for expert in range(experts)]
    if not torch.equal(recv.by_expert.row.long(), torch.cat(chosen)):
        return False
    grouped, rows = (x if isinstance(x, tuple) else (x,) for x in (recv.by_expert.x, recv.x))
    row = recv.by_expert.row.long()
    return all(torch.equal(_bytes(got), _bytes(want[row])) for got, want in zip(grouped, rows, strict=True))


class Library:
    """Makes the operations of a case. Making one, its operations and ``close`` are collective."""

    by = ""

    def __init__(self, rank: ep_lib.Rank, limits: Limits, shape: Shape) -> None:
        """``shape``: with the numbers of ranks, experts and top-k that all cases have."""
        self.rank, self.limits, self.shape = rank, limits, shape

    def prepare(self, case: Case, dtype: str) -> None:
        """Collective: makes and chooses what the next calls need."""

    def counted(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        """A dispatch that gets only the experts of each token: the rows, and what the library knows of them."""
        raise NotImplementedError

    def again(self, x: Any, came: Any) -> Any:
        """The rows of a dispatch with what ``counted`` returned."""
        raise NotImplementedError

    def summed(self, rows: Any, came: Any) -> Any:
        """A combine."""
        raise NotImplementedError

    def places(self, case: Case, came: Any) -> tuple[Any, Any]:
        """Source and token of each row."""
        raise NotImplementedError

    def operations(self, case: Case, dtype: str) -> Iterator[Operation]:
        """Everything to time in a case."""
        self.prepare(case, dtype)
        sets, idx, weights = case.sets(dtype), case.idx, case.weights
        rows, came = self.counted(sets[0], idx, weights)
        places = self.places(case, came)
        cached = [lambda x=x: self.again(x, came) for x in sets]
        yield Operation("dispatch", CACHED, OWNED, cached, lambda got: case.arrived(got, *places))
        counted = [lambda x=x: self.counted(x, idx, weights) for x in sets]

        def right(got: Any) -> bool:
            return case.arrived(got[0], *self.places(case, got[1]))

        yield Operation("dispatch", COUNTED, OWNED, counted, right, waits=True)
        yield from self.more(case, dtype, rows, came)

    def more(self, case: Case, dtype: str, rows: Any, came: Any) -> Iterator[Operation]:
        """What comes behind the dispatches, with what one of them returned."""
        if dtype == "bf16":
            yield Operation("combine", "", OWNED, [lambda: self.summed(rows, came)], case.combined)

    def low_latency(self, case: Case) -> Iterator[Operation]:
        """Operations for decode batches; none, if the library has none."""
        return iter(())

    def close(self) -> None:
        pass


class EpLib(Library):
    """This library's public calls."""

    by = "ep_lib"
    receive_areas = 1

    def __init__(self, rank: ep_lib.Rank, limits: Limits, shape: Shape) -> None:
        super().__init__(rank, limits, shape)
        self._buffer: Any = None
        self._hidden = 0

    @classmethod
    def arguments(cls, shape: Shape, limits: Limits, hidden: int) -> dict[str, int]:
        """What a Buffer is made with."""
        sizes = {"num_experts": shape.experts, "top_k": shape.top_k, "hidden": hidden, "max_tokens": limits.tokens}
        more = {"num_max_dispatch_tokens_per_rank": min(LOW_LATENCY_TOKENS, limits.tokens)}
        return {**sizes, **more, "receive_areas": cls.receive_areas}

    def _of(self, hidden: int) -> Any:
        if hidden != self._hidden:
            self.close()
            arguments = self.arguments(self.shape, self.limits, hidden)
            self._buffer, self._hidden = ep_lib.Buffer(self.rank, **arguments, num_sms=self.limits.num_sms), hidden
        return self._buffer

    def prepare(self, case: Case, dtype: str) -> None:
        self._of(case.shape.hidden)

    def counted(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        recv = self._buffer.dispatch(x, idx, weights)
        return recv.x, recv

    def again(self, x: Any, came: Any) -> Any:
        return self._buffer.dispatch(x, handle=came.handle).x

    def summed(self, rows: Any, came: Any) -> Any:
        return self._buffer.combine(rows, came.handle)

    def places(self, case: Case, came: Any) -> tuple[Any, Any]:
        return came.src_rank, came.src_token

    def more(self, case: Case, dtype: str, rows: Any, came: Any) -> Iterator[Operation]:
        buffer, sets, handle = self._buffer, case.sets(dtype), came.handle
        if case.routing == "random":
            yield from self._by_expert(case, dtype)
        if self.receive_areas > 1:  # all else is as with one
            return
        if self.receive_areas == 1:
            views = [lambda x=x: buffer.dispatch(x, handle=handle, copy=False).x for x in sets]
            yield Operation("dispatch", CACHED, VIEW, views, lambda x: case.arrived(x, *self.places(case, came)))
        yield from super().more(case, dtype, rows, came)
        if dtype == "bf16":
            place = buffer.combine_input(handle, rows)
            place.copy_(rows)
            in_place = [lambda: buffer.combine(place, handle)]
            yield Operation("combine", "rows in the Buffer's memory", OWNED, in_place, case.combined)

    def _by_expert(self, case: Case, dtype: str) -> Iterator[Operation]:
        """Rows grouped by expert as well, and the sums of what experts made of them."""
        buffer, sets, experts = self._of(case.shape.hidden), case.sets(dtype), case.shape.experts_per_rank
        first = buffer.dispatch(sets[0], case.idx, case.weights, sorted_by_expert=True)
        handle, y = first.handle, first.by_expert.x
        del first  # its rows would keep a receive area

        def right(result: Any) -> bool:
            return case.arrived(result.x, result.src_rank, result.src_token) and _grouped(result, experts)

        cached = [lambda x=x: buffer.dispatch(x, handle=handle, sorted_by_expert=True) for x in sets]
        yield Operation("dispatch", f"{BY_EXPERT}, {CACHED}", OWNED, cached, right)
        given = {"topk_idx": case.idx, "topk_weights": case.weights, "sorted_by_expert": True}
        counted = [lambda x=x: buffer.dispatch(x, **given) for x in sets]
        yield Operation("dispatch", f"{BY_EXPERT}, {COUNTED}", OWNED, counted, right, waits=True)
        if dtype == "bf16":
            combine, total = [lambda: buffer.combine(y, handle, sorted_by_expert=True)], case.shape.top_k
            yield Operation("combine", BY_EXPERT, OWNED, combine, lambda out: bool((out == total * sets[0]).all()))

    def low_latency(self, case: Case) -> Iterator[Operation]:
        buffer, x, idx = self._of(case.shape.hidden), case.sets("bf16")[0], case.idx
        ones = case.weights.new_ones(case.weights.shape)
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, use_fp8=False)
        yield from _decode(
            case,
            OWNED,
            lambda: buffer.low_latency_dispatch(x, idx)[1],
            lambda: buffer.low_latency_combine(rows, idx, ones, handle)[0],
        )

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
            self._buffer, self._hidden = None, 0


class EpLibAreas(EpLib):
    """The same with three receive areas: a result stays where it arrived, and is the caller's until it is dropped."""

    by = "ep_lib, 3 areas"
    receive_areas = 3

    def low_latency(self, case: Case) -> Iterator[Operation]:
        return iter(())


class EpLibShared(EpLibAreas):
    """With half of the memory: rows arrive where those of a combine come back."""

    by = "ep_lib, no area of its own"
    receive_areas = 0


class DeepEpV1(Library):
    """DeepEP's first interface, tuned for each case: the best of several chunk sizes, which its users also look for."""

    by = "DeepEP V1"

    def __init__(self, rank: ep_lib.Rank, limits: Limits, shape: Shape, deep_ep: Any, group: Any) -> None:
        super().__init__(rank, limits, shape)
        self._deep_ep = deep_ep
        decode = deep_ep.Buffer.get_low_latency_rdma_size_hint(
            LOW_LATENCY_TOKENS, limits.hidden, shape.ranks, shape.experts
        )
        own = {"low_latency_mode": True, "num_qps_per_rank": shape.experts_per_rank, "explicitly_destroy": True}
        self._buffer = deep_ep.Buffer(group, V1_BYTES, decode, **own)
        self._dispatch, self._combine = (self._config(chunks[0]) for chunks in V1_CHUNKS.values())

    def _config(self, chunk: int) -> Any:
        return self._deep_ep.Config(self.limits.num_sms, chunk, V1_RING)

    def _tuned(self, what: str, call: Callable[[Any], Any]) -> Any:
        """The configuration with which ``call`` takes the least time, the same on all ranks."""
        found = []
        for chunk in V1_CHUNKS[what]:
            config = self._config(chunk)
            call(config)
            self.rank.barrier()
            began = time.perf_counter()
            for _ in range(TUNING_CALLS):
                call(config)
            self.rank.synchronize()
            found.append((max(self.rank.all_gather(time.perf_counter() - began)), chunk))
        return self._config(min(found)[1])

    def prepare(self, case: Case, dtype: str) -> None:
        buffer, x = self._buffer, case.sets(dtype)[0]
        rows, came = self.counted(x, case.idx, case.weights)
        handle = came[4]
        self._dispatch = self._tuned("dispatch", lambda config: buffer.dispatch(x, handle=handle, config=config))
        if dtype == "bf16":
            self._combine = self._tuned("combine", lambda config: buffer.combine(rows, handle, config=config))

    def counted(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        per_rank, _, per_expert, in_rank, _ = self._buffer.get_dispatch_layout(idx, self.shape.experts)
        came = self._buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=idx,
            topk_weights=weights,
            config=self._dispatch,
        )
        return came[0], came

    def again(self, x: Any, came: Any) -> Any:
        return self._buffer.dispatch(x, handle=came[4], config=self._dispatch)[0]

    def summed(self, rows: Any, came: Any) -> Any:
        return self._buffer.combine(rows, came[4], config=self._combine)[0]

    def places(self, case: Case, came: Any) -> tuple[Any, Any]:
        return case.in_order()  # V1 keeps the order of ranks, and of each rank's tokens

    def low_latency(self, case: Case) -> Iterator[Operation]:
        buffer, x, idx, experts = self._buffer, case.sets("bf16")[0], case.idx, self.shape.experts
        ones = case.weights.new_ones(case.weights.shape)
        most = LOW_LATENCY_TOKENS
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, most, experts, use_fp8=False)
        kept = rows.clone()
        yield from _decode(
            case,
            VIEW,
            lambda: buffer.low_latency_dispatch(x, idx, most, experts)[1],
            lambda: buffer.low_latency_combine(kept, idx, ones, handle)[0],
        )

    def close(self) -> None:
        self._buffer.destroy()


class DeepEpV2(Library):
    """DeepEP's ElasticBuffer, which compiles its kernels for each size."""

    by = "DeepEP V2"

    def __init__(self, rank: ep_lib.Rank, limits: Limits, shape: Shape, deep_ep: Any, group: Any) -> None:
        super().__init__(rank, limits, shape)
        sizes = {"num_max_tokens_per_rank": limits.tokens, "hidden": limits.hidden, "num_topk": shape.top_k}
        self._buffer = deep_ep.ElasticBuffer(group, **sizes, explicitly_destroy=True)

    def counted(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        given = {"topk_idx": idx, "topk_weights": weights, "num_experts": self.shape.experts}
        came = self._buffer.dispatch(x, **given, num_sms=self.limits.num_sms)
        return came[0], came

    def again(self, x: Any, came: Any) -> Any:
        return self._buffer.dispatch(x, handle=came[3], num_sms=self.limits.num_sms)[0]

    def summed(self, rows: Any, came: Any) -> Any:
        return self._buffer.combine(rows, came[3], num_sms=self.limits.num_sms)[0]

    def places(self, case: Case, came: Any) -> tuple[Any, Any]:
        number = came[3].recv_src_metadata[:, 0]  # rank * num_max_tokens_per_rank + token
        return number // self.limits.tokens, number % self.limits.tokens

    def close(self) -> None:
        self._buffer.destroy()


class Nccl(Library):
    """NCCL's all-to-all with torch's indexing (:class:`gpu_peers.Nccl`).

    ``operations`` know the counts beforehand; ``counted`` sends them, and experts and weights with the rows.
    """

    by = "NCCL"
    peer: type[gpu_peers.Peer] = gpu_peers.Nccl

    def __init__(self, rank: ep_lib.Rank, limits: Limits, shape: Shape) -> None:
        super().__init__(rank, limits, shape)
        self._kept: list[Any] = []

    def counted(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        import torch
        import torch.distributed as dist

        goes = gpu_inputs.goes_to(self.shape, idx)
        counts = goes.sum(0)
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts)
        route = gpu_peers.Route(goes, *torch.stack([counts, coming]).tolist())
        came = route, route.there(_choices(idx, weights))
        return self.again(x, came), came

    def again(self, x: Any, came: Any) -> Any:
        rows = tuple(came[0].there(part) for part in gpu_peers.parts_of(x))
        return rows if isinstance(x, tuple) else rows[0]

    def summed(self, rows: Any, came: Any) -> Any:
        return came[0].back(rows, came[0].room(rows))

    def places(self, case: Case, came: Any) -> tuple[Any, Any]:
        return case.in_order()

    def operations(self, case: Case, dtype: str) -> Iterator[Operation]:
        peer = self.peer(self.rank, case.shape, dtype, case.routing)
        self._kept = [*self._kept, peer] if self.keeps else []

        def right(_: Any) -> bool:
            checks = _Checks()
            peer.check_dispatch(checks)  # type: ignore[arg-type]
            return checks.right

        def owned(turn: int) -> Any:
            peer.dispatch(turn)
            return self.copied_out(peer)

        yield Operation("dispatch", CACHED, OWNED, [lambda turn=turn: owned(turn) for turn in range(SETS)], right)
        if self.keeps:
            views = [lambda turn=turn: peer.dispatch(turn) for turn in range(SETS)]
            yield Operation("dispatch", CACHED, VIEW, views, right)
        if dtype == "bf16":
            peer.dispatch(0)
            expected = (peer.sets[0][0].float() * peer.times_added()[:, None]).bfloat16()
            yield Operation("combine", "", OWNED, [peer.combine], lambda out: bool((out == expected).all()))

    keeps = False  # whether a peer's memory is the library's, and freed with the process

    def copied_out(self, peer: Any) -> Any:
        return peer.recv


class Torch(Nccl):
    """torch's ``all_to_all_vdev_2d``, a token once per rank; rows are copied out of the symmetric memory."""

    by = "torch"
    peer = gpu_peers.SymmetricOnce
    keeps = True

    def __init__(self, rank: ep_lib.Rank, limits: Limits, shape: Shape) -> None:
        super().__init__(rank, limits, shape)
        self._any: dict[str, Any] = {}  # by dtype: a peer with room for every routing
        self._peer: Any = None

    def prepare(self, case: Case, dtype: str) -> None:
        if dtype not in self._any:
            shape = case.shape._replace(tokens=self.limits.tokens)
            sizes = {"most": shape.ranks * shape.tokens, "more": 2 * shape.top_k}
            self._any[dtype] = gpu_peers.SymmetricOnce(self.rank, shape, dtype, **sizes)
        self._peer = self._any[dtype]

    def counted(self, x: Any, idx: Any, weights: Any) -> tuple[Any, Any]:
        peer = self._peer
        placed = peer.placed(peer.group_pairs(idx))
        peer.take(*placed)
        peer.move([*gpu_peers.parts_of(x), _choices(idx, weights)])
        splits = peer.out_splits[0].clone()
        received = int(splits[0].sum())
        *rows, choices = (recv[:received].clone() for recv in peer.recv)
        return tuple(rows) if isinstance(x, tuple) else rows[0], (placed, splits, received, choices)

    def again(self, x: Any, came: Any) -> Any:
        placed, _, received, _ = came
        self._peer.take(*placed)
        parts = gpu_peers.parts_of(x)
        self._peer.move(parts)
        rows = tuple(recv[:received].clone() for recv in self._peer.recv[: len(parts)])
        return rows if isinstance(x, tuple) else rows[0]

    def summed(self, rows: Any, came: Any) -> Any:
        peer, (placed, splits, received, _) = self._peer, came
        peer.take(*placed)
        peer.recv[0][:received].copy_(rows)
        peer.kept_splits.copy_(splits)
        return peer.move_back(peer.kept_splits)

    def places(self, case: Case, came: Any) -> tuple[Any, Any]:
        return self._peer.in_order(case.every)  # type: ignore[no-any-return]

    def copied_out(self, peer: Any) -> Any:
        return [recv[: peer.received].clone() for recv in peer.recv]


def _choices(idx: Any, weights: Any) -> Any:
    """``[tokens, 2 * top_k]`` int32: experts and weights as one row, so that they travel together."""
    import torch

    return torch.cat([idx.int(), weights.view(torch.int32)], 1)


class _Checks:
    """Takes the findings of a peer's own check, as gpu_rows.Rows does."""

    right = True

    def check(self, right: bool, what: str) -> None:
        self.right &= right


def _decode(case: Case, outputs: str, dispatch: Callable[[], Any], combine: Callable[[], Any]) -> Iterator[Operation]:
    """A low-latency dispatch (FP8) and combine, called one by one and CHAIN times in a CUDA graph.

    ``dispatch`` returns the number of rows for each expert here, ``combine`` the sum of a token's rows.
    """
    import torch

    shape, device = case.shape, case.device
    chosen = [gpu_inputs.routing(shape, source, case.routing, device) for source in range(shape.ranks)]
    each = torch.bincount(torch.cat(chosen).flatten(), minlength=shape.experts)
    counts = each.view(shape.ranks, -1)[case.me]
    expected = (case.sets("bf16")[0].float() * shape.top_k).bfloat16()
    checks = {
        "low-latency dispatch": (dispatch, lambda got: torch.equal(got.long(), counts)),
        "low-latency combine": (combine, lambda out: torch.equal(out, expected)),
    }
    for what, (call, right) in checks.items():
        yield Operation(what, "called", outputs, [call], right)
        if device == "cuda":
            last: list[Any] = []
            graph = _captured(call, last)
            yield Operation(
                what,
                "in a graph",
                outputs,
                [graph.replay],
                lambda _, right=right, last=last: right(last[-1]),
                divide=CHAIN,
            )


def _captured(call: Callable[[], Any], results: list[Any]) -> Any:
    import torch

    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CHAIN):
            results.append(call())
    return graph
