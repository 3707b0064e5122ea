# Exercise 10_plan, version 1. Leave this line: ep_lib reads it.
"""The routing plan of two levels: who needs a token, what crosses between nodes, who hands it on, and where it lands.

A node is `per_node` consecutive ranks, and each rank has as many experts as any other, in ascending order. A token
crosses to another node once, to the partner there: the rank with the same number in its node. `wants[source, token,
rank]` says whether a rank needs a token of a source. No function changes the table that it is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def partner(rank: int, node: int, per_node: int) -> int:
    """The rank with the same number in another node."""
    return node * per_node + rank % per_node


def destinations(topk_idx: Any, num_experts: int, ranks: int) -> Any:
    """bool [tokens, ranks]: which ranks need each token. ``topk_idx`` [tokens, top_k]: experts, or -1 for none."""
    # TASK 1 (2 points): which ranks need a token?
    # A rank has num_experts // ranks experts: which one has expert e? Several experts of a token may lie on the
    # same rank, which needs it once. -1 means no expert: in Python, -1 // n is -1, the last rank, if you are
    # not careful.
    raise NotImplementedError("Task 1 is still to do: which ranks need a token?")
    # end of TASK 1


def messages(wants: Any, rank: int, node: int, per_node: int) -> list[tuple[int, list[int]]]:
    """What ``rank`` sends to its partner in ``node``: (token, ranks of the node that need it), both ascending.

    Each token once, and nothing if it is the rank's own node.
    """
    # TASK 2 (3 points): the messages for a partner
    # The ranks of a node are node * per_node and the per_node - 1 behind it. A token crosses to a node only if
    # a rank there needs it. To the rank's own node nothing crosses.
    raise NotImplementedError("Task 2 is still to do: the messages for a partner")
    # end of TASK 2


def handed_on(wants: Any, rank: int, per_node: int) -> list[tuple[int, int, int]]:
    """What ``rank`` stores in its own node for its partners, as (source, token, to), ascending."""
    # TASK 3 (3 points): what a partner hands on
    # This rank is the partner of partner(rank, node, per_node) for every node. What those send here is
    # messages(...) of the *source*, for the node of this rank. Sources ascend with their nodes.
    raise NotImplementedError("Task 3 is still to do: what a partner hands on")
    # end of TASK 3


def first_rows(wants: Any, rank: int) -> list[int]:
    """Where the rows from each source begin in what ``rank`` receives: sorted by source, without gaps."""
    # TASK 4 (2 points): where the rows of each source begin
    # How many rows come from each source: the tokens of it that this rank needs. A source's rows begin where
    # those of all sources before it end: the first at 0.
    raise NotImplementedError("Task 4 is still to do: where the rows of each source begin")
    # end of TASK 4


def network_rows(wants: Any, per_node: int) -> tuple[int, int]:
    """Rows that cross between nodes, from all ranks together: one for each rank that needs it; one for each node."""
    # TASK 5 (2 points): how many rows cross
    # messages() of every rank to every node has both: how many messages there are, and how many ranks they are
    # for.
    raise NotImplementedError("Task 5 is still to do: how many rows cross")
    # end of TASK 5
