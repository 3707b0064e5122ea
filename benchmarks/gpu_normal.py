"""A Buffer's normal mode: dispatch with and without a cached handle, and combine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gpu_inputs
from gpu_clock import WARM_UP
from gpu_inputs import SETS, Shape
from gpu_rows import Rows

import ep_lib

DEFAULT_SMS = 24  # for what is measured with one number of SMs only
CACHED, WAITING = "cached handle", "counted, the host waits"
DISPATCHES: dict[
    str, Callable[[Any], dict[str, Any]]
] = {  # options of a dispatch; unless copied out, results stay where they arrived
    CACHED: lambda case: {"handle": case.recv.handle, "copy": False},
    "cached handle, copied out": lambda case: {"handle": case.recv.handle},
    WAITING: lambda case: {"copy": False},
    "counted, num_worst_tokens": lambda case: {
        "num_worst_tokens": case.shape.ranks * case.shape.tokens,
        "copy": False,
    },
}


def symmetric_bytes(shape: Shape) -> int:
    """The heap that :func:`measure` needs."""
    return int(ep_lib.Buffer.symmetric_bytes(shape.ranks, **_arguments(shape)))


def _arguments(shape: Shape) -> dict[str, int]:
    return {"num_experts": shape.experts, "top_k": shape.top_k, "hidden": shape.hidden, "max_tokens": shape.tokens}


def measure(rank: ep_lib.Rank, rows: Rows, shape: Shape, sms: list[int]) -> None:
    """Collective: adds rows of group "normal"."""
    for number in sms:
        with ep_lib.Buffer(rank, **_arguments(shape), num_sms=number) as buffer:
            for dtype in ("fp8", "bf16"):
                case = Case(rank, rows, buffer, shape, dtype, number)
                case.check()
                case.time_dispatch(CACHED)
                case.time_combine()
                if number != DEFAULT_SMS:
                    continue
                for note in DISPATCHES:
                    if note != CACHED:
                        case.time_dispatch(note)
                for other, kind in ((shape, "skewed"), (shape._replace(tokens=1), "random")):
                    more = Case(rank, rows, buffer, other, dtype, number, kind)
                    more.check()
                    more.time_dispatch(CACHED)
                    more.time_combine()


class Case:
    """One way of routing and one type of rows, through a Buffer."""

    def __init__(
        self,
        rank: ep_lib.Rank,
        rows: Rows,
        buffer: Any,
        shape: Shape,
        dtype: str,
        sms: int,
        routing: str = "random",
    ) -> None:
        self.rank, self.rows, self.buffer, self.shape, self.dtype = rank, rows, buffer, shape, dtype
        device = gpu_inputs.device_of(rank)
        me = rank.rank
        self.idx = gpu_inputs.routing(shape, me, routing, device)
        self.weights = gpu_inputs.weights(shape, me, device)
        self.goes = gpu_inputs.goes_to(shape, self.idx)
        pairs = [gpu_inputs.rows(shape, me, turn, dtype, device) for turn in range(SETS)]
        self.sets = [x if scales is None else (x, scales) for x, scales in pairs]
        self.recv = buffer.dispatch(self.sets[0], self.idx, self.weights)
        row = {"group": "normal", "by": "ep_lib", "dtype": dtype, "tokens": shape.tokens, "sms": sms}
        self.row = row | {"routing": routing, **gpu_inputs.traffic(shape, self.goes, me, dtype)}

    def check(self) -> None:
        """Every row and scale arrived as it was sent, and combine adds up what every rank got."""
        import torch

        shape, recv, device = self.shape, self.recv, gpu_inputs.device_of(self.rank)
        own_x, own_scales = recv.x if self.dtype == "fp8" else (recv.x, None)
        for source in range(shape.ranks):
            from_source = recv.src_rank == source
            token = recv.src_token[from_source].long()
            x, scales = gpu_inputs.rows(shape, source, 0, self.dtype, device)
            for got, want in ((own_x, x), (own_scales, scales)):
                if got is not None:
                    right = torch.equal(got.view(torch.uint8)[from_source], want.view(torch.uint8)[token])
                    self.rows.check(right, f"{self.row}: dispatch from rank {source} differs")
        if self.dtype == "bf16":
            out = self.buffer.combine(own_x, recv.handle)
            x, _ = gpu_inputs.rows(shape, self.rank.rank, 0, "bf16", device)
            expected = (x.float() * self.goes.sum(1, keepdim=True)).bfloat16()
            self.rows.check(torch.equal(out, expected), f"{self.row}: combine differs")

    def time_dispatch(self, note: str) -> None:
        """Times one of DISPATCHES; its rows must equal those of the first dispatch."""
        options = DISPATCHES[note](self)
        routing = () if "handle" in options else (self.idx, self.weights)
        turns = [lambda x=x: self.buffer.dispatch(x, *routing, **options) for x in self.sets]
        right = all(map(_same_front, _tensors(self.recv.x), _tensors(turns[0]().x)))
        self.rows.check(right, f"{self.row}: dispatch, {note}, differs")
        self.time(turns, what="dispatch", note=note, waits=note == WAITING)

    def time_combine(self) -> None:
        """Times combines of rows in the experts' own memory, and in the Buffer's."""
        if self.dtype == "bf16":
            y, handle = self.recv.x.clone(), self.recv.handle
            self.time([lambda: self.buffer.combine(y, handle)], what="combine")
            place = self.buffer.combine_input(handle, y)
            place.copy_(y)
            self.time([lambda: self.buffer.combine(place, handle)], what="combine", note="from combine_input")

    def time(self, turns: list[Callable[[], Any]], *, waits: bool = False, **row: Any) -> None:
        """Adds a row with the GPU's time, and ``call_us``: the whole Python call with a wait for its end."""
        added = self.rows.time(turns, waits=waits, **self.row, **row)
        calls = []
        for repeat in range(self.rows.repeats + WARM_UP):
            self.rank.barrier()
            begin = time.perf_counter()
            turns[repeat % len(turns)]()
            self.rank.synchronize()
            calls.append(1e6 * (time.perf_counter() - begin))
        added["call_us"] = sorted(calls[WARM_UP:])[self.rows.repeats // 2]


def _tensors(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def _same_front(first: Any, second: Any) -> bool:
    """Whether ``second`` begins with the rows of ``first``."""
    import torch

    front = second[: len(first)]
    return len(second) >= len(first) and torch.equal(front.view(torch.uint8), first.view(torch.uint8))
