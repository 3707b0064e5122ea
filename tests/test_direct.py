"""The tuned kernels of the normal mode against the oracle: bit for bit, for any shape, and clean under the checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dispatch_combine_cases import Case, assert_same, make_case

import ep_lib
from ep_lib import Rank, reference
from ep_lib.moe.config import make_config
from ep_lib.moe.direct import DirectExchange

Spmd = Callable[..., list[Any]]


def bits(rank: Rank, array: Any) -> Any:
    """On the device, BF16 as uint16."""
    return rank.to_device(array.view(np.uint16) if array.dtype.itemsize == 2 else array)


def run_case(rank: Rank, case: Case, num_sms: int = 3, scaled: bool = False) -> dict[str, Any]:
    """Dispatch, combine with and without weights, and dispatch again, with nothing but launches in between."""
    me = rank.rank
    x, idx, weights = case.xs[me], case.topk_idx[me].astype(np.int32), case.topk_weights[me]
    config = make_config(rank.world_size, **case.buffer_arguments(), num_sms=num_sms)
    row_scales = 5 if scaled else 0
    exchange = DirectExchange(rank, config, row_scales=row_scales)
    scales = np.arange(len(x) * row_scales, dtype=np.float32).reshape(len(x), row_scales) + 1000 * me
    on_device = bits(rank, x), rank.to_device(idx), rank.to_device(weights), rank.to_device(scales)
    routing = exchange.route(on_device[1])
    area = exchange.dispatch(on_device[0], on_device[2], routing, scales=on_device[3] if scaled else None)
    ranks = config.world_size
    plan = rank.to_host(routing.plan)
    received = int(plan[ranks : 2 * ranks].sum())
    y = area.rows[:received].view(on_device[0].dtype).copy()
    first = {name: rank.to_host(getattr(area, name)[:received]) for name in ("topk", "weights", "source", "scales")}
    outs = [rank.empty((len(x), config.hidden), on_device[0].dtype) for _ in range(3)]
    for number, out in enumerate(outs):
        exchange.combine(y, on_device[2] if number == 1 else None, routing, out=out)
    for w in (None, on_device[2], None):
        rank.synchronize()  # the host writes at once, kernels of experts would come in order
        area_y = exchange.combine_input()
        area_y[:received] = y.view(np.uint8)
        outs.append(rank.empty((len(x), config.hidden), on_device[0].dtype))
        exchange.combine_in_place(w, routing, out=outs[-1])
    again = exchange.dispatch(on_device[0], None, routing, scales=scales if scaled else None, send_routing=False)
    rows_again = rank.to_host(again.rows[:received]).copy()
    assert exchange.who_differs() == []
    result = {
        "x": rank.to_host(y).view(x.dtype),
        "again": rows_again.view(x.dtype),
        "tokens_per_expert": plan[3 * ranks :],
        "outs": [rank.to_host(out).view(x.dtype) for out in outs],
        **first,
    }
    exchange.close()
    return result


def check_case(case: Case, results: list[dict[str, Any]]) -> None:
    expected = case.expected_dispatch()
    ys = [r["x"] for r in results]
    plain, weighted = case.expected_combine(ys, weighted=False), case.expected_combine(ys, weighted=True)
    for rank, (got, want) in enumerate(zip(results, expected, strict=True)):
        assert_same(got["x"], want.x, f"rank {rank}: x")
        assert_same(got["again"], want.x, f"rank {rank}: x of the second dispatch")
        assert np.array_equal(got["topk"], want.topk_idx)
        assert np.array_equal(got["weights"], want.topk_weights)
        assert np.array_equal(got["source"][:, 0], want.src_rank) and np.array_equal(
            got["source"][:, 1], want.src_token
        )
        assert np.array_equal(got["tokens_per_expert"], want.tokens_per_expert)
        if got["scales"].shape[1]:
            sent = np.arange(got["scales"].shape[1], dtype=np.float32) + got["source"] @ np.float32([1000, 5])[:, None]
            assert np.array_equal(got["scales"], sent)
        for out, oracle in zip(got["outs"], 2 * (plain, weighted, plain), strict=True):
            assert_same(out, oracle[rank], f"rank {rank}: combine")


@pytest.mark.parametrize("first_seed", [0, 20])
def test_many_shapes_and_interleavings(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        case = make_case(seed)
        arguments = (case, 1 + seed % 5, seed % 2 == 0)
        check_case(case, ep_lib.spawn(run_case, case.world_size, "emulator", seed=seed, args=arguments))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_on_both_backends(spmd: Spmd, ranks: int) -> None:
    case = make_case(77, world_size=ranks, dtype="bfloat16", max_tokens=60)
    check_case(case, spmd(run_case, ranks, case, 4, True))


def test_clean_under_the_checker() -> None:
    case = make_case(5, world_size=3, dtype="bfloat16", max_tokens=10)
    report = ep_lib.check(run_case, 3, seeds=5, args=(case,))
    assert report.ok, str(report)


def test_the_oracle_is_the_readable_one() -> None:
    """A layout of the tuned kernel equals the reference's: nothing else compares `slot` itself."""
    case = make_case(11, world_size=4, max_tokens=70)

    def slots(rank: Rank) -> Any:
        exchange = DirectExchange(rank, make_config(4, **case.buffer_arguments(), num_sms=4))
        return rank.to_host(exchange.route(rank.to_device(case.topk_idx[rank.rank].astype(np.int32))).slot)

    for got, idx in zip(ep_lib.spawn(slots, 4, "emulator"), case.topk_idx, strict=True):
        assert np.array_equal(got, reference.layout(idx, num_experts=case.num_experts, world_size=4).slot)
