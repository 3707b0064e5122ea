"""What gradients cost: dispatch and combine, forward and backward, as a training step calls them, host time included.

Run ``python benchmarks/gpu_torch.py --ranks 4``; ``--backend emulator`` with small sizes tries the script itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ep_lib
from ep_lib.moe import Buffer, combine, dispatch

EXPERTS, TOP_K, WARM_UP = 256, 8, 3


def forward_and_backward(buffer: Buffer, x: Any, idx: Any, weights: Any, gradient: Any) -> Any:
    """A training step without experts: what dispatch and combine cost if the host runs ahead."""
    came = dispatch(buffer, x, idx, weights)
    rows = came.x * came.topk_weights[:, :1].to(came.x.dtype)
    return torch.autograd.grad(combine(buffer, rows, came.handle), (x, weights), gradient)


def measure(rank: ep_lib.Rank, tokens: int, hidden: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds of each repeat, by name: from a common start until the GPU is done."""
    device = torch.device("cuda", torch.cuda.current_device()) if rank.backend == "cuda" else torch.device("cpu")
    generator = torch.Generator().manual_seed(rank.rank)
    scores = torch.rand(tokens, EXPERTS, generator=generator)
    idx = scores.topk(TOP_K, dim=1).indices.to(device)
    weights = torch.rand(tokens, TOP_K, generator=generator).to(device).requires_grad_()
    x = torch.randn(tokens, hidden, generator=generator).bfloat16().to(device).requires_grad_()
    found: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        rank.barrier()
        began = time.perf_counter()
        result = call(*args, **options)
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.setdefault(name, []).append(1e6 * (time.perf_counter() - began))
        return result

    gradient = torch.ones_like(x)
    differentiate = functools.partial(torch.autograd.grad, retain_graph=True)
    with Buffer(rank, num_experts=EXPERTS, top_k=TOP_K, hidden=hidden, max_tokens=tokens) as buffer:
        for _ in range(repeats + WARM_UP):
            recv = timed("Buffer.dispatch", buffer.dispatch, x.detach(), idx, weights.detach())
            timed("Buffer.combine", buffer.combine, recv.x, recv.handle)
            came = timed("dispatch", dispatch, buffer, x, idx, weights)
            out = timed("combine", combine, buffer, came.x, came.handle)
            (rows,) = timed("combine backward", differentiate, out, came.x, gradient)
            timed("dispatch backward, x", differentiate, dispatch(buffer, x, idx, weights.detach()).x, x, rows)
            both, grads = (came.x, came.topk_weights), (rows, torch.ones_like(came.topk_weights))
            timed("dispatch backward, x and weights", differentiate, both, (x, weights), grads)
            timed("all four, weights too", forward_and_backward, buffer, x, idx, weights, gradient)
    return {name: times[WARM_UP:] for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the medians here")
    options = parser.parse_args()
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": options.hidden, "max_tokens": options.tokens}
    heap = Buffer.symmetric_bytes(options.ranks, **shape) + (1 << 20)
    given = (options.tokens, options.hidden, options.repeats)
    results = ep_lib.spawn(measure, options.ranks, options.backend, args=given, heap_bytes=heap)
    medians = {}
    for name in results[0]:
        medians[name] = statistics.median(max(times) for times in zip(*(r[name] for r in results), strict=True))
        print(f"{name:34} {medians[name]:10.1f} us")
    if options.json:
        options.json.write_text(json.dumps({"ranks": options.ranks, "tokens": options.tokens, "us": medians}) + "\n")


if __name__ == "__main__":
    main()
