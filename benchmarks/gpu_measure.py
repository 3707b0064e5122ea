"""Everything that is timed on GPUs: ceilings of the links, a Buffer's dispatch and combine, and peers.

    python benchmarks/gpu_measure.py [--ranks 4] [--parts ceilings,normal,nccl,symmetric] [--json FILE]

Each part is a module (gpu_ceilings, gpu_normal, gpu_peers). Everything is checked before it is timed; a figure is the
median over ``--repeats`` of the slowest rank (NOTES.md). gpu_report.py makes one table of several such files.
With ``--backend emulator`` the same script runs without a GPU, on toy sizes, and times nothing.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

import gpu_ceilings
import gpu_normal
import gpu_peers
from gpu_clock import watch_of
from gpu_inputs import Shape, most_experts
from gpu_machine import git_commit, machine
from gpu_report import show
from gpu_rows import Rows, merge, with_rates, write

import ep_lib

PARTS = ("ceilings", "normal", "nccl", "symmetric")


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Any]:
    """One rank's part of all measurements."""
    if rank.backend == "cuda":
        import torch

        torch.cuda.set_device(rank.rank)
    rows = Rows(rank, watch_of(rank), args.repeats)
    for part in args.parts:
        if part == "ceilings":
            gpu_ceilings.measure(rank, rows, args.ceiling_mb)
        elif part == "normal":
            gpu_normal.measure(rank, rows, args.shape, args.sms)
        else:
            gpu_peers.measure(rank, rows, args.shape, part, args.port)
    gpu = machine(rank) if rank.backend == "cuda" else {}
    return {"rows": rows.rows, "wrong": rows.wrong, "machine": gpu}


def symmetric_bytes(args: argparse.Namespace) -> int:
    """The heap that the largest part needs; each part frees its memory."""
    needs = {
        "ceilings": gpu_ceilings.symmetric_bytes(args.ranks, args.ceiling_mb),
        "normal": gpu_normal.symmetric_bytes(args.shape),
    }
    return max(needs.get(part, 0) for part in args.parts) + (4 << 20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in {
        "ranks": 4, "tokens": 4096, "hidden": 7168, "top-k": 8, "repeats": 12, "ceiling-mb": 64
    }.items():  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--experts", type=int, help="default: 256, or the next smaller multiple of the ranks")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: all")
    parser.add_argument("--sms", default="8,16,24,32", help="num_sms of the Buffers, default 8,16,24,32")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    parser.add_argument("--commit", default=git_commit(), help="of the tree, if git cannot tell")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if options.ranks < 2:
        parser.error("--ranks must be 2 or more: a peer is another GPU")
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"--parts: {unknown[0]!r} is not one of {', '.join(PARTS)}")
    options.sms = [int(number) for number in options.sms.split(",")]
    options.experts = options.experts or most_experts(options.ranks)
    options.shape = Shape(options.ranks, options.tokens, options.hidden, options.experts, options.top_k)
    options.port = gpu_peers.free_port()
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    heap = symmetric_bytes(options)
    ranks = ep_lib.spawn(main, ranks=options.ranks, backend=options.backend, args=(options,), heap_bytes=heap)
    head = {"date": date, "commit": options.commit, "machine": ranks[0]["machine"]}
    wrong = [text for result in ranks for text in result["wrong"]]
    settings = {**options.shape._asdict(), "repeats": options.repeats, "ceiling_mb": options.ceiling_mb}
    outcome = {**head, "settings": settings, "wrong": wrong, "rows": with_rates(merge([r["rows"] for r in ranks]))}
    print(show(outcome))
    if options.json is not None:
        write(options.json, outcome)
    raise SystemExit(bool(wrong))
