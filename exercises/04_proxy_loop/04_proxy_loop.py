# Exercise 04_proxy_loop, version 1. Leave this line: ep_lib reads it.
"""A proxy's loop: it takes commands out of a ring, posts them to a NIC, and says what is taken and what is done.

The other end of <ep/proxy_ring.cuh>, with the steps of the native proxy (ep_lib/transports/proxy/native), in Python.
The kernel fills the ring while the proxy works:

    ring.slots[i].words     the command in slot i, a list of numbers; the kernel overwrites it in place
    ring.slots[i].number    which command that is, plus 1; 0 before the first. Command n uses slot n % len(ring.slots)
    ring.taken              commands whose slots may be filled again: yours to write. The kernel sees it at once
    ring.completed          commands that are done, and all with smaller numbers: yours to write

    nic.post(number, words)     True, or False if its queue is full: then the command was not taken
    nic.poll()                  the numbers of commands that have been done since the last call, in any order
"""

from __future__ import annotations

from typing import Any


class Proxy:
    """Serves one ring. ``batch``: (number, words) of commands that were taken and not posted yet, at most ``most``.
    ``done``: the numbers of commands that the NIC has done and that are not published yet. Others look at both."""

    def __init__(self, ring: Any, nic: Any, most: int = 64) -> None:
        self.ring = ring
        self.nic = nic
        self.most = most
        self.batch: list[tuple[int, list[int]]] = []
        self.done: set[int] = set()  # as one before them is not done

    def ready(self) -> int:
        """How many commands can be taken now, in their order, so that the batch has room for them."""
        # TASK 1 (2 points): how many commands are ready?
        # Command ring.taken is the next one. It is ready if its slot says ring.taken + 1; so on with those
        # behind it, until one is not, or until the batch, with what lies in it, would hold more than `most`.
        # Look only: nothing changes.
        raise NotImplementedError("Task 1 is still to do: how many commands are ready?")
        # end of TASK 1

    def take(self) -> int:
        """Moves the commands that are ready into the batch, and returns their credits at once; how many they were."""
        # TASK 2 (3 points): take them, and return the credits
        # The moment ring.taken grows, the kernel overwrites the slots, in place. So what must be done before?
        # And what does list(words) do that words does not? Write ring.taken once for all of them, and not at
        # all if there are none.
        raise NotImplementedError("Task 2 is still to do: take them, and return the credits")
        # end of TASK 2

    def post(self) -> int:
        """Posts the batch in order until the NIC's queue is full; what is left stays. How many were posted."""
        # TASK 3 (2 points): post until the queue is full
        # nic.post(number, words) of the first command in the batch, as long as it answers True. A command
        # leaves the batch when it was posted, not before: the next call goes on with it.
        raise NotImplementedError("Task 3 is still to do: post until the queue is full")
        # end of TASK 3

    def complete(self) -> int:
        """Asks the NIC what is done, and publishes how far that goes without a gap; how many commands further."""
        # TASK 4 (3 points): publish what is done, without a gap
        # ring.completed is n when commands 0 to n - 1 are all done. The NIC may say 2 before 1: remember what
        # came too early in self.done. Write ring.completed once, if it grows.
        raise NotImplementedError("Task 4 is still to do: publish what is done, without a gap")
        # end of TASK 4

    def step(self) -> bool:
        """One round: complete, post what is left, and once all of it is posted, take and post more. Was there work?"""
        # TASK 5 (2 points): one round
        # First what frees something: complete(), post(). Take new commands only when nothing of the batch is
        # left, so that no command waits here longer than it need; and post them in the same round. True if any
        # of the steps moved anything.
        raise NotImplementedError("Task 5 is still to do: one round")
        # end of TASK 5
