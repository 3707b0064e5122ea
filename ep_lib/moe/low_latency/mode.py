"""Low-latency mode: its memory, the launches of its kernels, and the order of its operations.

:class:`ep_lib.Buffer` has the public methods ``low_latency_*`` and documents them; each calls one method here.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ep_lib.errors import ArgumentError, HandleError
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.operation import Launch, Made, Operation, Part, Struct, struct
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import BFLOAT16, Array, ArrayInfo, describe, is_array
from ep_lib.moe.checks import UINT16, InputChecks, describe_here
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, WARP, BufferConfig
from ep_lib.moe.event import Event
from ep_lib.moe.formats import FP8, FP8_GROUP
from ep_lib.moe.handle import Arrived, refuse_other_rows, require_owner
from ep_lib.moe.low_latency.memory import allocate, capacity_of, make_low_latency_map
from ep_lib.moe.memory import address_of
from ep_lib.require import brief, refuse
from ep_lib.runtime.rank import Rank

Hook = Callable[[], None]
Halves = tuple[str, ...]  # the halves of an operation that a launch does: names of Half in common.cuh
SENDS: Halves = ("kSends",)
RECEIVES: Halves = ("kReceives",)
BOTH = SENDS + RECEIVES

_PLURAL = {"dispatch": "dispatches", "combine": "combines"}
# Blocks per SM, and threads per block. Together they fill an SM: __launch_bounds__ leaves 72 registers per thread. Two
# blocks of a dispatch keep the links busy while one of them signals; a combine needs more, since it waits more often.
_DISPATCH_BLOCKS, _DISPATCH_THREADS = 2, 448
_COMBINE_BLOCKS, _COMBINE_THREADS = 4, 224
_MOST_THREADS = 896
# An emulated thread costs memory and time; two warps and a few blocks show the same races as more would.
_EMULATED_SMS, _EMULATED_COMBINE_BLOCKS, _EMULATED_THREADS = 2, 2, 64


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """The kernel ``ep::low_latency::<name>``, with template arguments if it has any (``"<true, int>"``)."""
    file = "combine" if name == "combine" else "dispatch"
    return library_kernel(f"moe/low_latency/{file}.cu", f"ep::low_latency::{name}{template}")


class LowLatencyArrivals(NamedTuple):
    """The arrays of a dispatch's results, of the caller's kind, in this rank's own memory. E experts, C = capacity rows
    each."""

    rows: Array | None  # [E, C, hidden] bfloat16 or FP8; None in a handle
    scales: Array | None  # float32 [E, C, hidden / 128] of FP8 rows
    counts: Array  # int32 [E]
    ints: Array  # int32: recv_index, token_counts and sent_idx in one array, since each array costs microseconds
    weights: Array | None  # float32 [ranks, max_tokens, top_k] where they travel with the dispatch
    choices: tuple[int, int, int]  # ranks, max_tokens, top_k

    @property
    def recv_index(self) -> Array:
        """int32 ``[ranks, max_tokens, top_k]``: see dispatch.cu."""
        return self.ints[: math.prod(self.choices)].reshape(self.choices)

    @property
    def token_counts(self) -> Array:
        """int32 ``[ranks]``."""
        begin = math.prod(self.choices)
        return self.ints[begin : begin + self.choices[0]]


class LaunchShape(NamedTuple):
    """How a kernel is launched."""

    blocks: int
    threads: int
    role_blocks: int  # for a kernel that does both halves: blocks per group of consecutive ones, a divisor of blocks
    send_blocks: int  # of each group, the first blocks that only send; the others only receive. 0: all do both in turn


_NO_ROLES = LaunchShape(1, WARP, 1, 0)


@dataclass(frozen=True, eq=False)
class LowLatencyHandle:
    """The routing of one ``low_latency_dispatch``, needed to combine. Belongs to the Buffer that made it and stays good
    for as long as that lives: a combine may come after any number of other dispatches."""

    num_tokens: int  # tokens that this rank sent
    _owner: object = field(repr=False)
    _arrivals: LowLatencyArrivals = field(repr=False)  # without the rows, which are the caller's
    # a copy of topk_idx, if the host looks at values; on GPUs only kernels have a copy (Arrivals::sent_idx)
    _sent_idx: np.ndarray[Any, Any] | None = field(repr=False)


class LowLatencyDispatched(NamedTuple):
    """The results of ``low_latency_dispatch``, in DeepEP's order."""

    # [experts_per_rank, capacity, hidden] bfloat16, or such FP8 rows and their scales, float32 [..., hidden / 128]
    recv_x: Array
    recv_count: Array  # int32 [experts_per_rank], on the device
    handle: LowLatencyHandle
    event: Event | None
    hook: Hook | None


class LowLatencyCombined(NamedTuple):
    """The results of ``low_latency_combine``, in DeepEP's order."""

    out: Array  # [num_tokens, hidden] bfloat16
    event: Event | None
    hook: Hook | None


class LowLatencyMode:
    """Launches and memory of ``Buffer(num_max_dispatch_tokens_per_rank=...)``, and the operations that wait for
    hooks."""

    memory_map = staticmethod(make_low_latency_map)

    def __init__(
        self,
        rank: Rank,
        config: BufferConfig,
        require_usable: Callable[[], Callable[[], None] | None] = lambda: None,
    ) -> None:
        """Collective. ``require_usable``: a weak reference to a function that raises if the Buffer cannot be used any
        more; hooks call it. Raises ArgumentError and OutOfSymmetricMemory."""
        self.rank, self.config, self._require_usable = rank, config, require_usable
        self.shapes: dict[str, LaunchShape] = {}  # for "dispatch" and "combine": replace the usual shapes
        self._sms = _num_sms(rank, config.num_low_latency_sms)
        self._finished = rank.to_device(
            np.zeros((header_constant("moe/low_latency/common.cuh", "kNumKinds"), 2), np.uint64)
        )
        self.mask = rank.to_device(np.zeros(config.world_size, np.uint32))
        self._broken = rank.to_device(np.zeros(1, np.uint32))
        self.broken = rank.host_array(1, np.uint32)  # the same for the host: <moe/common/failure.cuh>
        self._broken_pair = header_struct("moe/common/failure.cuh", "Broken").pack(
            flag=address_of(self._broken), on_host=address_of(self.broken)
        )
        self._own = tuple(map(describe, (self._finished, self.mask, self._broken)))
        self._memory = allocate(rank, config)
        self._operations: dict[Any, Operation] = {}  # one for each kind of call
        self._choices = (config.world_size, config.num_max_dispatch_tokens_per_rank, config.top_k)
        self._parts = self._parts_of_ints()
        self._at, self.device = self._memory.at, self._memory.device
        self._checks = InputChecks(config, self.device)
        self._empty, self._streams = rank._backend.empty, rank.streams.operations()
        self._owner = object()  # in every handle
        self._arrived = Arrived() if rank._backend.sees_values else None
        self._waiting: dict[str, deque[object]] = {"dispatch": deque(), "combine": deque()}
        self._without_rows: deque[LowLatencyHandle] = deque()  # handles of dispatches whose hooks were not called yet
        # The result of get_next_low_latency_combine_buffer for each handle that lives.
        self._expert_rows: weakref.WeakKeyDictionary[LowLatencyHandle, Array] = weakref.WeakKeyDictionary()

    @property
    def meeting_place(self) -> int:
        """The address of the first part of the symmetric memory."""
        return self._at["credits"]

    def close(self, orderly: bool = True) -> None:
        """Free the symmetric memory; ``orderly``: when every rank has come here, or did not within the limit."""
        if self.rank.is_closed:
            return
        if orderly:
            args = self._common(0, mask_on_timeout=True).data  # a rank that is gone is no error any more
            kernel("finish").launch(self.rank, 1, WARP, args, uses=(self._finished, self.mask, self._broken))
            self.rank.synchronize()
        self._memory.free()

    # ---- Operations: checked, and in the order that hooks and streams allow ------------------------------------------

    def dispatch(
        self,
        x: Array,
        topk_idx: Array,
        use_fp8: bool,
        async_finish: bool,
        return_recv_hook: bool,
        topk_weights: Array | None,
        column_major_scales: bool,
        recv_totals: Array | None,
    ) -> LowLatencyDispatched:
        """:meth:`ep_lib.Buffer.low_latency_dispatch`."""
        tokens = self._check_tokens(x)
        kind, num_tokens = tokens.kind, tokens.shape[0]
        choices, weights = self._check_choices(topk_idx, topk_weights, num_tokens)
        if use_fp8 and self.config.hidden % FP8_GROUP:
            raise ArgumentError(
                f"use_fp8 needs a scale for every {FP8_GROUP} elements, and hidden is {self.config.hidden}, which is "
                "not a multiple; pass use_fp8=False"
            )
        totals = None if recv_totals is None else self._check_totals(recv_totals)
        self._require_order("dispatch", async_finish, return_recv_hook)
        arrivals: LowLatencyArrivals | None = None

        def launch(halves: Halves) -> None:
            nonlocal arrivals
            arrivals = self.launch_dispatch(
                halves, use_fp8, tokens, choices, arrivals, weights, use_fp8 and column_major_scales, totals
            )

        event, hook = self._run(
            "dispatch", launch, kind, async_finish, return_recv_hook, (x, topk_idx, recv_totals, launch)
        )
        assert arrivals is not None
        sent = np.array(self._checks.view(choices)) if self.rank._backend.sees_values else None
        handle = LowLatencyHandle(num_tokens, self._owner, LowLatencyArrivals(None, None, *arrivals[2:]), sent)
        if hook is not None:
            self._without_rows.append(handle)
        if self._arrived is not None:
            self._arrived.remember(arrivals.rows, handle)
        rows = (arrivals.rows, arrivals.scales) if use_fp8 else arrivals.rows
        return LowLatencyDispatched(rows, arrivals.counts, handle, event, hook)

    def combine(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array | None,
        handle: LowLatencyHandle,
        zero_copy: bool,
        async_finish: bool,
        return_recv_hook: bool,
        out: Array | None,
    ) -> LowLatencyCombined:
        """:meth:`ep_lib.Buffer.low_latency_combine`."""
        config = self.config
        self._require_own(handle)
        if self._without_rows and any(handle is waiting for waiting in self._without_rows):
            raise HandleError("the rows of this handle's dispatch have not been received: call its hook first")
        rows = self._check_rows("x", x, (config.experts_per_rank, capacity_of(config), config.hidden))
        kind = rows.kind
        if zero_copy:
            if handle not in self._expert_rows:
                raise ArgumentError(
                    "zero_copy=True combines what was written to get_next_low_latency_combine_buffer(handle), and that "
                    "was not called with this handle: call it and write the rows there, or pass zero_copy=False"
                )
            rows = describe(self._expert_rows[handle])
        elif self._arrived is not None and (other := self._arrived.handle_of(rows, handle)) not in (None, handle):
            self._require_same_rows(handle, other)
        choices, weights = self._check_choices(topk_idx, topk_weights, handle.num_tokens)
        if handle._sent_idx is not None:
            _require_same_choices(self._checks.view(choices), handle._sent_idx)
        arrivals = handle._arrivals
        if topk_weights is None and arrivals.weights is None:
            raise ArgumentError("combine needs topk_weights, here or in the low_latency_dispatch that made the handle")
        self._require_order("combine", async_finish, return_recv_hook)
        if out is None:
            sums = self._empty(kind, (handle.num_tokens, config.hidden), BFLOAT16)
        else:
            sums = self._check_rows("out", out, (handle.num_tokens, config.hidden))
            if sums.readonly:
                raise ArgumentError("out is read-only")
            kind = sums.kind
        launch = functools.partial(
            self.launch_combine, out=sums, rows=rows, topk_idx=choices, topk_weights=weights, arrivals=arrivals
        )
        keep = (rows, topk_idx, topk_weights, handle, sums)
        event, hook = self._run("combine", launch, kind, async_finish, return_recv_hook, keep)
        return LowLatencyCombined(sums.owner, event, hook)

    def _require_same_rows(self, handle: LowLatencyHandle, other: LowLatencyHandle) -> None:
        """Rows of another dispatch may be combined by a handle if they came from the same tokens."""
        self.rank.synchronize()
        mine, theirs = handle._arrivals, other._arrivals
        for rank, (count, other_count) in enumerate(zip(mine.token_counts, theirs.token_counts, strict=True)):
            places, other_places = mine.recv_index[rank, : int(count)], theirs.recv_index[rank, : int(count)]
            if int(count) != int(other_count) or bool((places != other_places).any()):
                refuse_other_rows("low_latency_dispatch")

    def empty_expert_rows(self, handle: LowLatencyHandle) -> Array:
        """:meth:`ep_lib.Buffer.get_next_low_latency_combine_buffer`."""
        self._require_own(handle)
        rows = self._expert_rows.get(handle)
        if rows is None:
            config = self.config
            shape = (config.experts_per_rank, capacity_of(config), config.hidden)
            rows = self._empty(describe(handle._arrivals.ints).kind, shape, BFLOAT16).owner
            self._expert_rows[handle] = rows
        return rows

    def begin_anew(self, masked: Collection[int]) -> None:
        """Resets to the state after __init__, without ``masked`` ranks, while no rank runs a kernel."""
        self._memory.clear("credits")
        self._finished[...] = 0
        self._broken[...] = 0
        self.mask[...] = self.rank.xp.asarray(np.isin(np.arange(self.config.world_size), list(masked)), np.uint32)
        self.rank.streams.settle()
        self.broken[0] = 0
        self._owner = object()  # makes earlier handles invalid
        self._without_rows.clear()
        for hooks in self._waiting.values():
            hooks.clear()

    def update_mask(self, rank: int, mask: bool) -> None:
        """:meth:`ep_lib.Buffer.low_latency_update_mask_buffer`."""
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.rank.world_size:
            raise ArgumentError(f"there is no rank {brief(rank)}; ranks are 0 to {self.rank.world_size - 1}")
        if not isinstance(mask, bool | np.bool_):
            raise ArgumentError(
                f"mask is {brief(mask)}; it must be True (leave the rank out) or False (take it in again)"
            )
        if rank == self.rank.rank:
            raise ArgumentError(f"rank {rank} cannot mask itself: the mask is about the other ranks")
        self.rank.synchronize()
        self.mask[rank] = int(mask)
        self.rank.streams.settle()

    def _run(
        self,
        what: str,
        launch: Callable[[Halves], None],
        kind: str,
        async_finish: bool,
        hooked: bool,
        keep: tuple[Any, ...],
    ) -> tuple[Event | None, Hook | None]:
        """Launch in the stream that the caller wants; returns event and hook."""
        with self._streams.begin(kind, async_finish):
            launch(SENDS if hooked else BOTH)
        event = Event(self.rank, self._streams.last or 0, kind, keep) if async_finish else None
        if not hooked:
            return event, None
        require_usable, turn = self._require_usable(), object()

        def hook() -> None:
            if require_usable is not None:
                require_usable()
            waiting = self._waiting[what]
            if not waiting or waiting[0] is not turn:
                late = turn not in waiting
                raise HandleError(
                    f"this hook of a low_latency_{what} was called before"
                    if late
                    else f"an earlier low_latency_{what} waits for its hook: call that one first"
                )
            with self._streams.begin(kind, False):
                launch(RECEIVES)
            waiting.popleft()
            if what == "dispatch":
                self._without_rows.popleft()

        self._waiting[what].append(turn)
        return event, hook

    def _require_order(self, what: str, async_finish: bool, hooked: bool) -> None:
        """Raises if no half of the slots is free: there are two, and each operation that waits for its hook keeps
        one."""
        if async_finish and hooked:
            raise ArgumentError(
                "async_finish and return_recv_hook exclude each other: a hook's kernel runs on the caller's stream "
                "anyway"
            )
        waiting = len(self._waiting[what])
        if hooked and waiting == header_constant("moe/low_latency/common.cuh", "kNumBuffers"):
            raise HandleError(
                f"{waiting} low_latency_{_PLURAL[what]} wait for their hooks, and there is memory for no more: call "
                "the first one's hook"
            )
        if not hooked and waiting:
            raise HandleError(
                f"{waiting} low_latency_{_PLURAL[what] if waiting > 1 else what} before this one did not receive "
                "yet: call the hook first, or pass return_recv_hook=True here, too"
            )

    def _require_own(self, handle: Any) -> None:
        if not isinstance(handle, LowLatencyHandle):
            raise HandleError(f"handle is a {type(handle).__name__}; it must be that of a low_latency_dispatch")
        require_owner(handle, self._owner)

    # Checks by shapes and types alone: nothing waits for the GPU

    def _check_tokens(self, x: Array) -> ArrayInfo:
        info, most = self._check_rows("x", x, ("T", self.config.hidden)), self.config.num_max_dispatch_tokens_per_rank
        if info.shape[0] > most:
            raise ArgumentError(
                f"x has {info.shape[0]} tokens, but this Buffer was made for at most "
                f"num_max_dispatch_tokens_per_rank={most}; send fewer, or make a larger Buffer"
            )
        return info

    def _check_choices(
        self, topk_idx: Array, topk_weights: Array | None, num_tokens: int
    ) -> tuple[ArrayInfo, ArrayInfo | None]:
        """Checks the ids' values only where that costs nothing: in host memory."""
        choices = self._checks.topk_idx(topk_idx, num_tokens, values=self.rank._backend.sees_values)
        if topk_weights is None:
            return choices, None
        return choices, self._checks.topk_weights(topk_weights, num_tokens, values=False)

    def _check_totals(self, totals: Array) -> ArrayInfo:
        info, experts = describe_here("recv_totals", totals, self.device), self.config.experts_per_rank
        if info.dtype != INT32 or info.shape != (experts,) or info.strides_bytes is not None or info.readonly:
            refuse("recv_totals", totals, f"a contiguous int32 array of shape ({experts},) that may be written")
        return info

    def _check_rows(self, name: str, array: Array, shape: tuple[int | str, ...]) -> ArrayInfo:
        if not is_array(array):  # by its type alone: a repr would look at values
            raise ArgumentError(f"{name} is a {type(array).__name__}; it must be a NumPy, torch or CuPy array")
        info = describe_here(name, array, self.device)
        if info.strides_bytes is not None:
            raise ArgumentError(f"{name} is not contiguous: strides are {info.strides_bytes} bytes; pass a copy of it")
        if info.shape != shape and not (isinstance(shape[0], str) and info.shape[1:] == shape[1:]):
            raise ArgumentError(f"{name} has shape {info.shape}; it must be ({', '.join(map(str, shape))})")
        if info.dtype != BFLOAT16 and not (info.kind == "cupy" and info.dtype == UINT16):
            hint = " (CuPy has no bfloat16: view it as uint16)" if info.kind == "cupy" else ""
            raise ArgumentError(f"{name} has dtype {info.dtype.name}; low-latency mode takes bfloat16{hint}")
        if info.address % VECTOR_BYTES and info.nbytes:
            raise ArgumentError(
                f"{name} begins at address 0x{info.address:x}, which is not a multiple of {VECTOR_BYTES} bytes; "
                "pass a copy of it"
            )
        return info

    # ---- Launches, in the stream that is chosen ----------------------------------------------------------------------

    def _made(self, kind: str, fp8: bool, weighted: bool, by_column: bool = False) -> list[Made]:
        """The arrays of a dispatch's results."""
        c, choices = self.config, self._choices
        experts, capacity = c.experts_per_rank, capacity_of(c)
        ints = (c.world_size + 1) * math.prod(choices[1:]) + c.world_size
        groups = c.hidden // FP8_GROUP
        of_scales = (experts, groups, capacity) if by_column else (experts, capacity, groups)
        return [
            Made("rows", kind, (experts, capacity, c.hidden), FP8 if fp8 else BFLOAT16),
            *([Made("scales", kind, of_scales, FLOAT32)] if fp8 else []),
            Made("counts", kind, (experts,), INT32),
            Made("ints", kind, (ints,), INT32),
            *([Made("weights", kind, choices, FLOAT32)] if weighted else []),
        ]

    def _parts_of_ints(self) -> dict[str, str | Part]:
        """recv_index, token_counts and sent_idx, as LowLatencyArrivals has them."""
        counts = INT32.itemsize * math.prod(self._choices)
        sent = counts + INT32.itemsize * self._choices[0]
        return {"recv_index": "ints", "token_counts": Part("ints", counts), "sent_idx": Part("ints", sent)}

    def empty_arrivals(self, kind: str, fp8: bool, weighted: bool = False) -> LowLatencyArrivals:
        """Memory for a dispatch's results. Does not wait for the GPU."""
        made = {of.name: self._empty(kind, of.shape, of.dtype).owner for of in self._made(kind, fp8, weighted)}  # type: ignore[arg-type]
        return self._arrivals_of(made)

    def _arrivals_of(self, made: Mapping[str, Array]) -> LowLatencyArrivals:
        return LowLatencyArrivals(
            made["rows"],
            made.get("scales"),
            made["counts"],
            made["ints"],
            made.get("weights"),
            self._choices,
        )

    def launch_dispatch(
        self,
        halves: Halves,
        fp8: bool,
        x: Array,
        topk_idx: Array,
        arrivals: LowLatencyArrivals | None = None,
        topk_weights: Array | None = None,
        by_column: bool = False,
        totals: ArrayInfo | None = None,
    ) -> LowLatencyArrivals:
        """Launch ``halves`` of a dispatch; returns ``arrivals``, or new ones."""
        rows, choices, weights = (
            describe(x),
            describe(topk_idx),
            None if topk_weights is None else describe(topk_weights),
        )
        weighted = weights is not None if arrivals is None else arrivals.weights is not None
        key = (
            "dispatch",
            halves,
            fp8,
            rows.kind,
            choices.dtype,
            weighted,
            by_column,
            arrivals is None,
            self.shapes.get("dispatch"),
        )
        operation = self._operations.get(key)
        if operation is None:
            launch = self._declare_dispatch(halves, fp8, choices.dtype, weighted, by_column)
            made = self._made(rows.kind, fp8, weighted, by_column)
            given = ["x", "topk_idx", "topk_weights", "tokens", "totals"]
            if arrivals is not None:
                given, made = given + [of.name for of in made], []
            operation = self._operations[key] = Operation(self.rank, given, [launch], made)
        values = rows, choices, weights, rows.shape[0], totals
        if arrivals is None:
            brought = dict(zip(operation.made, operation.run(*values), strict=True))
            if by_column:
                brought["scales"] = brought["scales"].swapaxes(1, 2)
            return self._arrivals_of(brought)
        operation.run(*values, *[describe(array) for array in arrivals[:5] if array is not None])
        return arrivals

    def _declare_dispatch(
        self, halves: Halves, fp8: bool, index: np.dtype[Any], weighted: bool, by_column: bool
    ) -> Launch:
        shape = self.shapes.get("dispatch") or self._dispatch_shape(fp8, halves)
        args = struct(
            "moe/low_latency/dispatch.cu",
            "DispatchArgs",
            common=self._common("tokens", shape, halves),
            slots=self._at["dispatch_slots"],
            row_flags=self._at["dispatch_flags"],
            routes=self._at["routes"],
            weights=self._at["dispatch_weights"],
        )
        brought = struct(
            "moe/low_latency/dispatch.cu",
            "Arrivals",
            **{name: name for name in ("rows", "counts", "totals")},
            **self._parts,
            scales="scales" if fp8 else None,
            weights="weights" if weighted else None,
            scale_stride=capacity_of(self.config) if by_column else 1,
        )
        return Launch(
            kernel("dispatch", f"<{str(fp8).lower()}, {_is_whole(halves)}, {_index_type(index)}>"),
            shape.blocks,
            shape.threads,
            (args, brought, "x", "topk_idx", "topk_weights"),
            4 * self.config.experts_per_rank,
            self._own,
        )

    def launch_combine(
        self,
        halves: Halves,
        out: Array,
        rows: Array,
        topk_idx: Array,
        topk_weights: Array | None,
        arrivals: LowLatencyArrivals,
    ) -> None:
        """Launch ``halves`` of a combine, which needs the routing in ``arrivals``. ``topk_weights`` None: the
        dispatch's."""
        choices = describe(topk_idx)
        key = ("combine", halves, choices.dtype, self.shapes.get("combine"))
        operation = self._operations.get(key)
        if operation is None:
            given = ("out", "rows", "topk_idx", "topk_weights", "tokens", "ints", "known_weights")
            operation = self._operations[key] = Operation(
                self.rank, given, [self._declare_combine(halves, choices.dtype)]
            )
        weights, known = (None if array is None else describe(array) for array in (topk_weights, arrivals.weights))
        operation.run(
            describe(out),
            describe(rows),
            choices,
            weights,
            choices.shape[0],
            describe(arrivals.ints),
            known if weights is None else None,
        )

    def _declare_combine(self, halves: Halves, index: np.dtype[Any]) -> Launch:
        shape = self.shapes.get("combine") or self._combine_shape()
        args = struct(
            "moe/low_latency/combine.cu",
            "CombineArgs",
            common=self._common("tokens", shape, halves),
            slots=self._at["combine_slots"],
            row_flags=self._at["combine_flags"],
            weights=self._at["weights"],
            **self._parts,
            known_weights="known_weights",
        )
        return Launch(
            kernel("combine", f"<{_is_whole(halves)}, {_index_type(index)}>"),
            shape.blocks,
            shape.threads,
            (args, "out", "rows", "topk_idx", "topk_weights"),
            uses=self._own,
        )

    def _dispatch_shape(self, fp8: bool, halves: Halves) -> LaunchShape:
        """With all SMs, half of them send and half receive. With fewer, each SM has one block, which sends, then
        receives: it is unknown which blocks would share an SM."""
        vectors = self.config.row_vectors // 2 if fp8 else self.config.row_vectors
        if self.config.num_low_latency_sms is not None:
            return LaunchShape(self._sms, self._threads(vectors, _MOST_THREADS), 1, 0)
        threads = self._threads(vectors, _DISPATCH_THREADS)
        if halves != BOTH:
            return LaunchShape(self._sms, threads, 1, 0)
        return LaunchShape(_DISPATCH_BLOCKS * self._sms, threads, self._sms, self._sms // 2)

    def _combine_shape(self) -> LaunchShape:
        """All blocks send, then receive: adding up takes all SMs."""
        if self.config.num_low_latency_sms is not None:
            return LaunchShape(self._sms, self._threads(self.config.row_vectors, _MOST_THREADS), 1, 0)
        blocks = _EMULATED_COMBINE_BLOCKS if self.rank._backend.costly_threads else _COMBINE_BLOCKS
        return LaunchShape(blocks * self._sms, self._threads(self.config.row_vectors, _COMBINE_THREADS), 1, 0)

    def _threads(self, vectors: int, most: int) -> int:
        """The largest number of threads, up to ``most``, that share a row's vectors evenly."""
        if self.rank._backend.costly_threads:
            return _EMULATED_THREADS
        rounds = -(-vectors // most)
        return -(-vectors // (rounds * WARP)) * WARP

    def _common(
        self, tokens: int | str, shape: LaunchShape = _NO_ROLES, halves: Halves = BOTH, mask_on_timeout: bool = False
    ) -> Struct:
        config = self.config
        return struct(
            "moe/low_latency/common.cuh",
            "Args",
            finished=address_of(self._finished),
            mask=address_of(self.mask),
            broken=self._broken_pair,
            credits=self._at["credits"],
            halves=sum(header_constant("moe/low_latency/common.cuh", half) for half in halves),
            num_tokens=tokens,
            max_tokens=config.num_max_dispatch_tokens_per_rank,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            row_vectors=config.row_vectors,
            role_blocks=shape.role_blocks,
            send_blocks=shape.send_blocks,
            mask_on_timeout=int(mask_on_timeout or config.low_latency_mask_on_timeout),
        )


def _num_sms(rank: Rank, chosen: int | None) -> int:
    """The number of SMs to use; at most the GPU's, since blocks wait for each other. Raises ArgumentError."""
    most = rank.sm_count
    if most is None:
        return chosen or _EMULATED_SMS
    if chosen is not None and chosen > most:
        raise ArgumentError(f"num_low_latency_sms is {chosen}, and this GPU has {most} SMs: pass no more")
    return chosen or most


def _require_same_choices(topk_idx: Array, sent: np.ndarray[Any, Any]) -> None:
    """Raises HandleError unless each token's choices are those of the dispatch, in any order."""
    if np.array_equal(topk_idx, sent):
        return
    differ = (np.sort(topk_idx, 1) != np.sort(sent, 1)).any(1)
    if differ.any():
        token = int(differ.argmax())
        raise HandleError(
            f"topk_idx[{token}] is {topk_idx[token].tolist()}, and the handle's dispatch sent this token to "
            f"{sent[token].tolist()}: pass the dispatch's choices of each token, in any order, and the handle of that "
            "dispatch"
        )


def _is_whole(halves: Halves) -> str:
    return str(halves == BOTH).lower()


def _index_type(index: np.dtype[Any]) -> str:
    return "int" if index == INT32 else "long long"
