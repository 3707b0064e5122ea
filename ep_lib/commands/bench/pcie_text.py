"""What ``ep-lib bench pcie`` prints for people: a table, and what its columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TOLERANCE = 0.15
_UNEVEN = 0.05  # of an operation's time, between the first rank that has received all and the last


def table(report: dict[str, Any]) -> str:
    """``report``: the JSON object of the benchmark."""
    setting = report["settings"][0]
    lines = [
        f"PCIe mode, everything through the NIC, {setting['tokens']} tokens a rank, hidden 7168, top-8 of 256 experts, "
        f"fabric {setting['fabric']}, hardware {setting['hardware']}:",
        "",
        "  ranks  operation     SMs          published   model   ratio      wire  of the line       us",
        "                                         GB/s    GB/s              GB/s         rate",
    ]
    for row in report["rows"]:
        published, ratio = row["published_gbps"], row["ratio"]
        mark = "" if ratio is None or abs(ratio - 1) <= TOLERANCE else f"  off by more than {TOLERANCE:.0%}"
        sms = f"{row['num_sms']} merged" if row["merge_sender_receiver"] else f"{row['num_sms']}"
        lines.append(
            f"  {row['ranks']:>5}  {row['what']:<12}  {sms:<11}  {_or_dash(published, '9.2f', 9)}  "
            f"{row['logical_gbps']:>6.2f}  {_or_dash(ratio, '6.3f', 6)}  {row['wire_gbps']:>8.2f}  "
            f"{row['wire_gbps'] / row['line_gbps']:>11.1%}  {row['us']:>7,.0f}{mark}"
        )
    return "\n".join([*lines, "", *_explain(report), _cost(report)])


def _explain(report: dict[str, Any]) -> list[str]:
    rows, first, nic = report["rows"], report["settings"][0], report["hardware"]["nic"]
    by_ranks = {row["ranks"]: row for row in reversed(rows) if row["what"] == rows[0]["what"]}
    once = [by_ranks[ranks] for ranks in sorted(by_ranks)]
    visits = ", ".join(f"{row['rows_per_token']:.2f} at EP{row['ranks']}" for row in once)
    sums = "; ".join(
        f"EP{row['ranks']}: {row['logical_gbps']:.2f} x {row['leaving_share']:.1%} x {1 + row['wire_overhead']:.3f} = "
        f"{row['wire_gbps']:.2f}"
        for row in once
    )
    scaled = (
        f"Rows of {first['hidden']} elements instead of 7168, on hardware where each byte counts {first['scale']} "
        "times: the virtual time is that of the full rows."
    )
    return [
        "Logical GB/s (published and model): rows x bytes a row / time, as DeepEP counts: a row once for each rank "
        f"that its token goes to ({visits} rows a token), the sender's own rank included.",
        "Wire GB/s: what a NIC sends. Rows for the own rank never reach it; headers of packets, signals and credits "
        f"do. So logical x share that leaves x overhead = wire ({rows[0]['what']}): {sums}.",
        f"Line rate: {nic['gbytes_per_s']:g} GB/s ({nic['name']}). It bounds the wire. With N ranks, (N - 1) / N of "
        "the rows cross it, so the logical speed may pass the line rate, and nears it with more ranks.",
        *_uneven(rows),
        *([scaled] if first["scale"] > 1 else []),
        f"Published with 4096 tokens and 24 SMs; this run has {first['tokens']} tokens. No number of the model was "
        "fitted to the table; --json prints each with its source.",
    ]


def _uneven(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows of which ranks were out of step at the end."""
    late = []
    for row in rows:
        if row["last_rank_us"] - row["first_rank_us"] > _UNEVEN * row["us"]:
            merged = " merged" if row["merge_sender_receiver"] else ""
            when = f"{row['first_rank_us']:,.0f} to {row['last_rank_us']:,.0f} us"
            late.append(f"EP{row['ranks']} {row['what']}{merged} {when}")
    if not late:
        return []
    return [f"Ranks that received their last row far apart, while other NICs stood idle: {', '.join(late)}."]


def _cost(report: dict[str, Any]) -> str:
    return (
        f"This took {report['seconds_in_all']:.0f} s ({sum(report['cpu_seconds']):.0f} s of cores) and at most "
        f"{report['peak_memory_mb']} MB of memory a process."
    )


def _or_dash(value: float | None, form: str, width: int) -> str:
    return f"{'-':>{width}}" if value is None else format(value, form)
