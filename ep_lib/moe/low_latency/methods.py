"""The methods of :class:`ep_lib.Buffer` for decode batches: ``low_latency_*``, with DeepEP's names."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ep_lib.errors import ArgumentError, HandleError
from ep_lib.memory.arrays import BFLOAT16, describe
from ep_lib.moe.event import Event
from ep_lib.moe.handle import require_owner
from ep_lib.moe.low_latency.checks import LowLatencyChecks
from ep_lib.moe.low_latency.mode import Arrivals, LowLatency
from ep_lib.moe.low_latency.structs import RECEIVES, SENDS, TURNS
from ep_lib.runtime.rank import Rank

Hook = Callable[[], None]
_BOTH = SENDS | RECEIVES
_PLURAL = {"dispatch": "dispatches", "combine": "combines"}
_MOST_AT_ONCE = TURNS  # operations of a kind that wait for their hooks


@dataclass(frozen=True, eq=False)
class LowLatencyHandle:
    """The routing of one ``low_latency_dispatch``, needed to combine. Belongs to the Buffer that made it and stays good
    for as long as that lives: a combine may come after any number of other dispatches."""

    num_tokens: int  # that this rank sent
    _owner: object = field(repr=False)
    _arrivals: Arrivals = field(repr=False)  # without the rows, which are the caller's


class LowLatencyDispatched(NamedTuple):
    """What ``low_latency_dispatch`` returns, in DeepEP's order."""

    recv_x: (
        Any  # [experts_per_rank, capacity, hidden] bfloat16, or such FP8 rows and their scales, float32 [..., / 128]
    )
    recv_count: Any  # int32 [experts_per_rank], on the device
    handle: LowLatencyHandle
    event: Event | None
    hook: Hook | None


class LowLatencyCombined(NamedTuple):
    """What ``low_latency_combine`` returns, in DeepEP's order."""

    out: Any  # [num_tokens, hidden] bfloat16
    event: Event | None
    hook: Hook | None


class LowLatencyMethods:
    """Mixed into Buffer, which sets ``_rank`` and ``_owner`` and has ``_require_usable``."""

    _rank: Rank
    _owner: object
    _low_latency: LowLatency | None = None

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        use_fp8: bool = True,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        topk_weights: Any = None,
    ) -> LowLatencyDispatched:
        """Collective: send a decode batch to its experts, in one kernel and without waiting on the host.

        ``x``: ``[T, hidden]`` bfloat16, T from 0 to ``num_max_dispatch_tokens_per_rank``, any number on each rank.
        ``topk_idx``: ``[T, top_k]`` int64 or int32, global expert ids, -1: not routed. (On GPUs nobody looks at the
        values before they are used: ids that do not exist count as not routed.)

        ``recv_x``: for each of this rank's experts, its rows packed from the front, sorted by source rank, then token,
        the same on every run; ``recv_count`` says how many, the rows behind them mean nothing. C, the room for each
        expert, is ``world_size * num_max_dispatch_tokens_per_rank``. With ``use_fp8`` the rows are cast on their way,
        and recv_x is ``(float8_e4m3fn [E, C, hidden], float32 scales [E, C, hidden / 128])``
        (:func:`ep_lib.reference.quantize_fp8`). An expert that a token names twice gets it once. The arrays are the
        caller's own; an operation later does not change them.

        ``topk_weights``, ``[T, top_k]`` float32: they travel with the ids, and the combine may do without (None there),
        which saves it a trip between ranks. On all ranks or on none.

        ``return_recv_hook``: launch only what sends. The arrays are filled by what ``hook()`` launches; until then the
        caller's stream is free for other work, with no kernel of ours on the GPU. Up to two dispatches may wait for
        their hooks, which are called in order. ``async_finish``: run on a stream of the Buffer's own; the caller's
        waits by ``event.current_stream_wait()``. Not both. Both are None where they were not asked for.

        Can be captured in a CUDA graph (warm up once before: the first call compiles). Raises ArgumentError and
        HandleError before anything is sent; what goes wrong on the device (PeerTimeout) is raised by the next
        ``rank.synchronize()``.
        """
        self._require_usable()
        low_latency, checks = self._low_latency_mode()
        kind = checks.tokens(x)
        checks.topk_idx(topk_idx, len(x))
        if topk_weights is not None:
            checks.topk_weights(topk_weights, len(x))
        if use_fp8:
            checks.can_quantize()
        _require_one_of(async_finish, return_recv_hook)
        self._require_turn("dispatch", return_recv_hook)
        arrivals = low_latency.arrivals(kind, use_fp8, topk_weights is not None)
        routing = arrivals._replace(rows=None, scales=None, counts=None)
        handle = LowLatencyHandle(len(x), self._owner, routing)
        arguments = {"x": x, "topk_idx": topk_idx, "arrivals": arrivals, "topk_weights": topk_weights}
        launch = functools.partial(low_latency.dispatch, fp8=use_fp8, **arguments)
        keep = tuple(arguments.values())
        event, hook = self._run("dispatch", launch, kind, async_finish, return_recv_hook, keep)
        if hook is not None:
            self._without_rows.append(handle)
        rows = (arrivals.rows, arrivals.scales) if use_fp8 else arrivals.rows
        return LowLatencyDispatched(rows, arrivals.counts, handle, event, hook)

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: LowLatencyHandle,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
    ) -> LowLatencyCombined:
        """Collective: bring back what the experts made of a dispatch's rows, weighted and added up.

        ``x``: ``[experts_per_rank, C, hidden]`` bfloat16, rows where recv_x has them; the others are never read.
        ``topk_idx``: what this rank passed to the dispatch. ``topk_weights``: ``[T, top_k]`` float32 of its own tokens;
        None: those that the dispatch got. On all ranks or on none.
        ``out``: ``[T, hidden]`` bfloat16 to write to, or None: a new array.

        The rank of the experts adds weight times row over a token's choices there, in the order of k, in float32, and
        sends that sum rounded to bfloat16, one row for a token and rank. The token's rank adds these in ascending order
        of ranks in float32 and rounds once more: :func:`ep_lib.reference.low_latency_combine`. Equal bits on every run.

        ``zero_copy`` is accepted for DeepEP's sake: x is never copied, wherever it is. The rest is as in
        :meth:`low_latency_dispatch`.
        """
        self._require_usable()
        low_latency, checks = self._low_latency_mode()
        self._require_own_low_latency(handle)
        if any(handle is waiting for waiting in self._without_rows):
            raise HandleError("the rows of this handle's dispatch have not been received: call its hook first")
        checks.expert_rows(x)
        kind = checks.topk_idx(topk_idx, handle.num_tokens)
        if topk_weights is not None:
            checks.topk_weights(topk_weights, handle.num_tokens)
        elif handle._arrivals.weights is None:
            raise ArgumentError("combine needs topk_weights, here or in the low_latency_dispatch that made the handle")
        _require_one_of(async_finish, return_recv_hook)
        self._require_turn("combine", return_recv_hook)
        if out is None:
            kind = describe(x).kind
            out = low_latency.empty(kind, (handle.num_tokens, low_latency.config.hidden), BFLOAT16)
        else:
            kind = checks.out(out, handle.num_tokens)
        launch = functools.partial(
            low_latency.combine,
            out=out,
            rows=x,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            arrivals=handle._arrivals,
        )
        keep = (x, topk_idx, topk_weights, handle, out)
        event, hook = self._run("combine", launch, kind, async_finish, return_recv_hook, keep)
        return LowLatencyCombined(out, event, hook)

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Any:
        """An array ``[experts_per_rank, C, hidden]`` bfloat16 for the experts to write to, on this rank. For DeepEP's
        sake: combine reads x where it is, so any other array of that shape is as fast."""
        self._require_usable()
        low_latency, _ = self._low_latency_mode()
        self._require_own_low_latency(handle)
        config = low_latency.config
        shape = (config.experts_per_rank, config.capacity, config.hidden)
        return low_latency.empty(describe(handle._arrivals.places).kind, shape, BFLOAT16)

    def low_latency_update_mask_buffer(self, rank: int, mask: bool = True) -> None:
        """Leave another rank out of low-latency operations from now on (or take it in again): nothing is sent to it or
        awaited from it, its tokens are none, its experts add nothing. For a rank that is dead. Waits for this rank's
        kernels. A rank that is taken in again must have called as many operations as this one."""
        self._require_usable()
        low_latency, _ = self._low_latency_mode()
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self._rank.world_size:
            raise ArgumentError(f"there is no rank {rank!r}; ranks are 0 to {self._rank.world_size - 1}")
        if rank == self._rank.rank:
            raise ArgumentError(f"rank {rank} cannot mask itself: the mask is about the other ranks")
        self._rank.synchronize()
        low_latency.mask[rank] = int(mask)
        low_latency.settle()

    def low_latency_query_mask_buffer(self) -> Any:
        """Which ranks are left out, by :meth:`low_latency_update_mask_buffer` or by a wait in vain (with
        ``low_latency_mask_on_timeout``): NumPy int32 ``[world_size]``, 1 or 0. Waits for this rank's kernels."""
        self._require_usable()
        low_latency, _ = self._low_latency_mode()
        return self._rank.to_host(low_latency.mask).astype(np.int32)

    # How it is done

    def _set_low_latency(self, low_latency: LowLatency | None, device: str) -> None:
        """Buffer calls it once."""
        self._low_latency = low_latency
        if low_latency is None:
            return
        self._low_latency_checks = LowLatencyChecks(low_latency.config, device, self._rank.backend == "emulator")
        self._waiting: dict[str, deque[Hook]] = {"dispatch": deque(), "combine": deque()}
        self._without_rows: deque[LowLatencyHandle] = deque()  # of dispatches whose hooks were not called yet
        self._own_stream: int | None = None
        self._last_stream: int | None = None

    def _require_usable(self) -> None:
        raise NotImplementedError

    def _low_latency_mode(self) -> tuple[LowLatency, LowLatencyChecks]:
        if self._low_latency is None:
            raise ArgumentError(
                "this Buffer has no low-latency mode: make it with num_max_dispatch_tokens_per_rank=128, say (the most "
                "tokens a rank sends at once, up to 1024)"
            )
        return self._low_latency, self._low_latency_checks

    def _require_own_low_latency(self, handle: Any) -> None:
        if not isinstance(handle, LowLatencyHandle):
            raise HandleError(f"handle is a {type(handle).__name__}; it must be that of a low_latency_dispatch")
        require_owner(handle, self._owner)

    def _require_turn(self, what: str, hooked: bool) -> None:
        """There are two halves of memory, and each operation waits for its hook in one of them."""
        waiting = len(self._waiting[what])
        if hooked and waiting == _MOST_AT_ONCE:
            raise HandleError(
                f"{waiting} low_latency_{_PLURAL[what]} wait for their hooks, and there is memory for no more: call "
                "the first one's hook"
            )
        if not hooked and waiting:
            raise HandleError(
                f"{waiting} low_latency_{_PLURAL[what] if waiting > 1 else what} before this one did not receive "
                "yet: call the hook first, or pass return_recv_hook=True here, too"
            )

    def _run(
        self,
        what: str,
        launch: Callable[[int], None],
        kind: str,
        on_own_stream: bool,
        hooked: bool,
        keep: tuple[Any, ...],
    ) -> tuple[Event | None, Hook | None]:
        """Launch on the stream that the caller wants; returns event and hook."""
        streams = self._rank.streams
        current = stream = streams.current(kind)
        if on_own_stream:
            if self._own_stream is None:
                self._own_stream = streams.new()
            stream = self._own_stream
            streams.order(current, stream)
        self._launch(launch, SENDS if hooked else _BOTH, stream)
        event = Event(self._rank, stream, kind, keep) if on_own_stream else None
        if not hooked:
            return event, None

        def hook() -> None:
            self._require_usable()
            waiting = self._waiting[what]
            if not waiting or waiting[0] is not hook:
                late = hook not in waiting
                raise HandleError(
                    f"this hook of a low_latency_{what} was called before"
                    if late
                    else f"an earlier low_latency_{what} waits for its hook: call that one first"
                )
            self._launch(launch, RECEIVES, streams.current(kind))
            waiting.popleft()
            if what == "dispatch":
                self._without_rows.popleft()

        self._waiting[what].append(hook)
        return event, hook

    def _launch(self, launch: Callable[[int], None], halves: int, stream: int) -> None:
        """Operations run one after the other, also where the Buffer's own stream and the caller's take turns."""
        streams = self._rank.streams
        if self._last_stream is not None and self._last_stream == self._own_stream:
            streams.order(self._last_stream, stream)
        with streams.on(stream):
            launch(halves)
        self._last_stream = stream


def _require_one_of(async_finish: bool, return_recv_hook: bool) -> None:
    if async_finish and return_recv_hook:
        raise ArgumentError(
            "async_finish and return_recv_hook exclude each other: a hook's kernel runs on the caller's stream anyway"
        )
