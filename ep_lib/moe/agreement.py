"""What the ranks must agree about when they make a Buffer, and how errors name ranks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ep_lib.errors import RankMismatchError
from ep_lib.moe.config import BufferConfig
from ep_lib.runtime.rank import Rank


def name_ranks(numbers: list[int]) -> str:
    """``rank 3``, ``ranks 0, 2``."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def require_same_everywhere(rank: Rank, config: BufferConfig) -> None:
    """Raises RankMismatchError that says which ranks passed which values."""
    mine = {name: str(value) for name, value in asdict(config).items()}
    everybody = rank.all_gather(mine)
    complaints = []
    for name in mine:
        by_value: dict[str, list[int]] = {}
        for r, theirs in enumerate(everybody):
            by_value.setdefault(theirs[name], []).append(r)
        if len(by_value) > 1:
            complaints.append(f"{name} is " + " but ".join(f"{v} on {name_ranks(r)}" for v, r in by_value.items()))
    if complaints:
        raise RankMismatchError(f"the ranks make different Buffers: {'; '.join(complaints)}; pass the same everywhere")


# Bits of what the ranks compare in a dispatch: whether topk_weights were given, whether x is FP8.
WITH_WEIGHTS, WITH_FP8 = 1, 2
NUM_OPTIONS = 4


def require_same_options(options: Any) -> None:
    """Raises RankMismatchError that says who passed what, if ``options`` ``[ranks]`` differ."""
    for bit, what in ((WITH_WEIGHTS, "topk_weights"), (WITH_FP8, "FP8 rows with scales")):
        having = [r for r, bits in enumerate(options) if bits & bit]
        lacking = [r for r, bits in enumerate(options) if not bits & bit]
        if having and lacking:
            raise RankMismatchError(
                f"{name_ranks(having)} passed {what} to dispatch, {name_ranks(lacking)} did not; "
                "pass them on all ranks or on none"
            )
