"""The tables that ``ep-lib bench p2p`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ep_lib.commands.bench.p2p_gpu import COPY, PACKETS, STORES, WRITE

_WIDTH = 13


def of_fabrics(rows: Sequence[Mapping[str, Any]], note: str) -> str:
    """Emulated ranks: a line a fabric and size."""
    lines = ["There and back, data with its signal, one thread at each end:"]
    lines.append(f"  {'network':>13}  {'bytes':>9}  {'cycles':>12}  {'us':>9}")
    for row in rows:
        us = "-" if row["clock"] == "virtual" else f"{row['us']:.2f}"
        lines.append(f"  {row['fabric']:>13}  {row['bytes']:>9}  {row['cycles']:>12,.1f}  {us:>9}")
    return "\n".join([*lines, *([note] if note else [])])


def of_gpus(rows: Sequence[Mapping[str, Any]], missing: Mapping[str, str]) -> str:
    """A line a size; for each transport a round trip in microseconds, and one way in GB/s."""
    cells = {(row["transport"], row["how"], row["bytes"]): row for row in rows if row["how"] not in (COPY, STORES)}
    ways = list(dict.fromkeys((transport, how) for transport, how, _ in cells))
    copies = {row["bytes"]: row for row in rows if row["how"] == COPY}
    names = [transport if how == WRITE else how for transport, how in ways]
    rates = [way for way in ways if way[1] == WRITE]
    lines = [
        "A message there and its answer back, both with a signal, between two GPUs: us of the round trip, and",
        "GB/s (10^9) of one way; the copy engine's copies follow one another, with no signal and no answer.",
        "",
        _line("bytes", [*(f"{name} us" for name in names), *(f"{name} GB/s" for name, _ in rates), "copies GB/s"]),
    ]
    for size in sorted({size for _, _, size in cells}):
        us = (_number(cells.get((*way, size)), "us") for way in ways)
        gbytes = (_number(cells.get((*way, size)), "gbytes_per_s") for way in rates)
        lines.append(_line(_size(size), [*us, *gbytes, _number(copies.get(size), "gbytes_per_s")]))
    for row in rows:
        if row["how"] == STORES:
            lines += [
                "",
                f"The ceiling: bare stores of {row['blocks']} blocks, one way: {row['gbytes_per_s']:.1f} GB/s",
            ]
    if any(how == PACKETS for _, how in ways):
        lines.append(
            "Packets: 8 bytes of data and their signal in one 16-byte store (<ep/packet.cuh>); good lines: into"
        )
        lines.append("those lines of L2, of 64 at each end, that make the round trip shortest.")
    lines += [f"Not measured: {name}: {reason}" for name, reason in missing.items()]
    return "\n".join(lines)


def _line(first: str, others: Iterable[str]) -> str:
    return f"{first:>7}" + "".join(f"  {text:>{max(_WIDTH, len(text))}}" for text in others)


def _number(row: Mapping[str, Any] | None, key: str) -> str:
    if row is None or row[key] is None:
        return "-"
    value = row[key]
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _size(size: int) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)
