"""The network of the emulated ranks: NVLink alone, or nodes of ranks with NICs between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ep_lib.errors import ArgumentError
from ep_lib.require import brief, flag, index, instance, names_its_arguments, one_of, several, show, whole_number

KINDS = ("p2p", "rc", "srd")  # in the order of epemu::Fabric

_MAX_QUEUE_PAIRS = 1024
_MAX_QUEUE_DEPTH = 1 << 20
_MAX_EVENTS = 1 << 40
_MAX_SECONDS = 1e5


@names_its_arguments
@dataclass(frozen=True)
class Fabric:
    """How ranks reach each other.

    ``kind``: "p2p" (every rank reaches every other by loads and stores, as GPUs over NVLink do), "rc" (NICs with
    reliable connections, as InfiniBand: a queue pair keeps its order, as it does without adaptive routing and without
    PCIe's relaxed ordering) or "srd" (EFA's scalable reliable datagrams: everything arrives, in any order).

    An atomic of a NIC is staged: it reads, adds and writes back. Atomics of one NIC are atomic to each other; an
    addition by a GPU or a CPU in between is lost. ``global_atomics``, for "rc" only: the NIC's atomics are atomic to
    those of GPUs and CPUs, too. (libibverbs calls these IBV_ATOMIC_HCA, the usual one, and IBV_ATOMIC_GLOB.)

    ``ranks_per_node`` consecutive ranks form a node; ``p2p``: whether loads and stores reach the other ranks of a node
    (False: a box without NVLink). Each rank has ``queue_pairs`` to each other rank, with up to ``queue_depth``
    operations in flight on each.

    Fault injection, to test the reaction of kernels and programs. ``seconds`` are on the emulator's clock, as are time
    limits of waits (30 s by default), or in virtual time under :func:`ep_lib.simulate`; ``math.inf`` means forever:

    * ``broken_links``: (from, to) pairs of ranks over which nothing ever arrives.
    * ``stalled_links``: ``{(from, to, after): seconds}``. The first ``after`` operations on a link are normal; posting
      the next one stalls everything in flight there for so long.
    * ``delayed_messages``: ``{(from, to, number): seconds}``. One operation, numbered from 0 on its link, leaves so
      much later than it was posted. On rc, later operations of its queue pair wait behind it.
    * ``stopped_ranks``: ``{rank: after}``. The rank sends ``after`` times (operations of its NIC, and signals stored in
      other ranks' memory); before it sends again, its kernels and its NIC stop for good. Its main never returns: spawn
      returns None for it once the others have finished.
    """

    kind: str = "p2p"
    ranks_per_node: int = 1
    p2p: bool = True
    queue_pairs: int = 4
    queue_depth: int = 64
    global_atomics: bool = False
    broken_links: tuple[tuple[int, int], ...] = ()
    stopped_ranks: Mapping[int, int] = field(default_factory=dict, hash=False)
    stalled_links: Mapping[tuple[int, int, int], float] = field(default_factory=dict, hash=False)
    delayed_messages: Mapping[tuple[int, int, int], float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        one_of("fabric", self.kind, KINDS)
        checked = {
            "ranks_per_node": whole_number("a fabric's ranks_per_node", self.ranks_per_node, 1, 1 << 16),
            "p2p": flag("a fabric's p2p", self.p2p),
            "queue_pairs": whole_number("a fabric's queue_pairs", self.queue_pairs, 1, _MAX_QUEUE_PAIRS),
            "queue_depth": whole_number("a fabric's queue_depth", self.queue_depth, 1, _MAX_QUEUE_DEPTH),
            "global_atomics": flag("a fabric's global_atomics", self.global_atomics),
        }
        if self.global_atomics and self.kind != "rc":
            raise ArgumentError(
                f"a fabric of kind {self.kind!r} has no global_atomics: EFA's atomics are always staged, and p2p has "
                "the GPUs' own; leave it out, or take kind 'rc'"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        links = several("a fabric's broken_links", self.broken_links, "a tuple of pairs of ranks")
        object.__setattr__(self, "broken_links", tuple(links))
        for name in ("stopped_ranks", "stalled_links", "delayed_messages"):
            instance(f"a fabric's {name}", getattr(self, name), dict, "a dict")

    def reaches(self, rank: int, peer: int) -> bool:
        """Whether loads and stores of ``rank`` reach the memory of ``peer``."""
        same_node = rank // self.ranks_per_node == peer // self.ranks_per_node
        return self.kind == "p2p" or rank == peer or (self.p2p and same_node)

    def check(self, ranks: int) -> None:
        """Raises ArgumentError if this fabric cannot connect so many ranks."""
        if self.kind != "p2p" and ranks % self.ranks_per_node:
            raise ArgumentError(
                f"{ranks} ranks do not fill nodes of {self.ranks_per_node}: rank {ranks - 1} would be in a node that "
                f"is not complete; choose ranks_per_node among the divisors of {ranks}"
            )
        for link in self.broken_links:
            if not (_are_counts(link, 2) and max(link) < ranks):
                raise ArgumentError(f"broken_links has {show(link)}; it must be pairs of ranks, from 0 to {ranks - 1}")
        self._check_faults(ranks)

    def _check_faults(self, ranks: int) -> None:
        for rank, after in self.stopped_ranks.items():
            if not (_are_counts((rank, after), 2) and rank < ranks):
                raise ArgumentError(
                    f"stopped_ranks has {brief(rank)}: {brief(after)}; it must be a rank, from 0 to {ranks - 1}, and "
                    f"how often it sends before it stops, from 0 to {_MAX_EVENTS}"
                )
        for name in ("stalled_links", "delayed_messages"):
            for key, seconds in getattr(self, name).items():
                if not (_are_counts(key, 3) and max(key[:2]) < ranks and _are_seconds(seconds)):
                    raise ArgumentError(
                        f"{name} has {brief(key)}: {brief(seconds)}; it must be (rank, rank, number of an operation), "
                        f"with ranks from 0 to {ranks - 1} and numbers from 0 to {_MAX_EVENTS}, and seconds: above "
                        f"zero, at most {_MAX_SECONDS:g}, or math.inf"
                    )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: faults as lists of numbers, None for infinite times."""
        rows = {
            name: [[*key, None if seconds == math.inf else seconds] for key, seconds in getattr(self, name).items()]
            for name in ("stalled_links", "delayed_messages")
        }
        return {**dataclasses.asdict(self), "stopped_ranks": [list(row) for row in self.stopped_ranks.items()], **rows}


def _are_counts(values: Any, length: int) -> bool:
    return (
        isinstance(values, (tuple, list))
        and len(values) == length
        and all((number := index(v)) is not None and 0 <= number <= _MAX_EVENTS for v in values)
    )


def _are_seconds(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (value == math.inf or 0 < value <= _MAX_SECONDS)
    )


def make_fabric(fabric: Fabric | str | None, ranks: int) -> Fabric:
    """The Fabric for an argument: a kind's name, a Fabric, or None for P2P. Raises ArgumentError."""
    if fabric is None or isinstance(fabric, str):
        fabric = Fabric("p2p" if fabric is None else fabric)
    if not isinstance(fabric, Fabric):
        raise ArgumentError(
            f"fabric is {show(fabric)}; it must be one of {', '.join(map(repr, KINDS))} or an ep_lib.Fabric"
        )
    fabric.check(ranks)
    return fabric
