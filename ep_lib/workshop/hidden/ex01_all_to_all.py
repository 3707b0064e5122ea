"""Hidden tests of exercise 01_all_to_all: chunks from all to all, waits for the right epoch, memory used in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.workshop.hidden import Behaviour, Case, Cases, Rng, one, rehearsed
from ep_lib.workshop.scenario import Call, Outputs
from ep_lib.workshop.seal import has_carried

_PROGRAM = str(Path(__file__).with_name("play01_all_to_all.py"))
_KERNELS = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")  # the child cannot read this folder
KERNELS = ()
_OWN = {1: ("send_to_all",), 2: ("receive_from_all",), 3: ("send_to_all", "receive_from_all", "all_to_all")}


def _case(
    task: int, rng: Rng, seed: int, ranks: int, epochs: int, size: int = 24, checks: int = 0, heap_bytes: int = 1 << 20
) -> Case:
    data = rng.integers(0, 256, (ranks, epochs, ranks, size), dtype=np.uint8)

    def judge(outputs: Outputs) -> str | None:
        try:
            told = outputs.seen["told"]
            return (
                _wrong(told["got"])
                or _unsent(outputs.seen["carried"])
                or _met(outputs.seen["met"])
                or _findings(told["findings"])
            )
        except (KeyError, TypeError, ValueError):
            return "what was returned has another shape than [ranks, bytes] for each epoch"

    def _wrong(got: Any) -> str | None:
        for me in range(ranks):
            received = np.array(got[me], np.uint8)
            wanted = data[:, :, me].swapaxes(0, 1)  # by epoch and sender
            if received.shape != wanted.shape:
                raise ValueError(received.shape)
            for epoch, sender in np.argwhere((received != wanted).any(axis=2)):
                return f"in epoch {epoch}, rank {me} of {ranks} has other bytes than rank {sender} sent to it"
        return None

    def _unsent(carried: Any) -> str | None:
        for (me, peer), epoch in itertools.product(itertools.permutations(range(ranks), 2), range(epochs)):
            chunk = data[me, epoch, peer].tobytes()
            if not has_carried(carried, "sent", me, peer, chunk):
                return f"in epoch {epoch}, rank {me} did not send rank {peer} its chunk by the kernel that sends"
            if task != 1 and not has_carried(carried, "received", peer, me, chunk):
                return (
                    f"in epoch {epoch}, rank {peer} did not launch the kernel that waits on the row of its inbox where "
                    f"the chunk of rank {me} is"
                )
        return None

    def _met(meetings: Any) -> str | None:
        what = " and ".join(f"rank.{name}() {count} times" for name, count in meetings.items())
        return f"it calls {what}: signals alone are enough" if what and task == 3 else None

    arguments = {
        "kernels": _KERNELS,
        "epochs": data.tolist(),
        "own": _OWN[task],
        "seed": seed,
        "checks": checks,
        "heap_bytes": heap_bytes,
    }
    return Case(Call(_PROGRAM, "exchanges", "01_all_to_all.py", arguments, {}), judge)


def _findings(findings: list[str]) -> str | None:
    return f"the values came out right, but the checker says: {findings[0]}" if findings else None


def _shapes(task: int, *shapes: tuple[int, int, int], checks: int = 0) -> Cases:
    """(ranks, epochs, bytes) of each."""

    def cases(rng: Rng) -> Iterator[Case]:
        for seed, (ranks, epochs, size) in enumerate(shapes):
            yield _case(task, rng, 10 * task + seed, ranks, epochs, size, checks)

    return cases


def _seeds(task: int, ranks: int, epochs: int, seeds: int) -> Cases:
    def cases(rng: Rng) -> Iterator[Case]:
        for seed in range(seeds):
            yield _case(task, rng, 100 * task + seed, ranks, epochs)

    return cases


def _long(rng: Rng) -> Case:
    """More epochs than fit into the heap, if every epoch takes memory of its own."""
    return _case(3, rng, 7, ranks=2, epochs=40, size=16, heap_bytes=4096)


_ROWS = "Sender s uses row s of the inbox and element s of signals, its own copies; the kernel finds the peer's."
_EPOCH = "The signal of a sender grows by 1 in each epoch, and is never reset: epoch e waits for e + 1."
_TWO = "Two inboxes in turn, allocated once."

BEHAVIOURS = (
    Behaviour(1, "every chunk reaches its rank", _shapes(1, (2, 1, 16), (3, 2, 40), (4, 1, 1)), _ROWS),
    Behaviour(1, "nothing races", _shapes(1, (3, 2, 8), checks=3), _ROWS),
    Behaviour(2, "every epoch's chunks, by sender", _shapes(2, (2, 1, 16), (3, 3, 40), (4, 2, 1)), _EPOCH),
    Behaviour(2, "nothing is read too early", _shapes(2, (3, 3, 8), checks=4), _EPOCH),
    Behaviour(3, "many epochs, in many schedules", _seeds(3, 3, 5, 8), _TWO),
    Behaviour(3, "no epoch overwrites what is still being read", _shapes(3, (3, 4, 8), checks=6), _TWO),
    Behaviour(3, "memory for two epochs is enough for forty", one(_long), _TWO),
)

PUBLIC = (
    Behaviour(1, "three ranks, one epoch", one(lambda rng: _case(1, rng, 0, 3, 1)), _ROWS),
    Behaviour(2, "three ranks, three epochs", one(lambda rng: _case(2, rng, 0, 3, 3)), _EPOCH),
    Behaviour(3, "three ranks, four epochs", one(lambda rng: _case(3, rng, 0, 3, 4)), _TWO),
    *rehearsed(BEHAVIOURS),
)
