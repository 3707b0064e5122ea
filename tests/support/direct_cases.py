"""Programs over direct writes: dispatch and combine in every shape of launch, and what Buffer offers beyond them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ep_lib import Buffer, Rank, reference
from ep_lib.memory.arrays import describe
from ep_lib.moe import Received
from ep_lib.moe.agreement import Tag
from ep_lib.moe.config import make_config
from ep_lib.moe.direct import DirectMode
from ep_lib.moe.direct.tuning import EMULATED, Tuning
from ep_lib.moe.mode import DispatchOptions, Payload
from support.dispatch_combine_cases import Case, assert_received, assert_same, to_input, to_numpy, unpack

TUNINGS: list[Tuning | None] = [
    replace(EMULATED, way="Tma", dispatch_stages=3, add_vectors=5),
    replace(EMULATED, push_share=1, send_warps=2, send_stages=3, group_rows=3, add_stages=3, add_vectors=40),
    replace(EMULATED, push=False, add_vectors=7),
    None,
]


def run_case(rank: Rank, case: Case, tuning: Tuning | None, num_sms: int = 3) -> None:
    """Dispatch, combine from anywhere and in place, and dispatch again, against the oracle."""
    me = rank.rank
    x, idx, weights = (to_input(rank, a[me]) for a in (case.xs, case.topk_idx, case.topk_weights))
    config = make_config(rank.world_size, **case.buffer_arguments(), num_sms=num_sms)
    mode = DirectMode(rank, config, tuning)
    x_info, ids, given = describe(x), describe(idx), describe(weights)
    options = DispatchOptions(ids)
    routing, plan, arrivals = mode.dispatch(Payload(x_info, None), ids, given, 0, options)
    assert arrivals is not None
    want, ys = case.expected_dispatch()[me], [r.x for r in case.expected_dispatch()]
    assert_same(to_numpy(arrivals.x, case.dtype), want.x, "x")
    assert np.array_equal(plan.tokens_per_expert, want.tokens_per_expert)
    slot = reference.layout(case.topk_idx[me], num_experts=case.num_experts, world_size=rank.world_size).slot
    got = to_numpy(routing.ints)[routing.num_tokens * case.top_k :][: slot.size]
    assert np.array_equal(got.reshape(slot.shape), slot)
    rows = arrivals.x
    for number in range(4):  # two of a kind in a row, and the other kind after each
        weighted = number % 2 == 1
        out = mode.combine(describe(rows), given if weighted else None, routing, Tag(5), bias=(), async_finish=False)
        expected = case.expected_combine(ys, weighted=weighted)[me]
        assert_same(to_numpy(out, case.dtype), expected, f"combine {number}")
        if number == 1:
            again = mode.dispatch_again(Payload(x_info, None), None, routing, len(want.x), 7, options)
            assert_same(to_numpy(again.x, case.dtype), want.x, "x again")
        rows = arrivals.x if number % 3 == 0 else mode.combine_input(arrivals.x, len(arrivals.x))
        if rows is not arrivals.x:
            rank.synchronize()
            rows[...] = arrivals.x
    assert mode.mismatched_ranks() == []
    mode.close()


def ready(rank: Rank, recv: Received) -> Received:
    if recv.event is not None:
        recv.event.synchronize()
    rank.synchronize()
    return recv


def features(rank: Rank, case: Case, choice: int, kind: str = "native") -> None:
    """One dispatch and what goes with it, in a way of 48 that ``choice`` says, compared here."""
    rng, me = np.random.default_rng(choice), rank.rank
    worst = rank.world_size * case.max_tokens if choice % 2 else 0
    aside, copied, alignment = choice // 2 % 2 == 1, choice // 4 % 2 == 1, int(rng.choice([1, 3, 16]))
    x, idx, weights = (to_input(rank, a[me], kind) for a in (case.xs, case.topk_idx, case.topk_weights))
    want, experts = case.expected_dispatch()[me], case.num_experts // rank.world_size
    areas = choice // 8 % 3 if copied else 1 + choice // 8 % 3
    with Buffer(rank, **case.buffer_arguments(), receive_areas=areas) as buffer:
        if choice // 24 % 2:  # no blocks but num_sms, as where these are all SMs
            direct: Any = buffer._mode
            direct._spare_blocks = 0
        recv = buffer.dispatch(
            x,
            idx,
            weights,
            num_worst_tokens=worst,
            async_finish=aside,
            expert_alignment=alignment,
            sorted_by_expert=True,
            copy=copied,
        )
        got, rows = unpack(ready(rank, recv), case.dtype), len(want.x)
        tokens = to_numpy(got.pop("tokens_per_expert"))
        assert np.array_equal(tokens, -(-want.tokens_per_expert // alignment) * alignment)
        assert len(got["x"]) == (worst or rows)
        for name, empty in (("topk_idx", -1), ("topk_weights", 0), ("src_rank", -1), ("src_token", -1)):
            assert (got[name][rows:] == empty).all(), name
        assert_received({name: array[:rows] for name, array in got.items()}, want, "dispatch")

        grouped = recv.by_expert
        assert grouped is not None
        row, offsets = reference.expert_rows(want.topk_idx, experts=experts, alignment=alignment)
        assert np.array_equal(to_numpy(grouped.offsets), offsets) and np.array_equal(
            to_numpy(grouped.row)[: len(row)], row
        )
        expected_x = np.where(row[:, None] < 0, np.zeros(1, want.x.dtype), want.x[row] if rows else want.x[:0])
        assert_same(to_numpy(grouped.x, case.dtype)[: len(row)], expected_x, "rows by expert")
        here = to_numpy(grouped.weights)[: len(row)]
        for e in range(experts):
            chosen = want.topk_weights[want.topk_idx == e]
            assert np.array_equal(here[offsets[e] :][: len(chosen)], chosen), "weights by expert"
            assert not here[offsets[e] + len(chosen) : offsets[e + 1]].any()

        ys = [grouped_output(r, w.x, w.topk_idx, experts, alignment) for r, w in enumerate(case.expected_dispatch())]
        y = np.zeros((len(grouped.row), case.hidden), want.x.dtype)
        y[: len(row)] = ys[me]
        backs = [
            reference.reduce_expert_rows(y, w.topk_idx, experts=experts, alignment=alignment)
            for y, w in zip(ys, case.expected_dispatch(), strict=True)
        ]
        biases = [[(x * np.float32(0.5 + i)).astype(x.dtype) for i in range(choice % 3)] for x in case.xs]
        bias = tuple(to_input(rank, b, kind) for b in biases[me]) or None
        order = ("ranks", "choices")[choice // 3 % 2]
        out = buffer.combine(
            to_input(rank, y, kind), recv.handle, bias=bias, async_finish=aside, sorted_by_expert=True, sum_order=order
        )
        if aside:
            out, event = out
            event.synchronize()
        sums = reference.combine(backs, case.topk_idx, num_experts=case.num_experts, biases=biases, sum_order=order)
        assert_same(to_numpy(out, case.dtype), sums[me], "combine of rows by expert")

        again = ready(rank, buffer.dispatch(x, None, weights, handle=recv.handle, sorted_by_expert=True, copy=copied))
        assert again.by_expert is not None
        assert_same(to_numpy(again.by_expert.x, case.dtype)[: len(row)], expected_x, "rows by expert, again")
        assert_same(to_numpy(again.x, case.dtype)[:rows], want.x, "x again")


def grouped_output(rank: int, x: Any, topk_idx: Any, experts: int, alignment: int) -> Any:
    row, _ = reference.expert_rows(topk_idx, experts=experts, alignment=alignment)
    values = np.where(row[:, None] < 0, 7, x[row] if len(x) else x[:0]).astype(np.float32)
    return (values * (rank + 1) + np.arange(len(row))[:, None] % 5).astype(x.dtype)
