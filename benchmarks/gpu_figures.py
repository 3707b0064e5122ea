"""The pictures of a GPU run: roofline, shares of the ceiling, GB/s by SMs, transports.

    python benchmarks/gpu_figures.py benchmarks/results/h200x4.json [--to build/gpu]

Pictures for which the report has no rows are left out, with a message.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ep_lib import errors, viz


def draw(report: dict[str, Any], folder: Path) -> list[str]:
    """Writes the pictures; returns a line for each, with its path or why it is left out."""
    settings = report["settings"]
    where = f"{settings['ranks']} x {report['machine']['gpu']}"
    size = f"{settings['tokens']} tokens per rank x {settings['hidden']}, top-{settings['top_k']}"
    messages = [row for row in report["rows"] if row["group"] == "transport"]
    pictures = {
        "roofline": lambda: viz.roofline(report, title=f"{where}: how far from the roof"),
        "shares": lambda: viz.shares_of_ceiling(report),
        "sms": lambda: viz.bandwidth_by_sms(report, title=f"{where}, {size}"),
        "transports": lambda: viz.transports_compared(messages, title=f"Two of {where}"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, picture in pictures.items():
        path = folder / f"{name}.png"
        try:
            picture().savefig(path)
            lines.append(str(path))
        except errors.ArgumentError as error:
            lines.append(f"{name}: left out, {error}")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, metavar="TABLE.json")
    parser.add_argument("--to", type=Path, default=Path("build/gpu"), help="folder, default build/gpu")
    options = parser.parse_args()
    print("\n".join(draw(json.loads(options.report.read_text(encoding="utf-8")), options.to)))
