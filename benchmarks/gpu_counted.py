"""A counted dispatch: what the host's wait for the counts costs.

    python benchmarks/gpu_counted.py [--ranks 2] [--tokens 128,1000,4096] [--hidden 7168] [--rounds 5]

"event", "queued" and "host" are the clocks of gpu_compare.py; the slowest rank, medians. Behind them is where the host
was: microseconds from the call to the counts, to the launch of the copy, and to the end, of queued calls.
--backend emulator tries the script on small sizes and times nothing.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import gpu_inputs
from gpu_clock import watch_of
from gpu_compare import queued
from gpu_inputs import Shape
from gpu_machine import git_commit

import ep_lib

CALLS, REPEATS = 50, 40
STAGES = {"_await_plan": "counts", "_copy_out": "copy"}


class Stages:
    """When the host had done which part of a call."""

    def __init__(self, mode: Any) -> None:
        self._mode, self._began, self.seen = mode, 0.0, dict[str, list[float]]()
        self._originals = {name: getattr(mode, name) for name in STAGES}

    def _timed(self, name: str) -> Callable[..., Any]:
        original, seen = self._originals[name], self.seen.setdefault(STAGES[name], [])

        def run(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            seen.append(time.perf_counter() - self._began)
            return result

        return run

    def of(self, call: Callable[[], Any], calls: int) -> dict[str, float]:
        """Medians in microseconds, by stage."""
        for name in STAGES:
            setattr(self._mode, name, self._timed(name))
        end = self.seen.setdefault("end", [])
        for _ in range(calls):
            self._began = time.perf_counter()
            call()
            end.append(time.perf_counter() - self._began)
        for name in STAGES:
            delattr(self._mode, name)
        found = {stage: 1e6 * statistics.median(times) for stage, times in self.seen.items() if times}
        self.seen.clear()
        return found


def measure(rank: ep_lib.Rank, call: Callable[[], Any], mode: Any, rounds: int, calls: int) -> dict[str, float]:
    """One way of one case."""
    watch = watch_of(rank)

    def timed() -> None:
        watch.time("all", call)

    event = [times.get("all", 0.0) for times in watch.microseconds(timed, REPEATS)]
    clocks = queued(rank, [call], calls, rank.synchronize)
    stages = Stages(mode)
    found = [stages.of(call, calls) for _ in range(rounds)]
    rank.synchronize()
    result = {"event": statistics.median(event)}
    result |= {clock: statistics.median(clocks[f"{clock}_samples"]) for clock in ("queued", "host")}
    for stage in found[0]:
        result[stage] = statistics.median(each[stage] for each in found)
    return result


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """One rank's figures, by case."""
    if rank.backend == "cuda":
        import torch

        torch.cuda.set_device(rank.rank)
    results: dict[str, dict[str, float]] = {}
    for hidden in args.hidden:
        sizes = {"num_experts": args.experts, "top_k": 8, "hidden": hidden, "max_tokens": max(args.tokens)}
        with ep_lib.Buffer(rank, **sizes, num_sms=24 if rank.backend == "cuda" else 2) as buffer:
            mode: Any = buffer._mode
            for tokens in args.tokens:
                shape = Shape(args.ranks, tokens, hidden, args.experts, 8)
                device, me = gpu_inputs.device_of(rank), rank.rank
                idx = gpu_inputs.routing(shape, me, "random", device)
                weights = gpu_inputs.weights(shape, me, device)
                fp8, bf16 = (gpu_inputs.rows(shape, me, 0, dtype, device) for dtype in ("fp8", "bf16"))
                given = functools.partial(buffer.dispatch, topk_idx=idx, topk_weights=weights)
                cases: dict[str, Callable[[], Any]] = {
                    "FP8": functools.partial(given, fp8),
                    "BF16": functools.partial(given, bf16[0]),
                    "FP8, by expert": functools.partial(given, fp8, sorted_by_expert=True),
                }
                for name, call in cases.items():
                    for _ in range(3):
                        call()
                    results[f"{tokens} x {hidden}, {name}"] = measure(rank, call, mode, args.rounds, args.calls)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", default="128,1000,4096")
    parser.add_argument("--hidden", default="7168")
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--commit", default=git_commit(), help="of the tree, if git cannot tell")
    options = parser.parse_args()
    options.tokens, options.hidden = ([int(n) for n in text.split(",")] for text in (options.tokens, options.hidden))
    most = {"num_experts": options.experts, "top_k": 8, "hidden": max(options.hidden)}
    heap = ep_lib.Buffer.symmetric_bytes(options.ranks, max_tokens=max(options.tokens), **most) + (4 << 20)
    ranks = ep_lib.spawn(main, options.ranks, options.backend, args=(options,), heap_bytes=heap)
    print(f"commit {options.commit}")
    for case in ranks[0]:
        words = [f"{stage} {max(rank[case].get(stage, 0.0) for rank in ranks):.1f}" for stage in ranks[0][case]]
        print(f"{case:38} {'  '.join(words)}")
