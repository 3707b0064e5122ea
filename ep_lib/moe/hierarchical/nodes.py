"""Which ranks form a node."""

from __future__ import annotations

from ep_lib.errors import ArgumentError, RankMismatchError
from ep_lib.require import whole_number
from ep_lib.runtime.rank import Rank


def find_ranks_per_node(rank: Rank, given: int | None) -> int:
    """Collective: how many consecutive ranks form a node. ``given``, or None: those that reach each other's memory by
    loads and stores, as the ranks of a host do.

    Raises ArgumentError where ranks of a node would not reach each other, or where nodes are not alike.
    """
    ranks = rank.world_size
    if given is not None:
        given = whole_number("ranks_per_node", given, 1, ranks)
    told = rank.all_gather((given, [peer for peer in range(ranks) if rank._backend.reaches(peer)]))
    if len({theirs for theirs, _ in told}) > 1:
        listing = ", ".join(f"rank {r}: {theirs}" for r, (theirs, _) in enumerate(told))
        raise RankMismatchError(f"the ranks pass different ranks_per_node: {listing}; pass the same everywhere")
    reached = [peers for _, peers in told]
    size = len(reached[0]) if given is None else given
    if ranks % size:
        raise ArgumentError(
            f"{ranks} ranks do not fill nodes of {size}; "
            + ("pass ranks_per_node, a divisor" if given is None else "ranks_per_node must be a divisor")
        )
    for r, peers in enumerate(reached):
        node = set(range(r // size * size, r // size * size + size))
        missing = sorted(node - set(peers))
        if missing:
            raise ArgumentError(
                f"hierarchical mode wants nodes of {size} consecutive ranks that load and store in each other's "
                f"memory, but rank {r} does not reach rank {missing[0]}: it reaches {peers}. Start ranks host by host, "
                "as many on each, or pass a smaller ranks_per_node"
            )
    return size
