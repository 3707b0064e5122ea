"""A direct dispatch: its launches, the host's wait for counts meanwhile, and the results."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ep_lib.errors import BufferClosedError
from ep_lib.jit.operation import Launch, Made, Operation, Part, Slot, struct
from ep_lib.jit.structs import header_constant
from ep_lib.memory.arrays import Array, ArrayInfo, as_kind, describe, like
from ep_lib.moe.checks import refuse_choices, refuse_weights
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, WARP, BufferConfig
from ep_lib.moe.direct.areas import Lease
from ep_lib.moe.direct.tuning import dispatch_shared
from ep_lib.moe.direct.workspace import Workspace, kernel
from ep_lib.moe.formats import FP8_FLOAT32, ROW_SCALE_BYTES, UINT8, RowFormat
from ep_lib.moe.mode import Arrivals, DispatchOptions, ExpertRows, Payload, Plan, with_scales

_NOTIFY_BLOCKS = 16  # one destination each; further blocks check values
_POLL_SECONDS = 0.25  # of polling for the counts before a check for other failures

# The values of an operation that every dispatch passes: four arrays, the number of tokens, the receive area's number.
_SENT = ("sent_x", "sent_scales", "sent_row_scale", "sent_weights", "tokens", "area")
# The values of a copy: where rows arrived; for scales by column, the numbers in a column and the sizes of the result.
_COPIED = ("rows", "grouped", "from_rows", "from_side", "side", "stride", "lines", "all_stride", "all_lines")


class SideRows(NamedTuple):
    """The side rows of a form, as numbers that kernels move."""

    element: str  # "float" or "unsigned char"
    numbers: int  # in a side row
    padding: int  # for rows of zeros: the bits of a number


@functools.cache
def _side_rows(form: RowFormat, address: int) -> SideRows:
    """Side rows as words, or as bytes if their size or ``address`` is no multiple of a word."""
    # If there is a row scale, its side row is read as a whole.
    if form.is_apart or (form.side_bytes % 4 == 0 and form.scale_bytes % 4 == 0 and address % 4 == 0):
        padding = np.float32(1).view(np.uint32).item() if form.code == FP8_FLOAT32 else form.padding
        return SideRows("float", form.side_bytes // 4, padding)
    return SideRows("unsigned char", form.side_bytes, form.padding & 0xFF)


def _column_stride(rows: int, itemsize: int) -> int:
    """Numbers in a column of ``rows``: whole vectors, as TMA and DeepGEMM want it."""
    vector = VECTOR_BYTES // itemsize
    return -(-rows // vector) * vector


def _side_vectors(form: RowFormat) -> int:
    """``side_vectors`` of <moe/direct/side_rows.cuh> for rows that are cast."""
    aligned = header_constant("moe/direct/side_rows.cuh", "kSideAlignment")
    return -(-form.side_bytes // (aligned * VECTOR_BYTES)) * aligned


def _rows_type(form: RowFormat, cast: str, side: SideRows) -> str:
    """The template argument ``Rows`` of <moe/direct/side_rows.cuh>; "" for Apart."""
    if cast:
        return f", ep::direct::CastTo<ep::Cast::{cast}, {side.element}>"
    if form.is_apart:
        return ""
    return f", ep::direct::Behind{'WithRowScale' * form.has_row_scale}<{side.element}>"


class _SideArray(NamedTuple):
    """An array of side rows, as the caller's library has it."""

    kind: str
    columns: int
    dtype: np.dtype[Any]


def _side_array(payload: Payload, form: RowFormat) -> _SideArray | None:
    """The side rows as the caller sees them, if there are any: scales, or bytes that include a row scale."""
    if not form.scale_columns:
        return None
    kind, dtype = payload.x.kind, form.scale_dtypes[0]
    if payload.scales is not None:
        kind, dtype = payload.scales.kind, payload.scales.dtype
    return (
        _SideArray(kind, form.side_bytes, UINT8) if form.has_row_scale else _SideArray(kind, form.scale_columns, dtype)
    )


class _Copy(NamedTuple):
    """A kind of copy from where rows arrived to arrays of the caller's own."""

    form: int
    kind: str  # x's kind of array
    side: _SideArray | None
    ids: str  # the kind of ids and sources
    ids_dtype: np.dtype[Any]
    weights: str | None  # the weights' kind of array, if they were sent
    copied: bool  # whether rows and side rows are copied
    routing: bool  # whether ids and sources are copied
    by_expert: bool
    placed: bool  # rows by expert have the places of an earlier dispatch
    by_column: bool


def _make_side_rows(makes: list[Made], side: _SideArray, prefix: str, by_column: bool) -> str | Part:
    """Where a kernel writes side rows. With ``by_column``, one array holds the columns, which the caller gets, and then
    the rows, so that both live equally long."""
    name, rows = f"{prefix}side_rows", "grouped" if prefix else "rows"
    makes.append(Made(name, side.kind, (f"{prefix}lines" if by_column else rows, side.columns), side.dtype))
    return Part(name, 0, f"{prefix}stride", side.dtype.itemsize * side.columns) if by_column else name


def _scales_of(form: RowFormat, given: ArrayInfo | None, kind: str, side_rows: Array) -> tuple[Array, Array]:
    """Scales, in the dtype of the ``given`` ones, and row scales, as views of side rows that contain both."""
    scales = side_rows[:, ROW_SCALE_BYTES : ROW_SCALE_BYTES + form.scale_bytes]
    first = side_rows[:, : FLOAT32.itemsize]
    dtype = form.scale_dtypes[0] if given is None else given.dtype
    return as_kind(kind, scales, dtype), as_kind(kind, first, FLOAT32)[:, 0]


def _most_grouped(config: BufferConfig, received: int, alignment: int) -> int:
    """The most rows grouped by expert that ``received`` rows can become: whole groups of ``alignment``."""
    return (received * config.top_k + config.experts_per_rank * (alignment - 1)) // alignment * alignment


class DirectRouting:
    """Where this rank's tokens go: one array of int32, ``ints``, in the memory of the caller's array library.

    Its parts: topk_idx ``[T, top_k]``, send_index ``[T, ranks]`` (<moe/common/layout.cuh>), counts
    ``[ranks + num_experts]``, and the plan ``[3 * ranks + 2 * experts_per_rank + 1]`` of notify_dispatch.cu.
    """

    def __init__(self, config: BufferConfig, ints: Array, num_tokens: int, xp_kind: str) -> None:
        self.num_tokens, self.config, self._xp_kind = num_tokens, config, xp_kind
        self.info = describe(ints)

    @staticmethod
    def size(config: BufferConfig, num_tokens: int) -> int:
        """The length of ``ints``."""
        ranks = config.world_size
        before = num_tokens * (config.top_k + ranks) + ranks + config.num_experts
        return before + 3 * ranks + 2 * config.experts_per_rank + 1

    @property
    def ints(self) -> Array:
        """The whole array, of the caller's kind."""
        return self.info.owner

    @property
    def topk_idx(self) -> Array:
        """``[T, top_k]``, an array of the rank's module."""
        count = self.num_tokens * self.config.top_k
        return like(self._xp_kind, self.ints[:count]).reshape(self.num_tokens, self.config.top_k)

    def plan_on_device(self) -> Plan:
        """The plan as views of ``ints``."""
        ranks, experts = self.config.world_size, self.config.experts_per_rank
        plan = self.ints[self.num_tokens * (self.config.top_k + ranks) + ranks + self.config.num_experts :]
        return Plan(plan[ranks : 2 * ranks], None, plan[3 * ranks : 3 * ranks + experts])


class Dispatches(Workspace):
    """Dispatches of direct mode."""

    def dispatch(
        self,
        payload: Payload,
        experts: ArrayInfo,
        weights: ArrayInfo | None,
        content: int,
        options: DispatchOptions,
    ) -> tuple[DirectRouting, Plan, Arrivals | None]:
        """Count, exchange counts and send; the host reads the counts while the kernels run."""
        config, kind, num_tokens = self._config, payload.x.kind, payload.x.shape[0]
        with self._streams.begin(kind, options.async_finish):
            lease = self._lend(options)
            self._tickets += 1
            (ints,) = self._sending(payload, experts.dtype, content, options).run(
                *self._sent(payload, weights, lease),
                experts,
                DirectRouting.size(config, num_tokens),
                self._tickets,
                options.expert_alignment,
            )
            routing = DirectRouting(config, ints, num_tokens, self._xp_kind)
            if options.num_worst_tokens:
                plan, num_rows = routing.plan_on_device(), options.num_worst_tokens
                grouped = _most_grouped(config, num_rows, options.expert_alignment) if options.sorted_by_expert else 0
            else:
                plan = self._await_plan(experts, weights)
                num_rows = sum(plan.received.tolist())
                grouped = sum(plan.tokens_per_expert.tolist()) if options.sorted_by_expert else 0
            arrivals = self._copy_out(payload, weights, routing, options, lease, num_rows, grouped)
        self._finish(options.async_finish)
        return routing, plan, arrivals

    def dispatch_again(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        num_rows: int,
        tag: int,
        options: DispatchOptions,
        by_expert: ExpertRows | None = None,
    ) -> Arrivals:
        """Send with the routing of an earlier dispatch; then check :meth:`mismatched_ranks`. ``by_expert``: the earlier
        dispatch's result, if rows must be grouped by expert."""
        with self._streams.begin(payload.x.kind, options.async_finish):
            lease = self._lend(options)
            grouped = 0 if by_expert is None else len(by_expert.row)
            arrivals = self._copy_out(payload, weights, routing, options, lease, num_rows, grouped, by_expert, tag)
        self._finish(options.async_finish)
        return arrivals

    def _await_plan(self, experts: ArrayInfo, weights: ArrayInfo | None) -> Plan:
        """Wait for what `notify_dispatch` reports; raises ArgumentError, before anything is sent, for wrong values."""
        ranks, first = self._config.world_size, 4 * self._tickets
        if self._backend.host_waits:
            self._backend.synchronize()
        deadline = time.monotonic() + _POLL_SECONDS
        while self._done[0] < first:
            if time.monotonic() > deadline:
                self._backend.synchronize()  # raises the kernels' error; without one, the report is complete
        status = int(self._done[0]) - first
        if status == header_constant("moe/direct/notify_dispatch.cu", "kRefused"):
            refuse_choices(like(self._xp_kind, experts.owner), self._config.num_experts)
            if weights is not None:
                refuse_weights(like(self._xp_kind, weights.owner))
        if status != header_constant("moe/direct/notify_dispatch.cu", "kNotified"):
            self._backend.synchronize()  # raises the reason
            raise BufferClosedError("an earlier operation of this Buffer failed, so the ranks may be out of step")
        plan = self._report[2:].copy()
        return Plan(plan[ranks : 2 * ranks], plan[2 * ranks : 3 * ranks].tolist(), plan[3 * ranks :])

    def _sent(self, payload: Payload, weights: ArrayInfo | None, lease: Lease | None) -> tuple[Any, ...]:
        """Values for _SENT."""
        area = 0 if lease is None else lease.area
        return payload.x, payload.scales, payload.row_scale, weights, payload.x.shape[0], area

    def _sending(self, payload: Payload, ids: np.dtype[Any], content: int, options: DispatchOptions) -> Operation:
        """The operation that sends such rows. Its values are _SENT, then the choices (dtype ``ids``), the number of
        ints of a routing, a ticket and expert_alignment."""
        rows = self._rows_of(payload)
        key = (rows[0].code, *rows[1:], payload.x.kind, ids, content, options.num_worst_tokens > 0)
        operation: Operation | None = self._operations.get(key)
        if operation is None:
            launches = [self._declare_notify(ids == INT32, content, options), self._declare_bulk(*rows, again=False)]
            made = Made("routing", payload.x.kind, ("ints",), INT32)
            operation = Operation(self._rank, (*_SENT, "ids", "ints", "ticket", "alignment"), launches, [made])
            self._operations[key] = operation
        return operation

    def _rows_of(self, payload: Payload) -> tuple[RowFormat, str, int]:
        """The form and the cast of sent rows, and the misalignment of their scales, which are sent by bytes if it is
        not 0."""
        scales = payload.scales
        return payload.form or self._plain, payload.cast, 0 if scales is None else scales.address % 4

    def _declare_notify(self, is_int: bool, content: int, options: DispatchOptions) -> Launch:
        config, parts = self._config, self._parts
        args = struct(
            "moe/direct/notify_dispatch.cu",
            "NotifyDispatchArgs",
            workspace=self._workspace,
            counts=self._at["counts"],
            expert_counts=self._at["expert_counts"],
            report=0 if options.num_worst_tokens else self._report_address,
            ticket="ticket",
            num_tokens="tokens",
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            options=content,
            expert_alignment="alignment",
        )
        return Launch(
            kernel("notify_dispatch", "<int>" if is_int else "<long long>"),
            min(max(config.world_size, _NOTIFY_BLOCKS), self.num_sms),
            self._tuning_of(config.row_bytes).route_threads,
            (args, "ids", "sent_weights", *parts[:5]),
            4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + config.experts_per_rank),
        )

    def _declare_bulk(self, form: RowFormat, cast: str, misplaced: int, *, again: bool) -> Launch:
        config, parts = self._config, self._parts
        side, row_vectors = _side_rows(form, misplaced), form.row_bytes // VECTOR_BYTES
        stage_vectors = row_vectors
        if cast:  # a row is loaded as bfloat16, and its side row is made beside it
            stage_vectors = config.row_vectors + _side_vectors(form)
        tuning = self._tuning_of(stage_vectors * VECTOR_BYTES)
        to = struct(
            "moe/common/dispatch.cuh",
            "DispatchArgs",
            rows=self._at["rows"],
            recv_topk=self._at["recv_topk"],
            recv_weights=self._at["recv_weights"],
            recv_source=self._at["recv_source"],
            num_tokens="tokens",
            row_vectors=row_vectors,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            send_routing=int(not again),
        )
        args = struct(
            "moe/direct/dispatch_bulk.cu",
            "BulkDispatchArgs",
            workspace=self._workspace,
            to=to,
            recv_scales=self._area_of(form, None)[1],
            tag="tag" if again else 0,
            row_scales=side.numbers,
            max_rows=config.max_rows,
            area_vectors=config.max_rows * config.row_vectors,
            areas=config.receive_areas,
            area="area",
        )
        warps, stages = tuning.dispatch_warps, tuning.dispatch_stages
        rows = _rows_type(form, cast, side)
        return Launch(
            kernel("dispatch_bulk", f"<ep::direct::kBy{tuning.way}, {stages}{rows}>"),
            self.num_sms,
            warps * WARP,
            (
                args,
                "sent_x",
                "sent_scales" if form.is_apart else Part("sent_scales"),
                parts.topk,
                "sent_weights",
                parts.send_index,
                parts.plan,
                self._differs_address,
                "sent_row_scale",
            ),
            dispatch_shared(warps, stages, stage_vectors, config.world_size),
        )

    def _declare_copy(self, form: RowFormat, copy: _Copy) -> tuple[tuple[str, ...], list[Launch], list[Made]]:
        """The names, launches and results of an Operation; no launches if there is nothing to copy."""
        config, parts, side = self._config, self._parts, copy.side
        makes: list[Made] = []

        def make(name: str, kind: str, shape: tuple[int | str, ...], dtype: np.dtype[Any]) -> str:
            makes.append(Made(name, kind, shape, dtype))
            return name

        x: Slot = None
        topk = weights = src_rank = src_token = of_side = all_side = None
        given: tuple[str, ...] = _COPIED
        if copy.copied:
            x = make("x", copy.kind, ("rows", form.columns), form.dtype)
        if side is not None and (copy.copied or copy.by_column):
            of_side = _make_side_rows(makes, side, "", copy.by_column)
        if copy.routing:
            topk = make("topk", copy.ids, ("rows", config.top_k), copy.ids_dtype)
            src_rank, src_token = (make(name, copy.ids, ("rows",), INT32) for name in ("src_rank", "src_token"))
        if copy.weights is not None:
            weights = make("weights", copy.weights, ("rows", config.top_k), FLOAT32)
        if copy.by_expert:
            make("all_x", copy.kind, ("grouped", form.columns), form.dtype)
            all_side = None if side is None else _make_side_rows(makes, side, "all_", copy.by_column)
            if copy.weights is not None:
                make("all_weights", copy.weights, ("grouped",), FLOAT32)
            if copy.placed:
                given = (*given, "offsets", "row", "slot")
            else:
                make("offsets", copy.ids, (config.experts_per_rank + 1,), INT32)
                make("row", copy.ids, ("grouped",), INT32)
                make("slot", copy.ids, ("rows", config.top_k), INT32)
        launches: list[Launch] = []
        if copy.by_expert or copy.copied or copy.routing or weights is not None:
            scales: Slot = of_side if copy.copied else None
            if isinstance(scales, str) and not form.is_apart:
                scales = Part(scales)
            targets = (x, scales, topk, weights, src_rank, src_token)
            launches.append(self._declare_epilogue(form, copy, targets, all_side))
        if copy.by_column and side is not None:
            source = of_side if copy.copied else "side"
            launches.append(self._declare_by_column(side, source, "", parts.received, config.world_size))
            if copy.by_expert:
                end = Part("offsets", INT32.itemsize * config.experts_per_rank)
                launches.append(self._declare_by_column(side, all_side, "all_", end, 1))
        return given, launches, makes

    def _declare_epilogue(
        self, form: RowFormat, copy: _Copy, targets: Sequence[Slot], all_side: str | Part | None
    ) -> Launch:
        config, side = self._config, _side_rows(form, 0)
        args = struct(
            "moe/direct/copy_epilogue.cu",
            "CopyEpilogueArgs",
            rows="from_rows",
            scales="from_side",
            topk=self._at["recv_topk"],
            weights=self._at["recv_weights"],
            source=self._at["recv_source"],
            broken=self._broken_address,
            capacity="rows",
            row_vectors=form.row_bytes // VECTOR_BYTES,
            row_scales=side.numbers,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
        )
        slots: list[Slot] = [args]
        threads, shared_bytes = self._tuning_of(config.row_bytes).local_threads, 0
        if copy.by_expert:
            args = struct(
                "moe/direct/expert_rows.cuh",
                "ExpertRowsArgs",
                **{name: name for name in ("slot", "row", "offsets")},
                weights=None if copy.weights is None else "all_weights",
                x="all_x",
                scales=all_side,
                all="grouped",
                experts_per_rank=config.experts_per_rank,
                placed=int(copy.placed),
                padding=side.padding,
            )
            slots.append(args)
            # expert_rows_shared of <moe/direct/expert_rows.cuh>
            shared_bytes = 4 * (config.experts_per_rank + 1 + threads)
        index = "int" if not copy.routing or copy.ids_dtype == INT32 else "long long"
        element = "" if side.element == "float" else f", {side.element}"
        which = kernel("copy_epilogue", f"<{index}{element}>", "copy_by_expert" if copy.by_expert else "")
        return Launch(which, self._local_blocks, threads, (*slots, self._parts.plan, *targets), shared_bytes)

    def _declare_by_column(
        self, side: _SideArray, source: str | Part | None, prefix: str, counts: Part, num_counts: int
    ) -> Launch:
        """Transpose side rows. ``counts``: ints on the device whose sum is the number of rows."""
        args = struct(
            "moe/direct/scales_by_column.cu",
            "ByColumnArgs",
            broken=self._broken_address,
            counts=counts,
            num_counts=num_counts,
            capacity="grouped" if prefix else "rows",
            columns=side.columns,
            stride=f"{prefix}stride",
        )
        element = {4: "unsigned int", 1: "unsigned char"}[side.dtype.itemsize]
        assert source is not None
        return Launch(
            kernel("scales_by_column", f"<{element}>"),
            self._local_blocks,
            min(self._tuning_of(self._config.row_bytes).local_threads, 256),
            (
                args,
                source if isinstance(source, Part) else Part(source),
                Part(f"{prefix}side_rows"),
            ),
        )

    def _lend(self, options: DispatchOptions) -> Lease | None:
        """A receive area for the results alone. None: rows arrive in area 0. Also None for a captured CUDA graph: its
        replays would write to the area after the capture's results are gone."""
        whole = options.num_worst_tokens in (0, self._config.max_rows)  # else a copy turns too many rows into NaN
        if self._config.receive_areas < 2 or not options.copy or not whole:
            return None
        return None if self._rank.streams.is_capturing(self._streams.last or 0) else self._areas.lend()

    def _copy_out(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        options: DispatchOptions,
        lease: Lease | None,
        num_rows: int,
        grouped_rows: int,
        placed: ExpertRows | None = None,
        tag: int | None = None,
    ) -> Arrivals:
        """The caller's arrays, and the launch that fills them; rows that need no copy are views of their area.
        ``grouped_rows``: the number of rows grouped by expert, if asked for; ``placed``: the ExpertRows of the handle's
        dispatch; ``tag``: for a dispatch with a handle, whose rows the same operation sends."""
        form, kind, ids = payload.form or self._plain, payload.x.kind, options.ids
        side, copied = _side_array(payload, form), options.copy and lease is None
        by_column = options.column_major_scales and side is not None
        copy = _Copy(
            form.code,
            kind,
            side,
            ids.kind,
            ids.dtype,
            None if weights is None else weights.kind,
            copied,
            tag is None,
            options.sorted_by_expert,
            placed is not None,
            by_column,
        )
        before: tuple[Any, ...] = routing.info, routing.num_tokens
        key: Any = copy
        if tag is not None:
            rows_sent = self._rows_of(payload)
            key, before = (copy, *rows_sent[1:]), (*self._sent(payload, weights, lease), routing.info, tag)
        try:
            operation = self._operations[key]
        except KeyError:
            given, launches, makes = self._declare_copy(form, copy)
            if tag is None:
                given = ("routing", "tokens", *given)
            else:
                given = (*_SENT, "routing", "tag", *given)
                launches = [self._declare_bulk(*rows_sent, again=True), *launches]
            operation = self._operations[key] = Operation(self._rank, given, launches, makes) if launches else None
        x = side_rows = None
        if not copied:
            x, side_rows = self._where_they_are(form, kind, side, lease, num_rows)
        made: dict[str, Array] = {}
        lines = [0, 0, 0, 0]
        if by_column:
            assert side is not None
            strides = [_column_stride(rows, side.dtype.itemsize) for rows in (num_rows, grouped_rows)]
            lines = [strides[0], strides[0] + num_rows, strides[1], strides[1] + grouped_rows]
        if operation is not None:
            arrays = operation.run(
                *before,
                num_rows,
                grouped_rows,
                *self._area_of(form, lease),
                None if side_rows is None else describe(side_rows),
                *lines,
                *(() if placed is None else map(describe, (placed.offsets, placed.row, placed.slot))),
            )
            made = dict(zip(operation.made, arrays, strict=True))
        sent = made.get("weights")
        scales, row_scale = self._scales_from(made, "", payload, side, side_rows, lines[0], num_rows, by_column)
        came = made.get("topk"), sent, made.get("src_rank"), made.get("src_token")
        arrivals = Arrivals(made["x"] if x is None else x, scales, *came, None, row_scale)
        if not options.sorted_by_expert:
            return arrivals
        scales, row_scale = self._scales_from(made, "all_", payload, side, None, lines[2], grouped_rows, by_column)
        rows = with_scales(made["all_x"], scales, row_scale)
        if placed is not None:
            return arrivals._replace(by_expert=replace(placed, x=rows, weights=made.get("all_weights")))
        by_expert = ExpertRows(rows, made["offsets"], made.get("all_weights"), made["row"], made["slot"])
        return arrivals._replace(by_expert=by_expert)

    def _area_of(self, form: RowFormat, lease: Lease | None) -> tuple[int, int]:
        """The addresses of the arrived rows and side rows."""
        name, skipped = self._side_place(form)
        if lease is None:
            return self._at["rows"], self._at[name] + skipped
        return self._areas.address(lease, "rows"), self._areas.address(lease, name, skipped)

    def _where_they_are(
        self, form: RowFormat, kind: str, side: _SideArray | None, lease: Lease | None, num_rows: int
    ) -> tuple[Array, Array | None]:
        """Rows and side rows in the lent area, or in area 0, valid until the next operation."""
        name, skipped = self._side_place(form)
        if lease is None:
            x = self._view("rows", kind, form.dtype, form.columns)[:num_rows]
            if side is None:
                return x, None
            return x, self._view(name, side.kind, side.dtype, side.columns, skipped)[:num_rows]
        x = self._areas.array(lease, "rows", kind, (num_rows, form.columns), form.dtype)
        if side is None:
            return x, None
        shape = num_rows, side.columns
        return x, self._areas.array(lease, name, side.kind, shape, side.dtype, skipped)

    def _scales_from(
        self,
        made: dict[str, Array],
        prefix: str,
        payload: Payload,
        side: _SideArray | None,
        side_rows: Array | None,
        stride: int,
        rows: int,
        by_column: bool,
    ) -> tuple[Array | None, Array | None]:
        """Scales and row scales as views of side rows, copied ones or those in the receive area."""
        if side is None:
            return None, None
        if by_column:
            both = made[f"{prefix}side_rows"].reshape(-1)
            return both[: side.columns * stride].reshape(side.columns, stride).T[:rows], None
        found = made[f"{prefix}side_rows"] if side_rows is None else side_rows
        form = payload.form or self._plain
        return _scales_of(form, payload.scales, side.kind, found) if form.has_row_scale else (found, None)

    def _side_place(self, form: RowFormat) -> tuple[str, int]:
        """The part of the memory in which a receive area's side rows lie, and the bytes before them."""
        return ("recv_scales", 0) if form.is_apart else ("rows", self._config.max_rows * form.row_bytes)
