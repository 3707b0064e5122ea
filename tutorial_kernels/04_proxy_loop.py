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
        slots, first, count = self.ring.slots, self.ring.taken, 0
        while count < self.most - len(self.batch):
            number = first + count
            if slots[number % len(slots)].number != number + 1:
                break
            count += 1
        return count

    def take(self) -> int:
        """Moves the commands that are ready into the batch, and returns their credits at once; how many they were."""
        slots, first, count = self.ring.slots, self.ring.taken, self.ready()
        for number in range(first, first + count):
            self.batch.append((number, list(slots[number % len(slots)].words)))
        if count:
            self.ring.taken = first + count
        return count

    def post(self) -> int:
        """Posts the batch in order until the NIC's queue is full; what is left stays. How many were posted."""
        posted = 0
        while self.batch and self.nic.post(*self.batch[0]):
            self.batch.pop(0)
            posted += 1
        return posted

    def complete(self) -> int:
        """Asks the NIC what is done, and publishes how far that goes without a gap; how many commands further."""
        self.done.update(self.nic.poll())
        before = now = self.ring.completed
        while now in self.done:
            self.done.remove(now)
            now += 1
        if now > before:
            self.ring.completed = now
        return now - before

    def step(self) -> bool:
        """One round: complete, post what is left, and once all of it is posted, take and post more. Was there work?"""
        work = self.complete() + self.post()
        if not self.batch:
            work += self.take()
            work += self.post()
        return work > 0
