"""Direct mode: every row straight to where it stays, without bounce buffers and without the host in between.

The kernels lie beside this file. They run in the caller's stream or in one beside it. The host waits in one place only:
where it must know how many rows a dispatch without a handle brings, and then while the rows are on their way.
Operations count themselves on the GPU (<moe/common/epoch.cuh>), so a CUDA graph may replay them.
"""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ep_lib.errors import BufferClosedError
from ep_lib.jit import pieces
from ep_lib.jit.kernel import Differing, Kernel, Launched, library_kernel
from ep_lib.jit.structs import HeaderStruct, header_constant, header_struct
from ep_lib.memory.arrays import Array, ArrayInfo, as_kind, describe, like
from ep_lib.moe.agreement import Tag, require_same_everywhere
from ep_lib.moe.checks import refuse_choices, refuse_weights
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, BufferConfig
from ep_lib.moe.direct.areas import Lease, ReceiveAreas
from ep_lib.moe.direct.expert_rows import ExpertRows, most_rows
from ep_lib.moe.direct.memory import allocate
from ep_lib.moe.direct.tuning import Tuning, choose_tuning, combine_shared, dispatch_shared, for_packed_rows, most_ranks
from ep_lib.moe.event import Event
from ep_lib.moe.formats import FP8_FLOAT32, PLAIN, ROW_SCALE_BYTES, UINT8, RowFormat, row_formats
from ep_lib.moe.memory import sync_current_stream
from ep_lib.moe.mode import Arrivals, DispatchOptions, Payload, Plan, with_scales
from ep_lib.runtime.rank import Rank

_WARP = 32
_NOTIFY_BLOCKS = 16  # one destination each; those that are left over check values
_POLL_SECONDS = 0.25  # of looking for the counts without asking what else may be wrong
_MOST_KNOWN = 1024  # launches and arguments that are remembered
# How a combine brings rows back: kernel, and template arguments behind the type. Its number is in the tag.
_WAYS = {
    "push": ("combine_push", ""),
    "pull": ("combine_pull", ", ep::direct::kInPlace"),
    "stage": ("combine_pull", ", ep::direct::kElsewhere"),
    "packed": ("combine_push", ", true"),
    "by expert": ("combine_pull", ", ep::direct::kByExpert"),
}

_NUMBER_OF_WAY = {way: number for number, way in enumerate(_WAYS)}

T = TypeVar("T")


@functools.cache
def kernel(name: str, template: str = "", entry: str = "") -> Kernel:
    """The kernel ``ep_<entry>`` of ``<name>.cu``, with template arguments if it has any (``"<float>"``); ``entry`` is
    ``name`` where the file has one kernel."""
    return library_kernel(f"moe/direct/{name}.cu", f"ep_{entry or name}{template}")


class Planned(NamedTuple):
    """A launch whose shapes are known: all of it but the arrays, and a few numbers."""

    kernel: Kernel
    blocks: int
    threads: int
    args: bytes
    shared_bytes: int
    ints_at: tuple[int, ...] = ()  # at which bytes of args the ints are that differ from call to call: counts of rows

    def launch(self, rank: Rank, *arrays: Any, uses: Sequence[ArrayInfo]) -> None:
        """Where ``arrays`` are addresses, what ``describe`` says of arrays, or None."""
        self.kernel.launch(
            rank, self.blocks, self.threads, self.args, *arrays, shared_bytes=self.shared_bytes, uses=uses
        )

    def with_arrays(self, *args: Any) -> Launched:
        """What Backend.replay takes."""
        return Launched(self.kernel, self.blocks, self.threads, args, self.shared_bytes)


_pack_int, _pack_number = struct.Struct("<i").pack_into, struct.Struct("<Q").pack_into


def _int_at(layout: HeaderStruct, name: str) -> int:
    """At which byte of a struct its ``int`` of that name is."""
    (at,) = (field.offset for field in layout.fields if field.name == name and field.dtype == INT32)
    return at


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


def _scales_of(form: RowFormat, given: ArrayInfo | None, kind: str, side_rows: Array) -> tuple[Array, Array]:
    """Scales, of the type of those that were ``given``, and row scales, as views of side rows that have both."""
    scales = side_rows[:, ROW_SCALE_BYTES : ROW_SCALE_BYTES + form.scale_bytes]
    first = side_rows[:, : FLOAT32.itemsize]
    dtype = form.scale_dtypes[0] if given is None else given.dtype
    return as_kind(kind, scales, dtype), as_kind(kind, first, FLOAT32)[:, 0]


class _Grouped(NamedTuple):
    """Rows grouped by expert, before the caller gets them."""

    rows: ExpertRows  # x without scales
    side_rows: Array | None
    by_column: Array | None  # room for side_rows turned round, if they are to be
    placed: bool  # offsets, row and slot are known

    def arrays(self) -> tuple[Array, ...]:
        """All that a kernel writes or reads."""
        rows = self.rows
        arrays = (rows.x, rows.offsets, rows.weights, rows.row, rows.slot, self.side_rows)
        return tuple(array for array in arrays if array is not None)

    def args(self, experts: int, padding: int) -> bytes:
        """ExpertRowsArgs, for ``experts`` on this rank."""
        rows = self.rows
        return header_struct("moe/direct/expert_rows.cuh", "ExpertRowsArgs").pack(
            slot=describe(rows.slot).address,
            row=describe(rows.row).address,
            offsets=describe(rows.offsets).address,
            weights=0 if rows.weights is None else describe(rows.weights).address,
            x=describe(rows.x).address,
            scales=0 if self.side_rows is None else describe(self.side_rows).address,
            all=len(rows.row),
            experts_per_rank=experts,
            placed=int(self.placed),
            padding=padding,
        )


class _Room(NamedTuple):
    """For how many rows a dispatch makes its arrays before it knows how many come, from what came the last time. The
    kernel that fills them is on its way then while the host learns the counts."""

    rows: int
    grouped: int  # by expert
    least_rows: int  # for fewer it is too much
    least_grouped: int

    @staticmethod
    def key(num_tokens: int, options: DispatchOptions) -> tuple[int, bool, int]:
        """Of dispatches that bring about as many rows."""
        return num_tokens, options.sorted_by_expert, options.expert_alignment

    @classmethod
    def after(cls, rows: int, grouped: int, most: int) -> _Room:
        """3 to 5 % more than what came, and what is little anyway, up to ``most`` rows. Of few sizes, since each takes
        its time to learn."""
        spare = [count + count // 32 + 64 for count in (rows, grouped)]
        steps = [max(64, 1 << count.bit_length() >> 7) for count in spare]
        room = [-(-count // step) * step for count, step in zip(spare, steps, strict=True)]
        return cls(min(room[0], most), room[1], *[count - count // 32 - 64 for count in (rows, grouped)])


class DirectRouting:
    """Where this rank's tokens go: one array of int32, ``ints``, in the memory of the caller's array library.

    Its parts: topk_idx ``[T, top_k]``, send_index ``[T, ranks]`` (<moe/common/layout.cuh>), counts
    ``[ranks + num_experts]``, and the plan ``[3 * ranks + 2 * experts_per_rank + 1]`` of notify_dispatch.cu. Attributes
    with their names are their addresses.
    """

    def __init__(self, config: BufferConfig, ints: Array, num_tokens: int, xp_kind: str) -> None:
        self.num_tokens, self.config, self._xp_kind = num_tokens, config, xp_kind
        self.info = describe(ints)
        self.topk = self.info.address
        self.send_index = self.topk + 4 * num_tokens * config.top_k
        self.rank_counts = self.send_index + 4 * num_tokens * config.world_size
        self.choice_counts = self.rank_counts + 4 * config.world_size
        self.plan = self.choice_counts + 4 * config.num_experts
        self.planned: dict[Any, Planned] = {}  # launches for this routing

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
        plan = self.ints[(self.plan - self.topk) // 4 :]
        return Plan(plan[ranks : 2 * ranks], None, plan[3 * ranks : 3 * ranks + experts])


class DirectMode:
    """The :class:`ep_lib.moe.mode.Mode` of ranks that reach each other by loads and stores: direct writes."""

    checks_values = True

    def __init__(self, rank: Rank, config: BufferConfig, tuning: Tuning | None = None) -> None:
        """Collective. Raises RankMismatchError and OutOfSymmetricMemory. ``tuning`` None: chosen by rows' size."""
        require_same_everywhere(rank, config)
        self._rank, self._config, self._backend = rank, config, rank._backend
        self.tuning = tuning
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
        self._ticket_offset = header_struct("moe/direct/notify_dispatch.cu", "NotifyDispatchArgs").offsets["ticket"]
        self._tag_offset = header_struct("moe/direct/dispatch_bulk.cu", "BulkDispatchArgs").offsets["tag"]
        self._areas = ReceiveAreas(self._memory, config)
        self._views: dict[Any, Array] = {}
        self._notifies: dict[Any, Planned] = {}  # of notify_dispatch, all but the ticket
        self._planned: dict[Any, Planned] = {}  # launches that belong to no handle
        self._rooms: dict[Any, _Room] = {}
        self._calls: dict[Any, Callable[[tuple[int, ...]], Sequence[Any] | None] | None] = {}
        self._met: dict[Any, bool] = {}  # calls that came once
        self._launches: list[Launched] | None = None  # of a call that is being learnt
        self._streams = rank.streams.operations()
        self.epoch = 0

    @property
    def hellos(self) -> int:
        """The address of the part that <moe/common/regroup.cu> takes."""
        return self._at["hellos"]

    @property
    def returned(self) -> int:
        """The address of the rows of :meth:`combine_input`."""
        return self._at["returned"]

    def begin_anew(self, masked: Collection[int]) -> None:
        """As after __init__, without the ranks that are ``masked``, while no rank runs a kernel."""
        self._memory.clear("state")
        at = self._memory.parts["state"].offset + self._state.offsets["masked"]
        bits = sum(1 << r for r in masked)
        self._memory.array[at : at + 8] = self._rank.xp.asarray(np.array([bits], np.uint64).view(np.uint8))
        sync_current_stream(self._rank)
        self.broken[0] = self.epoch = 0
        self._differs[...] = 0

    def close(self) -> None:
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
        ranks, plan_ints = config.world_size, 3 * config.world_size + 2 * config.experts_per_rank + 1
        size = num_tokens * (config.top_k + ranks) + ranks + config.num_experts + plan_ints
        room = self._room_of(num_tokens, options)
        with self._streams.begin(kind, options.async_finish):
            lease, ahead = self._lend(options), None
            known = None if room is None else self._repeatable(payload, options, experts, weights)
            done = None
            if known is not None and room is not None:
                known = (*known, content, experts.dtype, options.expert_alignment, room.rows)
                self._tickets += 1
                done = self._call_again(known, self._tickets, payload.x, payload.scales, experts, weights)
            if done is not None:
                made = iter(done)
                routing, x = DirectRouting(config, next(made), num_tokens, self._xp_kind), next(made)
                scales = None if payload.scales is None and not payload.cast else next(made)
                topk, sent = next(made), None if weights is None else next(made)
                ahead = Arrivals(x, scales, topk, sent, next(made), next(made))
            else:
                routing = DirectRouting(config, self._backend.empty(kind, (size,), INT32), num_tokens, self._xp_kind)
                self._note_launches(known)
                self._launch_notify(experts, weights, routing, content, options)
                self._launch_dispatch(payload, weights, routing, 0, self._planned, lease, send_routing=True)
            copied = functools.partial(self._copy_out, payload, weights, routing, options, lease, with_routing=True)
            if options.num_worst_tokens:
                plan, num_rows = routing.plan_on_device(), options.num_worst_tokens
                grouped = most_rows(config, num_rows, options.expert_alignment) if options.sorted_by_expert else 0
                arrivals = copied(num_rows, grouped)
            else:
                if room is not None and ahead is None:
                    ahead = copied(room.rows, room.grouped, is_guess=True)
                    self._learn_call(known, (payload.x, payload.scales, experts, weights), (routing.ints, *ahead[:6]))
                plan, arrivals = self._count(experts, weights, num_tokens, options, copied, room, ahead)
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
            lease, known, done = self._lend(options), self._repeatable(payload, options, weights, routing.info), None
            given = (payload.x, payload.scales, weights, routing.info)
            if known is not None:
                known = (*known, num_rows, weights is None)
                done = self._call_again(known, tag, *given)
            if done is not None:
                made = iter(done)
                x, scales = next(made), None if payload.scales is None and not payload.cast else next(made)
                arrivals = Arrivals(x, scales, None, next(made, None), None, None)
            else:
                self._note_launches(known)
                self._launch_dispatch(payload, weights, routing, tag, routing.planned, lease, send_routing=False)
                grouped = 0 if by_expert is None else len(by_expert.row)
                arrivals = self._copy_out(
                    payload, weights, routing, options, lease, num_rows, grouped, by_expert, with_routing=False
                )
                self._learn_call(known, given, (arrivals.x, arrivals.scales, arrivals.weights))
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
    ) -> Array:
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; then :meth:`mismatched_ranks`."""
        config = self._config
        out = self._backend.empty(x.kind, (routing.num_tokens, x.shape[1]), config.dtype)
        if as_fp8:
            way = "packed"
        elif by_expert is not None:
            way = "by expert"
        elif x.address == self.returned:
            way = "pull"
        elif self._tuning_of(config.row_bytes).push or self._spare_blocks < 1:
            way = "push"
        else:
            way = "stage"
        row_vectors = x.shape[1] * config.dtype.itemsize // VECTOR_BYTES
        # Ranks that disagree about the dispatch or about the way are told so: both are in the tag.
        number = Tag(tag.epoch, _NUMBER_OF_WAY[way], tag.row_vectors).number
        key = (number, row_vectors, *[b.address for b in bias])
        slot = None if by_expert is None else describe(by_expert.slot)
        with self._streams.begin(x.kind, async_finish):
            self._launch_combine(way, key, describe(out), x, weights, routing, bias, slot)
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
        if self._rank.backend == "emulator" and not async_finish:
            self._backend.synchronize()

    # ---- what the host learns ----------------------------------------------------------------------------------------
    def _room_of(self, num_tokens: int, options: DispatchOptions) -> _Room | None:
        """None where nothing is known of such a dispatch, or nothing is to be guessed."""
        if options.num_worst_tokens or options.column_major_scales:
            return None
        return self._rooms.get(_Room.key(num_tokens, options))

    def _count(
        self,
        experts: ArrayInfo,
        weights: ArrayInfo | None,
        num_tokens: int,
        options: DispatchOptions,
        copied: Callable[..., Arrivals],
        room: _Room | None,
        ahead: Arrivals | None,
    ) -> tuple[Plan, Arrivals]:
        """What the ranks told each other, and what came: of ``ahead``, if there was ``room`` enough, else by
        ``copied(rows, grouped)``."""
        plan = self._await_plan(experts, weights)
        rows = sum(plan.received.tolist())
        grouped = sum(plan.tokens_per_expert.tolist()) if options.sorted_by_expert else 0
        if ahead is None or room is None or rows > room.rows or grouped > room.grouped:
            arrivals = copied(rows, grouped)
        else:
            arrivals = ahead.first_rows(rows, grouped)
            if rows >= room.least_rows and grouped >= room.least_grouped:
                return plan, arrivals
        self._remember(self._rooms, _Room.key(num_tokens, options), _Room.after(rows, grouped, self._config.max_rows))
        return plan, arrivals

    # ---- dispatches that are as an earlier one, made again natively --------------------------------------------------
    def _repeatable(
        self, payload: Payload, options: DispatchOptions, *more: ArrayInfo | None
    ) -> tuple[Any, ...] | None:
        """What says how rows like these are sent; None for what is not made again: only torch's, that are copied."""
        x, scales, form = payload.x, payload.scales, payload.form or self._plain
        if (
            self._config.receive_areas > 1
            or not options.copy
            or options.sorted_by_expert
            or options.column_major_scales
            or form.has_row_scale
            or pieces.in_use
            or any(array is not None and array.kind != "torch" for array in (x, scales, *more))
        ):
            return None
        said = None if scales is None else (scales.dtype, scales.address % 4)
        return x.shape, form.code, payload.cast, said

    def _call_again(self, known: tuple[Any, ...], number: int, *given: ArrayInfo | None) -> Sequence[Any] | None:
        """The arrays that it made; None where that cannot be, and nothing was launched."""
        again = self._calls.get(known)
        if again is None:
            return None
        return again((*[0 if array is None else array.address for array in given], number))

    def _note_launches(self, known: tuple[Any, ...] | None) -> None:
        """From now on, where such a call came before and was not learnt: that takes as long as a few calls."""
        self._launches = None
        if known is None or known in self._calls:
            return
        if known in self._met:
            self._launches = []
        else:
            self._remember(self._met, known, True)

    def _learn_call(
        self, known: tuple[Any, ...] | None, given: Sequence[ArrayInfo | None], made: Sequence[Array | None]
    ) -> None:
        """After a call by Python whose launches were noted: how the backend makes it again, if it can."""
        launches, self._launches = self._launches, None
        if launches is None:
            return
        self._remember(
            self._calls, known, self._backend.replay(launches, given, [array for array in made if array is not None])
        )

    def _start(
        self,
        planned: Planned,
        ints: tuple[int, ...],
        *arrays: Any,
        uses: Sequence[ArrayInfo],
        number_at: int = -1,
        number: int | None = None,
    ) -> None:
        """Launch with ``ints`` where the plan has them, and note it where a call is learnt. ``number_at``: where its
        arguments have a number that differs when the call is made again, which is ``number`` now, if not as planned."""
        words = bytearray(planned.args)
        for at, value in zip(planned.ints_at, ints, strict=True):
            _pack_int(words, at, value)
        if self._launches is not None:
            noted = bytes(words)
            args = noted if number_at < 0 else Differing(noted, number_at=number_at)
            self._launches.append(planned.with_arrays(args, *arrays))
        if number is not None:
            _pack_number(words, number_at, number)
        planned.kernel.launch(
            self._rank,
            planned.blocks,
            planned.threads,
            bytes(words),
            *arrays,
            shared_bytes=planned.shared_bytes,
            uses=uses,
        )

    def _await_plan(self, experts: ArrayInfo, weights: ArrayInfo | None) -> Plan:
        """Wait for what `notify_dispatch` reports; raises ArgumentError, before anything is sent, for wrong values."""
        ranks, first = self._config.world_size, 4 * self._tickets
        if self._rank.backend == "emulator":
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
        return Plan(plan[ranks : 2 * ranks], plan[2 * ranks : 3 * ranks], plan[3 * ranks :])

    # ---- launches, in the stream that the caller has chosen ----------------------------------------------------------
    def _launch_notify(
        self,
        experts: ArrayInfo,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        content: int,
        options: DispatchOptions,
    ) -> None:
        self._tickets += 1
        is_int = experts.dtype == INT32
        key = (content, options.num_worst_tokens > 0, options.expert_alignment, is_int)
        planned = self._notifies.get(key)
        if planned is None:
            config = self._config
            layout = header_struct("moe/direct/notify_dispatch.cu", "NotifyDispatchArgs")
            args = layout.pack(
                workspace=self._workspace,
                counts=self._at["counts"],
                expert_counts=self._at["expert_counts"],
                report=0 if options.num_worst_tokens else self._report_address,
                ticket=0,
                num_tokens=0,
                top_k=config.top_k,
                experts_per_rank=config.experts_per_rank,
                options=content,
                expert_alignment=options.expert_alignment,
            )
            planned = Planned(
                kernel("notify_dispatch", "<int>" if is_int else "<long long>"),
                min(max(config.world_size, _NOTIFY_BLOCKS), self.num_sms),
                self._tuning_of(config.row_bytes).route_threads,
                args,
                4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + config.experts_per_rank),
                (_int_at(layout, "num_tokens"),),
            )
            self._remember(self._notifies, key, planned)
        self._start(
            planned,
            (routing.num_tokens,),
            experts,
            weights,
            routing.topk,
            routing.send_index,
            routing.rank_counts,
            routing.choice_counts,
            routing.plan,
            uses=(routing.info,),
            number_at=self._ticket_offset,
            number=self._tickets,
        )

    def _launch_dispatch(
        self,
        payload: Payload,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        tag: int,
        known: dict[Any, Planned],
        lease: Lease | None,
        *,
        send_routing: bool,
    ) -> None:
        config, form, scales = self._config, payload.form or self._plain, payload.scales
        row_bytes, area = form.row_bytes, 0 if lease is None else lease.area
        misplaced = 0 if scales is None else scales.address % 4  # then they are sent by bytes
        key = (tag, form.code, payload.cast, misplaced, send_routing, area)
        planned = known.get(key)
        if planned is None:
            side, row_vectors = _side_rows(form, misplaced), row_bytes // VECTOR_BYTES
            stage_vectors = row_vectors
            if payload.cast:  # it is loaded as it is, and its side row is made beside it
                stage_vectors = config.row_vectors + _side_vectors(form)
            tuning = self._tuning_of(stage_vectors * VECTOR_BYTES)
            inner = header_struct("moe/common/dispatch.cuh", "DispatchArgs")
            layout = header_struct("moe/direct/dispatch_bulk.cu", "BulkDispatchArgs")
            to = inner.pack(
                rows=self._at["rows"],
                recv_topk=self._at["recv_topk"],
                recv_weights=self._at["recv_weights"],
                recv_source=self._at["recv_source"],
                num_tokens=0,
                row_vectors=row_vectors,
                top_k=config.top_k,
                experts_per_rank=config.experts_per_rank,
                send_routing=int(send_routing),
            )
            args = layout.pack(
                workspace=self._workspace,
                to=to,
                recv_scales=self._side_address(form),
                tag=tag,
                row_scales=side.numbers,
                max_rows=config.max_rows,
                area_vectors=config.max_rows * config.row_vectors,
                areas=config.receive_areas,
                area=area,
            )
            warps, stages = tuning.dispatch_warps, tuning.dispatch_stages
            shared_bytes = dispatch_shared(warps, stages, stage_vectors, config.world_size)
            rows = _rows_type(form, payload.cast, side)
            which = kernel("dispatch_bulk", f"<ep::direct::kBy{tuning.way}, {stages}{rows}>")
            ints_at = (layout.offsets["to"] + _int_at(inner, "num_tokens"),)
            planned = Planned(which, self.num_sms, warps * _WARP, args, shared_bytes, ints_at)
            self._remember(known, key, planned)
        uses: tuple[ArrayInfo, ...] = (routing.info,)
        if scales is not None and not form.is_apart:
            uses = (routing.info, scales)
        self._start(
            planned,
            (routing.num_tokens,),
            payload.x,
            scales if form.is_apart or scales is None else scales.address,
            routing.topk,
            weights,
            routing.send_index,
            routing.plan,
            self._differs_address,
            payload.row_scale,
            uses=uses,
            number_at=-1 if send_routing else self._tag_offset,
        )

    def _launch_combine(
        self,
        way: str,
        key: tuple[int, ...],
        out: ArrayInfo,
        x: ArrayInfo,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        bias: Sequence[ArrayInfo],
        slot: ArrayInfo | None,
    ) -> None:
        """``way``: "push", "packed" (push as FP8), "pull" rows that are in symmetric memory, "stage": copy them there
        and pull them, or "by expert": add up those of ``slot`` there and pull the sums."""
        planned = routing.planned.get(key)
        if planned is None:
            config, tuning = self._config, self._tuning_of(self._config.row_bytes)
            if way == "packed":
                tuning = for_packed_rows(tuning, config, self._rank.shared_bytes)
            name, template = _WAYS[way]
            more_blocks = max(0, self._spare_blocks) if way in ("stage", "by expert") else 0
            share = 1 if way == "by expert" else tuning.push_share  # of the blocks, if there are no more
            send_blocks = max(1, more_blocks or round(share * self.num_sms))
            element = "float" if config.dtype == FLOAT32 else "__nv_bfloat16"
            planned = Planned(
                kernel(name, f"<{element}{template}>"),
                self.num_sms + more_blocks,
                tuning.add_warps * _WARP,
                self._combine_args(routing, key, tuning, x.shape[0], send_blocks, slot, name == "combine_push"),
                combine_shared(tuning, config, config.row_vectors),
            )
            self._remember(routing.planned, key, planned)
        planned.launch(
            self._rank,
            out,
            x,
            routing.topk,
            weights,
            routing.send_index,
            routing.plan,
            self._differs_address,
            uses=(routing.info, *bias) if slot is None else (routing.info, slot, *bias),
        )

    def _combine_args(
        self,
        routing: DirectRouting,
        key: tuple[int, ...],
        tuning: Tuning,
        rows: int,
        send_blocks: int,
        slot: ArrayInfo | None,
        push: bool,
    ) -> bytes:
        config, (tag, row_vectors, *bias) = self._config, key
        parts: dict[str, Any] = {"workspace": self._workspace, "tag": tag}
        parts["add"] = header_struct("moe/direct/combine_add.cuh", "AddArgs").pack(
            bias=np.array((*bias, 0, 0)[:2], np.uint64).tobytes(),
            num_tokens=routing.num_tokens,
            row_vectors=row_vectors,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            piece_vectors=tuning.add_vectors,
            most_ranks=most_ranks(config),
            stages=tuning.add_stages,
        )
        parts["send"] = header_struct("moe/direct/combine_send.cuh", "SendArgs").pack(
            returned=self._at["returned"],
            arrived=self._at["arrived"],
            max_tokens=config.max_tokens,
            max_groups=-(-config.max_tokens // tuning.group_rows),
            group_rows=tuning.group_rows,
            blocks=send_blocks,
            # Few rows are sent quicker by a few warps of all blocks than by all warps of a few.
            warps=min(tuning.send_warps, max(1, -(-rows // (tuning.group_rows * send_blocks)))),
            stages=tuning.send_stages,
        )
        if push:
            return header_struct("moe/direct/combine_push.cu", "PushCombineArgs").pack(
                **parts, shares_area=int(config.receive_areas == 0)
            )
        return header_struct("moe/direct/combine_pull.cu", "PullCombineArgs").pack(
            **parts,
            slot=0 if slot is None else slot.address,
            capacity=0 if slot is None else slot.shape[0],
            pull_blocks=self.num_sms,
        )

    def _launch_copy_epilogue(
        self,
        x: Array | None,
        side_rows: Array | None,
        to: Arrivals,
        index: ArrayInfo,
        num_rows: int,
        form: RowFormat,
        routing: DirectRouting,
        grouped: _Grouped | None,
        lease: Lease | None,
        is_guess: bool,
    ) -> None:
        """Rows and side rows to the first two, if they are to be copied; the rest to ``to`` and ``grouped``."""
        config, is_int = self._config, to.topk is None or index.dtype == INT32
        area = 0 if lease is None else lease.area
        key, side = (form.code, is_int, grouped is None, area), _side_rows(form, 0)
        planned = self._planned.get(key)
        if planned is None:
            layout = header_struct("moe/direct/copy_epilogue.cu", "CopyEpilogueArgs")
            args = layout.pack(
                rows=self._areas.address(lease, "rows"),
                scales=self._areas.address(lease, *self._side_place(form)),
                topk=self._at["recv_topk"],
                weights=self._at["recv_weights"],
                source=self._at["recv_source"],
                broken=self._broken_address,
                capacity=0,
                row_vectors=form.row_bytes // VECTOR_BYTES,
                row_scales=side.numbers,
                top_k=config.top_k,
                experts_per_rank=config.experts_per_rank,
                is_guess=0,
            )
            element = "" if side.element == "float" else f", {side.element}"
            entry = "" if grouped is None else "copy_by_expert"
            which = kernel("copy_epilogue", f"<{'int' if is_int else 'long long'}{element}>", entry)
            threads = self._tuning_of(config.row_bytes).local_threads
            # expert_rows_shared of <moe/direct/expert_rows.cuh>
            shared_bytes = 0 if grouped is None else 4 * (config.experts_per_rank + 1 + threads)
            ints_at = (_int_at(layout, "capacity"), _int_at(layout, "is_guess"))
            planned = Planned(which, self._local_blocks, threads, args, shared_bytes, ints_at)
            self._remember(self._planned, key, planned)
        uses: tuple[Array, ...] = (routing.info,)
        if side_rows is not None and not form.is_apart:
            side_rows = describe(side_rows)
            uses = (routing.info, side_rows)
        if grouped is not None:
            uses = (*uses, *grouped.arrays())
        self._start(
            planned,
            (num_rows, int(is_guess)),
            *(() if grouped is None else (grouped.args(config.experts_per_rank, side.padding),)),
            routing.plan,
            x,
            side_rows if form.is_apart or side_rows is None else side_rows.address,
            to.topk,
            to.weights,
            to.src_rank,
            to.src_token,
            uses=uses,
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
        is_guess: bool = False,
    ) -> Arrivals:
        """The caller's arrays, and the launch that fills them; rows that need no copy are views, or stay where they
        are. ``grouped_rows``: of rows grouped by expert, if they are asked for; ``placed``: those of the dispatch that
        the handle is from. ``is_guess``: both numbers are; where they are too low, the arrays stay as they are."""
        config, empty, index = self._config, self._backend.empty, options.ids
        form, kind = payload.form or self._plain, payload.x.kind
        topk = src_rank = src_token = sent = side_rows = by_column = None
        if with_routing:
            topk = empty(index.kind, (num_rows, config.top_k), index.dtype)
            src_rank, src_token = empty(index.kind, (num_rows,), INT32), empty(index.kind, (num_rows,), INT32)
        if weights is not None:
            sent = empty(weights.kind, (num_rows, config.top_k), FLOAT32)
        copied = options.copy and lease is None
        of_side = _side_array(payload, form)
        if lease is not None:
            x = self._areas.array(lease, "rows", kind, (num_rows, form.columns), form.dtype)
            if of_side is not None:
                name, skipped = self._side_place(form)
                side_rows = self._areas.array(
                    lease, name, of_side.kind, (num_rows, of_side.columns), of_side.dtype, skipped
                )
        elif copied:
            x = empty(kind, (num_rows, form.columns), form.dtype)
            if of_side is not None:
                side_rows, by_column = self._own_side_rows(of_side, num_rows, options.column_major_scales)
        else:
            x = self._view("rows", kind, form.dtype, form.columns)[:num_rows]
            if of_side is not None:
                side_rows = self._side_view(form, of_side)[:num_rows]
        scales, row_scale = side_rows, None
        if of_side is not None and form.has_row_scale:
            scales, row_scale = _scales_of(form, payload.scales, of_side.kind, side_rows)
        arrivals = Arrivals(x, scales, topk, sent, src_rank, src_token, None, row_scale)
        grouped = None
        if options.sorted_by_expert:
            grouped = self._group(payload, form, num_rows, grouped_rows, sent, options, placed)
        if grouped is not None or (
            (copied or with_routing or sent is not None) and (num_rows or options.num_worst_tokens)
        ):
            # Where kernels are emulated and the host waits anyway, NumPy copies rows 20 times as fast as they do.
            by_host = self._rank.backend == "emulator" and not options.async_finish and not options.num_worst_tokens
            by_kernel = copied and not by_host
            to_x, to_side = (x, side_rows) if by_kernel else (None, None)
            self._launch_copy_epilogue(
                to_x, to_side, arrivals, index, num_rows, form, routing, grouped, lease, is_guess
            )
            if copied and by_host:
                self._backend.synchronize()
                x[...] = self._view("rows", kind, form.dtype, form.columns)[:num_rows]
                if of_side is not None and side_rows is not None:
                    side_rows[...] = self._side_view(form, of_side)[:num_rows]
        if options.column_major_scales and of_side is not None:
            if by_column is None:
                by_column = self._own_side_rows(of_side, num_rows, by_column=True)[1]
            counts = routing.plan + 4 * config.world_size
            self._launch_by_column(side_rows, by_column, counts, config.world_size, (routing.info,))
            arrivals = arrivals._replace(scales=by_column)
        if grouped is None:
            return arrivals
        rows, row_scale = grouped.rows, None
        scales = grouped.side_rows if grouped.by_column is None else grouped.by_column
        if grouped.by_column is not None:
            end = describe(rows.offsets).address + 4 * config.experts_per_rank
            self._launch_by_column(grouped.side_rows, grouped.by_column, end, 1, (describe(rows.offsets),))
        elif of_side is not None and form.has_row_scale:
            scales, row_scale = _scales_of(form, payload.scales, of_side.kind, grouped.side_rows)
        return arrivals._replace(by_expert=replace(rows, x=with_scales(rows.x, scales, row_scale)))

    def _group(
        self,
        payload: Payload,
        form: RowFormat,
        num_rows: int,
        all_rows: int,
        sent: Array | None,
        options: DispatchOptions,
        placed: ExpertRows | None,
    ) -> _Grouped:
        """Arrays for ``all_rows`` rows grouped by expert."""
        config, empty, kind = self._config, self._backend.empty, options.ids.kind
        of_side, side_rows, by_column = _side_array(payload, form), None, None
        if of_side is not None:
            side_rows, by_column = self._own_side_rows(of_side, all_rows, options.column_major_scales)
        rows = ExpertRows(
            empty(payload.x.kind, (all_rows, form.columns), form.dtype),
            empty(kind, (config.experts_per_rank + 1,), INT32) if placed is None else placed.offsets,
            None if sent is None else empty(describe(sent).kind, (all_rows,), FLOAT32),
            empty(kind, (all_rows,), INT32) if placed is None else placed.row,
            empty(kind, (num_rows, config.top_k), INT32) if placed is None else placed.slot,
        )
        return _Grouped(rows, side_rows, by_column, placed is not None)

    def _launch_by_column(
        self, side_rows: Array, by_column: Array, counts: int, num_counts: int, uses: tuple[ArrayInfo, ...]
    ) -> None:
        """Turn ``side_rows`` round. ``counts``: the address of as many numbers, whose sum is that of the rows."""
        source = describe(side_rows)
        rows, columns = source.shape
        if not rows:
            return
        itemsize = source.dtype.itemsize
        args = header_struct("moe/direct/scales_by_column.cu", "ByColumnArgs").pack(
            broken=self._broken_address,
            counts=counts,
            num_counts=num_counts,
            capacity=rows,
            columns=columns,
            stride=_column_stride(rows, itemsize),
        )
        element = {4: "unsigned int", 1: "unsigned char"}[itemsize]
        target = describe(by_column)
        threads = min(self._tuning_of(self._config.row_bytes).local_threads, 256)
        kernel("scales_by_column", f"<{element}>").launch(
            self._rank,
            self._local_blocks,
            threads,
            args,
            source.address,
            target.address,
            uses=(*uses, source, target),
        )

    # ---- side rows ---------------------------------------------------------------------------------------------------
    def _side_place(self, form: RowFormat) -> tuple[str, int]:
        """The part of the memory in which a receive area's side rows lie, and the bytes before them."""
        return ("recv_scales", 0) if form.is_apart else ("rows", self._config.max_rows * form.row_bytes)

    def _side_address(self, form: RowFormat) -> int:
        name, skipped = self._side_place(form)
        return self._at[name] + skipped

    def _own_side_rows(self, of_side: _SideArray, rows: int, by_column: bool) -> tuple[Array, Array | None]:
        """Side rows of the caller's own, and room for them by columns: in one allocation, which lives as long as
        either."""
        kind, columns, dtype = of_side
        empty = self._backend.empty
        if not by_column:
            return empty(kind, (rows, columns), dtype), None
        stride = _column_stride(rows, dtype.itemsize)
        both = empty(kind, (columns * (stride + rows),), dtype)
        turned, straight = both[: columns * stride], both[columns * stride :]
        return straight.reshape(rows, columns), turned.reshape(columns, stride).T[:rows]

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
        if self.tuning is not None:
            return self.tuning
        found = self._tunings.get(row_bytes)
        if found is None:
            emulated = self._rank.backend == "emulator"
            found = choose_tuning(self._config, row_bytes, self._rank.shared_bytes, emulated=emulated)
            self._tunings[row_bytes] = found
        return found

    @staticmethod
    def _remember(known: dict[Any, T], key: Any, value: T) -> T:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = value
        return value
