"""Ranks that leave a Buffer's operations and return: the agreement of the remaining ranks, and their restart."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection

import numpy as np

from ep_lib.errors import PeerTimeout, RankMismatchError
from ep_lib.jit.kernel import library_kernel
from ep_lib.jit.structs import header_struct
from ep_lib.memory.arrays import describe
from ep_lib.moe.agreement import name_ranks
from ep_lib.runtime.rank import Rank

MEETINGS = 2
_THREADS = 64
_FILE = "moe/common/regroup.cu"
_nonces = itertools.count(time.time_ns())  # so that a process in another's place has other numbers


class Meetings:
    """``hellos``: address of the symmetric part for <moe/common/regroup.cu>; ``buffer``: a digest of the values that
    must be equal on all ranks."""

    def __init__(self, rank: Rank, hellos: int, buffer: int) -> None:
        self._rank, self._hellos, self._buffer = rank, hellos, buffer
        self._said = rank.host_array((rank.world_size, 2), np.uint64)

    def regroup(self, masked: Collection[int], clear: Callable[[], None]) -> None:
        """Collective among the ranks that are not ``masked``: each calls ``clear()`` while no rank runs a kernel.

        Raises PeerTimeout if a rank does not come with the same members, RankMismatchError if one has another Buffer.
        """
        members = sum(1 << r for r in range(self._rank.world_size) if r not in masked)
        self._meet(0, members)
        clear()
        self._meet(1, members)

    def _meet(self, meeting: int, members: int) -> None:
        mine = {"nonce": next(_nonces), "members": members, "buffer": self._buffer, "answer": 0}
        hello = header_struct(_FILE, "Hello")
        self._said[...] = members, self._buffer
        args = header_struct(_FILE, "RegroupArgs").pack(
            hellos=self._hellos + meeting * self._rank.world_size * hello.size,
            mine=hello.pack(**mine),
            said=describe(self._said).address,
        )
        library_kernel(_FILE, "ep_regroup").launch(self._rank, 1, _THREADS, args)
        try:
            self._rank.synchronize()
        except PeerTimeout as error:
            said = [f"rank {peer} {_name(theirs)}" for peer, theirs in enumerate(self._said[:, 0].tolist())]
            if (self._said[:, 0] != members).any():
                error.add_note(
                    f"The ranks last wanted to go on together with: {', '.join(said)}. Pass the same to mask_ranks and "
                    "connect_ranks everywhere (a rank that comes back names those that stay out, with masked=)"
                )
            raise
        for peer, buffer in enumerate(self._said[:, 1].tolist()):
            if buffer != self._buffer:
                raise RankMismatchError(
                    f"rank {peer} has another Buffer than rank {self._rank.rank}: a process that takes a rank's place "
                    "makes its Buffers with the same arguments and in the same order as the others"
                )


def _name(members: int) -> str:
    return name_ranks([r for r in range(members.bit_length()) if members >> r & 1])
