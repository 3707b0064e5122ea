"""06_dispatch.cu: the tokens of four ranks to the ranks of their experts, in each rung."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, differing
from ep_lib.workshop.course.ladders.exchange import FULL, RANKS, Exchange, arrivals

# The contents of a result row: the token, and its metadata.
_NAMES = ("x", "topk_idx", "topk_weights", "source")


def _program(memory: Memory, file: Path, name: str) -> Prepared:
    exchange = Exchange(memory, file)
    return Prepared(lambda: exchange.dispatch(name), exchange.received)


def expected() -> list[dict[str, Any]]:
    """The expected rows by the NumPy oracle, rank by rank."""
    received = arrivals(FULL)
    sources = [np.stack([each.src_rank, each.src_token], axis=1).astype(np.int32) for each in received]
    return [
        {"x": each.x, "topk_idx": each.topk_idx.astype(np.int32), "topk_weights": each.topk_weights, "source": source}
        for each, source in zip(received, sources, strict=True)
    ]


def _wrong(results: Sequence[dict[str, Any]]) -> str:
    """The same rows in the same places, bit for bit."""
    wanted = expected()
    return next((said for name in _NAMES if (said := _differing(name, results, wanted))), "")


def _wrong_in_any_order(results: Sequence[dict[str, Any]]) -> str:
    """The same rows, in any order."""
    for each in results:
        order = np.lexsort(each["source"].T[::-1])
        each.update({name: each[name][order] for name in _NAMES})
    return _wrong(results)


def _differing(name: str, results: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> str:
    return differing([each[name] for each in results], [each[name] for each in wanted], f"bytes of {name}")


LADDER = Ladder(
    "06_dispatch.cu",
    f"{FULL.tokens} tokens of {FULL.hidden * 4} bytes on each rank, top 4 of 8 experts. Rungs 0 and 1 may bring rows "
    "in any order.",
    RANKS,
    (
        Rung(0, "dispatch_atomics", _program, _wrong_in_any_order),
        Rung(1, "dispatch_counted", _program, _wrong_in_any_order),
        Rung(2, "dispatch_exact", _program, _wrong),
        Rung(3, "dispatch_warp", _program, _wrong),
        Rung(4, "dispatch", _program, _wrong),
        Rung(5, "dispatch_tma", _program, _wrong),
    ),
)
