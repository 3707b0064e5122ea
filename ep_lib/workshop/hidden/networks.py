"""The hidden tests' routes (which rank sends to which) and networks."""

from __future__ import annotations

from ep_lib.emulator.fabric import Fabric

Route = tuple[int, ...]  # by rank: to which rank it sends, -1: to none

PAIR: Route = (1, -1)
BACK: Route = (-1, 0)
BOTH: Route = (1, 0)
RING: Route = (1, 2, 3, 0)

RC, SRD = Fabric("rc"), Fabric("srd")
IN_A_NODE = Fabric("rc", ranks_per_node=4), Fabric("srd", ranks_per_node=4)  # four ranks in one node, which use no NIC
NODES = Fabric("srd", ranks_per_node=2)  # nodes of two ranks, which reach each other by loads and stores


def senders(route: Route) -> list[int]:
    """For each rank, the rank that sends to it; -1: none."""
    return [route.index(me) if me in route else -1 for me in range(len(route))]
