"""The tuned kernels of the normal mode, in many shapes, next to what the links can do at best.

    python benchmarks/gpu_fast.py [--ranks 4] [--quick] [--json FILE]

As in gpu_measure.py: everything is checked before it is timed, all ranks begin at once, a figure is the median over the
repeats of the slowest rank. "wire" counts the bytes of rows and scales that leave a GPU, on average.
With --backend emulator the same script runs without a GPU, on toy sizes, and times nothing.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_clock import DryWatch, Stopwatch, slowest
from gpu_machine import git_commit, machine

import ep_lib
from ep_lib.memory.arrays import describe, like
from ep_lib.moe.config import make_config
from ep_lib.moe.direct import SCALE_BLOCK, DirectExchange, Tuning
from ep_lib.moe.kernels import direct

SOURCE = Path(__file__).resolve().with_name("gpu_fast.cu")
PIECES = 1 << 20  # bytes that rank sends to one other, times --ceiling-mb
PING_ROUNDS = 500
PING_MODES = ("signal", "signal, relaxed polls", "packets", "relaxed flag, unordered")
PLAIN = [(24, 32, 1)]  # blocks, warps, whether pieces are taken as they come
BULK = [(8, 8, 3, 7168, 0), (24, 8, 3, 7168, 1)]  # stages, bytes of a piece
DISPATCH = {  # warps, way, vectors, stages
    "fp8": [(8, "Lanes", 4, 2), (8, "Engine", 4, 2), (8, "Engine", 4, 3), (16, "Engine", 4, 2), (10, "Engine", 4, 3)],
    "bf16": [(4, "Lanes", 4, 2), (4, "Engine", 4, 3), (5, "Engine", 4, 3), (7, "Engine", 4, 2), (3, "Engine", 4, 4)],
}
PULL = [  # warps, stages, vectors of a piece
    (8, 3, 128),
    (12, 2, 128),
    (16, 3, 64),
    (16, 2, 96),
    (14, 2, 112),
    (24, 2, 64),
]
COMBINE = [  # warps, pushing warps, stages, rows of a group, vectors, by lanes
    (16, 4, 3, 4, 4, 1),
    (16, 4, 3, 4, 4, 0),
    (16, 4, 3, 1, 4, 0),
    (16, 4, 3, 2, 4, 0),
    (16, 5, 3, 2, 4, 0),
    (16, 3, 5, 2, 4, 0),
    (12, 4, 3, 2, 4, 0),
]
ROUTES = {  # which ranks, counted from the own one, each token goes to
    "own": (0,),
    "next": (1,),
    "all others": (1, 2, 3),
    "own and next": (0, 1),
    "all": (0, 1, 2, 3),
}
SMS = (8, 16, 24)


class Bench:
    """One rank's part of all measurements; ``found`` maps a name to its repeats."""

    def __init__(self, rank: ep_lib.Rank, args: argparse.Namespace) -> None:
        import torch

        self.torch, self.rank, self.args = torch, rank, args
        self.gpu = rank.backend == "cuda"
        if self.gpu:
            torch.cuda.set_device(rank.rank)
        self.device = "cuda" if self.gpu else "cpu"
        self.watch: Any = Stopwatch(rank) if self.gpu else DryWatch()
        self.wrong: list[str] = []  # what a check found; the measurements go on
        self.found: dict[str, list[dict[str, float]]] = {}

    def time(self, name: str, operation: Callable[[], Any]) -> None:
        repeats = self.args.repeats
        self.found[name] = self.watch.microseconds(lambda: self.watch.time("us", operation), repeats)
        if self.gpu and self.rank.rank == 0:  # a run that is cut short has shown something
            own = statistics.median(sum(times.values()) for times in self.found[name])
            print(f"  rank 0 alone {own:9.2f} us  {name} {'WRONG' * len(self.wrong)}", flush=True)

    # The links

    def ceilings(self) -> None:
        rank, each = self.rank, self.args.ceiling_mb * PIECES
        plain, bulk = (ep_lib.Kernel.from_file(SOURCE, name) for name in ("plain_all", "bulk_all"))
        size = 14336 * (each // 14336)
        mine = rank.symmetric(rank.world_size * each + 4096, "uint8")
        address = -(-describe(mine).address // 2048) * 2048
        data = self.torch.randint(0, 255, (each,), dtype=self.torch.uint8, device=self.device)
        out = self.torch.empty_like(data)
        counters = self.torch.zeros(4096, dtype=self.torch.int32, device=self.device)
        used = 0

        def fresh() -> Any:
            nonlocal used
            used += 1
            return counters[used : used + 1]

        for way, target in (("write", None), ("read", out)):
            for blocks, warps, dynamic in PLAIN:
                self.time(
                    f"ceiling {way} plain {blocks}x{warps}{' dynamic' * dynamic}",
                    lambda b=blocks, w=warps, t=target, c=dynamic: plain.launch(
                        rank, b, 32 * w, address, data, t, 14336, size, fresh() if c else None
                    ),
                )
            for blocks, warps, stages, piece, dynamic in BULK:
                shared = warps * stages * (piece + 8)
                self.time(
                    f"ceiling {way} bulk {blocks}x{warps} {stages} stages of {piece}{' dynamic' * dynamic}",
                    lambda b=blocks, w=warps, s=stages, p=piece, t=target, n=shared, c=dynamic: bulk.launch(
                        rank, b, 32 * w, address, data, t, p, each // p * p, s, fresh() if c else None, shared_bytes=n
                    ),
                )
        rank.barrier()
        rank.free(mine)

    def pings(self) -> None:
        rank = self.rank
        packets = rank.symmetric(128, "uint64")
        mine, flag = rank.symmetric(64, "uint64"), rank.symmetric(1, "uint64")
        for mode, words in itertools.product(range(len(PING_MODES)), (0, 8, 32)):
            if PING_MODES[mode] == "packets" and words == 0:
                continue
            kernel = ep_lib.Kernel.from_file(SOURCE, f"ping_pong<{mode}>")
            packets[...] = 0
            flag[...] = 0
            rank.barrier()
            done = 0
            rounds = PING_ROUNDS if self.gpu else 3

            def batch(kernel: Any = kernel, words: int = words, rounds: int = rounds) -> None:
                nonlocal done
                if rank.rank < 2:
                    kernel.launch(rank, 1, 32, packets, mine, flag, words, done, rounds)
                done += rounds

            self.time(f"ping {PING_MODES[mode]} {8 * words} B", batch)
            rank.barrier()

    # The Buffer's kernels

    def prepare(self) -> None:
        """All ranks' inputs, on every rank: small whole numbers, so that sums in any order are exact."""
        torch, args = self.torch, self.args
        self.xs, self.idx, self.weights = [], [], []
        for source in range(self.rank.world_size):
            generator = torch.Generator(device=self.device).manual_seed(1000 + source)
            self.xs.append(
                torch.randint(-64, 64, (args.tokens, args.hidden), generator=generator, device=self.device).bfloat16()
            )
            scores = torch.rand(args.tokens, args.experts, generator=generator, device=self.device)
            self.idx.append(torch.topk(scores, args.top_k, dim=-1).indices.int())
            self.weights.append(torch.rand(args.tokens, args.top_k, generator=generator, device=self.device))
        ranks = self.rank.world_size
        self.goes = []
        for idx in self.idx:
            goes = torch.zeros(args.tokens, ranks, dtype=torch.bool, device=self.device)
            self.goes.append(goes.scatter_(1, (idx // (args.experts // ranks)).long(), True))

    def exchange(self, kind: str) -> DirectExchange:
        args = self.args
        shape = {"num_experts": args.experts, "top_k": args.top_k, "hidden": args.hidden}
        config = make_config(self.rank.world_size, **shape, max_tokens=args.tokens, dtype="bfloat16", num_sms=24)
        fp8 = {"row_bytes": args.hidden, "row_scales": args.hidden // SCALE_BLOCK} if kind == "fp8" else {}
        return DirectExchange(self.rank, config, **fp8)

    def inputs(self, kind: str, source: int) -> tuple[Any, Any]:
        """Rows and scales; those of FP8 are the first half of the BF16 rows' bytes: any bits will do."""
        torch, args = self.torch, self.args
        if kind == "bf16":
            return self.xs[source], None
        rows = self.xs[source].view(torch.uint8)[:, : args.hidden].contiguous()
        scales = torch.arange(args.tokens * args.hidden // SCALE_BLOCK, device=self.device).float() + source
        return rows, scales.reshape(args.tokens, -1)

    def check_dispatch(self, kind: str, area: Any, received: Any, with_weights: bool) -> None:
        torch, me, start = self.torch, self.rank.rank, 0
        experts = self.args.experts // self.rank.world_size
        view = lambda array: like("torch", array)  # noqa: E731
        for source, goes in enumerate(self.goes):
            token = goes[:, me].nonzero()[:, 0]
            stop = start + len(token)
            rows, scales = self.inputs(kind, source)
            assert int(received[source]) == len(token), "the number of rows is wrong"
            got = view(area.rows[start:stop])
            assert torch.equal(got, rows.view(torch.uint8)[token]), f"{kind} rows from rank {source} differ"
            if scales is not None:
                assert torch.equal(view(area.scales[start:stop]), scales[token]), "scales differ"
            local = self.idx[source][token] - me * experts
            here = (local >= 0) & (local < experts)
            assert torch.equal(view(area.topk[start:stop]), local.where(here, -1)), "expert ids differ"
            if with_weights:
                weights = self.weights[source][token]
                assert torch.equal(view(area.weights[start:stop]), weights.where(here, 0.0)), "weights differ"
            assert torch.equal(view(area.source[start:stop])[:, 1].long(), token), "source tokens differ"
            start = stop

    def moe(self, kind: str) -> None:
        torch, rank, args = self.torch, self.rank, self.args
        me, ranks = rank.rank, rank.world_size
        exchange = self.exchange(kind)
        x, scales = self.inputs(kind, me)
        idx, weights = self.idx[me], self.weights[me]
        routing = exchange.route(idx)
        received = rank.to_host(routing.plan)[ranks : 2 * ranks]
        rows = int(received.sum())
        default = exchange.tuning

        def send(routed: Any = routing, w: Any = None, new: bool = False) -> Any:
            return exchange.dispatch(x, w, routed, scales=scales, send_routing=new)

        for turn in range(2):
            area = send(w=weights, new=True)
            rank.synchronize()
            self.check_dispatch(kind, area, received, True)
            area.rows[...] = 17 + turn  # what a faulty kernel leaves is found
            rank.barrier()
        if not self.gpu:
            shapes = [(2, way, 4, 2 + (way == "Engine")) for way in ("Registers", "Lanes", "Engine")]
        else:
            shapes = DISPATCH[kind]
        for (warps, way, vectors, stages), sms in itertools.product(shapes, SMS if not args.quick else (24,)):
            exchange.num_sms = sms
            exchange.tuning = Tuning(
                dispatch_warps=warps, dispatch_way=way, dispatch_vectors=vectors, dispatch_stages=stages
            )
            area = send()
            rank.synchronize()
            try:
                self.check_dispatch(kind, area, received, False)
            except AssertionError as error:
                self.wrong.append(f"{error} {(sms, warps)}")
            self.time(f"dispatch {kind} {sms} SMs, {warps} warps of {stages} stages, {way}", send)
        exchange.num_sms, exchange.tuning = 24, default
        if kind == "fp8":
            self.time("route", lambda: exchange.route(idx))
            self.time("route and dispatch fp8 with weights", lambda: send(exchange.route(idx), weights, True))
            exchange.close()
            return

        y = area.rows[:rows].copy()
        if "routes" in args.parts:
            for name, ranks_away in ROUTES.items():
                chosen = torch.tensor(
                    [(me + r) % ranks * (args.experts // ranks) for r in ranks_away], device=self.device
                )
                forced = torch.full_like(idx, -1)
                forced[:, : len(chosen)] = chosen.int()
                routed = exchange.route(forced)
                for sms in (8, 24):
                    exchange.num_sms = sms
                    send(routed, new=True)
                    self.time(f"forced {name}, {sms} SMs", lambda r=routed: send(r))
        exchange.num_sms, exchange.tuning = 24, default
        torch_y = like("torch", y).view(torch.bfloat16)
        torch_y *= me + 1  # rank r returns r + 1 times the row
        factors = torch.arange(1, ranks + 1, device=self.device).float()
        total = (self.xs[me].float() * (self.goes[me] * factors).sum(1, keepdim=True)).bfloat16()
        weighted = torch.zeros(args.tokens, args.hidden, device=self.device)
        per_rank = torch.zeros(args.tokens, ranks, device=self.device)
        for k in range(args.top_k):
            per_rank.scatter_add_(1, (idx[:, k : k + 1] // (args.experts // ranks)).long(), weights[:, k : k + 1])
        for r in range(ranks):
            row = ((r + 1) * self.xs[me].float()).bfloat16().float()
            weighted += torch.where(self.goes[me][:, r, None], per_rank[:, r, None] * row, 0.0)
        out = torch.empty(args.tokens, args.hidden, dtype=torch.bfloat16, device=self.device)
        shapes = COMBINE if self.gpu else [(3, 1, 2, 2, 2, 0), (3, 1, 2, 3, 2, 1)]
        for (warps, push, stages, chunk, vectors, lanes), sms in itertools.product(
            shapes, SMS if not args.quick else (24,)
        ):
            exchange.num_sms = sms
            exchange.tuning = Tuning(
                combine_warps=warps,
                push_warps=push,
                push_stages=stages,
                group_rows=chunk,
                vectors=vectors,
                by_lanes=bool(lanes),
            )
            for w, expected in ((None, total), (weights, weighted.bfloat16()), (None, total)):
                out.fill_(-3.0)
                exchange.combine(y, w, routing, out=out)
                rank.synchronize()
                if not torch.equal(out, expected):
                    self.wrong.append(f"combine differs {(sms, warps, push, stages, chunk, vectors, lanes)}")
            how = f"{stages} stages, groups of {chunk}, {vectors} vectors, {'lanes' if lanes else 'engine'}"
            name = f"combine {sms} SMs, {push} of {warps} warps push, {how}"
            self.time(name, lambda: exchange.combine(y, None, routing, out=out))
        self.pull(exchange, routing, like("torch", y), (None, weights), (total, weighted.bfloat16()), out)
        exchange.num_sms, exchange.tuning = 24, default
        exchange.close()

    def pull(self, exchange: Any, routing: Any, y: Any, weights: Any, expected: Any, out: Any) -> None:
        """Combine from where the experts wrote."""
        shapes = PULL if self.gpu else [(2, 2, 24)]
        for _ in range(2):
            self.rank.synchronize()
            like("torch", exchange.combine_input())[: len(y)] = y
            exchange.combine_in_place(None, routing, out=out)
        ranks = self.rank.world_size
        shapes = [s for s in shapes if direct.fits(direct.pull_shared(*s, min(self.args.top_k, ranks), ranks))]
        for (warps, stages, vectors), sms in itertools.product(shapes, SMS if not self.args.quick else (24,)):
            exchange.num_sms = sms
            exchange.tuning = Tuning(pull_warps=warps, pull_stages=stages, piece_vectors=vectors)
            for w, right in (*zip(weights, expected, strict=True), (None, expected[0])):
                out.fill_(-3.0)
                exchange.combine_in_place(w, routing, out=out)
                self.rank.synchronize()
                if not self.torch.equal(out, right):
                    self.wrong.append(f"pulling combine differs {(sms, warps, stages, vectors)}")
            name = f"combine {sms} SMs pull, {warps} warps, {stages} stages, pieces of {vectors} vectors"
            self.time(name, lambda: exchange.combine_in_place(None, routing, out=out))

    def wire_bytes(self) -> dict[str, float]:
        """Bytes of rows that leave this GPU."""
        rows = int(self.goes[self.rank.rank].sum()) - int(self.goes[self.rank.rank][:, self.rank.rank].sum())
        hidden = self.args.hidden
        return {"bf16": rows * hidden * 2, "fp8": rows * (hidden + hidden // SCALE_BLOCK * 4), "rows": rows}


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(rank, args)
    bench.prepare()
    for part in args.parts:
        if part in ("fp8", "bf16"):
            bench.moe(part)
        elif part != "routes":
            getattr(bench, part)()
    return {
        "found": bench.found,
        "late": bench.watch.late,
        "wrong": bench.wrong,
        "wire": bench.wire_bytes(),
        "machine": machine(rank) if bench.gpu else {},
    }


def summarise(results: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    wire = {key: statistics.mean(r["wire"][key] for r in results) for key in ("bf16", "fp8", "rows")}
    figures: dict[str, dict[str, float]] = {}
    for name in results[0]["found"]:
        ranks = results[:2] if name.startswith("ping") else results
        us = slowest([r["found"][name] for r in ranks])["sum"]
        figures[name] = {"us": us}
        if name.startswith("ping"):
            figures[name]["us"] = round(us / PING_ROUNDS, 3)
            continue
        if name.startswith("ceiling"):
            crossing = (args.ranks - 1) * args.ceiling_mb * PIECES
        elif "fp8" in name:
            crossing = wire["fp8"]
        elif name == "route" or name.startswith("forced"):
            continue
        else:
            crossing = wire["bf16"]
        figures[name]["wire_gb_s"] = round(crossing / us / 1e3, 1)
    settings = {k: v for k, v in vars(args).items() if k not in ("json", "date", "commit")}
    head = {"date": args.date, "commit": args.commit, "machine": results[0]["machine"], "settings": settings}
    head["wrong"] = [f"rank {i}: {text}" for i, r in enumerate(results) for text in r["wrong"]]
    return head | {"launched_late": sum(r["late"] for r in results), "wire_bytes": wire, "figures": figures}


def show(report: dict[str, Any]) -> None:
    for name, figure in report["figures"].items():
        rate = f"{figure['wire_gb_s']:7.1f} GB/s" if "wire_gb_s" in figure else ""
        print(f"{figure['us']:9.2f} us {rate:12}  {name}")
    for text in report["wrong"]:
        print("WRONG", text)
    print(f"launched late: {report['launched_late']}; wire MB: {report['wire_bytes']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in {
        "ranks": 4, "tokens": 4096, "hidden": 7168, "experts": 256, "top-k": 8, "repeats": 12, "ceiling-mb": 64
    }.items():  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--parts", default="ceilings,pings,fp8,bf16", help="which measurements")
    parser.add_argument("--quick", action="store_true", help="24 SMs only")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    parser.add_argument("--commit", default=git_commit(), help="of the tree, where git cannot tell")
    options = parser.parse_args()
    if options.ranks < 2:
        parser.error("--ranks must be 2 or more: a peer is another GPU")
    options.parts = options.parts.split(",")
    options.date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    area = 2 * options.ranks * options.tokens * (options.hidden * 4 + options.top_k * 8 + 300)
    heap = area + options.ranks * options.ceiling_mb * PIECES + (4 << 20)
    everybody = ep_lib.spawn(main, ranks=options.ranks, backend=options.backend, args=(options,), heap_bytes=heap)
    outcome = summarise(everybody, options)
    show(outcome)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(outcome, indent=2) + "\n")
