"""One rank of a world of several hosts: dispatch and combine in hierarchical mode, compared with the oracle.

    several_hosts.py OUT [TOKENS HIDDEN COUNTER]

Writes a JSON object to the file OUT. ``COUNTER``: the folder of the counters of the interface between hosts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from support.dispatch_combine_cases import Case
from support.hierarchical_cases import in_nodes

import ep_lib
from ep_lib.memory.arrays import BFLOAT16

TOP_K, EXPERTS_PER_RANK = 4, 4


def case_of(ranks: int, tokens: int, hidden: int) -> Case:
    """The same on every rank."""
    rng = np.random.default_rng(5)
    experts = ranks * EXPERTS_PER_RANK
    return Case(
        experts,
        TOP_K,
        hidden,
        tokens,
        "bfloat16",
        [rng.standard_normal((tokens, hidden), np.float32).astype(BFLOAT16) for _ in range(ranks)],
        [np.stack([rng.permutation(experts)[:TOP_K] for _ in range(tokens)]) for _ in range(ranks)],
        [rng.random((tokens, TOP_K), np.float32) for _ in range(ranks)],
    )


def counters(folder: str) -> list[int]:
    """Bytes, and packets, that the interface has sent, and received."""
    names = ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")
    return [int((Path(folder) / name).read_text()) for name in names]


def main() -> None:
    out, tokens, hidden = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    counter = sys.argv[4] if len(sys.argv) > 4 else ""
    found: dict[str, Any] = {}
    with ep_lib.init(backend="emulator") as rank:
        case = case_of(rank.world_size, tokens, hidden)
        me = rank.rank
        buffer = ep_lib.Buffer(rank, **case.buffer_arguments(), num_sms=3, hierarchical=True)
        with buffer:
            ranks_per_node = buffer.config.ranks_per_node
            assert ranks_per_node is not None
            recv = buffer.dispatch(case.xs[me], case.topk_idx[me], case.topk_weights[me])  # compiles
            buffer.combine(recv.x, recv.handle)
            rank.barrier()
            before = [*rank.network_bytes(), *(counters(counter) if counter else [])]
            rank.barrier()
            recv = buffer.dispatch(case.xs[me], case.topk_idx[me], case.topk_weights[me])
            combined = buffer.combine(recv.x, recv.handle)
            rank.barrier()
            after = [*rank.network_bytes(), *(counters(counter) if counter else [])]
            rank.barrier()
        nodes = in_nodes(case, ranks_per_node)
        expected = case.expected_dispatch()
        ys = [each.x for each in expected]
        assert recv.x.tobytes() == expected[me].x.tobytes(), "dispatch"
        assert np.array_equal(recv.src_token, expected[me].src_token), "src_token"
        assert combined.tobytes() == nodes.expected_combine(ys, weighted=False)[me].tobytes(), "combine"
        found = {"ranks_per_node": ranks_per_node, "bytes": [b - a for a, b in zip(before, after, strict=True)]}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
