"""Normal mode over NVLink: every row straight to where it stays, no bounce buffers and no host in between.

The kernels lie beside this file. They run in the caller's stream or in one beside it. The host waits in one place
only: where it must know how many rows a dispatch without a handle brings, and then while the rows are on their way.
Operations count themselves on the GPU (<moe/common/epoch.cuh>), so a CUDA graph may replay them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ep_lib.jit.structs import header_constant
from ep_lib.memory.arrays import describe, like
from ep_lib.moe.checks import refuse_choices, refuse_weights
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, BufferConfig
from ep_lib.moe.direct.expert_rows import ExpertRows, ExpertSorter
from ep_lib.moe.direct.launches import DirectLaunches, DirectRouting
from ep_lib.moe.direct.memory import row_scales
from ep_lib.moe.direct.tuning import Tuning
from ep_lib.moe.event import Event, OperationStreams
from ep_lib.moe.mode import Arrivals, Payload, Plan, Wishes, kind_of
from ep_lib.moe.results import Results
from ep_lib.reference import FP8
from ep_lib.runtime.rank import Rank

_HOW = ("push", "pull", "stage")  # of _launch_combine
_POLL_SECONDS = 0.25  # of looking for the counts without asking what else may be wrong


class DirectExchange(DirectLaunches):
    """The :class:`ep_lib.moe.mode.Mode` of ranks that reach each other by loads and stores: direct writes."""

    checks_values = True

    def __init__(self, rank: Rank, config: BufferConfig, tuning: Tuning | None = None) -> None:
        """Collective. Raises RankMismatchError and OutOfSymmetricMemory. ``tuning`` None: chosen by rows' size."""
        super().__init__(rank, config, tuning)
        self._results = Results(rank)
        self._streams = OperationStreams(rank)
        self._sorter = ExpertSorter(rank, config, self._tuning_of(config.row_bytes).local_threads)
        self.operation = 0

    def next_operation(self) -> None:
        """Every rank begins the same operation."""
        self.operation += 1

    def dispatch(
        self, payload: Payload, experts: Any, weights: Any, options: int, wishes: Wishes
    ) -> tuple[DirectRouting, Plan, Arrivals | None]:
        """Count, tell everybody and send; the kernels run while the host learns what they found."""
        config, rank = self._config, self._rank
        x, index, given = payload.info, describe(experts), None if weights is None else describe(weights)
        size = DirectRouting.size(config, payload.num_tokens)
        ints = self._results.empty(x.kind, (size,), INT32)
        routing = DirectRouting(config, ints, payload.num_tokens, self._xp_kind)
        with rank.streams.on(self._streams.begin(x.kind, wishes.async_finish)):
            self._launch_route(index, given, routing, options, wishes)
            self._launch_dispatch(x, payload.scales, given, routing, note=0, send_routing=True)
            if wishes.num_worst_tokens:
                plan, rows = routing.plan_on_device(), wishes.num_worst_tokens
            else:
                plan = self._await_plan(experts, weights)
                rows = int(plan.received.sum())
            arrivals = self._unpack(payload, rows, weights, routing, wishes, with_routing=True)
            if wishes.sorted_by_expert:
                most = self._sorter.most(rows, wishes.expert_alignment)
                all_rows = most if wishes.num_worst_tokens else int(plan.tokens_per_expert.sum())
                arrivals = self._sort(payload, arrivals, arrivals.topk, all_rows, routing)
        self._settle(wishes.async_finish)
        return routing, plan, arrivals

    def dispatch_again(
        self,
        payload: Payload,
        weights: Any,
        routing: DirectRouting,
        rows: int,
        note: int,
        wishes: Wishes,
        by_expert: ExpertRows | None = None,
    ) -> Arrivals:
        """Send as an earlier dispatch did; then ask :meth:`who_differs`. ``by_expert``: that of the earlier one, if
        rows shall be grouped."""
        x, given = payload.info, None if weights is None else describe(weights)
        with self._rank.streams.on(self._streams.begin(x.kind, wishes.async_finish)):
            self._launch_dispatch(x, payload.scales, given, routing, note=note, send_routing=False)
            arrivals = self._unpack(payload, rows, weights, routing, wishes, with_routing=False)
            if by_expert is not None:
                arrivals = self._sort(payload, arrivals, wishes.index, len(by_expert.row), routing)
        self._settle(wishes.async_finish)
        return arrivals

    def combine(
        self,
        rows: Any,
        weights: Any,
        routing: DirectRouting,
        note: int,
        *,
        bias: tuple[Any, ...],
        async_finish: bool,
        by_expert: ExpertRows | None = None,
    ) -> Any:
        """Bring rows back and add them up: ``[num_tokens, columns of rows]``; then :meth:`who_differs`."""
        y = describe(rows)
        out = self._results.empty(y.kind, (routing.num_tokens, y.shape[1]), self._config.dtype)
        place = self._at("returned")
        if y.address == place or by_expert is not None:
            how = "pull"
        elif self._tuning_of(self._config.row_bytes).push or self._spare_blocks < 1:
            how = "push"
        else:
            how = "stage"
        row_vectors = y.shape[1] * self._config.dtype.itemsize // VECTOR_BYTES
        # Ranks that disagree about the dispatch or about how are told so: both are in the note that all compare.
        key = (3 * note + _HOW.index(how), row_vectors, *(describe(b).address for b in bias))
        uses = (routing.info, *bias)
        with self._rank.streams.on(self._streams.begin(y.kind, async_finish)):
            if by_expert is not None:
                self._sorter.reduce(by_expert, y, place, uses)
            self._launch_combine(how, key, out, y, weights, routing, uses=uses)
        self._settle(async_finish)
        return out

    def combine_input(self, like: Any, rows: int) -> Any:
        """Where experts may write what a combine brings back, so that it can be read from there: ``[rows, hidden]`` of
        the Buffer's dtype, in the kind of array of ``like``."""
        config = self._config
        return self._view("returned", kind_of(like), config.dtype, config.hidden)[:rows]

    def finished(self, array: Any, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation, for streams of the kind of ``array``."""
        stream = self._streams.last
        return Event(self._rank, 0 if stream is None else stream, kind_of(array), keep)

    def who_differs(self) -> list[tuple[int, int]]:
        """Without waiting: known at the latest when the kernels are done."""
        differs = [(r, int(bits)) for r, bits in enumerate(self._differs) if bits]
        if differs:
            self._differs[...] = 0
        return differs

    def _settle(self, async_finish: bool) -> None:
        """NumPy knows no streams: on the emulator results are there when a call returns, or behind its event."""
        if self._rank.backend == "emulator" and not async_finish:
            self._rank.synchronize()

    def _unpack(
        self, payload: Payload, rows: int, weights: Any, routing: DirectRouting, wishes: Wishes, *, with_routing: bool
    ) -> Arrivals:
        """The caller's arrays, and the launch that fills them; rows that need no copy are views."""
        config, empty, kind = self._config, self._results.empty, payload.info.kind
        fp8 = payload.scales is not None
        dtype, num_scales = (FP8, row_scales(config)) if fp8 else (config.dtype, 0)
        topk = src_rank = src_token = sent = scales = None
        if with_routing:
            index = describe(wishes.index)
            topk = empty(index.kind, (rows, config.top_k), index.dtype)
            src_rank, src_token = (empty(index.kind, (rows,), INT32) for _ in range(2))
        if weights is not None:
            sent = empty(kind_of(weights), (rows, config.top_k), FLOAT32)
        if wishes.copy:
            x = empty(kind, (rows, config.hidden), dtype)
            scales = empty(kind_of(payload.scales), (rows, num_scales), FLOAT32) if fp8 else None
        else:
            x = self._view("rows", kind, dtype, config.hidden)[:rows]
            scales = self._view("recv_scales", kind_of(payload.scales), FLOAT32, num_scales)[:rows] if fp8 else None
        arrivals = Arrivals(x, scales, topk, sent, src_rank, src_token)
        if (wishes.copy or with_routing or sent is not None) and (rows or wishes.num_worst_tokens):
            # Where kernels are emulated and the host waits anyway, NumPy copies rows 20 times as fast as they do.
            by_host = self._rank.backend == "emulator" and not wishes.async_finish and not wishes.num_worst_tokens
            self._launch_unpack(arrivals, rows, dtype.itemsize, routing, wishes.copy and not by_host)
            if wishes.copy and by_host:
                self._rank.synchronize()
                x[...] = self._view("rows", kind, dtype, config.hidden)[:rows]
                if scales is not None:
                    kind_of_scales = kind_of(payload.scales)
                    scales[...] = self._view("recv_scales", kind_of_scales, FLOAT32, num_scales)[:rows]
        return arrivals

    def _sort(self, payload: Payload, arrivals: Arrivals, topk: Any, all_rows: int, routing: DirectRouting) -> Arrivals:
        """The received rows grouped by expert as well."""
        config, empty, fp8 = self._config, self._results.empty, payload.scales is not None
        rows = self._sorter.sort(topk, arrivals.weights, routing.plan, all_rows, (routing.info,))
        x = empty(kind_of(payload.rows), (all_rows, config.hidden), FP8 if fp8 else config.dtype)
        num_scales = row_scales(config) if fp8 else 0
        scales = empty(kind_of(payload.scales), (all_rows, num_scales), FLOAT32) if fp8 else None
        source = self._at("recv_scales") if fp8 else 0
        self._sorter.expand(rows, self._at("rows"), source, x, scales, num_scales)
        return arrivals._replace(by_expert=replace(rows, x=(x, scales) if fp8 else x))

    # What the host learns

    def _await_plan(self, experts: Any, weights: Any) -> Plan:
        """Wait for what `route` reports; raises ArgumentError, before anything was sent, if values are wrong."""
        ranks, first = self._config.world_size, 4 * self._tickets
        if self._rank.backend == "emulator":
            self._rank.synchronize()
        deadline = time.monotonic() + _POLL_SECONDS
        while self._done[0] < first:
            if time.monotonic() > deadline:
                self._rank.synchronize()  # raises what went wrong; else everything is done
        status = int(self._done[0]) - first
        if status == header_constant("moe/direct/route.cu", "kRefused"):
            refuse_choices(like(self._xp_kind, experts), self._config.num_experts)
            if weights is not None:
                refuse_weights(like(self._xp_kind, weights))
        if status != header_constant("moe/direct/route.cu", "kRouted"):
            self._rank.synchronize()
        plan = self._report[2:].copy()
        return Plan(plan[ranks : 2 * ranks], plan[2 * ranks : 3 * ranks], plan[3 * ranks :])
