"""The context: this process's place among the ranks, the paths between them, and their registered memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from ep_lib.config import Config as Settings
from ep_lib.dispatch_combine.config import Config
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.host_links import host_name
from ep_lib.errors import ArgumentError, BufferClosedError, OutOfSymmetricMemory, everywhere
from ep_lib.jit.kernel import Kernel
from ep_lib.moe.agreement import require_same_values
from ep_lib.moe.buffer import Buffer
from ep_lib.require import instance, one_of
from ep_lib.runtime import launcher
from ep_lib.runtime.rank import Rank

WAYS = ("own", "p2p", "network")  # paths from one rank to another; "own": to itself
NETWORKS = ("rc", "srd")
_HEAP_BYTES = 1 << 30  # of the symmetric heap, if the Buffer does not need more
_LOOK = """
#include <ep/net.cuh>
extern "C" __global__ void find_ways(int* reaches) {
    for (int peer = threadIdx.x; peer < ep::num_ranks(); peer += blockDim.x) reaches[peer] = ep::reachable(peer);
}
"""


class DispatchCombineContext:
    """The one-time setup of the ranks: connects them, and registers the memory of all operations.

    ``with DispatchCombineContext(config) as context:`` initializes and finalizes it.
    """

    def __init__(self, config: Config, rank: Rank | None = None, *, network: str = "rc") -> None:
        """``rank``: of a world that exists (from ``spawn`` or ``init``), which :meth:`finalize` leaves open; None:
        :meth:`initialize` finds this process's place among the processes of mpiexec, torchrun or srun, or runs alone.
        ``network``: the emulated NICs between nodes, "rc" (InfiniBand) or "srd" (EFA). Raises ArgumentError."""
        self.config = instance("config", config, Config, "an ep_lib.dispatch_combine.Config")
        self._given = None if rank is None else instance("rank", rank, Rank, "a Rank, or None")
        self._network = one_of("network", network, NETWORKS)
        self._rank: Rank | None = None
        self._buffer: Buffer | None = None
        self._ways: tuple[str, ...] = ()

    def initialize(self) -> None:
        """Collective: find the other ranks, compare configs, detect which ranks P2P reaches, register memory.

        If every rank reaches every other, tokens are stored directly to their places. Otherwise they pass through
        bounce buffers with credits, on the path of each pair of ranks: stores inside a node, the NIC between nodes.
        Calling it twice does no harm. After :meth:`finalize` it starts again, also after an error such as PeerTimeout.

        Raises RankMismatchError (configs differ), ArgumentError (world_size or rank is not what the launcher says),
        OutOfSymmetricMemory, BackendUnavailable, PeerTimeout and RankFailed; all ranks raise.
        """
        if self._buffer is not None:
            return
        rank = self._start() if self._given is None else self._given
        try:
            self._require_agreement(rank)
            self._ways = _find_ways(rank)
            all_ways = [way for ways in rank.all_gather(self._ways) for way in ways]
            direct = self.config.window_bytes is None and "network" not in all_ways
            arguments = self.config.buffer_arguments(rank.backend, direct=direct, sm_count=rank.sm_count)
            if rank._backend.sees_values:  # they lie in memory of the host, which may have less
                _require_memory(rank, Buffer.symmetric_bytes(rank.world_size, **arguments))
            self._buffer = Buffer(rank, **arguments)
            self._rank = rank
        finally:
            if self._buffer is None and self._given is None:
                rank.close()

    def finalize(self) -> None:
        """Free the memory and leave the other ranks. All ranks call it; twice does no harm."""
        if self._buffer is not None and self._rank is not None:
            self._buffer.close()
            if self._given is None:
                self._rank.close()
        self._rank = self._buffer = None

    @property
    def rank(self) -> Rank:
        """This rank's place in its world. Raises BufferClosedError if this context is not initialized."""
        return self._refuse() if self._rank is None else self._rank

    @property
    def buffer(self) -> Buffer:
        """The engine, which all handles of this context share. Raises BufferClosedError unless it is initialized."""
        return self._refuse() if self._buffer is None else self._buffer

    @property
    def ways(self) -> tuple[str, ...]:
        """This rank's path to each rank: "own" (itself), "p2p", "network". Raises BufferClosedError before
        :meth:`initialize`."""
        return self._refuse() if self._buffer is None else self._ways

    def __enter__(self) -> DispatchCombineContext:
        self.initialize()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._buffer is not None:
            self._buffer.__exit__(kind, error, trace)
        self.finalize()

    # Implementation

    def _refuse(self) -> NoReturn:
        raise BufferClosedError(
            "this DispatchCombineContext is not initialized, or was finalized: call its initialize() on all ranks"
        )

    def _start(self) -> Rank:
        """This process's rank, on the emulator with as many ranks on each node as the config says."""
        config, world, settings = self.config, launcher.detect(), Settings.from_environment()
        backend = launcher.choose_backend(None, settings, world)
        try:
            arguments = expected_arguments(config, backend)
            needed = Buffer.symmetric_bytes(config.world_size, **arguments) + (1 << 20)
        except ArgumentError:
            launcher.decline(world)
            raise
        heap_bytes = max(needed, settings.heap_bytes or _HEAP_BYTES)
        if backend == "cuda":
            return launcher.init(backend, heap_bytes=heap_bytes)
        size = world.world_size or config.world_size
        has_nodes = size > config.gpu_per_node and size % config.gpu_per_node == 0
        fabric = Fabric(self._network, ranks_per_node=config.gpu_per_node) if has_nodes else None
        return launcher.init(backend, heap_bytes=heap_bytes, fabric=fabric, transport="by_pair")

    def _require_agreement(self, rank: Rank) -> None:
        require_same_values(rank, self.config.shared(), "have different Configs")
        if self.config.world_size != rank.world_size:
            raise everywhere(
                ArgumentError(
                    f"Config's world_size is {self.config.world_size}, and there are {rank.world_size} ranks: start "
                    f"{self.config.world_size}, or make the Config for {rank.world_size}"
                )
            )
        for number, claimed in enumerate(rank.all_gather(self.config.rank)):
            if number != claimed:
                raise everywhere(
                    ArgumentError(
                        f"rank {number} has a Config for rank {claimed}; each rank's Config names its own number"
                    )
                )


def expected_arguments(config: Config, backend: str) -> dict[str, Any]:
    """The Buffer's arguments that are known before the ranks have met. Raises ArgumentError."""
    direct = config.window_bytes is None and config.world_size <= config.gpu_per_node
    return config.buffer_arguments(backend, direct=direct)


def _find_ways(rank: Rank) -> tuple[str, ...]:
    """The path to each rank, detected by a kernel, not taken from a table."""
    reaches = rank.to_device(np.zeros(rank.world_size, np.int32))
    Kernel.from_source(_LOOK, "find_ways").launch(rank, 1, 32, reaches)
    found = rank.to_host(reaches)
    return tuple("own" if peer == rank.rank else "p2p" if found[peer] else "network" for peer in range(rank.world_size))


def _require_memory(rank: Rank, each: int) -> None:
    """Collective: raises OutOfSymmetricMemory on every rank if a host has no memory for all of its ranks, since lack of
    memory later would silently kill processes."""
    hosts: dict[str, list[int]] = {}
    for host, has in rank.all_gather((host_name(), _available_bytes())):
        hosts.setdefault(host, []).append(has)
    for host, found in hosts.items():
        needed, available = each * len(found), min(found)
        if needed > available:
            raise everywhere(
                OutOfSymmetricMemory(
                    f"{len(found)} ranks need {each} bytes of symmetric memory each, {needed} in all, and their host "
                    f"{host.split()[0]} has {available} available: start fewer ranks there, or lower "
                    "max_tokens_per_rank or hidden_dim",
                    requested=needed,
                    available=available,
                )
            )


def _available_bytes() -> int:
    """The free memory of this host or container."""
    found = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or no limit ("max")
        group = Path("/sys/fs/cgroup")
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text())
        files = int(stat["active_file"]) + int(stat["inactive_file"])  # cached: freed when memory is needed
        found.append(int((group / "memory.max").read_text()) - used + files)
    return max(0, min(found, default=1 << 62))
