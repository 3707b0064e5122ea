"""Tuning of the normal mode: every launch shape of its kernels, and what the host does in a call.

    python benchmarks/gpu_fast.py [--ranks 4] [--sms 8,16,24] [--parts dispatch,push,pull,stage,host] [--json FILE]

Results are checked before they are timed; a figure is the median over the repeats of the slowest rank, printed as soon
as it is known. The table of record is gpu_measure.py's. With --backend emulator the same script runs without a
GPU, on toy sizes, and times nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_clock import watch_of

import ep_lib
from ep_lib import Buffer
from ep_lib.moe.direct.tuning import EMULATED, Tuning, fitted

DISPATCH = [("Lanes", 4, 2), ("Lanes", 8, 2), ("Tma", 5, 3), ("Tma", 8, 3)]  # who stores, warps, stages
PULL = [(12, 2, 128), (13, 2, 256), (16, 2, 192), (8, 3, 128)]  # warps, stages, vectors of a piece
# then the share of blocks that push, their warps, stages, rows of a group
PUSH = [(*PULL[0], *push) for push in [(0.55, 5, 3, 4), (0.55, 5, 3, 8), (0.5, 5, 3, 6), (0.6, 4, 3, 4)]]
PUSH += [(*PULL[1], *push) for push in [(0.38, 5, 3, 4), (0.44, 5, 3, 4), (0.38, 12, 3, 4), (0.38, 12, 3, 8)]]
# the same for combines that copy rows into symmetric memory
STAGE = [(*PULL[0], *send) for send in [(5, 3, 2), (5, 3, 1), (5, 3, 4), (4, 3, 2)]]
TIMED_STEPS = ("_sent", "_await_plan", "_copy_out")
CALLS = 100


class Sweep:
    """One rank's part; ``found`` maps a name to microseconds."""

    def __init__(self, rank: ep_lib.Rank, args: argparse.Namespace) -> None:
        import torch

        self.torch, self.rank, self.args, self.gpu = torch, rank, args, rank.backend == "cuda"
        self.device = "cuda" if self.gpu else "cpu"
        self.watch = watch_of(rank)
        self.found: dict[str, float] = {}
        me, self.x_of = rank.rank, {}
        for source in range(rank.world_size):
            generator = torch.Generator(device=self.device).manual_seed(1000 + source)
            x = torch.randint(-64, 64, (args.tokens, args.hidden), generator=generator, device=self.device).bfloat16()
            scores = torch.rand(args.tokens, args.experts, generator=generator, device=self.device)
            idx = torch.topk(scores, args.top_k, dim=-1).indices.int()
            self.x_of[source] = x
            if source == me:
                self.x, self.idx = x, idx
        self.weights = torch.rand(args.tokens, args.top_k, device=self.device)
        scales = torch.rand(args.tokens, args.hidden // 128, device=self.device) + 1
        self.q = (self.x.view(torch.uint8)[:, : args.hidden].contiguous().view(torch.float8_e4m3fn), scales)

    def say(self, name: str, us: float) -> None:
        self.found[name] = round(us, 2)
        if self.rank.rank == 0:
            print(f"{us:9.2f} us  {name}", flush=True)

    def buffer(self, sms: int) -> Buffer:
        a = self.args
        shape = {"num_experts": a.experts, "top_k": a.top_k, "hidden": a.hidden, "max_tokens": a.tokens}
        return Buffer(self.rank, **shape, num_sms=sms)

    def kernels(self, operation: Callable[[], Any]) -> float:
        with self.watch.every_kernel():
            times = self.watch.microseconds(operation, self.args.repeats)
        everybody = self.rank.all_gather([sum(t.values()) for t in times])
        return statistics.median(max(repeat) for repeat in zip(*everybody, strict=True))

    def measure(self, sms: int) -> None:
        torch, me, ranks = self.torch, self.rank.rank, self.rank.world_size
        with self.buffer(sms) as buffer:
            mode: Any = buffer._mode
            config, limit = buffer.config, self.rank.shared_bytes
            base = Tuning() if self.gpu else EMULATED
            recv = buffer.dispatch(self.x, self.idx)
            handle = recv.handle
            for source, x in self.x_of.items():
                mine = recv.src_rank == source
                assert torch.equal(recv.x[mine], x[recv.src_token[mine].long()]), "rows differ"
            if "dispatch" in self.args.parts:
                for way, warps, stages in DISPATCH:
                    for kind, payload, bytes_each in (("bf16", self.x, 2), ("fp8", self.q, 1)):
                        tried = replace(base, way=way, dispatch_warps=warps, dispatch_stages=stages)
                        vectors = self.args.hidden * bytes_each // 16
                        mode.tuning = fitted(tried, config, vectors, limit)
                        got = buffer.dispatch(payload, handle=handle, copy=False)
                        self.rank.synchronize()
                        here = got.x if kind == "bf16" else got.x[0].view(torch.uint8)
                        sent = recv.x if kind == "bf16" else recv.x.view(torch.uint8)[:, : self.args.hidden]
                        right = "" if torch.equal(here, sent) else "WRONG"
                        shape = f"{way}, {mode.tuning.dispatch_warps} warps of {stages} stages {right}"
                        again = lambda p=payload: buffer.dispatch(p, handle=handle, copy=False)  # noqa: E731
                        self.say(f"dispatch {kind} {sms} SMs {shape}", self.kernels(again))
            y = recv.x * (me + 1)  # rank r returns r + 1 times the row
            goes = torch.zeros(self.args.tokens, ranks, device=self.device)
            goes.scatter_(1, (self.idx // (self.args.experts // ranks)).long(), 1.0)
            factors = torch.arange(1, ranks + 1, device=self.device).float()
            total = (self.x.float() * (goes * factors).sum(1, keepdim=True)).bfloat16()
            place = buffer.combine_input(handle, y)
            pull_names = ("add_warps", "add_stages", "add_vectors")
            send_names = ("send_warps", "send_stages", "group_rows")
            push_names = (*pull_names, "push_share", *send_names)
            shapes_of = (
                ("push", y, push_names, PUSH),
                ("pull", place, pull_names, PULL),
                ("stage", y, (*pull_names, *send_names), STAGE),
            )
            tried_shapes = [
                (part, rows, dict(zip(names, numbers, strict=True)))
                for part, rows, names, shapes in shapes_of
                for numbers in shapes
            ]
            for part, rows, shape in tried_shapes:
                if part not in self.args.parts:
                    continue
                tried = replace(base, push=part != "stage", **shape)
                mode.tuning = fitted(tried, config, config.row_vectors, limit)
                if part == "pull":
                    self.rank.synchronize()
                    place.copy_(y)  # the rows of a push arrive here, so copy after it
                right = "" if torch.equal(buffer.combine(rows, handle), total) else "WRONG"
                combine = lambda r=rows: buffer.combine(r, handle)  # noqa: E731
                self.say(f"combine {part} {sms} SMs {shape} {right}", self.kernels(combine))

    def host(self) -> None:
        """What Python costs: consecutive calls with few tokens, and the steps of a dispatch that counts."""
        few = slice(0, 8)
        x, idx, weights = self.x[few], self.idx[few], self.weights[few]
        worst = self.rank.world_size * self.args.tokens
        with self.buffer(8) as buffer:
            handle = buffer.dispatch(x, idx, weights).handle
            y = buffer.dispatch(x, handle=handle).x
            operations: dict[str, Callable[[], Any]] = {
                "dispatch by handle, view": lambda: buffer.dispatch(x, handle=handle, copy=False),
                "dispatch by handle": lambda: buffer.dispatch(x, handle=handle),
                "dispatch, num_worst_tokens, view": lambda: buffer.dispatch(
                    x, idx, weights, num_worst_tokens=worst, copy=False
                ),
                "dispatch, host waits": lambda: buffer.dispatch(x, idx, weights),
                "combine": lambda: buffer.combine(y, handle),
            }
            calls = CALLS if self.gpu else 2
            for name, operation in operations.items():
                operation()
                self.rank.barrier()
                start = time.perf_counter()
                for _ in range(calls):
                    operation()
                self.rank.synchronize()
                each = max(self.rank.all_gather(time.perf_counter() - start)) / calls
                self.say(f"host: {calls} times {name}, 8 tokens, each", 1e6 * each)
        with self.buffer(24) as buffer:
            mode: Any = buffer._mode
            marks: list[tuple[str, float]] = []
            for step in TIMED_STEPS:
                original = getattr(mode, step)

                def timed(*args: Any, _step: str = step, _original: Any = original, **options: Any) -> Any:
                    result = _original(*args, **options)
                    marks.append((_step, time.perf_counter()))
                    return result

                setattr(mode, step, timed)
            for repeat in range(5 if self.gpu else 1):
                self.rank.barrier()
                marks.clear()
                start = time.perf_counter()
                buffer.dispatch(self.q, self.idx, self.weights, copy=False)
                marks.append(("returned", time.perf_counter()))
                self.rank.synchronize()
                marks.append(("done", time.perf_counter()))
                steps = ", ".join(f"{name.lstrip('_')} {1e6 * (at - start):.0f}" for name, at in marks)
                self.say(f"host: a dispatch that counts, {repeat}: {steps}", 1e6 * (marks[-1][1] - start))


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, float]:
    sweep = Sweep(rank, args)
    if "host" in args.parts:
        sweep.host()
    for sms in args.sms:
        sweep.measure(sms)
    return sweep.found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in {
        "ranks": 4, "tokens": 4096, "hidden": 7168, "experts": 256, "top-k": 8, "repeats": 10
    }.items():  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--sms", default="8,16,24", help="numbers of SMs, default 8,16,24")
    parser.add_argument("--parts", default="dispatch,push,pull,stage,host", help="which measurements")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    options.parts, options.sms = options.parts.split(","), [int(number) for number in options.sms.split(",")]
    shape = {"num_experts": options.experts, "top_k": options.top_k, "hidden": options.hidden}
    heap = Buffer.symmetric_bytes(options.ranks, **shape, max_tokens=options.tokens) + (4 << 20)
    everybody = ep_lib.spawn(main, ranks=options.ranks, backend=options.backend, args=(options,), heap_bytes=heap)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(everybody[0], indent=2) + "\n")
