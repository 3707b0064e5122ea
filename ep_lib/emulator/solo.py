"""A world of one emulated rank, which runs its kernels in the thread that waits for them: ``ep_lib.init()`` alone."""

from __future__ import annotations

import pickle
from typing import Any

from ep_lib.backends.emulator import EmulatorBackend
from ep_lib.emulator.world import World


class SoloWorld(World):
    """No turns to take: waiting runs the kernels."""

    def wait_for_ticket(self, rank: int, ticket: int) -> None:
        while ticket and self.machine.done_ticket(rank) < ticket:
            self.machine.raise_if_broken()
            self.machine.run([ticket], timeout=self.timeout, host_waits=[])

    def all_gather(self, rank: int, what: str, obj: object) -> list[Any]:
        return [pickle.loads(pickle.dumps(obj))]


class SoloBackend(EmulatorBackend):
    """Ends its machine itself, since no spawn does."""

    def __init__(self, world: SoloWorld) -> None:
        super().__init__(world, 0)

    def close(self) -> None:
        self._machine.close()
