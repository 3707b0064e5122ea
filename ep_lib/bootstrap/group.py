"""Ranks in a group of the program's own: a process group of torch.distributed, or a communicator of mpi4py."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from ep_lib.bootstrap.base import Bootstrap
from ep_lib.config import Config
from ep_lib.errors import ArgumentError
from ep_lib.processes import Identity
from ep_lib.require import show


class StoreGroup:
    """Ranks that share a store of torch.distributed without a process group. No other ranks may use its keys.

    ``timeout``: seconds that their kernels wait for each other."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self._store, self._rank, self._size, self.timeout = store, rank, size, timeout

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def get_group_store(self) -> Any:
        return self._store


def make_group_bootstrap(group: Any, patience: float | None = None) -> Bootstrap:
    """Collective among the members of ``group``, which may be fewer than all processes. Raises ArgumentError.

    A process group may be unknown to torch's world. Messages go through its store, not through a backend of torch, so
    that any backend will do (gloo, nccl, several at once), and no GPU is needed.
    """
    if type(group).__module__.partition(".")[0] == "mpi4py":
        from ep_lib.bootstrap.mpi import MpiBootstrap

        return MpiBootstrap(communicator=group, patience=patience)
    torch: Any = sys.modules.get("torch")
    dist = None if torch is None else torch.distributed
    if dist is None or not dist.is_available() or not isinstance(group, StoreGroup | dist.ProcessGroup):
        raise ArgumentError(
            f"group is {show(group)}; it must be a process group of torch.distributed (dist.group.WORLD, "
            "dist.new_group()) or a communicator of mpi4py (MPI.COMM_WORLD)"
        )
    from ep_lib.bootstrap.torchrun import StoreBootstrap

    rank, size = int(group.rank()), int(group.size())
    store = (group.get_group_store() if hasattr(group, "get_group_store") else None) or _make_store(dist, group)
    # A group's world must not read another one's keys: each rank counts its worlds in the store itself, so that a
    # process that joined later, in a group of its own, counts like the others.
    number = store.add(f"ep_lib/group/made/{rank}", 1)
    device = torch.cuda.current_device() if torch.cuda.is_available() else rank
    return StoreBootstrap(store, f"ep_lib/group/{number}", rank, size, device, kind="group")


def _make_store(dist: Any, group: Any) -> Any:
    """A store hosted by the group's first rank, for a group that has none or (in an older torch) does not expose it."""
    me, store = Identity.of(os.getpid()).place, None
    address = Config.from_environment().address or socket.gethostname()
    if group.rank() == 0:
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, (me, address, None if store is None else store.port), group=group)
    place, address, port = said[0]
    return store or dist.TCPStore("localhost" if place == me else address, port, wait_for_workers=False)
