"""Time of Buffer's kernels on GPUs: T tokens a rank x hidden BF16, top-k of E experts, by CUDA events.

    python benchmarks/gpu_dispatch.py --ranks 2 [--tokens 4096] [--blocks 24] [--json]

Reports the median over --repeats of the slowest rank, in microseconds: ``dispatch`` is a dispatch with a handle (meet,
send, arrive) and ``combine`` is stage and pull; both without the copies to the caller's own arrays. ``call`` is wall
clock of the whole Python call, with those copies, the checks and the waiting. "wire" GB/s counts what crosses NVLink,
"logical" also the rows that a rank sends to itself (the figure that most papers print). Results are compared with what
was sent before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ep_lib import Rank, spawn
from ep_lib.moe import Buffer


def measure(rank: Rank, args: argparse.Namespace) -> dict[str, Any]:
    """One rank's times in microseconds, a list an operation, and its rows."""
    import cupy

    rng = np.random.default_rng([args.seed, rank.rank])
    experts = np.argsort(rng.random((args.tokens, args.experts)), axis=1)[:, : args.top_k].astype(np.int64)
    bits = rng.integers(0x3F00, 0x4000, (args.tokens, args.hidden), dtype=np.uint16)  # BF16 from 0.5 to 2
    x, topk_idx = rank.to_device(bits), rank.to_device(experts)
    buffer = Buffer(
        rank,
        num_experts=args.experts,
        top_k=args.top_k,
        hidden=args.hidden,
        max_tokens=args.tokens,
        num_sms=args.blocks,
    )
    recv = buffer.dispatch(x, topk_idx)
    own = cupy.asnumpy(recv.src_rank) == rank.rank
    sent_to_me = cupy.asnumpy(recv.src_token)[own]
    assert (cupy.asnumpy(recv.x)[own] == bits[sent_to_me]).all(), "a row did not arrive as it was sent"
    exchange, routing = buffer._exchange, recv.handle._routing

    def dispatch() -> None:
        exchange.next_operation()
        exchange.enter(note=0)
        exchange.send(x, None, routing, send_routing=False)

    def combine() -> None:
        exchange.next_operation()
        exchange.stage(recv.x, note=0)
        exchange.pull(None, routing)

    def timed(operation: Callable[[], Any], by_events: bool) -> list[float]:
        times = []
        for _ in range(args.repeats + 5):
            rank.barrier()
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            start = time.perf_counter()
            begin.record()
            operation()
            end.record()
            rank.synchronize()
            seconds = time.perf_counter() - start
            times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3 if by_events else seconds * 1e6)
        return times[5:]

    return {
        "dispatch": timed(dispatch, by_events=True),
        "combine": timed(combine, by_events=True),
        "dispatch call": timed(lambda: buffer.dispatch(x, topk_idx), by_events=False),
        "dispatch call, handle": timed(lambda: buffer.dispatch(x, handle=recv.handle), by_events=False),
        "combine call": timed(lambda: buffer.combine(recv.x, recv.handle), by_events=False),
        "rows": recv.handle.num_recv_tokens,
        "wire_rows": recv.handle.num_recv_tokens - int(own.sum()),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, value in {
        "ranks": 2, "tokens": 4096, "hidden": 7168, "experts": 256, "top-k": 8, "blocks": 24, "repeats": 30, "seed": 0
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    args = parser.parse_args()
    need = Buffer.symmetric_bytes(
        args.ranks, num_experts=args.experts, top_k=args.top_k, hidden=args.hidden, max_tokens=args.tokens
    )
    results = spawn(measure, args.ranks, "cuda", args=(args,), heap_bytes=need + (1 << 20))
    report: dict[str, Any] = {k: v for k, v in vars(args).items() if k != "json"}
    row_bytes = 2 * args.hidden
    for operation in ("dispatch", "combine", "dispatch call", "dispatch call, handle", "combine call"):
        us = statistics.median(max(repeat) for repeat in zip(*(r[operation] for r in results), strict=True))
        report[operation] = {
            "us": round(us, 1),
            "wire_gb_s": round(max(r["wire_rows"] for r in results) * row_bytes / us / 1e3, 1),
            "logical_gb_s": round(max(r["rows"] for r in results) * row_bytes / us / 1e3, 1),
        }
    if args.json:
        print(json.dumps(report))
        return
    print(
        f"{args.ranks} GPUs x {args.tokens} tokens x {args.hidden} BF16, top-{args.top_k} of {args.experts}, "
        f"{args.blocks} blocks"
    )
    for operation, figures in report.items():
        if isinstance(figures, dict):
            print(
                f"  {operation:22} {figures['us']:8.1f} us   wire {figures['wire_gb_s']:6.1f} GB/s   "
                f"logical {figures['logical_gb_s']:6.1f} GB/s"
            )


if __name__ == "__main__":
    main()
