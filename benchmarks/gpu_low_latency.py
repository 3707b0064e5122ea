"""Low-latency dispatch and combine: microseconds in CUDA graphs and as plain launches, for decode batches.

    python benchmarks/gpu_low_latency.py [--ranks 4] [--sweep 128,1] [--json FILE]

Everything is checked against the oracle's arithmetic before it is timed. "graph": a CUDA graph of --chain equal
operations in sequence, on all ranks; the time of a replay divided by their number, so launches inside a graph and waits
for peers are included. "launch": one launch between two events, begun by all ranks at once. A figure is the median over
the repeats of the slowest rank. --sweep also tries numbers of blocks and threads.
With --backend emulator the same script runs without a GPU, on toy sizes, and times nothing.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_inputs
from gpu_clock import Stopwatch, spread
from gpu_machine import git_commit, machine
from gpu_report import show
from gpu_rows import Row, with_rates, write

import ep_lib
from ep_lib import reference
from ep_lib.moe.config import make_config
from ep_lib.moe.low_latency.mode import BOTH, RECEIVES, SENDS, Halves, LaunchShape, LowLatencyMode

TOKENS = (1, 8, 32, 64, 128, 256, 1024)
SMS = (24, 48)
SWEEP = {  # blocks, threads, blocks with one role only, how many of these send
    "dispatch": [
        (132, 448, 132, 0),
        (132, 448, 132, 66),
        (264, 448, 264, 0),
        (264, 448, 264, 132),
        (264, 448, 132, 44),
        (264, 448, 132, 66),
        (264, 448, 132, 88),
        (528, 224, 132, 66),
    ],
    "combine": [
        (132, 448, 132, 0),
        (264, 448, 264, 0),
        (264, 448, 132, 110),
        (264, 320, 264, 0),
        (396, 320, 396, 0),
        (528, 224, 528, 0),
    ],
}
SWEEP["combine_weighted"] = SWEEP["combine"]


class Bench:
    """One rank's part. ``rows`` are the figures, ``wrong`` what a check found; the measurements go on."""

    def __init__(self, rank: ep_lib.Rank, args: argparse.Namespace) -> None:
        import torch

        self.torch, self.rank, self.args = torch, rank, args
        self.gpu = rank.backend == "cuda"
        self.device = "cuda" if self.gpu else "cpu"
        if self.gpu:
            torch.cuda.set_device(rank.rank)
            self.watch = Stopwatch(rank)
        self.found: dict[str, list[float]] = {}
        self.wrong: list[str] = []
        self.start = time.monotonic()
        self._inputs()

    def _inputs(self) -> None:
        """All ranks' tokens, on every rank."""
        torch, args, ranks = self.torch, self.args, self.rank.world_size
        self.xs, self.idx, self.weights = [], [], []
        for source in range(ranks):
            generator = torch.Generator(device=self.device).manual_seed(1000 + source)
            shape = (max(*args.tokens, *args.sweep, 1), args.hidden)
            self.xs.append(torch.randn(shape, generator=generator, device=self.device).bfloat16())
            scores = torch.rand(shape[0], args.experts, generator=generator, device=self.device)
            self.idx.append(torch.topk(scores, args.top_k, dim=-1).indices)
            self.weights.append(torch.rand(shape[0], args.top_k, generator=generator, device=self.device))
        self.quantized = [self._quantize(x) for x in self.xs]

    def _quantize(self, x: Any) -> tuple[Any, Any]:
        """As reference.quantize_fp8, for finite rows."""
        torch = self.torch
        groups = x.float().view(len(x), -1, reference.FP8_GROUP)
        largest = groups.abs().amax(-1)
        scales = largest / torch.full_like(largest, reference.FP8_MAX)  # divided by a number, torch would multiply
        scales = torch.where(scales < torch.finfo(torch.float32).tiny, torch.ones_like(scales), scales)
        return (groups / scales[..., None]).view_as(x).to(torch.float8_e4m3fn), scales

    def factor(self, expert: Any) -> Any:
        """What the expert multiplies a row with; it differs between experts."""
        return (expert % 7 + 1).float()

    def prepare(self, tokens: int, fp8: bool, low_latency: LowLatencyMode) -> None:
        """Prepares the inputs of one setting, and a first dispatch whose arrivals the combines use."""
        self.low_latency, self.tokens, self.fp8 = low_latency, tokens, fp8
        me = self.rank.rank
        self.x, self.topk, self.w = (a[me][:tokens].contiguous() for a in (self.xs, self.idx, self.weights))
        self.arrivals = low_latency.empty_arrivals("torch", fp8, weighted=True)
        self.out = self.torch.empty_like(self.x)
        with self.stream():  # with weights, for combine_weighted; the timed ones have none, as DeepEP's
            low_latency.launch_dispatch(BOTH, fp8, self.x, self.topk, self.arrivals, self.w)
        self.rank.synchronize()
        self.y = self._experts()

    def _experts(self) -> Any:
        """What the experts compute from the true rows, where they arrived."""
        torch, a = self.torch, self.arrivals
        y = torch.full((*a.rows.shape[:2], self.args.hidden), float("nan"), dtype=torch.bfloat16, device=self.device)
        flat, first = y.view(-1, self.args.hidden), self.rank.rank * y.shape[0]
        for source in range(self.rank.world_size):
            for k in range(self.args.top_k):
                index = a.recv_index[source, : self.tokens, k].long()
                here = index >= 0
                scale = self.factor(index[here] // y.shape[1] + first)
                flat[index[here]] = (self.xs[source][: self.tokens][here].float() * scale[:, None]).bfloat16()
        return y

    def stream(self) -> Any:
        return self.rank.streams.on(self.rank.streams.current("torch"))

    def dispatch(self, halves: Halves = BOTH) -> None:
        with self.stream():
            to = self.arrivals._replace(weights=None)
            self.low_latency.launch_dispatch(halves, self.fp8, self.x, self.topk, to)

    def combine(self, halves: Halves = BOTH) -> None:
        with self.stream():
            self.low_latency.launch_combine(halves, self.out, self.y, self.topk, self.w, self.arrivals)

    def combine_weighted(self) -> None:
        """With the weights that travelled with the dispatch."""
        with self.stream():
            self.low_latency.launch_combine(BOTH, self.out, self.y, self.topk, None, self.arrivals)

    # ---- checks

    def check(self, what: str) -> None:
        torch, t, ranks = self.torch, self.tokens, self.rank.world_size
        for array in (self.arrivals.rows, self.arrivals.scales):
            if array is not None:
                array.view(torch.uint8).fill_(0x55)
        self.arrivals.recv_index.fill_(-7)
        self.dispatch()
        self.rank.synchronize()
        a = self.arrivals
        ids = [i[:t].cpu().numpy() for i in self.idx]
        small = [reference.np.zeros((t, 128), reference.BF16)] * ranks
        want = reference.low_latency_dispatch(
            small, ids, num_experts=self.args.experts, max_tokens=a.recv_index.shape[1], use_fp8=False
        )[self.rank.rank]
        places = torch.from_numpy(want.places[:, :t]).to(self.device)
        if not torch.equal(a.recv_index[:, :t], places) or a.counts.cpu().numpy().tolist() != want.counts.tolist():
            self.wrong.append(f"{what}: recv_index or counts differ")
            return
        rows = a.rows.view(-1, self.args.hidden)
        for source in range(ranks):
            at = places[source].long()
            here = at >= 0
            token = torch.arange(t, device=self.device)[:, None].expand_as(at)[here]
            sent = self.quantized[source][0] if self.fp8 else self.xs[source]
            same = torch.equal(rows.view(torch.uint8)[at[here]], sent.view(torch.uint8)[token])
            if self.fp8:
                scales = a.scales.view(-1, a.scales.shape[-1])
                same &= torch.equal(scales[at[here]], self.quantized[source][1][token])
            if not same:
                self.wrong.append(f"{what}: rows from rank {source} differ")
        for combine in (self.combine, self.combine_weighted):
            self.out.fill_(float("nan"))
            combine()
            self.rank.synchronize()
            if not torch.equal(self.out, self._expected()):
                self.wrong.append(f"{what}: combined tokens differ ({combine.__name__})")

    def _expected(self) -> Any:
        torch, me = self.torch, self.rank.rank
        x, total = self.xs[me][: self.tokens].float(), None
        each = self.args.experts // self.rank.world_size
        total = torch.zeros_like(x)
        for r in range(self.rank.world_size):
            partial = torch.zeros_like(x)
            for k in range(self.args.top_k):
                expert = self.idx[me][: self.tokens, k]
                row = (x * self.factor(expert)[:, None]).bfloat16().float()
                added = partial + self.w[:, k, None] * row
                partial = torch.where((expert // each == r)[:, None], added, partial)
            total = total + partial.bfloat16().float()
        return total.bfloat16()

    # ---- times

    def graph(self, name: str, operation: Callable[[], Any]) -> None:
        """Times ``operation``, --chain times in a CUDA graph."""
        if not self.gpu:
            operation()
            self.found[name] = [1.0]
            return
        torch = self.torch
        for _ in range(2):
            operation()
        self.rank.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.args.chain):
                operation()
        self.rank.barrier()
        times = []
        for repeat in range(self.args.repeats + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if repeat > 1:
                times.append(begin.elapsed_time(end) * 1e3 / self.args.chain)
        self.rank.barrier()
        self.found[name] = times

    def launch(self, name: str, operation: Callable[[], Any]) -> None:
        if not self.gpu:
            operation()
            self.found[name] = [1.0]
            return
        repeats = self.watch.microseconds(lambda: self.watch.time("us", operation), self.args.repeats)
        self.found[name] = [r["us"] for r in repeats]

    def say(self) -> None:
        if self.rank.rank == 0 and self.gpu:
            for name, times in list(self.found.items())[self.said :]:
                print(f"{time.monotonic() - self.start:6.1f} s {statistics.median(times):9.2f} us  {name}", flush=True)
        self.said = len(self.found)

    said = 0

    def make(self, max_tokens: int, sms: int | None = None) -> LowLatencyMode:
        args = self.args
        shape = {"num_experts": args.experts, "top_k": args.top_k, "hidden": args.hidden, "max_tokens": max_tokens}
        config = make_config(
            self.rank.world_size,
            **shape,
            dtype="bfloat16",
            num_sms=24,
            num_max_dispatch_tokens_per_rank=max_tokens,
            num_low_latency_sms=sms,
        )
        return LowLatencyMode(self.rank, config)

    def empty(self) -> None:
        """What an empty launch in a graph costs."""
        nothing = ep_lib.Kernel.from_source('extern "C" __global__ void nothing() {}', "nothing")
        for blocks, threads in ((1, 32), (132, 448), (264, 448)) if self.gpu else ():

            def launch(blocks: int = blocks, threads: int = threads) -> None:
                with self.stream():
                    nothing.launch(self.rank, blocks, threads)

            self.graph(f"sweep launch of nothing {blocks}x{threads}", launch)

    def sweep(self, tokens: int) -> None:
        self.empty()
        low_latency = self.make(tokens)
        for fp8 in (True, False):
            self.prepare(tokens, fp8, low_latency)
            kind = "fp8" if fp8 else "bf16"
            for what in SWEEP if fp8 else ("dispatch",):
                for shape in SWEEP[what] if self.gpu else [(4, 64, 2, 1)]:
                    low_latency.shapes = {what.removesuffix("_weighted"): LaunchShape(*shape)}
                    where = "{}x{}, of {} {} send".format(*shape)
                    self.graph(f"sweep {what} {kind} {tokens} tokens {where}", getattr(self, what))
            self.say()
        low_latency.close(orderly=True)

    def table(self) -> None:
        for tokens in self.args.tokens:
            for sms in (*SMS, None) if self.gpu and tokens == 128 else (None,):
                low_latency = self.make(max(tokens, min(128, max(self.args.tokens))), sms)
                for fp8 in (True, False):
                    self.prepare(tokens, fp8, low_latency)
                    self.measure(f"{'fp8' if fp8 else 'bf16'} {tokens} tokens {sms or 'all'} SMs", fp8)
                low_latency.close(orderly=True)
                self.say()

    def measure(self, at: str, fp8: bool) -> None:
        """Everything about one setting."""
        self.check(at)
        self.graph(f"graph dispatch {at}", self.dispatch)
        self.launch(f"launch dispatch {at}", self.dispatch)
        if fp8:
            self.graph(f"graph both {at}", lambda: (self.dispatch(), self.combine()))
            self.graph(f"graph dispatch in two launches {at}", lambda: (self.dispatch(SENDS), self.dispatch(RECEIVES)))
        else:
            self.graph(f"graph combine {at}", self.combine)
            self.launch(f"launch combine {at}", self.combine)
            self.graph(f"graph combine with known weights {at}", self.combine_weighted)

    def wire(self, tokens: int) -> dict[str, float]:
        """Rows of this rank that leave it, and all, for `tokens`."""
        me, each = self.rank.rank, self.args.experts // self.rank.world_size
        goes = self.torch.zeros(tokens, self.rank.world_size, dtype=self.torch.bool, device=self.device)
        goes.scatter_(1, self.idx[me][:tokens] // each, True)
        return {"all": int(goes.sum()), "wire": int(goes.sum() - goes[:, me].sum())}


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(rank, args)
    for tokens in args.sweep:
        bench.sweep(tokens)
    bench.table()
    return {
        "found": bench.found,
        "wrong": bench.wrong,
        "wire": {t: bench.wire(t) for t in args.tokens},
        "machine": machine(rank) if bench.gpu else {},
    }


def row_of(name: str, args: argparse.Namespace, wires: list[dict[int, dict[str, float]]]) -> Row:
    """The row for a name such as "graph dispatch fp8 128 tokens 24 SMs", with the bytes that it moves."""
    words = name.split()
    row: Row = {"group": "low latency", "by": "ep_lib", "what": words[1], "routing": "random"}
    if words[0] == "sweep":
        return row | {"note": name}
    tokens, sms = int(words[words.index("tokens") - 1]), words[words.index("SMs") - 1]
    more = ", two launches" if "two" in words else ", weights from the dispatch" if "known" in words else ""
    row |= {"tokens": tokens, "note": words[0] + more}
    row |= {} if sms == "all" else {"sms": int(sms)}
    if words[1] == "both":
        return row | {"what": "dispatch and combine", "dtype": "bf16" if "bf16" in words else "fp8"}
    dtype = "bf16" if "bf16" in words or words[1] == "combine" else "fp8"
    shape = gpu_inputs.Shape(args.ranks, tokens, args.hidden, args.experts, args.top_k)
    for key, count in (("logical_bytes", "all"), ("wire_bytes", "wire")):
        row[key] = round(statistics.mean(wire[tokens][count] for wire in wires) * shape.row_bytes(dtype))
    return row | {"dtype": dtype}


def summarise(results: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for name in results[0]["found"]:
        row = row_of(name, args, [r["wire"] for r in results])
        figures = spread([r["found"][name] for r in results])
        rows.append(row | dict(zip(("us", "us_low", "us_high"), (round(us, 2) for us in figures), strict=True)))
    settings = {k: v for k, v in vars(args).items() if k not in ("json", "date", "commit")}
    wrong = [f"rank {i}: {text}" for i, r in enumerate(results) for text in r["wrong"]]
    head = {"date": args.date, "commit": args.commit, "machine": results[0]["machine"], "settings": settings}
    return head | {"wrong": wrong, "rows": with_rates(rows)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in {
        "ranks": 4, "hidden": 7168, "top-k": 8, "repeats": 20, "chain": 100
    }.items():  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--experts", type=int, help="default: 256, or the next smaller multiple of the ranks")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="per rank; default %(default)s")
    parser.add_argument(
        "--sweep", default="", help="also try numbers of blocks and threads, for these numbers of tokens: 128,1"
    )
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    parser.add_argument("--commit", default=git_commit(), help="of the tree, if git cannot tell")
    options = parser.parse_args()
    options.tokens = [int(t) for t in options.tokens.split(",")]
    options.sweep = [int(t) for t in options.sweep.split(",") if t]
    options.experts = options.experts or gpu_inputs.most_experts(options.ranks)
    options.date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    heap = 4 * options.ranks * max(*options.tokens, *options.sweep, 128) * (options.hidden * 2 + options.top_k * 40) + (
        4 << 20
    )
    everybody = ep_lib.spawn(
        main, ranks=options.ranks, backend=options.backend, args=(options,), heap_bytes=heap, timeout=40
    )
    outcome = summarise(everybody, options)
    print(show(outcome))
    if options.json is not None:
        write(options.json, outcome)
    raise SystemExit(bool(outcome["wrong"]))
