"""What connects the emulated ranks: NVLink alone, or nodes of ranks with NICs between them."""

from __future__ import annotations

from dataclasses import dataclass

from ep_lib.errors import ArgumentError

KINDS = ("p2p", "rc", "srd")  # in the order of epemu::Fabric

_MAX_QUEUE_PAIRS = 1024
_MAX_QUEUE_DEPTH = 1 << 20


@dataclass(frozen=True)
class Fabric:
    """How ranks reach each other.

    ``kind``: "p2p" (every rank reaches every other by loads and stores, as GPUs over NVLink do), "rc" (NICs with
    reliable connections, as InfiniBand: a queue pair keeps its order, atomics are the hardware's) or "srd" (EFA's
    scalable reliable datagrams: everything arrives, in any order, and atomics are staged).

    ``ranks_per_node`` consecutive ranks form a node, inside which ``p2p`` says whether loads and stores reach the
    others (False: a box without NVLink). ``queue_pairs`` lead from each rank to each other; up to ``queue_depth``
    operations may be under way on one. ``broken_links`` are (from, to) pairs of ranks over which nothing arrives any
    more.
    """

    kind: str = "p2p"
    ranks_per_node: int = 1
    p2p: bool = True
    queue_pairs: int = 4
    queue_depth: int = 64
    broken_links: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError(f"fabric is {self.kind!r}; it must be one of {', '.join(map(repr, KINDS))}")
        _check_count("ranks_per_node", self.ranks_per_node, 1 << 16)
        _check_count("queue_pairs", self.queue_pairs, _MAX_QUEUE_PAIRS)
        _check_count("queue_depth", self.queue_depth, _MAX_QUEUE_DEPTH)

    def check(self, ranks: int) -> None:
        """Raises ArgumentError if this fabric cannot connect so many ranks."""
        if self.kind != "p2p" and ranks % self.ranks_per_node:
            raise ArgumentError(
                f"{ranks} ranks do not fill nodes of {self.ranks_per_node}: rank {ranks - 1} would be in a node that "
                f"is not complete; choose ranks_per_node among the divisors of {ranks}"
            )
        for link in self.broken_links:
            if len(link) != 2 or not all(0 <= rank < ranks for rank in link):
                raise ArgumentError(f"broken_links has {link!r}; it must be pairs of ranks, from 0 to {ranks - 1}")


def _check_count(name: str, value: int, limit: int) -> None:
    if not isinstance(value, int) or not 1 <= value <= limit:
        raise ArgumentError(f"a fabric's {name} is {value!r}; it must be from 1 to {limit}")


def make_fabric(fabric: Fabric | str | None, ranks: int) -> Fabric:
    """The Fabric that an argument means: a kind's name, a Fabric, or None for P2P. Raises ArgumentError."""
    if fabric is None or isinstance(fabric, str):
        fabric = Fabric(fabric or "p2p")
    if not isinstance(fabric, Fabric):
        raise ArgumentError(
            f"fabric is {fabric!r}; it must be one of {', '.join(map(repr, KINDS))} or an ep_lib.Fabric"
        )
    fabric.check(ranks)
    return fabric
