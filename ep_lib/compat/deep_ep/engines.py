"""The Buffers of ep_lib behind one of DeepEP's, and the ranks' agreement to make one.

DeepEP's Buffer gets its size in bytes and learns shapes from its calls. Ours is made for shapes, so the first call that
needs one makes it on all ranks, as large as the largest rank needs; and a larger one when a rank has more tokens. That
rank declines the dispatch (:meth:`ep_lib.Buffer.decline_dispatch`): all ranks see it in the dispatch's usual exchange
of counts, so calls that fit have no extra cost, and no rank waits for another one's resizing.

An outgrown engine lives on for the handles that need it. At the next meeting, ranks that no longer need it say so; when
all have, it is closed.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, NamedTuple

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Look
from ep_lib.bootstrap.group import StoreGroup, make_group_bootstrap
from ep_lib.bootstrap.torchrun import StoreBootstrap
from ep_lib.compat.deep_ep.layout import CountingKernel
from ep_lib.config import Config
from ep_lib.emulator.host_links import gather_hosts
from ep_lib.errors import ArgumentError, NotSupportedError, PeerTimeout, RankFailed, RankMismatchError, everywhere
from ep_lib.moe.agreement import name_ranks
from ep_lib.moe.buffer import Buffer
from ep_lib.processes import Identity, has_ended
from ep_lib.runtime.rank import Rank

_MEET = ": make the same calls with the same shapes on every rank"
_FEWEST_TOKENS = 64
_STEPS = 8  # sizes between two powers of two: wastes at most an eighth of the memory


class Shape(NamedTuple):
    """The parameters of an engine, except the number of tokens. Equal on all ranks."""

    backend: str
    num_experts: int
    top_k: int
    hidden: int
    dtype: str
    num_sms: int
    low_latency_tokens: int = 0  # num_max_dispatch_tokens_per_rank; 0: normal mode
    masks_lost_ranks: bool = False  # of low-latency mode

    def arguments(self, max_tokens: int, ranks_per_node: int | None) -> dict[str, Any]:
        """The arguments of :class:`ep_lib.Buffer`."""
        made: dict[str, Any] = {
            "num_experts": self.num_experts,
            "top_k": self.top_k,
            "hidden": self.hidden,
            "dtype": self.dtype,
            "max_tokens": max_tokens,
            "num_sms": self.num_sms,
        }
        if self.low_latency_tokens:
            made["num_max_dispatch_tokens_per_rank"] = self.low_latency_tokens
            made["low_latency_mask_on_timeout"] = self.masks_lost_ranks
        elif ranks_per_node is not None:
            made |= {"hierarchical": True, "ranks_per_node": ranks_per_node}
        return made

    def __str__(self) -> str:
        mode = f", low-latency mode of {self.low_latency_tokens} tokens" if self.low_latency_tokens else ""
        return f"hidden={self.hidden}, {self.num_experts} experts, top-k {self.top_k}, {self.dtype}{mode}"


class Engine:
    """A Buffer of ep_lib for one shape."""

    def __init__(self, shape: Shape, buffer: Buffer) -> None:
        self.shape, self.buffer = shape, buffer
        self.count_choices = CountingKernel(buffer.rank)

    @property
    def max_tokens(self) -> int:
        """The most tokens that a rank can send."""
        return self.buffer.config.max_tokens

    def sync_emulated(self) -> None:
        """Where reading a tensor does not synchronise (on the CPU), waits for all launches."""
        if self.buffer.rank._backend.host_waits:
            self.buffer.rank.synchronize()


class Members:
    """The ranks of a group, their agreements, and their engines."""

    def __init__(self, group: Any) -> None:
        """Collective. ``group``: of torch.distributed or a StoreGroup, a communicator of mpi4py, or a Rank (of all)."""
        self._bootstrap = None if isinstance(group, Rank) else make_group_bootstrap(group)
        self.group_ref = weakref.ref(group)  # the Buffers hold it
        one = group if self._bootstrap is None else self._bootstrap
        self.rank, self.size = int(one.rank), int(one.world_size)
        self._engines: dict[int, tuple[weakref.ref[Engine], Buffer]] = {}
        self._kept: list[Engine] = []
        self._made = self._failures = 0
        self._heard = [0] * self.size  # the known number of failures that each rank has reported
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._processes = self._find_processes()
        self.ranks_per_node = self._find_ranks_per_node()  # None: all ranks are on one node

    @property
    def _group(self) -> Any:
        return self.group_ref()

    def all_gather(self, obj: object, what: str) -> list[Any]:
        """Collective: plain data of every rank, if all are in the operation ``what``.

        Raises PeerTimeout if a rank has not come within EP_LIB_TIMEOUT_S (120 s), RankFailed as soon as one has ended
        or failed in another call (also before this object was made, if this rank does not know about it), and
        RankMismatchError if one is in another operation.
        """
        mine = what, obj, self._failures
        if self._bootstrap is None:
            said: list[Any] = self._group.all_gather(mine)
        else:
            seconds = _meeting_seconds()
            try:
                said = self._bootstrap.all_gather(mine, seconds, self._look(what))
            except PeerTimeout as error:
                raise PeerTimeout(
                    f"rank {self.rank} waited {seconds:g} s (EP_LIB_TIMEOUT_S) for rank {error.peer} in {what}{_MEET}"
                    f"{self._last_failure(error.peer)}",
                    rank=error.rank, peer=error.peer, phase=error.phase, slot=error.slot, seen=error.seen,
                    expected=error.expected,
                ) from error  # fmt: skip
        self._heard = [failures for *_, failures in said]
        if any(other != what for other, *_ in said):
            calls = {rank: other for rank, (other, *_) in enumerate(said)}
            raise everywhere(RankMismatchError(f"{_in_different_calls(calls)}{_MEET}"))
        return [theirs for _, theirs, _ in said]

    def report(self, shape: Shape, error: PeerTimeout | RankFailed) -> None:
        """Notifies others that wait for this rank in a meeting that its operation of an engine of ``shape`` has failed,
        perhaps for one that never came. Raises RankMismatchError, which says what they want."""
        if not isinstance(self._bootstrap, StoreBootstrap):
            return
        what = f"a call with {shape}"
        self._failures += 1  # the same failure again is a new message
        self._bootstrap.tell([self._failures, f"{what}, which failed: {type(error).__name__}: {error}"])
        there = {r: said[0] for r in self._others if (said := self._bootstrap.peek(r)) is not None}
        self._heard = [self._failures_of(rank) for rank in range(self.size)]  # one failure may affect all ranks
        if there:
            raise RankMismatchError(f"{_in_different_calls({self.rank: what} | there)}{_MEET}") from error

    def make(self, shape: Shape, num_tokens: int) -> Engine:
        """Collective: an engine for ``shape`` and at least ``num_tokens`` of every rank. Raises RankMismatchError if
        ranks want different ones, and the errors of :meth:`all_gather` and :class:`ep_lib.Buffer`."""
        said = self._meet((list(shape), num_tokens), f"the first call of a shape ({shape})")
        shapes = [tuple(theirs) for theirs, _ in said]
        if len(set(shapes)) > 1:
            raise everywhere(_mismatch(shapes))
        arguments = shape.arguments(_rounded_up(max(tokens for _, tokens in said)), self.ranks_per_node)
        if self._bootstrap is None:
            if self._group.backend != shape.backend:
                raise ArgumentError(f"tensors of the {shape.backend} backend, and a rank of {self._group.backend}")
            buffer = Buffer(self._group, **arguments)
        else:
            timeout = self._group.timeout if isinstance(self._group, StoreGroup) else None
            buffer = Buffer.open(self._group, backend=shape.backend, timeout=timeout, **arguments)
        engine = Engine(shape, buffer)
        self._engines[self._made] = weakref.ref(engine), buffer
        self._made += 1
        return engine

    def keep(self, engine: Engine) -> None:
        """Marks an engine as never to be closed: a CUDA graph has its addresses."""
        if engine not in self._kept:
            self._kept.append(engine)

    def close_unused(self) -> None:
        """Collective: close the engines that no rank uses any more."""
        self._meet(None, "destroy()")

    def _meet(self, wish: Any, what: str) -> list[Any]:
        """Exchanges every rank's wish, and closes engines that no rank uses any more."""
        unused = [number for number, (engine, _) in self._engines.items() if engine() is None]
        said = self.all_gather([wish, unused], what)
        for number in sorted(set.intersection(*(set(theirs) for _, theirs in said))):
            self._engines.pop(number)[1].close()
        return [theirs for theirs, _ in said]

    def _look(self, what: str) -> Look:
        """Raises RankFailed when a rank has ended, or has reported a failure in another call."""

        def look() -> None:
            for rank in self._others:
                if (failures := self._failures_of(rank)) > self._heard[rank]:
                    self._heard[rank] = failures
                    raise RankFailed(
                        f"rank {self.rank} waited in {what}, and rank {rank} was in {self._hear(rank)[1]}", rank=rank
                    )
                if rank in self._processes and has_ended(self._processes[rank]):
                    raise RankFailed(
                        f"rank {self.rank} waited in {what} for rank {rank}, whose process "
                        f"{self._processes[rank].pid} has ended: what it printed last says why",
                        rank=rank,
                    )

        return look

    def _hear(self, rank: int) -> Any:
        return self._bootstrap.hear(rank) if isinstance(self._bootstrap, StoreBootstrap) else None

    def _failures_of(self, rank: int) -> int:
        """The number of failures that a rank has reported."""
        word = self._hear(rank)
        return 0 if word is None else int(word[0])

    def _last_failure(self, rank: int) -> str:
        word = self._hear(rank)
        return "" if word is None else f". Rank {rank} was in {word[1]}"

    def _find_processes(self) -> dict[int, Identity]:
        """The processes of other ranks, if visible from here."""
        if self._bootstrap is None:
            return {}
        me = Identity.of(os.getpid())
        said = [Identity(*theirs) for theirs in self._bootstrap.all_gather(tuple(me), _meeting_seconds())]
        return {rank: said[rank] for rank in self._others if said[rank].place == me.place}

    def _find_ranks_per_node(self) -> int | None:
        if self._bootstrap is None:
            reached = sum(map(self._group._backend.reaches, range(self.size)))
            return None if reached == self.size else reached
        hosts = gather_hosts(self._bootstrap, _meeting_seconds())
        here = hosts.count(hosts[0])
        if here == self.size:
            return None
        if self.size % here or hosts != [host for host in dict.fromkeys(hosts) for _ in range(here)]:
            raise everywhere(
                NotSupportedError(
                    f"the group's ranks are on {len(set(hosts))} hosts, and not as many on each, host by host: start "
                    "them so, or make groups of one host"
                )
            )
        return here


_members: list[Members] = []
_lock = threading.Lock()


def members_of(group: Any) -> Members:
    """The Members of ``group``; the first call makes them, and is collective."""
    with _lock:
        _members[:] = [members for members in _members if members.group_ref() is not None]
        found = next((members for members in _members if members.group_ref() is group), None)
    if found is None:
        found = Members(group)
        with _lock:
            _members.append(found)
    return found


def _meeting_seconds() -> float:
    """The limit of a meeting: the user's limit on waits, else that of host collectives."""
    limit = Config.from_environment().timeout_s
    return DEFAULT_TIMEOUT if limit is None else limit


def _in_different_calls(calls: dict[int, str]) -> str:
    each = ", ".join(f"rank {rank} in {what}" for rank, what in sorted(calls.items()))
    return f"the ranks are in different calls of a Buffer, {each}"


def _rounded_up(num_tokens: int) -> int:
    """Rounds up, so that a few more tokens do not require another meeting."""
    step = max(_FEWEST_TOKENS, (1 << (num_tokens - 1).bit_length()) // (2 * _STEPS)) if num_tokens else _FEWEST_TOKENS
    return max(1, -(-num_tokens // step)) * step


def _mismatch(shapes: list[tuple[Any, ...]]) -> RankMismatchError:
    complaints = []
    for place, name in enumerate(Shape._fields):
        values = [shape[place] for shape in shapes]
        if len(set(values)) > 1:
            each = (f"{v} on {name_ranks([r for r, w in enumerate(values) if w == v])}" for v in dict.fromkeys(values))
            complaints.append(f"{name} is {' but '.join(each)}")
    return RankMismatchError(f"the ranks call a Buffer differently: {'; '.join(complaints)}; pass the same everywhere")
