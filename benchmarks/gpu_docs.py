"""Tables in the documents, made from the JSON of a GPU run, so that no figure is typed by hand.

    python benchmarks/gpu_docs.py [--check]

Between `<!-- table: NAME -->` and `<!-- end of table -->` of docs/performance.md and benchmarks/README.md it puts the
table NAME of benchmarks/results/h200x4.json (`h200x2` for tables whose name ends in " 2"). --check changes nothing and
exits with 1 if a document differs from its JSON; tests/test_gpu_docs.py does the same.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gpu_rows import Row, ceiling

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "README.md")
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
IN_PLACE = "from combine_input"
OURS = (
    ("dispatch", "fp8", "cached handle"),
    ("dispatch", "bf16", "cached handle"),
    ("combine", "bf16", None),
    ("combine", "bf16", IN_PLACE),
)
# DeepEP V1 (commit 567632d, 24 SMs, best tuning, cached handle; low latency: 128 tokens), measured on GPUs of this kind
# in another run, with its own benchmark.
DEEPEP = {
    4: {"normal": {("dispatch", "fp8"): 427, ("dispatch", "bf16"): 809, ("combine", "bf16"): 588}},
    2: {"normal": {("dispatch", "fp8"): 245, ("dispatch", "bf16"): 347, ("combine", "bf16"): 419}},
}
DEEPEP[4]["low latency"] = {("dispatch", "fp8"): 34, ("combine", "bf16"): 56}
ONCE, PER_EXPERT = "all_to_all_vdev_2d, a token once a rank", "all_to_all_vdev_2d, 16 groups of experts a rank"


def find(report: dict[str, Any], **wanted: Any) -> list[Row]:
    """The rows that have all of these values."""
    return [row for row in report["rows"] if all(row.get(key) == value for key, value in wanted.items())]


def best(rows: Iterable[Row]) -> Row | None:
    """The fastest row."""
    return min(rows, key=lambda row: float(row["us"]), default=None)


def us(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{row['us']:.0f}" if row["us"] >= 100 else f"{row['us']:.1f}"


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def machine(report: dict[str, Any]) -> str:
    m, settings = report["machine"], report["settings"]
    return (
        f"{settings['ranks']} x {m['gpu']} of one host, driver {m['driver']}, CUDA {m['CUDA of torch']}, "
        f"torch {m['torch']}, NCCL {m['NCCL']},\nCuPy {m['CuPy']}, NVRTC {m['NVRTC'].split(' ')[0]}; "
        f"commit {report['commit']}, {report['date'][:10]}. {settings['tokens']} tokens per rank x "
        f"{settings['hidden']}, top-{settings['top_k']} of {settings['experts']} experts.\n"
    )


def ceilings(report: dict[str, Any]) -> str:
    bare = find(report, group="ceiling", by="kernel")
    numbers = sorted({row["sms"] for row in bare})

    def cells(what: str) -> list[str]:
        each = [max((r["wire_gb_s"] for r in bare if (r["what"], r["sms"]) == (what, n)), default=0) for n in numbers]
        return [f"{rate:.0f}" for rate in each]

    lines = [["stores", *cells("stores")], ["loads", *cells("loads")]]
    engine = max((row["wire_gb_s"] for row in find(report, group="ceiling", by="copy engine")), default=0)
    return markdown(["GB/s", *[f"{number} SMs" for number in numbers]], lines) + (
        f"\nThe copy engines, without any SM: {engine:.0f} GB/s.\n"
    )


def operations(report: dict[str, Any]) -> str:
    """The three operations: floor, ours by SMs, and peers of the same run."""
    tokens, top = report["settings"]["tokens"], ceiling(report["rows"])
    sms = sorted({row["sms"] for row in find(report, group="normal", tokens=tokens)})
    deepep = DEEPEP.get(report["settings"]["ranks"], {}).get("normal", {})
    lines = []
    for what, dtype, note in OURS:
        same = {"what": what, "dtype": dtype, "tokens": tokens, "routing": "random"}
        ours = [best(find(report, group="normal", by="ep_lib", sms=number, note=note, **same)) for number in sms]
        if note == IN_PLACE and not any(ours):
            continue
        row = next(iter(find(report, group="normal", **same)), None)
        floor = f"{row['wire_bytes'] / top / 1e3:.0f}" if row and top else "-"
        peers = [best(find(report, group="peer", by="NCCL", **same))]
        peers += [best(find(report, group="peer", note=peer, **same)) for peer in (ONCE, PER_EXPERT)]
        cells = [*map(us, ours), *map(us, peers), str(deepep.get((what, dtype), "-"))]
        name = f"{dtype.upper()} {what}" + (", rows in the Buffer's memory" if note == IN_PLACE else "")
        lines.append([name, floor, *cells])
    heads = ["us", "floor", *[f"{number} SMs" for number in sms]]
    return markdown([*heads, "NCCL", "torch, once per rank", "torch, by expert", "DeepEP V1 *"], lines)


def cases(report: dict[str, Any]) -> str:
    """Everything of the normal mode that was measured with 24 SMs."""
    lines = []
    for row in find(report, group="normal", sms=24):
        words = [row["dtype"].upper(), row["what"] + ("," if row.get("note") else ""), row.get("note", "")]
        if row["routing"] != "random":
            words.append(f"({row['routing']} routing)")
        if row["tokens"] != report["settings"]["tokens"]:
            words.append(f"({row['tokens']} token{'s' * (row['tokens'] != 1)} per rank)")
        rates = [f"{row[key]:.0f}" if key in row else "-" for key in ("logical_gb_s", "wire_gb_s")]
        share = f"{row['share']:.0%}" if "share" in row else "-"
        call = f"{row['call_us']:.0f}" if "call_us" in row else "-"
        lines.append([" ".join(word for word in words if word), us(row), *rates, share, call])
    return markdown(["with 24 SMs", "us", "logical GB/s", "wire GB/s", "of the ceiling", "whole call, us"], lines)


def low_latency(report: dict[str, Any]) -> str:
    rows = find(report, group="low latency")
    kinds = list(dict.fromkeys((row["what"], row.get("dtype"), row.get("note")) for row in rows))
    numbers = sorted({row["tokens"] for row in rows if "tokens" in row})
    deepep = DEEPEP.get(report["settings"]["ranks"], {}).get("low latency", {})
    lines = []
    for what, dtype, note in kinds:
        cells = [
            us(best(find(report, group="low latency", what=what, dtype=dtype, note=note, tokens=n))) for n in numbers
        ]
        name = " ".join(word for word in ((dtype or "").upper(), what) if word) + (f", {note}" if note else "")
        lines.append([name, *cells, str(deepep.get((what, dtype), "-"))])
    heads = [f"{number} token{'s' * (number != 1)}" for number in numbers]
    return markdown(["us", *heads, "DeepEP V1 *, 128 tokens"], lines)


def transports(report: dict[str, Any]) -> str:
    rows = find(report, group="transport")
    ways = list(dict.fromkeys((row["by"], row["what"]) for row in rows))
    sizes = sorted({row["bytes"] for row in rows})
    lines = []
    for size in sizes:
        found = [best(find(report, group="transport", by=by, what=what, bytes=size)) for by, what in ways]
        lines.append([_bytes(size), *map(_latency, found)])
    return markdown(["bytes", *[f"{by}, {what}" for by, what in ways]], lines)


def metrics(report: dict[str, Any]) -> str:
    """One dispatch, counted in three ways."""
    settings = report["settings"]
    row = best(find(report, group="normal", what="dispatch", dtype="bf16", tokens=settings["tokens"], sms=24,
                    routing="random"))  # fmt: skip
    if row is None:
        return "-\n"
    copies = settings["tokens"] * settings["top_k"] * settings["hidden"] * 2
    counted = [
        ("bytes that left the GPU", row["wire_bytes"]),
        ("rows sent, also to the own rank", row["logical_bytes"]),
    ]
    counted.append(("a row for each of a token's experts", copies))
    lines = [[name, f"{size / 1e6:.0f} MB", f"{size / row['us'] / 1e3:.0f}"] for name, size in counted]
    return markdown([f"one BF16 dispatch of {us(row)} us, counted as", "bytes", "GB/s"], lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "machine": machine,
    "ceilings": ceilings,
    "operations": operations,
    "cases": cases,
    "low latency": low_latency,
    "transports": transports,
    "metrics": metrics,
}


def _bytes(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def _latency(row: Row | None) -> str:
    if row is None:
        return "-"
    rate = f" ({row['gbytes_per_s']:.0f} GB/s)" if (row.get("gbytes_per_s") or 0) >= 1 else ""
    return f"{row['us']:.2f}{rate}" if row["us"] < 100 else f"{row['us']:.0f}{rate}"


def filled(text: str, results: Path = RESULTS) -> str:
    """A document's text with new tables. Raises KeyError for a table that is not in TABLES."""

    def fill(match: re.Match[str]) -> str:
        name, ranks = match[2], 4
        if name.endswith(" 2"):
            name, ranks = name.removesuffix(" 2"), 2
        report = json.loads((results / f"h200x{ranks}.json").read_text(encoding="utf-8"))
        return match[1] + TABLES[name](report) + match[3]

    return BLOCK.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    status = 0
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        new = filled(text)
        if options.check and new != text:
            print(f"{path.relative_to(ROOT)} differs from its JSON: run python benchmarks/gpu_docs.py")
            status = 1
        elif not options.check:
            path.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
