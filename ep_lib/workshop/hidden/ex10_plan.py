"""Hidden tests of exercise 10_plan: every function of the plan against the grader's own, written with NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import calling

# Ranks, ranks of a node, tokens; last a single rank.
_WORLDS = ((4, 2, 5), (8, 4, 6), (3, 1, 4), (4, 4, 3), (6, 3, 1), (1, 1, 3))
_TABLES = (  # ranks, experts, tokens, choices of each
    *((4, 8, 5, 3), (8, 8, 5, 8), (2, 12, 5, 1), (300, 600, 5, 40), (4, 80_000, 1, 3), (4, 8, 300, 2)),
    (1, 4, 5, 2),
)
_MANY = 2, 1, 66_000  # more tokens, and where all are wanted more rows, than 16 bits count

Wants = NDArray[np.bool_]


def _draw(rng: Rng, ranks: int, per_node: int, tokens: int, chance: float = 1.2) -> Wants:
    wants = rng.random((ranks, tokens, ranks)) < chance / per_node
    wants[0, 0], wants[-1, -1] = True, False  # a token for all ranks, and one for none
    return wants


def _nodes(wants: Wants, per_node: int) -> NDArray[np.int64]:
    """Pairs of (source, token, node), for other nodes than the source's, ascending."""
    ranks, tokens, _ = wants.shape
    found = np.argwhere(wants.reshape(ranks, tokens, ranks // per_node, per_node).any(axis=3))
    return np.asarray(found[found[:, 0] // per_node != found[:, 2]])


def _messages(wants: Wants, rank: int, node: int, per_node: int) -> list[Any]:
    begin, pairs = node * per_node, _nodes(wants, per_node)
    tokens = pairs[(pairs[:, 0] == rank) & (pairs[:, 2] == node)][:, 1]
    return [[int(t), (begin + np.flatnonzero(wants[rank, t, begin : begin + per_node])).tolist()] for t in tokens]


def _handed_on(wants: Wants, rank: int, per_node: int) -> list[Any]:
    here = rank // per_node
    rows = np.argwhere(wants)
    sources, to = rows[:, 0], rows[:, 2]
    mine = (sources % per_node == rank % per_node) & (sources != rank) & (to // per_node == here)
    return list(rows[mine].tolist())


def _case(function: str, arguments: tuple[Any, ...], wanted: Any, about: str) -> Case:
    def judge(seen: Any) -> str | None:
        wrong = f"{function}() for {about} gives {_short(seen)}; {_short(wanted)} is right"
        return None if seen == wanted else wrong

    table, *others = arguments
    content = np.packbits(table).tobytes() if table.dtype == np.bool_ else table.tolist()
    return calling("run", judge, function=function, arguments=((table.shape, content), *others))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _destinations(rng: Rng) -> Iterator[Case]:
    for ranks, experts, tokens, top_k in _TABLES:
        for dropped in (0.0, 0.3):
            ids = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k]
            ids[rng.random(ids.shape) < dropped] = -1
            wanted = [
                [int(any(e >= 0 and e * ranks // experts == r for e in row)) for r in range(ranks)] for row in ids
            ]
            about = f"experts {_short(ids.tolist())}, {experts} experts on {ranks} ranks"
            yield _case("destinations", (ids, experts, ranks), ["bool", wanted], about)


def _worlds(rng: Rng, chance_of_many: float = 0.002) -> Iterator[tuple[int, int, Wants]]:
    """(ranks, ranks of a node, wants); the last two have many tokens, few of them wanted, and no tokens."""
    for ranks, per_node, tokens in _WORLDS:
        yield ranks, per_node, _draw(rng, ranks, per_node, tokens + int(rng.integers(4)))
    per_node = int(rng.integers(2, 5))
    yield 3 * per_node, per_node, _draw(rng, 3 * per_node, per_node, int(rng.integers(2, 6)))
    many = _draw(rng, *_MANY, chance_of_many)
    many[:, -2] = True
    yield *_MANY[:2], many
    yield 4, 2, np.zeros((4, 0, 4), np.bool_)  # no rank has a token


def _all_messages(rng: Rng) -> Iterator[Case]:
    for ranks, per_node, wants in _worlds(rng):
        for rank in sorted({0, ranks - 1}):
            for node in range(ranks // per_node):
                about = f"rank {rank} and node {node}, {ranks} ranks in nodes of {per_node}"
                wanted = _messages(wants, rank, node, per_node)
                yield _case("messages", (wants, rank, node, per_node), wanted, about)


def _all_handed_on(rng: Rng) -> Iterator[Case]:
    for ranks, per_node, wants in _worlds(rng):
        for rank in sorted({0, ranks - 1}):
            about = f"rank {rank}, {ranks} ranks in nodes of {per_node}"
            yield _case("handed_on", (wants, rank, per_node), _handed_on(wants, rank, per_node), about)


def _all_first_rows(rng: Rng) -> Iterator[Case]:
    for ranks, _, wants in _worlds(rng, 1.0):
        for rank in sorted({0, ranks - 1}):
            counts = wants[:, :, rank].sum(axis=1)
            wanted = (np.cumsum(counts) - counts).tolist()
            about = f"rank {rank}, which gets {counts.tolist()} rows from the ranks"
            yield _case("first_rows", (wants, rank), wanted, about)


def _all_rows(rng: Rng) -> Iterator[Case]:
    for ranks, per_node, wants in _worlds(rng, 1.0):
        rows = np.argwhere(wants)
        one = int((rows[:, 0] // per_node != rows[:, 2] // per_node).sum())
        about = f"{ranks} ranks in nodes of {per_node}"
        yield _case("network_rows", (wants, per_node), [one, len(_nodes(wants, per_node))], about)


_ONCE = "A rank needs a token once, whatever number of its experts it goes to; -1 is no expert."
_MESSAGE = "Each token once, with the ranks of that node that need it; to the own node nothing."
_PARTNER = "What the partners of other nodes send to this rank, for all ranks of its node."
_SUMS = "Exclusive prefix sums of the counts by source."
_CROSS = "Only what goes to other nodes crosses: pairs of token and rank, and of token and node."
BEHAVIOURS = (
    Behaviour(1, "a token goes to the ranks of its experts", _destinations, _ONCE),
    Behaviour(2, "a token crosses once per node", _all_messages, _MESSAGE),
    Behaviour(3, "partners hand on all that came", _all_handed_on, _PARTNER),
    Behaviour(4, "rows are sorted by source", _all_first_rows, _SUMS),
    Behaviour(5, "what crosses is counted", _all_rows, _CROSS),
)

REHEARSED = 99  # cases of each, in the public checks
