"""Hidden tests of exercise 01_all_to_all: chunks from all to all, waits for the right epoch, memory used in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from ep_lib.workshop.grader.followed import Carried
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import calling, drawn, one

_OWN = {1: ("send_to_all",), 2: ("receive_from_all",), 3: ("send_to_all", "receive_from_all", "all_to_all")}


def _case(
    rng: Rng,
    task: int,
    seed: int,
    ranks: int,
    epochs: int,
    size: int = 24,
    checks: int = 0,
    heap_bytes: int = 1 << 20,
    most_inboxes: int = 0,
    first: int = 0,
) -> Case:
    """``first``: the number of the first epoch, which is the number of earlier signals."""
    data = rng.integers(0, 256, (ranks, epochs, ranks, size), dtype=np.uint8)

    def judge(seen: Any) -> str | None:
        return (
            _wrong(seen["got"], Carried(seen))
            or _met(seen["met"].keys(), seen["met_late"])
            or _held(seen["most_held"])
            or _findings(seen["findings"])
        )

    def _wrong(got: Any, carried: Carried) -> str | None:
        missed = None
        for me in range(ranks):
            received = np.array(got[me], np.uint8)
            if received.shape != (epochs, ranks, size):
                raise ValueError(received.shape)
            for number, sender in np.ndindex(epochs, ranks):
                epoch, came = first + number, received[number, sender].tobytes()
                chunk = data[sender, number, me].tobytes()
                if came != chunk:
                    return f"in epoch {epoch}, rank {me} of {ranks} has other bytes than rank {sender} sent to it"
                if sender != me and chunk:  # for 0 bytes, only the call's return shows that a signal came
                    missed = missed or _missed(carried, epoch, sender, me, chunk)
        return missed

    def _missed(carried: Carried, epoch: int, sender: int, me: int, chunk: bytes) -> str | None:
        if not carried.was_sent(sender, me, chunk):
            return f"in epoch {epoch}, rank {sender} did not send rank {me} its chunk by the kernel that sends"
        if task != 1 and not carried.was_awaited(me, sender, chunk, first):
            return (
                f"in epoch {epoch}, rank {me} did not launch the kernel that waits on the row of its inbox where the "
                f"chunk of rank {sender} is, and until the signal that came with it had grown so far"
            )
        return None

    def _met(names: Collection[str], late: Collection[str]) -> str | None:
        what = " and ".join(f"rank.{name}()" for name in sorted(names) if name != "symmetric")
        if what:
            return f"it calls {what}: signals alone are enough"
        if late:
            return "it calls rank.symmetric() after a launch, where all ranks wait for each other: allocate before"
        return None

    def _held(nbytes: int) -> str | None:
        inbox = ranks * size
        if most_inboxes and nbytes > most_inboxes * inbox + inbox // 2:
            return (
                f"rank.symmetric() has given {nbytes} bytes that were not freed; {most_inboxes} inboxes of "
                f"{inbox} bytes, and the signals, are enough"
            )
        return None

    run = {"own": _OWN[task], "seed": seed, "checks": checks, "heap_bytes": heap_bytes, "first": first}
    return calling("exchanges", judge, ranks, epochs=data.tolist(), **run)


def _findings(findings: list[str]) -> str | None:
    return f"the values came out right, but the checker says: {findings[0]}" if findings else None


@drawn
def _shapes(rng: Rng, task: int, *shapes: tuple[int, int, int], checks: int = 0) -> Iterator[Case]:
    """A case for each of ``shapes``: (ranks, epochs, bytes)."""
    for seed, (ranks, epochs, size) in enumerate(shapes):
        yield _case(rng, task, 10 * task + seed, ranks, epochs, size, checks)


@drawn
def _seeds(rng: Rng, ranks: int, epochs: int, seeds: int) -> Iterator[Case]:
    for seed in range(seeds):
        yield _case(rng, 3, 300 + seed, ranks, epochs)


@drawn
def _late(rng: Rng) -> Iterator[Case]:
    """Signals of 64 bits."""
    for seed, first in enumerate((254, (1 << 32) - 2)):
        yield _case(rng, 2, 250 + seed, ranks=2, epochs=3, first=first)


_ROWS = "Sender s uses row s of the inbox and element s of signals, its own copies; the kernel finds the peer's."
_EPOCH = (
    "The signal of a sender grows by 1 in each epoch, and is never reset: epoch e waits for e + 1. "
    "What a call returned stays as it is."
)
_TWO = "Two inboxes in turn, allocated once."

# More epochs than fit into the heap, if every epoch takes memory of its own; chunks so large that signals hardly count.
_LONG = one(_case, 3, 7, ranks=2, epochs=40, size=16, heap_bytes=4096)
_TWO_INBOXES = one(_case, 3, 8, ranks=2, epochs=4, size=256, most_inboxes=2)

BEHAVIOURS = (
    Behaviour(
        1, "every chunk reaches its rank", _shapes(1, (2, 1, 16), (3, 2, 40), (4, 1, 1), (1, 1, 8), (2, 2, 0)), _ROWS
    ),
    Behaviour(1, "nothing races", _shapes(1, (3, 2, 8), checks=3), _ROWS),
    Behaviour(
        2,
        "every epoch's chunks, by sender",
        _shapes(2, (2, 1, 16), (3, 3, 40), (4, 2, 1), (1, 2, 8), (2, 2, 0)),
        _EPOCH,
    ),
    Behaviour(2, "epochs after many others", _late(), _EPOCH),
    Behaviour(2, "nothing is read too early", _shapes(2, (3, 3, 8), checks=4), _EPOCH),
    Behaviour(3, "many epochs, in many schedules", _seeds(3, 5, 8), _TWO),
    Behaviour(3, "no epoch overwrites what is still being read", _shapes(3, (3, 4, 8), checks=6), _TWO),
    Behaviour(3, "memory for two epochs is enough for forty", _LONG, _TWO),
    Behaviour(3, "memory for two epochs is all that it takes", _TWO_INBOXES, _TWO),
)
