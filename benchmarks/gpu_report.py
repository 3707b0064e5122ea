"""One table and one JSON of what was measured in one run.

    python benchmarks/gpu_report.py PART.json ... [--json benchmarks/results/h200x4.json]

Each part is written by gpu_measure.py, gpu_low_latency.py or ``ep-lib bench p2p --json`` of the same run; shares are
of the best bare ceiling among them all. Exit status 1 if a part reports something wrong.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_rows import Row, ceiling, with_rates, write

COLUMNS = (
    ("us", "us", "{:.2f}"),
    ("us_low", "p10", "{:.1f}"),
    ("us_high", "p90", "{:.1f}"),
    ("call_us", "call us", "{:.0f}"),
    ("logical_gb_s", "logical GB/s", "{:.0f}"),
    ("wire_gb_s", "wire GB/s", "{:.0f}"),
    ("gbytes_per_s", "one way GB/s", "{:.1f}"),
    ("sms", "SMs", "{}"),
    ("share", "share", "{:.0%}"),
)


def combined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The parts as one report: the first one's head, all rows, everything that was wrong."""
    head = {key: parts[0][key] for key in ("date", "commit", "machine", "settings") if key in parts[0]}
    rows = [row for part in parts for row in rows_of(part)]
    wrong = [text for part in parts for text in part.get("wrong", [])]
    missing = {name: why for part in parts for name, why in part.get("not_measured", {}).items()}
    return {**head, "wrong": wrong, "not_measured": missing, "rows": with_rates(rows)}


def read(path: Path) -> dict[str, Any]:
    """A part; one that was not written completely has no rows and counts as wrong."""
    try:
        part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return {"rows": [], "wrong": [f"{path} is not a whole JSON file: {error}"]}
    return part


def rows_of(part: dict[str, Any]) -> list[Row]:
    """A part's rows; those of ``ep-lib bench p2p --json`` become rows of group "transport"."""
    return list(part["rows"]) if "rows" in part else [_transport(result) for result in part["results"]]


def _transport(result: dict[str, Any]) -> Row:
    """``us`` is a round trip; copies and bare stores go one way only, and belong to no transport."""
    kept = {key: result[key] for key in ("transport", "how", "bytes", "us_one_way", "gbytes_per_s")}
    if result["us"] is None:
        kept |= {"group": "transport", "by": result["how"], "what": "one way", "us": result["us_one_way"]}
        return kept
    spread = {key: result[key] for key in ("us", "us_low", "us_high")}
    return {"group": "transport", "by": result["transport"], "what": result["how"], **spread, **kept}


def title(row: Row) -> str:
    """What a row measured, in words."""
    words = [row["by"], row["dtype"].upper() if "dtype" in row else "", row["what"]]
    if row.get("routing", "random") != "random":
        words.append(f"{row['routing']} routing")
    if "tokens" in row:
        words.append(f"{row['tokens']} token{'s' * (row['tokens'] != 1)}")
    if "bytes" in row:
        words.append(f"{row['bytes']} B")
    return " ".join(word for word in words if word) + (f" ({row['note']})" if row.get("note") else "")


def show(report: dict[str, Any]) -> str:
    """The table as text, group by group."""
    rows = report["rows"]
    width = max([len(title(row)) for row in rows], default=10)
    machine, settings = report.get("machine", {}), report.get("settings", {})
    gpu, ranks = machine.get("gpu", "no GPU"), settings.get("ranks", "?")
    lines = [f"{ranks} x {gpu}; us: median of the slowest rank; GB/s = 1e9 bytes per second and rank; ceiling: "]
    lines[0] += f"stores {ceiling(rows, 'stores'):.0f}, loads {ceiling(rows, 'loads'):.0f} GB/s"
    for group in dict.fromkeys(row["group"] for row in rows):
        lines += ["", group, " " * width + "".join(f"{heading:>13}" for _, heading, _ in COLUMNS)]
        for row in rows:
            if row["group"] == group:
                cells = [form.format(row[key]) if row.get(key) is not None else "-" for key, _, form in COLUMNS]
                late = f"  {row['launched_late']} late: too long" if row.get("launched_late") else ""
                lines.append(f"{title(row):{width}}" + "".join(f"{cell:>13}" for cell in cells) + late)
    lines += [f"not measured: {name}: {why}" for name, why in report.get("not_measured", {}).items()]
    lines += [f"WRONG {text}" for text in report["wrong"]]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, nargs="+", metavar="PART.json")
    parser.add_argument("--json", type=Path, help="write the whole report to this file")
    options = parser.parse_args()
    whole = combined([read(path) for path in options.parts])
    print(show(whole))
    if options.json is not None:
        write(options.json, whole)
    raise SystemExit(bool(whole["wrong"]))
