"""The tables of docs/checker.md: of what was proved, made from benchmarks/results/prove.json, and of the kernels in no
row of it, from prove_cases.py.

    python benchmarks/prove_docs.py [--check]

They go between `<!-- table: proved -->` or `<!-- table: in no row -->` and `<!-- end of table -->`. --check changes
nothing and exits with 1 if the document differs from the JSON, which prove.py wrote; `make lint` does the same.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from prove_cases import CASES, NOT_PROVED

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT, RESULTS = ROOT / "docs" / "checker.md", ROOT / "benchmarks" / "results" / "prove.json"
BLOCK = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
HEAD = "| kernel | what it does here | fabric | one memory for all | PTX's memory | the mistake was found in schedule |"


def is_proved(row: dict[str, Any]) -> bool:
    """Whether every schedule was made, but for those of other kernels where one was chosen."""
    return row["share"] is None and row["preemptions"] is None and not row["turns"] and not row["cut"]


def told(row: dict[str, Any]) -> str:
    """What was covered, in a cell."""
    count = f"{row['schedules']:,}"
    if row["preemptions"] is not None:
        text = f"at most {row['preemptions']} preemption{'s' * (row['preemptions'] != 1)}: {count}"
    elif row["share"] is not None:
        text = f"not proved: {count} tried"
    else:
        text = f"**all {count}**" if is_proved(row) else f"all {count}"
    if row["turns"]:
        text += ", bound on turns"
    if row["cut"]:
        text += f", {row['cut']:,} cut off"
    return f"{text} †" if row["one_kernel"] else text


def table(known: dict[str, Any]) -> str:
    """The whole table, in Markdown."""
    by_case: dict[str, list[dict[str, Any]]] = {}
    for row in known["rows"]:
        by_case.setdefault(row["case"], []).append(row)
    lines = [HEAD, "| --- " * HEAD.count(" | ") + "| --- |"]
    for case in CASES:
        rows = by_case.get(case.name, [])
        cells = {(row["fabric"], row["memory"]): told(row) for row in rows if "fabric" in row}
        mistakes = [f"{row['schedules']:,}: {', '.join(row['mistake'])}" for row in rows if row.get("mistake")]
        fabrics: dict[tuple[str, str], list[str]] = {}
        for fabric in case.fabrics:
            both = cells.get((fabric, "sc"), "-"), cells.get((fabric, "ptx"), "-")
            fabrics.setdefault(both, []).append(fabric)
        name, what, found = f"`{case.name}`", case.what, mistakes[0] if mistakes else "-"
        for (one, ptx), where in fabrics.items():
            lines.append(f"| {name} | {what} | {', '.join(where)} | {one} | {ptx} | {found} |")
            name = what = found = ""
    return "\n".join(lines) + "\n"


def in_no_row() -> str:
    """The table of kernels that no case has, and why."""
    lines = [f"| `{what}` | {why} |" for what, why in NOT_PROVED.items()]
    return "\n".join(["| kernels | why |", "| --- | --- |", *lines]) + "\n"


def filled(document: str) -> str:
    """The document with its tables."""
    tables = {"proved": table(json.loads(RESULTS.read_text())), "in no row": in_no_row()}
    places = sorted(block[2] for block in BLOCK.finditer(document))
    assert places == sorted(tables), f"{DOCUMENT.name} has places for these tables: {places}"
    return BLOCK.sub(lambda block: block[1] + tables[block[2]] + block[3], document)


def main() -> int:
    """Writes the table, or compares it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if it differs")
    args = parser.parse_args()
    old = DOCUMENT.read_text()
    new = filled(old)
    if args.check:
        return 1 if old != new else 0
    DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
