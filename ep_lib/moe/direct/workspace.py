"""The state that a rank's direct dispatches and combines share: memory, streams, and operations declared so far."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.operation import Part
from ep_lib.jit.structs import header_struct
from ep_lib.memory.arrays import Array, as_kind, describe
from ep_lib.moe.agreement import require_same_everywhere
from ep_lib.moe.config import INT32, BufferConfig
from ep_lib.moe.direct.areas import ReceiveAreas
from ep_lib.moe.direct.memory import allocate
from ep_lib.moe.direct.tuning import Tuning, choose_tuning
from ep_lib.moe.event import Event
from ep_lib.moe.formats import PLAIN, UINT8, row_formats
from ep_lib.runtime.rank import Rank


@functools.cache
def kernel(name: str, template: str = "", entry: str = "") -> Kernel:
    """The kernel ``ep_<entry>`` of ``<name>.cu``, with template arguments if it has any (``"<float>"``); ``entry`` is
    ``name`` where the file has one kernel."""
    return library_kernel(f"moe/direct/{name}.cu", f"ep_{entry or name}{template}")


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


class Workspace:
    """The state of direct mode."""

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
        # For kernels that use only this GPU's memory: num_sms limits the others.
        self._local_blocks = rank.sm_count or min(config.num_sms, 2)
        # SMs that are free beside num_sms blocks, which may wait for blocks there.
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
        # Host memory that the host reads while kernels run: a dispatch's counts, and the ranks that passed another tag.
        self._report = rank.host_array(2 + 3 * config.world_size + config.experts_per_rank, np.int32)
        self._done = self._report[:2].view(np.uint64)
        self._differs = rank.host_array(config.world_size, np.int32)
        self._alike = bytes(self._differs.nbytes)  # the content of _differs while all tags are equal
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
        """The shapes of launches; None: chosen by the rows' size."""
        return self._tuning

    @tuning.setter
    def tuning(self, tuning: Tuning | None) -> None:
        self._tuning = tuning
        self._operations.clear()

    @property
    def meeting_place(self) -> int:
        """The address of the part that <moe/common/regroup.cu> takes."""
        return self._at["hellos"]

    def begin_anew(self, masked: Collection[int]) -> None:
        """Resets to the state after __init__, without ``masked`` ranks, while no rank runs a kernel."""
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

    def finished(self, array: Array, keep: tuple[Any, ...]) -> Event:
        """The end of the last operation, for streams of the kind of ``array``."""
        stream = self._streams.last
        return Event(self._rank, 0 if stream is None else stream, describe(array).kind, keep)

    def mismatched_ranks(self) -> list[tuple[int, int]]:
        """The ranks whose tag differs from ours, and the differing bits; complete once the kernels have ended. Does not
        wait."""
        if self._differs.tobytes() == self._alike:  # at every call: takes a third of the time of any()
            return []
        differs = [(r, int(bits)) for r, bits in enumerate(self._differs) if bits]
        self._differs[...] = 0
        return differs

    def waits(self, async_finish: bool) -> bool:
        """Whether the operation is complete when its call returns: the host waits, and async_finish is off."""
        return self._backend.host_waits and not async_finish

    def _finish(self, async_finish: bool) -> None:
        """Waits where :meth:`waits` says so: NumPy knows no streams, so results must be there when the call returns."""
        if self.waits(async_finish):
            self._backend.synchronize()

    def _view(self, name: str, kind: str, dtype: np.dtype[Any], columns: int, skipped: int = 0) -> Array:
        """A part of receive area 0, from the byte ``skipped`` on, as an array of the caller's kind."""
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
