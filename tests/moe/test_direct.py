"""The kernels behind Buffer's direct writes in every shape of launch: bit for bit, and clean under the checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import simple_exchange
from support.direct_cases import TUNINGS, run_case
from support.dispatch_combine_cases import Case, make_case

import ep_lib
from ep_lib import Rank

Spmd = Callable[..., list[Any]]


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("which", range(len(TUNINGS)))
def test_every_shape_of_launch(which: int) -> None:
    for seed in range(which * 20, which * 20 + 8):
        case = make_case(seed)
        ep_lib.spawn(run_case, case.world_size, "emulator", seed=seed, args=(case, TUNINGS[which], 1 + seed % 5))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_on_both_backends(spmd: Spmd, ranks: int) -> None:
    case = make_case(77, world_size=ranks, dtype="bfloat16", max_tokens=60)
    spmd(run_default, ranks, case)


def run_default(rank: Rank, case: Case) -> None:
    run_case(rank, case, None, 4)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_simple_kernels(spmd: Spmd, ranks: int) -> None:
    spmd(simple_exchange.run_simple, ranks, make_case(78, world_size=ranks, max_tokens=40))
