"""Tables in the documents, made from the JSON of a GPU run, so that no figure is typed by hand.

    python benchmarks/gpu_docs.py [--check]

Between `<!-- table: NAME -->` and `<!-- end of table -->` of docs/performance.md and benchmarks/README.md it puts the
table NAME of benchmarks/results/h200x4.json, or of what gpu_compare.py wrote: h200x2-compare.json, if NAME begins with
"compared", and h200x2-by-expert.json, if with "grouped"; of what gpu_vary.py wrote: h200x2-vary.json, if with "varied"
(without one of these files its tables are empty). A number behind NAME is that of the GPUs, so "machine 2" comes from
h200x2.json. --check changes nothing and exits with 1 if a document differs from its JSON;
`make lint` does the same.
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
KEPT = {  # by the first word of a table's name
    "compared": "h200x2-compare.json",
    "grouped": "h200x2-by-expert.json",
    "varied": "h200x2-vary.json",
}
VIEWS = (  # what, dtype, note, title: timed with several numbers of SMs
    ("dispatch", "fp8", "cached handle", "FP8 dispatch, left where it arrived"),
    ("dispatch", "bf16", "cached handle", "BF16 dispatch, left where it arrived"),
    ("combine", "bf16", None, "BF16 combine"),
    ("combine", "bf16", IN_PLACE, "BF16 combine, rows in the Buffer's memory"),
)
OWNED = (
    ("dispatch", "fp8", "cached handle, copied out"),
    ("dispatch", "bf16", "cached handle, copied out"),
    ("combine", "bf16", None),
)
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


def _floor(report: dict[str, Any], what: str, dtype: str) -> str:
    """The time in which the ceiling carries what must cross."""
    top, tokens = ceiling(report["rows"]), report["settings"]["tokens"]
    found = find(report, group="normal", what=what, dtype=dtype, tokens=tokens, routing="random")
    return f"{found[0]['wire_bytes'] / top / 1e3:.0f}" if found and top else "-"


def operations(report: dict[str, Any]) -> str:
    """Results that the caller owns, with 24 SMs, beside the peers of the same run."""
    lines = []
    for what, dtype, note in OWNED:
        same = {"what": what, "dtype": dtype, "tokens": report["settings"]["tokens"], "routing": "random"}
        peers = [best(find(report, group="peer", by="NCCL", **same))]
        peers += [best(find(report, group="peer", note=peer, **same)) for peer in (ONCE, PER_EXPERT)]
        ours = best(find(report, group="normal", by="ep_lib", sms=24, note=note, **same))
        lines.append([f"{dtype.upper()} {what}", _floor(report, what, dtype), *map(us, [ours, *peers])])
    return markdown(["us", "floor", "ep_lib", "NCCL", "torch, once per rank *", "torch, by expert *"], lines)


def by_sms(report: dict[str, Any]) -> str:
    """Our kernels, by number of SMs."""
    tokens = report["settings"]["tokens"]
    sms = sorted({row["sms"] for row in find(report, group="normal", tokens=tokens)})
    lines = []
    for what, dtype, note, title in VIEWS:
        same = {"what": what, "dtype": dtype, "note": note, "tokens": tokens, "routing": "random"}
        ours = [best(find(report, group="normal", by="ep_lib", sms=number, **same)) for number in sms]
        if any(ours):
            lines.append([title, _floor(report, what, dtype), *map(us, ours)])
    return markdown(["us", "floor", *[f"{number} SMs" for number in sms]], lines)


def cases(report: dict[str, Any]) -> str:
    """Everything of the normal mode that was measured with 24 SMs: first what the caller owns, then views."""

    def is_view(row: Row) -> bool:
        return row["what"] == "dispatch" and "copied out" not in row.get("note", "")

    lines = []
    for row in sorted(find(report, group="normal", sms=24), key=is_view):
        words = [row["dtype"].upper(), row["what"] + ("," if row.get("note") else ""), row.get("note", "")]
        if row["routing"] != "random":
            words.append(f"({row['routing']} routing)")
        if row["tokens"] != report["settings"]["tokens"]:
            words.append(f"({row['tokens']} token{'s' * (row['tokens'] != 1)} per rank)")
        rates = [f"{row[key]:.0f}" if key in row else "-" for key in ("logical_gb_s", "wire_gb_s")]
        if is_view(row):
            words.append("(view)")
        share = f"{row['share']:.0%}" if "share" in row else "-"
        call = f"{row['call_us']:.0f}" if "call_us" in row else "-"
        lines.append([" ".join(word for word in words if word), us(row), *rates, share, call])
    return markdown(["with 24 SMs", "us", "logical GB/s", "wire GB/s", "of the ceiling", "whole call, us"], lines)


def low_latency(report: dict[str, Any]) -> str:
    rows = find(report, group="low latency")
    kinds = list(dict.fromkeys((row["what"], row.get("dtype"), row.get("note")) for row in rows))
    numbers = sorted({row["tokens"] for row in rows if "tokens" in row})
    lines = []
    for what, dtype, note in kinds:
        cells = [
            us(best(find(report, group="low latency", what=what, dtype=dtype, note=note, tokens=n))) for n in numbers
        ]
        name = " ".join(word for word in ((dtype or "").upper(), what) if word) + (f", {note}" if note else "")
        lines.append([name, *cells])
    return markdown(["us", *[f"{number} token{'s' * (number != 1)}" for number in numbers]], lines)


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


# ---- ep_lib beside its peers, by one protocol (gpu_compare.py) ------------------------------------------------------

OURS, PEERS = ("ep_lib", "ep_lib, 3 areas"), ("DeepEP V1", "DeepEP V2", "NCCL", "torch")
LIBRARIES = OURS + PEERS
CACHED, COUNTED, BY_EXPERT = "cached handle", "counted", "by expert"
COMPARED = (
    ("dispatch", "fp8", CACHED),
    ("dispatch", "bf16", CACHED),
    ("combine", "bf16", None),
    ("dispatch", "fp8", COUNTED),
    ("dispatch", "bf16", COUNTED),
)
CLOCKS = (("event", "us"), ("queued", "queued_us"), ("host", "host_us"))
EVEN = 1.02  # a difference below 2% decides nothing


def _title(what: str, dtype: str, note: str | None) -> str:
    return f"{dtype.upper()} {what}" + (f", {note}" if note else "")


def _short(microseconds: float) -> str:
    return f"{microseconds:.0f}" if microseconds >= 99.5 else f"{microseconds:.1f}"


def _p99(row: Row) -> str:
    """The 99th percentile in brackets; nothing if a host was once later than the GPU, which it would show instead."""
    return "" if row.get("launched_late") else f" ({_short(row['us_p99'])})"


def _clocks(row: Row, p99: str = "") -> str:
    """All three clocks, ``p99`` behind the first."""
    event, queued, host = (_short(row[key]) for _, key in CLOCKS)
    return f"{event}{p99} / {queued} / {host}"


def _compared(report: dict[str, Any], library: str, **wanted: Any) -> Row | None:
    """The row of a library, of its own tensors if it has both kinds."""
    rows = find(report, group="compare", by=library, **wanted)
    return best([row for row in rows if row["outputs"] == "owned"] or rows)


def _largest(report: dict[str, Any]) -> dict[str, Any]:
    """The shape of the tables with one shape."""
    settings = report["settings"]
    return {"tokens": settings["tokens_skewed"][0], "hidden": max(settings["hidden"])}


def compared_machine(report: dict[str, Any]) -> str:
    m, settings, versions = report["machine"], report["settings"], report["versions"]
    clocks = f"event: {settings['repeats']} repeats, queued and host: " if "repeats" in settings else ""
    return (
        f"{settings['ranks']} x {m['gpu']} of one host, driver {m['driver']}, CUDA {m['CUDA of torch']}, "
        f"torch {m['torch']}, NCCL {m['NCCL']};\nDeepEP V1 {versions.get('DeepEP V1', '-')}, DeepEP V2 "
        f"{versions.get('DeepEP V2', '-')} with NCCL {versions.get('NCCL of DeepEP V2', '-')}; ep_lib "
        f"{report['commit']}, {report['date'][:10]}. {settings['sms']} SMs, top-{settings['top_k']}\nof "
        f"{settings['experts']} experts; {clocks}{settings['rounds']} rounds of {settings['calls']} calls.\n"
    )


def compared(report: dict[str, Any]) -> str:
    """One shape, all libraries and clocks."""
    lines = []
    for what, dtype, note in COMPARED:
        same = {"what": what, "dtype": dtype, "note": note, "routing": "random", **_largest(report)}
        rows = [_compared(report, library, **same) for library in LIBRARIES]
        cells = [_clocks(row, _p99(row)) if row else "-" for row in rows]
        lines.append([_title(what, dtype, note), *cells])
    return markdown(["us: event (p99) / queued / host", *LIBRARIES], lines)


def _by_size(what: str, dtype: str, note: str | None) -> Callable[[dict[str, Any]], str]:
    """A table of one operation: sizes, all libraries."""

    def table(report: dict[str, Any]) -> str:
        lines = []
        for hidden in report["settings"]["hidden"]:
            for tokens in report["settings"]["tokens"]:
                same = {"what": what, "dtype": dtype, "note": note, "tokens": tokens, "hidden": hidden}
                rows = [_compared(report, library, routing="random", **same) for library in LIBRARIES]
                cells = [f"{_short(r['us'])} / {_short(r['queued_us'])}" if r else "-" for r in rows]
                lines.append([f"{tokens} x {hidden}", *cells])
        return markdown([f"{_title(what, dtype, note)}, us: event / queued", *LIBRARIES], lines)

    return table


def compared_skew(report: dict[str, Any]) -> str:
    """How each way of routing changes the GPU's time."""
    lines = []
    for what, dtype, note in COMPARED[:3]:
        for routing in ("random", *report["settings"]["routings"]):
            same = {"what": what, "dtype": dtype, "note": note, "routing": routing, **_largest(report)}
            rows = [_compared(report, library, **same) for library in LIBRARIES]
            cells = [_short(r["us"]) + _p99(r) if r else "-" for r in rows]
            lines.append([f"{_title(what, dtype, note)}, {routing}", *cells])
    return markdown(["us: event (p99)", *LIBRARIES], lines)


def compared_views(report: dict[str, Any]) -> str:
    """What owning the result costs."""
    lines = []
    for what, dtype, note in COMPARED[:2]:
        for tokens in report["settings"]["tokens"]:
            same = {"what": what, "dtype": dtype, "note": note, "tokens": tokens, "hidden": _largest(report)["hidden"]}
            for library in LIBRARIES:
                rows = find(report, group="compare", by=library, routing="random", **same)
                kinds = {row["outputs"]: row["us"] for row in rows}
                if len(kinds) < 2:
                    continue
                areas = _compared(report, f"{library}, 3 areas", routing="random", **same)
                cells = [_short(kinds["owned"]), _short(areas["us"]) if areas else "-", _short(kinds["view"])]
                more = f"{kinds['owned'] / kinds['view'] - 1:+.0%}"
                more += f", {areas['us'] / kinds['view'] - 1:+.0%}" if areas else ""
                lines.append([f"{library}, {dtype.upper()}, {tokens} tokens", *cells, more])
    return markdown(["dispatch, us: event", "owned", "owned, 3 areas", "view", "owning costs"], lines)


def compared_decode(report: dict[str, Any]) -> str:
    """Low-latency operations, in a graph and as public calls."""
    lines = []
    libraries = ("ep_lib", "DeepEP V1")
    for what, dtype in (("low-latency dispatch", "fp8"), ("low-latency combine", "bf16")):
        for hidden in report["settings"]["hidden"]:
            same = {"what": what, "dtype": dtype, "hidden": hidden, "routing": "random"}
            graphs = [_compared(report, library, note="in a graph", **same) for library in libraries]
            calls = [_compared(report, library, note="called", **same) for library in libraries]
            cells = [_short(r["us"]) if r else "-" for r in graphs]
            cells += [_clocks(row) if row else "-" for row in calls]
            lines.append([f"{dtype.upper()} {what.removeprefix('low-latency ')}, {hidden}", *cells])
    heads = [f"{library}, in a graph" for library in libraries] + [f"{library}, called" for library in libraries]
    return markdown(["us; called: event / queued / host", *heads], lines)


def _lost(report: dict[str, Any], rows: Iterable[Row], key: str) -> str:
    """In how many of our ``rows`` no peer is quicker by the clock ``key``, and the one where we lose most."""
    wins = places = 0
    worst, where = EVEN, ""
    for row in rows:
        same = {name: row.get(name) for name in ("what", "dtype", "note", "tokens", "hidden", "routing")}
        peers = [peer for library in PEERS if (peer := _compared(report, library, **same))]
        if not peers:
            continue
        rival = min(peers, key=lambda peer: float(peer[key]))
        ratio = row[key] / rival[key]
        places, wins = places + 1, wins + (ratio < EVEN)
        if ratio > worst:
            routing = "" if row["routing"] == "random" else f" {row['routing']}"
            worst, where = ratio, f"; {ratio:.2f} x {rival['by']} at {row['tokens']} x {row['hidden']}{routing}"
    return f"{wins} of {places}{where}" if places else "-"


def compared_losses(report: dict[str, Any]) -> str:
    """How often ep_lib is the quickest, and where it loses most, by each clock; all sizes and ways of routing."""
    lines = []
    for what, dtype, note in COMPARED:
        for library in OURS:
            rows = find(report, group="compare", by=library, what=what, dtype=dtype, note=note, outputs="owned")
            if rows:
                cells = [_lost(report, rows, key) for _, key in CLOCKS]
                lines.append([_title(what, dtype, note) + library.removeprefix("ep_lib"), *cells])
    return markdown(["quickest in; at worst", *[name for name, _ in CLOCKS]], lines)


def grouped(report: dict[str, Any]) -> str:
    """Rows grouped by expert, below the same operations without, by the number of receive areas."""
    lines = []
    for what, dtype, note in (COMPARED[0], COMPARED[3], COMPARED[1], COMPARED[4], COMPARED[2]):
        for by_expert in (False, True):
            name = ", ".join(filter(None, [BY_EXPERT * by_expert, note])) or None
            same = {"what": what, "dtype": dtype, "note": name, "outputs": "owned", "routing": "random"}
            rows = [best(find(report, group="compare", by=by, **same)) for by in (*OURS, "ep_lib, no area of its own")]
            lines.append([_title(what, dtype, name), *[_clocks(row, _p99(row)) if row else "-" for row in rows]])
    return markdown(["us: event (p99) / queued / host", "1 area", "3 areas", "0 areas"], lines)


def grouped_machine(report: dict[str, Any]) -> str:
    m, settings = report["machine"], report["settings"]
    return (
        f"{settings['ranks']} x {m['gpu']}, ep_lib {report['commit']}, {report['date'][:10]}; {settings['tokens'][0]} "
        f"tokens per rank x {settings['hidden'][0]}; event: {settings['repeats']}\nrepeats, queued and host: "
        f"{settings['rounds']} rounds of {settings['calls']} calls.\n"
    )


# ---- Calls that differ (gpu_vary.py) --------------------------------------------------------------------------------

KINDS = {"counted": "FP8 dispatch, counted", "step": "step", "layers": "8 layers"}


def _star(*rows: Row) -> str:
    return r"\*" if any("pace" in row for row in rows) else ""


def varied(report: dict[str, Any]) -> str:
    """What is called, sizes and what changes: wall and host of all libraries, and how we stand beside the best peer. A
    star: too few rounds at the host's full pace."""
    rows = find(report, group="vary")
    libraries = [name for name in LIBRARIES if find(report, by=name)]

    def named(row: Row) -> tuple[int, int, str, str]:
        return list(KINDS).index(row["what"]), row["tokens"], row["routing"], row["note"]

    lines = []
    for name in sorted(dict.fromkeys(map(named, rows)), key=lambda name: name[:2]):
        by = {row["by"]: row for row in rows if named(row) == name}
        cells = [
            f"{_short(row['us'])}{_star(row)} ({_short(row['call_us'])})" if row else "-"
            for row in map(by.get, libraries)
        ]
        ours, rival = by["ep_lib"], best([by[name] for name in PEERS if name in by])
        kind, tokens, routing, note = name
        what = f"{list(KINDS.values())[kind]}, {tokens}, {note}" + (f", {routing}" if routing != "random" else "")
        lines.append([what, *cells, f"{ours['us'] / rival['us']:.2f}{_star(ours, rival)}" if rival else "-"])
    return markdown(["us per call: wall (host)", *libraries, "ep_lib / best peer"], lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "machine": machine,
    "ceilings": ceilings,
    "operations": operations,
    "by sms": by_sms,
    "cases": cases,
    "low latency": low_latency,
    "transports": transports,
    "metrics": metrics,
    "compared machine": compared_machine,
    "compared": compared,
    "compared losses": compared_losses,
    "compared skew": compared_skew,
    "compared views": compared_views,
    "compared decode": compared_decode,
    "varied machine": compared_machine,
    "varied": varied,
    "grouped": grouped,
    "grouped machine": grouped_machine,
    **{
        f"compared sizes {dtype} {what}" + (f" {note}" if note == COUNTED else ""): _by_size(what, dtype, note)
        for what, dtype, note in COMPARED
    },
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
        name, ranks = match[2], "4"
        kept = KEPT.get(name.partition(" ")[0])
        if name[-1].isdigit() and name not in TABLES:
            name, _, ranks = name.rpartition(" ")
        table, path = TABLES[name], results / (kept or f"h200x{ranks}.json")
        if kept and not path.exists():  # not measured yet
            return match[1] + match[3]
        return match[1] + table(json.loads(path.read_text(encoding="utf-8"))) + match[3]

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
