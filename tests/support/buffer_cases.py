"""Everything a Buffer does, once, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from ep_lib import Rank
from ep_lib.moe import Buffer
from support.dispatch_combine_cases import Case, assert_received, assert_same, expert_output, to_input, to_numpy, unpack


def run_case(rank: Rank, case: Case, kind: str = "native", arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """Dispatch, two combines and a dispatch with the handle, with the results as NumPy arrays.

    ``arguments``: of the Buffer; None takes those of ``case`` and some number of SMs.
    """
    if arguments is None:
        sms = (2, 5, None)[(case.num_experts + case.max_tokens) % 3]  # None: the default
        arguments = {**case.buffer_arguments(), "num_sms": sms}
    me, dtype = rank.rank, case.dtype
    x, idx, weights = (to_input(rank, a[me], kind) for a in (case.xs, case.topk_idx, case.topk_weights))
    with Buffer(rank, **arguments) as buffer:
        recv = buffer.dispatch(x, idx, weights)
        first = unpack(recv, dtype)
        y = expert_output(rank, first["x"])
        plain = to_numpy(buffer.combine(to_input(rank, y, kind), recv.handle), dtype)
        weighted = to_numpy(buffer.combine(to_input(rank, y, kind), recv.handle, weights), dtype)
        twice = to_input(rank, case.xs[me] * np.array(2, case.xs[me].dtype), kind)
        again = unpack(buffer.dispatch(twice, handle=recv.handle), dtype)
        assert_same(to_numpy(recv.x, dtype), first["x"], "recv.x after later operations")
    return {"first": first, "y": y, "plain": plain, "weighted": weighted, "again": again}


def check_case(case: Case, results: list[dict[str, Any]]) -> None:
    """All ranks' results against the oracle, bit for bit."""
    ys = [r["y"] for r in results]
    plain, weighted = case.expected_combine(ys, weighted=False), case.expected_combine(ys, weighted=True)
    first, again = case.expected_dispatch(), case.expected_dispatch(scale=2)
    for rank, result in enumerate(results):
        assert_received(result["first"], first[rank], f"rank {rank}, dispatch")
        assert_same(result["plain"], plain[rank], f"rank {rank}, plain combine")
        assert_same(result["weighted"], weighted[rank], f"rank {rank}, weighted combine")
        assert result["again"].pop("topk_weights") is None  # none were sent this time
        assert_received(result["again"], again[rank], f"rank {rank}, dispatch with a handle")
