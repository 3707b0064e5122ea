"""Rows of the table: measured on every rank, merged over the ranks, kept as JSON.

A row is a dict. Its name: ``group`` ("ceiling", "normal", "low latency", "peer", "compare", "vary" or "transport"),
``by`` (whose code), ``what``, and if they apply ``dtype``, ``tokens``, ``hidden``, ``sms``, ``routing``, ``note`` and
``outputs``. Its figures: ``us`` (the median over the repeats of the slowest rank), ``us_low`` and ``us_high`` (10th and
90th percentile), and a rank's mean ``logical_bytes`` (all that it sends: rows with their scales, also those to itself)
and ``wire_bytes`` (those that leave its GPU). ``pace``: how many times as slow the host was, where it was.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gpu_clock import spread

import ep_lib

Row = dict[str, Any]
NAME = ("group", "by", "what", "dtype", "tokens", "hidden", "sms", "routing", "note", "outputs", "bytes")


class Rows:
    """One rank's part of the rows."""

    def __init__(self, rank: ep_lib.Rank, watch: Any, repeats: int) -> None:
        self.rank, self.watch, self.repeats = rank, watch, repeats
        self.rows: list[Row] = []
        self.wrong: list[str] = []  # what a check found; the measurements go on

    def time(self, operations: Sequence[Callable[[], Any]], *, waits: bool = False, **row: Any) -> Row:
        """Collective: times ``operations`` in turn, so that no repeat finds its data in the L2 cache; adds ``row``.

        ``waits``: the host waits for the GPU inside the operation, so that it cannot queue all of it beforehand.
        """
        turns, late = itertools.cycle(operations), self.watch.late
        timed = self.watch.microseconds(lambda: self.watch.time("us", next(turns)), self.repeats)
        row["samples"] = [sum(times.values()) for times in timed]
        row["late"] = 0 if waits else self.watch.late - late
        self.rows.append(row)
        return row

    def check(self, right: bool, what: str) -> None:
        """Records that ``what`` is wrong, unless it is right."""
        if not right:
            self.wrong.append(f"rank {self.rank.rank}: {what}")


def merge(ranks: Sequence[Sequence[Row]]) -> list[Row]:
    """Merges ``ranks[r][i]``, row i of rank r with its samples, into one row per i."""
    merged = []
    for parts in zip(*ranks, strict=True):
        row = {key: parts[0][key] for key in NAME if parts[0].get(key) is not None}
        if any(part.get(key) != parts[0].get(key) for part in parts for key in NAME):
            raise ValueError(f"the ranks measured different things in one row: {row}")
        row["us"], row["us_low"], row["us_high"] = (round(us, 3) for us in spread([part["samples"] for part in parts]))
        if divide := parts[0].get("divide"):  # rounds per sample
            row.update({key: round(row[key] / divide, 3) for key in ("us", "us_low", "us_high")})
        for key in ("logical_bytes", "wire_bytes", "call_us"):
            if key in parts[0]:
                row[key] = round(statistics.mean(part[key] for part in parts))
        if late := sum(part["late"] for part in parts):
            row["launched_late"] = late
        if "pace" in parts[0]:
            row["pace"] = round(parts[0]["pace"], 2)
        merged.append(row)
    return merged


def name_of(row: Row) -> tuple[Any, ...]:
    """What distinguishes a row from others."""
    return tuple(row.get(key) for key in NAME)


def with_rates(rows: Iterable[Row]) -> list[Row]:
    """The rows with GB/s (1e9 bytes per second and rank) and ``share``: wire GB/s relative to the best ceiling.

    Dispatches and combines are compared with the best of all bare ceilings, stores or loads.
    """
    found = [dict(row) for row in rows]
    for row in found:
        for kind in ("logical", "wire"):
            if f"{kind}_bytes" in row:
                row[f"{kind}_gb_s"] = round(row[f"{kind}_bytes"] / row["us"] / 1e3, 1)
    best = ceiling(found)
    for row in found:
        if best and "wire_gb_s" in row and row["group"] != "transport":
            row["share"] = round(row["wire_gb_s"] / best, 3)
    return found


def ceiling(rows: Iterable[Row], what: str = "") -> float:
    """The best GB/s of the bare ceilings by kernels, all or those of ``what``; 0 if there is none."""
    bare = [row for row in rows if row["group"] == "ceiling" and row["by"] == "kernel" and what in row["what"]]
    return max((row["wire_gb_s"] for row in bare), default=0.0)


def write(path: Path, report: dict[str, Any]) -> None:
    """Writes a report with one line per row, so that a diff of two reports is readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {key: value for key, value in report.items() if key != "rows"}
    lines = ",\n".join("  " + json.dumps(row) for row in report["rows"])
    text = json.dumps(head, indent=1).removesuffix("\n}")
    path.write_text(f'{text},\n "rows": [\n{lines}\n ]\n}}\n')
