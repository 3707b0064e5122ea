"""Does the virtual clock put operations into the order in which GPUs do? Buffer's, on the clock and as measured.

Each measured row of a results file that the emulator can run (dispatch and combine in BF16 and FP8, by SMs, with a
cached handle) is run on the virtual clock with rows a fraction as long, on hardware on which each byte counts as much
more (Hardware.scaled). Prints both times, and in how many pairs of rows the order is the same.

    python benchmarks/clock_order.py [benchmarks/results/h200x4.json] [--out FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ep_lib

RANKS, EXPERTS, TOP_K, HIDDEN = 4, 256, 8, 7168
SCALE = 14  # 7168 / 512 numbers of a row
MOST_TOKENS = 512  # of 4096: what an operation costs beside its bytes then weighs eight times as much
CLOSE = 0.03  # pairs whose measured times are nearer to each other have no order


def measured(path: Path) -> list[dict[str, Any]]:
    rows = json.loads(path.read_text("utf-8"))["rows"]
    wanted = {("dispatch", "cached handle"), ("combine", None), ("combine", "from combine_input")}
    return [
        row
        for row in rows
        if row["group"] == "normal"
        and row["by"] == "ep_lib"
        and row["routing"] == "random"
        and (row["what"], row.get("note")) in wanted
        and row["tokens"] > 1
    ]


def on_the_clock(what: str, dtype: str, sms: int, tokens: int, in_place: bool) -> float:
    """Microseconds of one operation with a cached handle, from its first kernel's start to its last one's end."""

    def main(rank: ep_lib.Rank) -> None:
        rng = np.random.default_rng(rank.rank)
        idx = np.argsort(rng.random((tokens, EXPERTS)), axis=1)[:, :TOP_K].copy()
        hidden = HIDDEN // SCALE
        shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": hidden, "max_tokens": tokens, "num_sms": sms}
        rows: Any = np.zeros((tokens, hidden), ml_dtypes.bfloat16)
        if dtype == "fp8":
            rows = rows.astype(ml_dtypes.float8_e4m3fn), np.ones((tokens, hidden // 128), np.float32)
        with ep_lib.Buffer(rank, **shape, dtype="bfloat16") as buffer:
            received = buffer.dispatch(rows, idx)
            if what == "dispatch":
                rank.barrier()
                buffer.dispatch(rows, handle=received.handle)
            else:
                y = buffer.combine_input(received.handle, rows) if in_place else received.x.copy()
                rank.barrier()
                buffer.combine(y, received.handle)
            rank.barrier()

    hardware = ep_lib.HARDWARE["h100-cx7"].scaled(SCALE)
    run = ep_lib.simulate(main, RANKS, None, hardware, heap_bytes=1 << 30)
    names = {"dispatch": "dispatch_bulk", "combine": "combine_p"}
    spans = [span for span in run.spans if span.kind == "kernel" and names[what] in span.name]
    last = max(span.begin_ns for span in spans)
    # Of two dispatches the second: its blocks begin together, long after the first's.
    begin = min(span.begin_ns for span in spans if last - span.begin_ns < 2000)
    return (max(span.end_ns for span in spans) - begin) / 1000


def compare(path: Path) -> dict[str, Any]:
    rows = []
    for row in measured(path):
        in_place = row.get("note") == "from combine_input"
        tokens = min(MOST_TOKENS, row["tokens"])
        us = on_the_clock(row["what"], row["dtype"], row["sms"], tokens, in_place) * row["tokens"] / tokens
        name = f"{row['dtype']} {row['what']}{', rows in place' if in_place else ''}, {row['sms']} SMs"
        rows.append({"what": name, "measured_us": row["us"], "clock_us": round(us, 1)})
        print(f"{name:42} measured {row['us']:7.1f} us, clock {us:7.1f} us", flush=True)
    pairs = [
        (a, b)
        for a, b in itertools.combinations(rows, 2)
        if abs(a["measured_us"] - b["measured_us"]) > CLOSE * min(a["measured_us"], b["measured_us"])
    ]
    same = sum((a["measured_us"] < b["measured_us"]) == (a["clock_us"] < b["clock_us"]) for a, b in pairs)
    print(f"{same} of {len(pairs)} pairs that differ by more than {CLOSE:.0%} are in the same order")
    return {"of": path.name, "hardware": "h100-cx7", "scale": SCALE, "rows": rows, "pairs": len(pairs), "same": same}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=Path(__file__).parent / "results" / "h200x4.json")
    parser.add_argument("--out", type=Path, help="also write the comparison as JSON")
    options = parser.parse_args()
    report = compare(options.results)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
