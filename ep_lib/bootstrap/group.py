"""Ranks that a program has grouped itself: a process group of torch.distributed, or a communicator of mpi4py."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from typing import Any

from ep_lib.bootstrap.base import Bootstrap
from ep_lib.errors import ArgumentError
from ep_lib.require import show

_worlds_made: Counter[str] = Counter()  # by the ranks of a group: keys of one world must not meet another's


def make_group_bootstrap(group: Any, patience: float | None = None) -> Bootstrap:
    """Collective among the members of ``group``, which may be fewer than all processes. Raises ArgumentError.

    Of a process group only its members and the default group's store are used: messages go through no backend of
    torch, so that any of them will do (gloo, nccl, several at once), and nothing waits for a GPU.
    """
    if type(group).__module__.partition(".")[0] == "mpi4py":
        from ep_lib.bootstrap.mpi import MpiBootstrap

        return MpiBootstrap(communicator=group, patience=patience)
    torch: Any = sys.modules.get("torch")
    dist = None if torch is None else torch.distributed
    if dist is None or not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise ArgumentError(
            f"group is {show(group)}; it must be a process group of torch.distributed (dist.group.WORLD, "
            "dist.new_group()) or a communicator of mpi4py (MPI.COMM_WORLD)"
        )
    from ep_lib.bootstrap.torchrun import StoreBootstrap

    members = [int(rank) for rank in dist.get_process_group_ranks(group)]
    name = hashlib.sha256(repr(members).encode()).hexdigest()[:16]
    number, _worlds_made[name] = _worlds_made[name], _worlds_made[name] + 1
    device = torch.cuda.current_device() if torch.cuda.is_available() else dist.get_rank(group)
    store = dist.distributed_c10d._get_default_store()
    prefix = f"ep_lib/group/{name}/{number}"
    return StoreBootstrap(store, prefix, dist.get_rank(group), len(members), device, kind="group")
