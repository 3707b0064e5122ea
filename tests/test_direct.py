"""The kernels behind Buffer's direct writes in every shape of launch: bit for bit, and clean under the checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simple_exchange
from dispatch_combine_cases import Case, assert_same, make_case, to_input, to_numpy

import ep_lib
from ep_lib import Rank, reference
from ep_lib.memory.arrays import describe
from ep_lib.moe.config import make_config
from ep_lib.moe.direct.mode import DirectExchange
from ep_lib.moe.direct.tuning import EMULATED, Tuning
from ep_lib.moe.mode import Payload, Wishes

Spmd = Callable[..., list[Any]]

TUNINGS: list[Tuning | None] = [
    replace(EMULATED, way="Engine", dispatch_stages=3, add_vectors=5),
    replace(EMULATED, push_share=1, send_warps=2, send_stages=3, group_rows=3, add_stages=3, add_vectors=40),
    replace(EMULATED, push=False, add_vectors=7),
    None,
]


def run_case(rank: Rank, case: Case, tuning: Tuning | None, num_sms: int = 3) -> None:
    """Dispatch, combine from anywhere and in place, and dispatch again, against the oracle."""
    me = rank.rank
    x, idx, weights = (to_input(rank, a[me]) for a in (case.xs, case.topk_idx, case.topk_weights))
    config = make_config(rank.world_size, **case.buffer_arguments(), num_sms=num_sms)
    exchange = DirectExchange(rank, config, tuning)
    wishes = Wishes(idx)
    routing, plan, arrivals = exchange.dispatch(Payload(x, None, describe(x)), idx, weights, 0, wishes)
    assert arrivals is not None
    want, ys = case.expected_dispatch()[me], [r.x for r in case.expected_dispatch()]
    assert_same(to_numpy(arrivals.rows, case.dtype), want.x, "x")
    assert np.array_equal(plan.tokens_per_expert, want.tokens_per_expert)
    slot = reference.layout(case.topk_idx[me], num_experts=case.num_experts, world_size=rank.world_size).slot
    got = to_numpy(routing.ints)[routing.num_tokens * case.top_k :][: slot.size]
    assert np.array_equal(got.reshape(slot.shape), slot)
    rows = arrivals.rows
    for number in range(4):  # two of a kind in a row, and the other kind after each
        weighted = number % 2 == 1
        out = exchange.combine(rows, weights if weighted else None, routing, 5, bias=(), async_finish=False)
        expected = case.expected_combine(ys, weighted=weighted)[me]
        assert_same(to_numpy(out, case.dtype), expected, f"combine {number}")
        if number == 1:
            again = exchange.dispatch_again(Payload(x, None, describe(x)), None, routing, len(want.x), 7, wishes)
            assert_same(to_numpy(again.rows, case.dtype), want.x, "x again")
        rows = arrivals.rows if number % 3 == 0 else exchange.combine_input(arrivals.rows, len(arrivals.rows))
        if rows is not arrivals.rows:
            rank.synchronize()
            rows[...] = arrivals.rows
    assert exchange.who_differs() == []
    exchange.close()


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


@pytest.mark.parametrize("which", range(len(TUNINGS)))
def test_clean_under_the_checker(which: int) -> None:
    case = make_case(5, world_size=3, dtype="bfloat16", max_tokens=10)
    report = ep_lib.check(run_case, 3, seeds=4, args=(case, TUNINGS[which]))
    assert report.ok, str(report)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_simple_kernels(spmd: Spmd, ranks: int) -> None:
    spmd(simple_exchange.run_simple, ranks, make_case(78, world_size=ranks, max_tokens=40))
