"""What a mode declares is launched alike by both executors of the emulator: one launch after the other, and packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.dispatch_combine_cases import BF16

import ep_lib
from ep_lib import Buffer, Rank, reference
from ep_lib.backends.emulator import EmulatorBackend

SIZES = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 16, "num_sms": 3}
MODES: dict[str, dict[str, Any]] = {
    "direct": {},
    "pcie": {"allow_nvlink_for_normal_mode": False, "merge_sender_receiver": True},
    "hierarchical": {"hierarchical": True, "ranks_per_node": 1},
    "low latency": {"num_max_dispatch_tokens_per_rank": 16},
}


def _turns(rank: Rank, mode: str) -> tuple[list[bytes], list[bool]]:
    """The bits of all results of calls with other rows, tokens and routings each; which operations run packed."""
    results: list[Any] = []
    with Buffer(rank, **SIZES, **MODES[mode]) as buffer:
        for turn, tokens in enumerate((12, 7, 0, 16)):
            rng = np.random.default_rng((turn, rank.rank))
            x = rng.standard_normal((tokens, 256)).astype(BF16)
            idx = rng.permuted(np.tile(np.arange(-1, 4), (tokens, 1)), axis=1)[:, :2].copy()
            weights, rows = rng.random((tokens, 2), np.float32), reference.quantize_fp8(x.astype(np.float32))
            if mode == "low latency":
                sent = buffer.low_latency_dispatch(x, idx, use_fp8=False)
                out = buffer.low_latency_combine(sent.recv_x, idx, weights, sent.handle).out
                rank.synchronize()
                results += [sent.recv_count, out]
                continue
            recv = buffer.dispatch(x, idx, weights)
            again = buffer.dispatch(rows, handle=recv.handle)
            results += [recv.x, recv.topk_idx, recv.topk_weights, recv.src_rank, recv.src_token, *again.x]
            results += [buffer.combine(recv.x, recv.handle), buffer.combine(recv.x, recv.handle, weights)]
        modes: Any = buffer._modes
        operations = [operation for each in modes for operation in each._operations.values()]
        return [result.tobytes() for result in results], [
            getattr(of, "operation", of)._natively is not None for of in operations if of is not None
        ]


@pytest.mark.parametrize("mode", MODES)
def test_both_executors_give_the_same_bits(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = ep_lib.spawn(_turns, 2, "emulator", args=(mode,))
    monkeypatch.setattr(EmulatorBackend, "executor", lambda *_: None)
    one_by_one = ep_lib.spawn(_turns, 2, "emulator", args=(mode,))
    assert [bits for bits, _ in packed] == [bits for bits, _ in one_by_one]
    assert all(len(which) >= 2 and all(which) for _, which in packed)
    assert not any(any(which) for _, which in one_by_one)
