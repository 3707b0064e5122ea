"""Direct mode: every row straight to where it stays, without bounce buffers and without the host in between.

The kernels lie beside this file. They run in the caller's stream or in one beside it. The host waits in one place only:
where it must know how many rows a dispatch without a handle brings, and then while the rows are on their way.
Operations count themselves on the GPU (<moe/common/epoch.cuh>), so a CUDA graph may replay them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ep_lib.errors import BufferClosedError
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.operation import Launch, Made, Operation, Part, Slot, Struct, struct
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import Array, ArrayInfo, as_kind, describe, like
from ep_lib.moe.agreement import Tag, require_same_everywhere
from ep_lib.moe.checks import refuse_choices, refuse_weights
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, WARP, BufferConfig
from ep_lib.moe.direct.areas import Lease, ReceiveAreas
from ep_lib.moe.direct.memory import allocate, make_direct_map
from ep_lib.moe.direct.tuning import Tuning, choose_tuning, combine_shared, dispatch_shared, for_packed_rows, most_ranks
from ep_lib.moe.event import Event
from ep_lib.moe.formats import FP8_FLOAT32, PLAIN, ROW_SCALE_BYTES, UINT8, RowFormat, row_formats
from ep_lib.moe.mode import Arrivals, DispatchOptions, ExpertRows, Payload, Plan, with_scales
from ep_lib.runtime.rank import Rank

_NOTIFY_BLOCKS = 16  # one destination each; those that are left over check values
_POLL_SECONDS = 0.25  # of looking for the counts without asking what else may be wrong
_MOST_KNOWN = 1024  # operations that are remembered
# How a combine brings rows back: kernel, and template arguments behind the type. Its number is in the tag.
_WAYS = {
    "push": ("combine_push", ""),
    "pull": ("combine_pull", ", ep::direct::kInPlace"),
    "stage": ("combine_pull", ", ep::direct::kElsewhere"),
    "packed": ("combine_push", ", true"),
    "by expert": ("combine_pull", ", ep::direct::kByExpert"),
}

_NUMBER_OF_WAY = {way: number for number, way in enumerate(_WAYS)}

# What every dispatch sends, as values of an operation: four arrays, how many tokens, the area in which it receives.
_SENT = ("x", "scales", "row_scale", "weights", "tokens", "area")
# Of a copy: where rows arrived, and for scales by column the numbers in a column, and those and rows together.
_COPIED = (
    "routing",
    "tokens",
    "rows",
    "grouped",
    "from_rows",
    "from_side",
    "side",
    "stride",
    "lines",
    "all_stride",
    "all_lines",
)

T = TypeVar("T")


@functools.cache
def kernel(name: str, template: str = "", entry: str = "") -> Kernel:
    """The kernel ``ep_<entry>`` of ``<name>.cu``, with template arguments if it has any (``"<float>"``); ``entry`` is
    ``name`` where the file has one kernel."""
    return library_kernel(f"moe/direct/{name}.cu", f"ep_{entry or name}{template}")


class SideRows(NamedTuple):
    """The side rows of a form, as numbers that kernels move."""

    element: str  # "float" or "unsigned char"
    numbers: int  # in a side row
    padding: int  # for rows of zeros: the bits of a number


@functools.cache
def _side_rows(form: RowFormat, address: int) -> SideRows:
    """Side rows as words, or as bytes where they are no whole words or do not begin at such an ``address``."""
    # Beside a row scale, scales are read as what the whole side row is made of.
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
    """The template argument that says what is sent, of <moe/direct/side_rows.cuh>; "" for Apart."""
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
    """What side rows are for the caller, if there are any: scales, or bytes where they also have a row scale."""
    if not form.scale_columns:
        return None
    kind, dtype = payload.x.kind, form.scale_dtypes[0]
    if payload.scales is not None:
        kind, dtype = payload.scales.kind, payload.scales.dtype
    return (
        _SideArray(kind, form.side_bytes, UINT8) if form.has_row_scale else _SideArray(kind, form.scale_columns, dtype)
    )


class _Wanted(NamedTuple):
    """What a dispatch gives to the caller."""

    options: DispatchOptions
    side: _SideArray | None
    copied: bool  # rows and side rows
    routing: bool  # ids and sources
    placed: bool  # rows by expert have the places of an earlier dispatch


def _make_side_rows(makes: list[Made], side: _SideArray | None, prefix: str, by_column: bool) -> str | Part | None:
    """Where a kernel writes side rows. By column there is room for both in one array, which lives as long as what the
    caller gets of it: columns first."""
    if side is None:
        return None
    name, rows = f"{prefix}side_rows", "grouped" if prefix else "rows"
    if not by_column:
        makes.append(Made(name, side.kind, (rows, side.columns), side.dtype))
        return name
    makes.append(Made(name, side.kind, (f"{prefix}lines", side.columns), side.dtype))
    return Part(name, 0, f"{prefix}stride", side.dtype.itemsize * side.columns)


def _scales_of(form: RowFormat, given: ArrayInfo | None, kind: str, side_rows: Array) -> tuple[Array, Array]:
    """Scales, of the type of those that were ``given``, and row scales, as views of side rows that have both."""
    scales = side_rows[:, ROW_SCALE_BYTES : ROW_SCALE_BYTES + form.scale_bytes]
    first = side_rows[:, : FLOAT32.itemsize]
    dtype = form.scale_dtypes[0] if given is None else given.dtype
    return as_kind(kind, scales, dtype), as_kind(kind, first, FLOAT32)[:, 0]


def _most_grouped(config: BufferConfig, received: int, alignment: int) -> int:
    """Rows that ``received`` ones can make: whole groups of ``alignment``."""
    return (received * config.top_k + config.experts_per_rank * (alignment - 1)) // alignment * alignment


class _RoutingParts(NamedTuple):
    """Where the parts of a routing's array begin."""

    topk: Part
    send_index: Part
    rank_counts: Part
    choice_counts: Part
    plan: Part
    received: Part  # of the plan: rows from each rank

    @classmethod
    def of(cls, config: BufferConfig) -> _RoutingParts:
        ranks, each = config.world_size, INT32.itemsize
        a_token = each * (config.top_k + ranks)

        def behind(ints: int) -> Part:
            return Part("routing", each * ints, "tokens", a_token)

        plan = ranks + config.num_experts
        send_index = Part("routing", 0, "tokens", each * config.top_k)
        return cls(Part("routing"), send_index, behind(0), behind(ranks), behind(plan), behind(plan + ranks))


class _Combining(NamedTuple):
    """One way to bring rows back."""

    operation: Operation
    most_warps: int  # of a block that sends
    rows_a_warp: int  # of all that send: few rows are sent quicker by a few warps of all blocks than by all of a few


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
        """Of ``ints``."""
        ranks = config.world_size
        before = num_tokens * (config.top_k + ranks) + ranks + config.num_experts
        return before + 3 * ranks + 2 * config.experts_per_rank + 1

    @property
    def ints(self) -> Array:
        """All of it, in the caller's kind of array."""
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


class DirectMode:
    """The :class:`ep_lib.moe.mode.Mode` of ranks that reach each other by loads and stores: direct writes."""

    checks_values = True
    memory_map = staticmethod(make_direct_map)

    def __init__(self, rank: Rank, config: BufferConfig, tuning: Tuning | None = None) -> None:
        """Collective. Raises RankMismatchError and OutOfSymmetricMemory. ``tuning`` None: chosen by rows' size."""
        require_same_everywhere(rank, config)
        self._rank, self._config, self._backend = rank, config, rank._backend
        self._tuning = tuning
        self._tunings: dict[int, Tuning] = {}
        self._tuning_of(config.row_bytes)  # raises ArgumentError if rows are too large
        self.num_sms = config.num_sms
        plain = row_formats(config)[PLAIN]
        assert plain is not None
        self._plain = plain
        # For what touches memory of this GPU alone, which is not what num_sms is for.
        self._local_blocks = rank.sm_count or min(config.num_sms, 2)
        # Beside num_sms blocks that may wait for them.
        self._spare_blocks = (rank.sm_count or config.num_sms + 2) - config.num_sms
        self._memory = allocate(rank, config)
        self.device, self._xp_kind, self._at = self._memory.device, self._memory.kind, self._memory.at
        parts = {name: self._at[name] for name in ("flags", "tags", "state")}
        self._state = header_struct("moe/common/epoch.cuh", "WorkspaceState")
        self._broken_address = self._at["state"] + self._state.offsets["broken"]
        self.broken = rank.host_array(1, np.uint32)
        self._workspace = header_struct("moe/common/epoch.cuh", "Workspace").pack(
            **parts, broken_on_host=describe(self.broken).address
        )
        # What the host reads while kernels run: the counts of a dispatch, and the ranks that passed another tag.
        self._report = rank.host_array(2 + 3 * config.world_size + config.experts_per_rank, np.int32)
        self._done = self._report[:2].view(np.uint64)
        self._differs = rank.host_array(config.world_size, np.int32)
        self._alike = bytes(self._differs.nbytes)  # what it is while all ranks pass the same
        self._report_address, self._differs_address = (describe(a).address for a in (self._report, self._differs))
        self._tickets = 0
        self._areas = ReceiveAreas(self._memory, config)
        self._views: dict[Any, Array] = {}
        self._parts = _RoutingParts.of(config)
        self._operations: dict[Any, Any] = {}  # one for each kind of call
        self._streams = rank.streams.operations()
        self.epoch = 0

    @property
    def tuning(self) -> Tuning | None:
        """How kernels are launched; None: chosen by rows' size."""
        return self._tuning

    @tuning.setter
    def tuning(self, tuning: Tuning | None) -> None:
        self._tuning = tuning
        self._operations.clear()

    @property
    def meeting_place(self) -> int:
        """The address of the part that <moe/common/regroup.cu> takes."""
        return self._at["hellos"]

    def waits(self, async_finish: bool) -> bool:
        """Where hosts wait, and the operation need not run beside the caller's others."""
        return self._backend.host_waits and not async_finish

    def is_combine_input(self, x: ArrayInfo) -> bool:
        """Whether these rows are :meth:`combine_input`'s."""
        return x.address == self._at["returned"] and x.nbytes > 0

    def begin_anew(self, masked: Collection[int]) -> None:
        """As after __init__, without the ranks that are ``masked``, while no rank runs a kernel."""
        self._memory.clear("state")
        at = self._memory.parts["state"].offset + self._state.offsets["masked"]
        bits = sum(1 << r for r in masked)
        self._memory.array[at : at + 8] = self._rank.xp.asarray(np.array([bits], np.uint64).view(np.uint8))
        self._rank.streams.settle()
        self.broken[0] = self.epoch = 0
        self._differs[...] = 0

    def close(self, orderly: bool = True) -> None:
        """Free the symmetric memory."""
        if not self._rank.is_closed:
            self._memory.free()

    # ---- operations --------------------------------------------------------------------------------------------------
    def dispatch(
        self,
        payload: Payload,
        experts: ArrayInfo,
        weights: ArrayInfo | None,
        content: int,
        options: DispatchOptions,
    ) -> tuple[DirectRouting, Plan, Arrivals | None]:
        """Count, tell all ranks and send; the kernels run while the host learns what they found."""
        config, kind, num_tokens = self._config, payload.x.kind, payload.x.shape[0]
        with self._streams.begin(kind, options.async_finish):
            lease = self._lend(options)
            self._tickets += 1
            (ints,) = self._sending(payload, experts.dtype, content, options).run(
                *self._sent(payload, weights, lease), experts, DirectRouting.size(config, num_tokens), self._tickets
            )
            routing = DirectRouting(config, ints, num_tokens, self._xp_kind)
            if options.num_worst_tokens:
                plan, num_rows = routing.plan_on_device(), options.num_worst_tokens
                grouped = _most_grouped(config, num_rows, options.expert_alignment) if options.sorted_by_expert else 0
            else:
                plan = self._await_plan(experts, weights)
                num_rows = sum(plan.received.tolist())
                grouped = sum(plan.tokens_per_expert.tolist()) if options.sorted_by_expert else 0
            arrivals = self._copy_out(payload, weights, routing, options, lease, num_rows, grouped, with_routing=True)
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
        """Send as an earlier dispatch did; then ask :meth:`mismatched_ranks`. ``by_expert``: what the earlier one
        made, if rows are to be grouped."""
        with self._streams.begin(payload.x.kind, options.async_finish):
            lease = self._lend(options)
            self._sending(payload, None, 0, options).run(*self._sent(payload, weights, lease), routing.info, tag)
            grouped = 0 if by_expert is None else len(by_expert.row)
            arrivals = self._copy_out(
                payload, weights, routing, options, lease, num_rows, grouped, by_expert, with_routing=False
            )
        self._finish(options.async_finish)
        return arrivals

    def combine(
        self,
        x: ArrayInfo,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        tag: Tag,
        *,
        bias: Sequence[ArrayInfo],
        async_finish: bool,
        by_expert: ExpertRows | None = None,
        as_fp8: bool = False,
        by_choice: bool = False,
    ) -> Array:
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; then :meth:`mismatched_ranks`."""
        config = self._config
        if as_fp8:
            way = "packed"
        elif by_expert is not None:
            way = "by expert"
        elif x.address == self._at["returned"]:
            way = "pull"
        elif self._tuning_of(config.row_bytes).push or self._spare_blocks < 1:
            way = "push"
        else:
            way = "stage"
        (rows, columns), slot = x.shape, None if by_expert is None else describe(by_expert.slot)
        # Ranks that disagree about the dispatch or about the way are told so: both are in the tag.
        number = Tag(tag.epoch, _NUMBER_OF_WAY[way], tag.row_vectors).number
        how = self._operations.get((way, x.kind))
        if how is None:
            how = self._remember((way, x.kind), self._declare_combine(way, x.kind))
        with self._streams.begin(x.kind, async_finish):
            (out,) = how.operation.run(
                x,
                weights,
                routing.info,
                *(*bias, None, None)[:2],
                slot,
                0 if slot is None else slot.shape[0],
                number,
                routing.num_tokens,
                columns,
                columns * config.dtype.itemsize // VECTOR_BYTES,
                min(how.most_warps, max(1, -(-rows // how.rows_a_warp))),
                int(by_choice),
            )
        self._finish(async_finish)
        return out

    def combine_input(self, like: Array, num_rows: int) -> Array:
        """Where experts may write what a combine brings back, so that it can be read from there: ``[num_rows, hidden]``
        of the Buffer's dtype, in the kind of array of ``like``."""
        return self._view("returned", describe(like).kind, self._config.dtype, self._config.hidden)[:num_rows]

    def finished(self, array: Array, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation, for streams of the kind of ``array``."""
        stream = self._streams.last
        return Event(self._rank, 0 if stream is None else stream, describe(array).kind, keep)

    def mismatched_ranks(self) -> list[tuple[int, int]]:
        """Without waiting: known at the latest when the kernels are done."""
        if self._differs.tobytes() == self._alike:  # asked at every call: a third of what any() takes
            return []
        differs = [(r, int(bits)) for r, bits in enumerate(self._differs) if bits]
        self._differs[...] = 0
        return differs

    def _finish(self, async_finish: bool) -> None:
        """NumPy knows no streams: on the emulator results are there when a call returns, or behind its event."""
        if self.waits(async_finish):
            self._backend.synchronize()

    # ---- what the host learns ----------------------------------------------------------------------------------------
    def _await_plan(self, experts: ArrayInfo, weights: ArrayInfo | None) -> Plan:
        """Wait for what `notify_dispatch` reports; raises ArgumentError, before anything is sent, for wrong values."""
        ranks, first = self._config.world_size, 4 * self._tickets
        if self._backend.host_waits:
            self._backend.synchronize()
        deadline = time.monotonic() + _POLL_SECONDS
        while self._done[0] < first:
            if time.monotonic() > deadline:
                self._backend.synchronize()  # raises what went wrong; else everything is done
        status = int(self._done[0]) - first
        if status == header_constant("moe/direct/notify_dispatch.cu", "kRefused"):
            refuse_choices(like(self._xp_kind, experts.owner), self._config.num_experts)
            if weights is not None:
                refuse_weights(like(self._xp_kind, weights.owner))
        if status != header_constant("moe/direct/notify_dispatch.cu", "kNotified"):
            self._backend.synchronize()  # raises why
            raise BufferClosedError("an earlier operation of this Buffer failed, so the ranks may be out of step")
        plan = self._report[2:].copy()
        return Plan(plan[ranks : 2 * ranks], plan[2 * ranks : 3 * ranks].tolist(), plan[3 * ranks :])

    # ---- what calls launch -------------------------------------------------------------------------------------------
    def _sent(self, payload: Payload, weights: ArrayInfo | None, lease: Lease | None) -> tuple[Any, ...]:
        """Values for _SENT."""
        area = 0 if lease is None else lease.area
        return payload.x, payload.scales, payload.row_scale, weights, payload.x.shape[0], area

    def _sending(
        self, payload: Payload, ids: np.dtype[Any] | None, content: int, options: DispatchOptions
    ) -> Operation:
        """Of rows like these: behind _SENT it takes the choices, whose dtype is ``ids``, how many ints a routing has,
        and a ticket; where ``ids`` is None, the routing of an earlier dispatch, and a tag."""
        scales, form = payload.scales, payload.form or self._plain
        misplaced = 0 if scales is None else scales.address % 4  # then they are sent by bytes
        counted = None if ids is None else (ids, content, options.num_worst_tokens > 0, options.expert_alignment)
        key = (form.code, payload.cast, misplaced, payload.x.kind, counted)
        known: Operation | None = self._operations.get(key)
        if known is not None:
            return known
        launch = self._declare_bulk(form, payload.cast, misplaced, send_routing=ids is not None)
        if ids is None:
            return self._remember(key, Operation(self._rank, (*_SENT, "routing", "tag"), [launch]))
        launches = [self._declare_notify(ids == INT32, content, options), launch]
        made = Made("routing", payload.x.kind, ("ints",), INT32)
        return self._remember(key, Operation(self._rank, (*_SENT, "ids", "ints", "ticket"), launches, [made]))

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
            expert_alignment=options.expert_alignment,
        )
        return Launch(
            kernel("notify_dispatch", "<int>" if is_int else "<long long>"),
            min(max(config.world_size, _NOTIFY_BLOCKS), self.num_sms),
            self._tuning_of(config.row_bytes).route_threads,
            (args, "ids", "weights", *parts[:5]),
            4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + config.experts_per_rank),
        )

    def _declare_bulk(self, form: RowFormat, cast: str, misplaced: int, send_routing: bool) -> Launch:
        config, parts = self._config, self._parts
        side, row_vectors = _side_rows(form, misplaced), form.row_bytes // VECTOR_BYTES
        stage_vectors = row_vectors
        if cast:  # it is loaded as it is, and its side row is made beside it
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
            send_routing=int(send_routing),
        )
        args = struct(
            "moe/direct/dispatch_bulk.cu",
            "BulkDispatchArgs",
            workspace=self._workspace,
            to=to,
            recv_scales=self._area_of(form, None)[1],
            tag=0 if send_routing else "tag",
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
                "x",
                "scales" if form.is_apart else Part("scales"),
                parts.topk,
                "weights",
                parts.send_index,
                parts.plan,
                self._differs_address,
                "row_scale",
            ),
            dispatch_shared(warps, stages, stage_vectors, config.world_size),
        )

    def _declare_combine(self, way: str, kind: str) -> _Combining:
        """``way``: "push", "packed" (push as FP8), "pull" rows that are in symmetric memory, "stage": copy them there
        and pull them, or "by expert": add up those of "slot" there and pull the sums."""
        config, parts, tuning = self._config, self._parts, self._tuning_of(self._config.row_bytes)
        if way == "packed":
            tuning = for_packed_rows(tuning, config, self._rank.shared_bytes)
        name, template = _WAYS[way]
        more_blocks = max(0, self._spare_blocks) if way in ("stage", "by expert") else 0
        share = 1 if way == "by expert" else tuning.push_share  # of the blocks, if there are no more
        send_blocks = max(1, more_blocks or round(share * self.num_sms))
        element = "float" if config.dtype == FLOAT32 else "__nv_bfloat16"
        launch = Launch(
            kernel(name, f"<{element}{template}>"),
            self.num_sms + more_blocks,
            tuning.add_warps * WARP,
            (
                self._combine_args(tuning, send_blocks, is_push=name == "combine_push"),
                "out",
                "x",
                parts.topk,
                "weights",
                parts.send_index,
                parts.plan,
                self._differs_address,
            ),
            combine_shared(tuning, config, config.row_vectors),
        )
        given = ("x", "weights", "routing", "bias", "more_bias", "slot", "capacity", "tag", "tokens", "columns")
        out = Made("out", kind, ("tokens", "columns"), config.dtype)
        operation = Operation(self._rank, (*given, "row_vectors", "warps", "by_choice"), [launch], [out])
        return _Combining(operation, tuning.send_warps, tuning.group_rows * send_blocks)

    def _combine_args(self, tuning: Tuning, send_blocks: int, is_push: bool) -> Struct:
        config = self._config
        inside: dict[str, Any] = {"workspace": self._workspace, "tag": "tag"}
        inside["add"] = struct(
            "moe/direct/combine_add.cuh",
            "AddArgs",
            bias=("bias", "more_bias"),
            num_tokens="tokens",
            row_vectors="row_vectors",
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            piece_vectors=tuning.add_vectors,
            most_ranks=most_ranks(config),
            stages=tuning.add_stages,
            by_choice="by_choice",
        )
        inside["send"] = struct(
            "moe/direct/combine_send.cuh",
            "SendArgs",
            returned=self._at["returned"],
            arrived=self._at["arrived"],
            max_tokens=config.max_tokens,
            max_groups=-(-config.max_tokens // tuning.group_rows),
            group_rows=tuning.group_rows,
            blocks=send_blocks,
            warps="warps",
            stages=tuning.send_stages,
        )
        if is_push:
            shares = int(config.receive_areas == 0)
            return struct("moe/direct/combine_push.cu", "PushCombineArgs", **inside, shares_area=shares)
        inside |= {"slot": "slot", "capacity": "capacity", "pull_blocks": self.num_sms}
        return struct("moe/direct/combine_pull.cu", "PullCombineArgs", **inside)

    def _declare_copy(self, payload: Payload, weights: ArrayInfo | None, wants: _Wanted) -> Operation | None:
        """From where rows arrived to arrays of the caller's own; None where there is nothing to do."""
        config, parts, options = self._config, self._parts, wants.options
        form, ids, index = payload.form or self._plain, options.ids.kind, options.ids.dtype
        side, by_expert, turned = wants.side, options.sorted_by_expert, options.column_major_scales
        sent_kind = None if weights is None else weights.kind
        makes: list[Made] = []
        x: Slot = None
        of_side: str | Part | None = None
        if wants.copied:
            x = "x"
            makes.append(Made("x", payload.x.kind, ("rows", form.columns), form.dtype))
            of_side = _make_side_rows(makes, side, "", turned)
        elif side is not None and turned:
            _make_side_rows(makes, side, "", turned)
        if wants.routing:
            makes.append(Made("topk", ids, ("rows", config.top_k), index))
            makes += [Made(name, ids, ("rows",), INT32) for name in ("src_rank", "src_token")]
        if sent_kind is not None:
            makes.append(Made("weights", sent_kind, ("rows", config.top_k), FLOAT32))
        given: tuple[str, ...] = _COPIED
        all_side = None
        if by_expert:
            makes.append(Made("all_x", payload.x.kind, ("grouped", form.columns), form.dtype))
            all_side = _make_side_rows(makes, side, "all_", turned)
            if sent_kind is not None:
                makes.append(Made("all_weights", sent_kind, ("grouped",), FLOAT32))
            if wants.placed:
                given = (*given, "offsets", "row", "slot")
            else:
                makes.append(Made("offsets", ids, (config.experts_per_rank + 1,), INT32))
                makes.append(Made("row", ids, ("grouped",), INT32))
                makes.append(Made("slot", ids, ("rows", config.top_k), INT32))
        launches = []
        if by_expert or wants.copied or wants.routing or sent_kind is not None:
            names = {made.name for made in makes}
            targets: list[Slot] = [
                name if name in names else None for name in ("topk", "weights", "src_rank", "src_token")
            ]
            is_int = not wants.routing or index == INT32
            if isinstance(of_side, str) and not form.is_apart:
                of_side = Part(of_side)
            launches.append(self._declare_epilogue(form, is_int, [x, of_side, *targets], all_side, wants, sent_kind))
        if turned and side is not None:
            source = of_side if wants.copied else "side"
            launches.append(self._declare_by_column(side, source, "", parts.received, config.world_size))
            if by_expert:
                end = Part("offsets", INT32.itemsize * config.experts_per_rank)
                launches.append(self._declare_by_column(side, all_side, "all_", end, 1))
        return Operation(self._rank, given, launches, makes) if launches else None

    def _declare_epilogue(
        self,
        form: RowFormat,
        is_int: bool,
        targets: Sequence[Slot],
        all_side: str | Part | None,
        wants: _Wanted,
        sent_kind: str | None,
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
        if wants.options.sorted_by_expert:
            args = struct(
                "moe/direct/expert_rows.cuh",
                "ExpertRowsArgs",
                **{name: name for name in ("slot", "row", "offsets")},
                weights=None if sent_kind is None else "all_weights",
                x="all_x",
                scales=all_side,
                all="grouped",
                experts_per_rank=config.experts_per_rank,
                placed=int(wants.placed),
                padding=side.padding,
            )
            slots.append(args)
            # expert_rows_shared of <moe/direct/expert_rows.cuh>
            shared_bytes = 4 * (config.experts_per_rank + 1 + threads)
        element = "" if side.element == "float" else f", {side.element}"
        entry = "copy_by_expert" if wants.options.sorted_by_expert else ""
        which = kernel("copy_epilogue", f"<{'int' if is_int else 'long long'}{element}>", entry)
        return Launch(which, self._local_blocks, threads, (*slots, self._parts.plan, *targets), shared_bytes)

    def _declare_by_column(
        self, side: _SideArray, source: str | Part | None, prefix: str, counts: Part, num_counts: int
    ) -> Launch:
        """Turn side rows round. ``counts``: of as many numbers, whose sum is that of the rows."""
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

    # ---- results -----------------------------------------------------------------------------------------------------
    def _lend(self, options: DispatchOptions) -> Lease | None:
        """A receive area for the results alone. None: rows arrive in the first area and are copied, if at all. A CUDA
        graph would write to the same area at each replay, also after the results of its capture are gone."""
        whole = options.num_worst_tokens in (0, self._config.max_rows)  # else what is too much becomes NaN, by the copy
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
        *,
        with_routing: bool,
    ) -> Arrivals:
        """The caller's arrays, and the launch that fills them; rows that need no copy are views, or stay where they
        are. ``grouped_rows``: of rows grouped by expert, if they are asked for; ``placed``: those of the dispatch that
        the handle is from."""
        form, kind, ids = payload.form or self._plain, payload.x.kind, options.ids
        side, copied = _side_array(payload, form), options.copy and lease is None
        by_column = options.column_major_scales and side is not None
        key = (
            form.code,
            kind,
            side,
            ids.kind,
            ids.dtype,
            None if weights is None else weights.kind,
            copied,
            with_routing,
            options.sorted_by_expert,
            placed is None,
            by_column,
        )
        if key in self._operations:
            operation = self._operations[key]
        else:
            wants = _Wanted(options, side, copied, with_routing, placed is not None)
            operation = self._remember(key, self._declare_copy(payload, weights, wants))
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
                routing.info,
                routing.num_tokens,
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
        """The addresses of rows and side rows that arrived."""
        name, skipped = self._side_place(form)
        if lease is None:
            return self._at["rows"], self._at[name] + skipped
        return self._areas.address(lease, "rows"), self._areas.address(lease, name, skipped)

    def _where_they_are(
        self, form: RowFormat, kind: str, side: _SideArray | None, lease: Lease | None, num_rows: int
    ) -> tuple[Array, Array | None]:
        """Rows and side rows in the area that is lent, or in the first one until the next operation."""
        if lease is None:
            x = self._view("rows", kind, form.dtype, form.columns)[:num_rows]
            return x, None if side is None else self._side_view(form, side)[:num_rows]
        x = self._areas.array(lease, "rows", kind, (num_rows, form.columns), form.dtype)
        if side is None:
            return x, None
        name, skipped = self._side_place(form)
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
        """Scales and row scales, of side rows that were made or are where they arrived."""
        if side is None:
            return None, None
        if by_column:
            both = made[f"{prefix}side_rows"].reshape(-1)
            return both[: side.columns * stride].reshape(side.columns, stride).T[:rows], None
        found = made[f"{prefix}side_rows"] if side_rows is None else side_rows
        form = payload.form or self._plain
        return _scales_of(form, payload.scales, side.kind, found) if form.has_row_scale else (found, None)

    # ---- side rows ---------------------------------------------------------------------------------------------------
    def _side_place(self, form: RowFormat) -> tuple[str, int]:
        """The part of the memory in which a receive area's side rows lie, and the bytes before them."""
        return ("recv_scales", 0) if form.is_apart else ("rows", self._config.max_rows * form.row_bytes)

    def _side_view(self, form: RowFormat, of_side: _SideArray) -> Array:
        name, skipped = self._side_place(form)
        return self._view(name, of_side.kind, of_side.dtype, of_side.columns, skipped)

    def _view(self, name: str, kind: str, dtype: np.dtype[Any], columns: int, skipped: int = 0) -> Array:
        """A part of the receive area, all of it from the byte ``skipped`` on, as an array of the caller's kind."""
        key = (name, kind, dtype, columns, skipped)
        if key not in self._views:
            begin = self._memory.parts[name].offset + skipped
            area = self._memory.array[begin : begin + self._config.max_rows * columns * dtype.itemsize]
            stored = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
            view = area if stored == UINT8 else area.view(stored)
            self._views[key] = as_kind(kind, view.reshape(-1, columns), dtype)
        return self._views[key]

    def _tuning_of(self, row_bytes: int) -> Tuning:
        if self._tuning is not None:
            return self._tuning
        found = self._tunings.get(row_bytes)
        if found is None:
            costly = self._backend.costly_threads
            found = choose_tuning(self._config, row_bytes, self._rank.shared_bytes, costly_threads=costly)
            self._tunings[row_bytes] = found
        return found

    def _remember(self, key: Any, value: T) -> T:
        known = self._operations
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = value
        return value
