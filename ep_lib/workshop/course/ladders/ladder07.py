"""07_combine.cu: the experts' results for the tokens of 06, sent back and summed, in each rung."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, differing
from ep_lib.workshop.course.ladders.exchange import FULL, RANKS, WORK_NS, Exchange, combined


def _program(memory: Memory, file: Path, name: str) -> Prepared:
    exchange = Exchange(memory, file)
    out = exchange.prepare_combine()
    return Prepared(lambda: exchange.experts_and_combine(name), lambda: memory.rank.to_host(out))


def _wrong(results: Sequence[Any]) -> str:
    """Equal to the oracle to the last bit."""
    return differing(results, combined(FULL))


def _wrong_nearly(results: Sequence[Any]) -> str:
    """Equal to the oracle but for the order of the additions."""
    for rank, (got, want) in enumerate(zip(results, combined(FULL), strict=True)):
        if not np.allclose(got, want, rtol=1e-4, atol=1e-5):
            return f"rank {rank}: the largest difference from the oracle is {abs(got - want).max():.2g}"
    return ""


LADDER = Ladder(
    "07_combine.cu",
    f"{FULL.tokens} tokens of {FULL.hidden * 4} bytes on each rank, top 4 of 8 experts, which take "
    f"{WORK_NS / 1000:g} us for four rows. Rung 0 is right to within rounding, the others to the last bit.",
    RANKS,
    (
        Rung(0, "combine_atomics", _program, _wrong_nearly),
        Rung(1, "combine_thread", _program, _wrong),
        Rung(2, "combine_warp", _program, _wrong),
        Rung(3, "combine", _program, _wrong),
        Rung(4, "experts_and_combine", _program, _wrong),
    ),
)
