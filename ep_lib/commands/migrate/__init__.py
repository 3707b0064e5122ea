"""``ep-lib migrate FILE.cu``: what a kernel written for IBGDA needs on EFA, line by line.

Exit codes: 0 nothing in the file must change; 1 something must (or the file cannot be read); 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from ep_lib.commands.migrate import rules
from ep_lib.commands.migrate.rules import Migration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.cu", type=Path, help="CUDA source that uses IBGDA's functions")
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")
    parser.epilog = (
        "Exit codes: 0 nothing in the file must change; 1 something is wrong or slow on EFA; 2 wrong usage. What only "
        "needs a look, and this host's environment, do not count. It reads the file and compiles nothing."
    )


def run(args: argparse.Namespace) -> int:
    result = rules.migrate_file(args.file, os.environ)
    print(_as_json(result) if args.json else _as_text(result))
    return 1 if result.must_change else 0


def _as_json(result: Migration) -> str:
    return json.dumps({**asdict(result), "must_change": result.must_change}, indent=2)


def _as_text(result: Migration) -> str:
    if not result.uses_ibgda:
        return f"{result.file}: no IBGDA or NVSHMEM put in it, nothing to migrate."
    lines = []
    for f in result.findings:
        place = result.file if f.line is not None else "this host"
        lines.append(f"{f.severity:>5}  {place}{f':{f.line}' if f.line is not None else ''}: {f.message}")
        if f.source:
            lines.append(f"       |  {f.source}")
        lines.append(f"       -> {f.remedy}")
    lines += ["", "Checklist, IBGDA to EFA:"] if lines else ["Checklist, IBGDA to EFA:"]
    for item in result.checklist:
        lines.append(f"{item.step:>8}  {item.text}{f': {item.how}' if item.how else ''}")
    changes = sum(f.severity in ("wrong", "slow") for f in result.findings)
    last = f"{changes} to change in the file." if changes else "Nothing in the file must change."
    return "\n".join([*lines, "", last])
