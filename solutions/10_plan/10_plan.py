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
    # EXERCISE-BEGIN 1
    wants = np.zeros((len(topk_idx), ranks), np.bool_)
    for token, experts in enumerate(topk_idx):
        for expert in experts:
            if expert >= 0:
                wants[token, expert // (num_experts // ranks)] = True
    return wants
    # EXERCISE-END 1


def messages(wants: Any, rank: int, node: int, per_node: int) -> list[tuple[int, list[int]]]:
    """What ``rank`` sends to its partner in ``node``: (token, ranks of the node that need it), both ascending.

    Each token once, and nothing if it is the rank's own node.
    """
    # EXERCISE-BEGIN 2
    if node == rank // per_node:
        return []
    found = []
    for token in range(wants.shape[1]):
        needs = [to for to in range(node * per_node, (node + 1) * per_node) if wants[rank, token, to]]
        if needs:
            found.append((token, needs))
    return found
    # EXERCISE-END 2


def handed_on(wants: Any, rank: int, per_node: int) -> list[tuple[int, int, int]]:
    """What ``rank`` stores in its own node for its partners, as (source, token, to), ascending."""
    # EXERCISE-BEGIN 3
    here, found = rank // per_node, []
    for node in range(wants.shape[0] // per_node):
        source = partner(rank, node, per_node)
        if source != rank:
            for token, needs in messages(wants, source, here, per_node):
                found += [(source, token, to) for to in needs]
    return found
    # EXERCISE-END 3


def first_rows(wants: Any, rank: int) -> list[int]:
    """Where the rows from each source begin in what ``rank`` receives: sorted by source, without gaps."""
    # EXERCISE-BEGIN 4
    counts = wants[:, :, rank].sum(axis=1)
    return [int(counts[:source].sum()) for source in range(len(counts))]
    # EXERCISE-END 4


def network_rows(wants: Any, per_node: int) -> tuple[int, int]:
    """Rows that cross between nodes, from all ranks together: one for each rank that needs it; one for each node."""
    # EXERCISE-BEGIN 5
    one = two = 0
    for rank in range(wants.shape[0]):
        for node in range(wants.shape[0] // per_node):
            sent = messages(wants, rank, node, per_node)
            one += sum(len(needs) for _, needs in sent)
            two += len(sent)
    return one, two
    # EXERCISE-END 5
