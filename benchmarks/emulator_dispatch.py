"""Speed and memory of dispatch on the emulator: 8 ranks x 128 tokens x 7168 BF16, top-8 of 64, 24 blocks per rank.

    python benchmarks/emulator_dispatch.py [--json] [--check] [--repeats 5] [--ranks 8] [--tokens 128] ...

Times are wall clock for all ranks together, from the first rank's call to the last one's result, best and median of
``--repeats`` after one warm-up (which compiles, if the cache is empty), and the median of CPU seconds, which other work
on the machine changes less. Memory is the peak of the whole process. What arrives is compared with the oracle before
anything is printed. Targets on 2 idle cores: 0.4 s for dispatch, 0.8 s for combine, and 500 MB. ``--check`` runs all
once more under the checker and prints how many times as long it takes; target: at most 4 times.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import ml_dtypes
import numpy as np

from ep_lib import Rank, check, spawn
from ep_lib.moe import Buffer

EXPECTED_SECONDS = {"dispatch": 0.4, "combine": 0.8}
EXPECTED_MEGABYTES = 500
EXPECTED_CHECK_FACTOR = 4


def make_input(args: argparse.Namespace, rank: int) -> tuple[Any, Any]:
    """BF16 tokens of this rank, and distinct experts for each token."""
    rng = np.random.default_rng([args.seed, rank])
    x = (rng.integers(-128, 128, (args.tokens, args.hidden), dtype=np.int16) / 16).astype(ml_dtypes.bfloat16)
    topk_idx = np.stack([rng.permutation(args.experts)[: args.top_k] for _ in range(args.tokens)]).astype(np.int64)
    return x, topk_idx


def clocks() -> Any:
    """Seconds by the wall, and of CPU time of this process, in which all ranks are."""
    return np.array([time.perf_counter(), time.process_time()])


def measure(rank: Rank, args: argparse.Namespace) -> dict[str, Any]:
    """One rank: dispatch and combine, timed between barriers."""
    x, topk_idx = make_input(args, rank.rank)
    times: dict[str, list[Any]] = {"dispatch": [], "combine": []}
    shape = {"num_experts": args.experts, "top_k": args.top_k, "hidden": args.hidden, "max_tokens": args.tokens}
    with Buffer(rank, **shape, num_sms=args.blocks) as buffer:
        for _ in range(args.repeats + 1):
            recv = out = None  # free the previous results first
            rank.barrier()
            start = clocks()
            recv = buffer.dispatch(x, topk_idx)
            rank.barrier()
            between = clocks()
            out = buffer.combine(recv.x, recv.handle)
            rank.barrier()
            times["dispatch"].append(between - start)
            times["combine"].append(clocks() - between)
        assert recv is not None and out is not None
        for source in range(rank.world_size):  # the same rows as the oracle, one source at a time to save memory
            sent, experts = make_input(args, source)
            tokens = np.flatnonzero((experts // (args.experts // rank.world_size) == rank.rank).any(axis=1))
            rows = recv.src_rank == source
            assert np.array_equal(recv.src_token[rows], tokens), f"rank {rank.rank} got other tokens from {source}"
            assert np.array_equal(recv.x[rows].view(np.uint16), sent[tokens].view(np.uint16)), "other values arrived"
    return {"times": times, "rows": recv.handle.num_recv_tokens}


def summary(results: list[dict[str, Any]]) -> dict[str, float]:
    """Best and median seconds of both operations, and median CPU seconds; a repeat ends with its last rank."""
    report = {}
    for operation in ("dispatch", "combine"):
        repeats = np.array([r["times"][operation][1:] for r in results]).max(axis=0)
        best, (median, cpu) = repeats[:, 0].min(), np.median(repeats, axis=0)
        for name, seconds in {"best": best, "median": median, "cpu": cpu}.items():
            report[f"{operation}_{name}_s"] = round(float(seconds), 4)
    return report


def measure_checked(args: argparse.Namespace) -> dict[str, float]:
    """The same under the checker. Fails if it finds anything."""
    results: list[dict[str, Any]] = []

    def body(rank: Rank) -> None:
        results.append(measure(rank, args))

    report = check(body, args.ranks, seeds=[args.seed], timeout=600)
    assert report.ok, str(report)
    return {f"checked_{name}": value for name, value in summary(results).items()}


def main() -> None:
    """Run, compare with the targets, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="measure under the checker as well")
    for name, value in {
        "ranks": 8, "tokens": 128, "hidden": 7168, "experts": 64, "top-k": 8, "blocks": 24, "repeats": 5, "seed": 0
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    args = parser.parse_args()
    results = spawn(measure, args.ranks, "emulator", args=(args,), seed=args.seed)
    report: dict[str, Any] = {**vars(args), "rows_received": sum(r["rows"] for r in results)}
    report.update(summary(results))
    report["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    report.update({f"target_{operation}_s": seconds for operation, seconds in EXPECTED_SECONDS.items()})
    report["target_peak_rss_mb"] = EXPECTED_MEGABYTES
    in_time = all(report[f"{operation}_median_s"] <= seconds for operation, seconds in EXPECTED_SECONDS.items())
    report["reached"] = in_time and report["peak_rss_mb"] < EXPECTED_MEGABYTES
    if args.check:
        report.update(measure_checked(args))
        report["check_factor"] = round(report["checked_dispatch_median_s"] / report["dispatch_median_s"], 2)
        report["checked_peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
        report["target_check_factor"] = EXPECTED_CHECK_FACTOR
    del report["json"], report["check"]
    if args.json:
        print(json.dumps(report))
        return
    print(
        f"{args.ranks} ranks x {args.tokens} tokens x {args.hidden} BF16, top-{args.top_k} of {args.experts}, "
        f"{args.blocks} blocks per rank: {report['rows_received']} rows arrived"
    )
    for operation in ("dispatch", "combine"):
        median, best, cpu = (report[f"{operation}_{name}_s"] for name in ("median", "best", "cpu"))
        print(f"  {operation:9} {median:.3f} s (best {best:.3f} s), {cpu:.3f} s of CPU time")
    print(f"  peak memory of the process {report['peak_rss_mb']:.0f} MB")
    limits = ", ".join(f"{operation} {seconds} s" for operation, seconds in EXPECTED_SECONDS.items())
    print(f"  targets: {limits}, {EXPECTED_MEGABYTES} MB: {'reached' if report['reached'] else 'MISSED'}")
    if args.check:
        print(
            f"  checked   {report['checked_dispatch_median_s']:.3f} s for dispatch, {report['check_factor']} times the "
            f"plain run (target {EXPECTED_CHECK_FACTOR}), combine {report['checked_combine_median_s']:.3f} s, peak "
            f"memory {report['checked_peak_rss_mb']:.0f} MB"
        )


if __name__ == "__main__":
    main()
