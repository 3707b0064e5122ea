"""10_two_levels.cu: tokens between two nodes of two ranks, in one level and in two, and back as one sum."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ep_lib.jit.kernel import Kernel
from ep_lib.workshop.course.ladders import Ladder, Memory, Prepared, Rung, equal_to
from ep_lib.workshop.lessons.two_levels import Exchange, draw_wants, expected_sum, rows_that_come

RANKS, MATES, TOKENS, TOP_K, WORDS = 4, 2, 16, 8, 1792
_WANTS = draw_wants(RANKS, TOKENS, TOP_K)


def _dispatch(memory: Memory, file: Path, name: str, levels: int) -> Prepared:
    exchange, kernel = Exchange(memory, _WANTS, WORDS, MATES), Kernel.from_file(file, name)
    return Prepared(lambda: exchange.launch_dispatch(kernel, levels), lambda: memory.rank.to_host(exchange.arrived))


def _combine(memory: Memory, file: Path, name: str) -> Prepared:
    """The experts' results are at the dispatched rows' places."""
    exchange = Exchange(memory, _WANTS, WORDS, MATES, dispatched=True)
    kernel = Kernel.from_file(file, name)
    return Prepared(lambda: exchange.launch_combine(kernel), lambda: memory.rank.to_host(exchange.out))


_wrong_rows = equal_to(lambda rank: rows_that_come(rank, _WANTS, WORDS))
_wrong_sums = equal_to(lambda rank: expected_sum(rank, _WANTS, WORDS, MATES))
LADDER = Ladder(
    "10_two_levels.cu",
    f"{TOKENS} tokens of {WORDS * 4 >> 10} KiB on each rank, top-{TOP_K} of {8 * RANKS} experts, in nodes of {MATES} "
    "ranks. One warp stores all that stays in a node, and takes longer than the NICs: rungs 0 and 1 differ little.",
    RANKS,
    (
        Rung(0, "dispatch_one_level", partial(_dispatch, levels=1), _wrong_rows, "dispatch"),
        Rung(1, "dispatch_two_levels", partial(_dispatch, levels=2), _wrong_rows, "dispatch"),
        Rung(2, "combine_two_levels", _combine, _wrong_sums, "combine"),
    ),
    fabric="rc",
    ranks_per_node=MATES,
)
