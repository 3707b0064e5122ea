"""What the documents say about speed is what the JSON of a run says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gpu_docs
import gpu_figures
import pytest
from support import ROOT

SIZE = {"tokens": 4096, "routing": "random"}
REPORT = {
    "date": "2026-11-21T17:00:00+00:00",
    "commit": "abc",
    "machine": {
        "gpu": "NVIDIA H200", "driver": "580", "CUDA of torch": "13.0", "torch": "2.11", "NCCL": "2.28",
        "CuPy": "14.2.0", "NVRTC": "13.0 (wheel)",
    },
    "settings": {"ranks": 4, "tokens": 4096, "hidden": 7168, "experts": 256, "top_k": 8},
    "rows": [
        {"group": "ceiling", "by": "kernel", "what": "stores", "sms": 8, "us": 600, "wire_gb_s": 300.0},
        {"group": "ceiling", "by": "kernel", "what": "stores", "sms": 24, "us": 500, "wire_gb_s": 400.0},
        {"group": "ceiling", "by": "kernel", "what": "loads", "sms": 24, "us": 500, "wire_gb_s": 333.3},
        {"group": "ceiling", "by": "copy engine", "what": "copies", "us": 500, "wire_gb_s": 390.0},
        {"group": "normal", "by": "ep_lib", "what": "dispatch", "dtype": "bf16", "sms": 24, **SIZE, "us": 460.4,
         "note": "cached handle", "wire_bytes": 160_000_000, "logical_bytes": 212_000_000, "share": 0.97,
         "wire_gb_s": 348.0, "logical_gb_s": 460.0, "call_us": 700},
        {"group": "normal", "by": "ep_lib", "what": "dispatch", "dtype": "bf16", "sms": 24, **SIZE, "us": 520.0,
         "note": "counted", "wire_bytes": 160_000_000, "logical_bytes": 212_000_000},
        {"group": "normal", "by": "ep_lib", "what": "dispatch", "dtype": "bf16", "sms": 24, **SIZE, "us": 600.0,
         "note": "cached handle, copied out", "wire_bytes": 160_000_000},
        {"group": "normal", "by": "ep_lib", "what": "combine", "dtype": "bf16", "sms": 24, **SIZE, "us": 490.0,
         "note": "from combine_input", "wire_bytes": 160_000_000},
        {"group": "peer", "by": "NCCL", "what": "dispatch", "dtype": "bf16", **SIZE, "us": 631.0},
        {"group": "low latency", "by": "ep_lib", "what": "dispatch", "dtype": "fp8", "tokens": 128, "us": 15.25},
        {"group": "transport", "by": "p2p", "what": "packets", "bytes": 64, "us": 1.5612},
        {"group": "transport", "by": "p2p", "what": "puts", "bytes": 1 << 21, "us": 16.5, "gbytes_per_s": 253.6},
    ],
}  # fmt: skip


def compared(by: str, us: float, queued: float, host: float, **more: object) -> dict[str, object]:
    row = {"group": "compare", "by": by, "what": "dispatch", "dtype": "fp8", "note": "cached handle", **SIZE}
    return {**row, "hidden": 7168, "outputs": "owned", "us": us, "us_p99": us + 1, "queued_us": queued,
            "host_us": host, **more}  # fmt: skip


COMPARED = REPORT | {
    "versions": {"DeepEP V2": "dd758ca"},
    "settings": REPORT["settings"] | {
        "tokens": [4096], "hidden": [7168], "tokens_skewed": [4096], "routings": ["zipf"], "sms": 24, "repeats": 100,
        "rounds": 5, "calls": 50,
    },
    "rows": [
        compared("ep_lib", 140.0, 160.0, 90.0), compared("ep_lib", 100.0, 110.0, 80.0, outputs="view"),
        compared("DeepEP V2", 150.0, 150.0, 60.0), compared("NCCL", 180.0, 200.0, 99.0, launched_late=2),
        compared("ep_lib", 90.0, 160.0, 90.0, routing="zipf"), compared("DeepEP V2", 60.0, 150.0, 60.0, routing="zipf"),
        compared("ep_lib, 3 areas", 55.0, 200.0, 90.0, routing="zipf"),
        compared("ep_lib", 17.0, 17.5, 0.5, what="low-latency dispatch", note="in a graph"),
        compared("DeepEP V1", 30.0, 31.0, 29.0, what="low-latency dispatch", note="called", outputs="view"),
    ],
}  # fmt: skip


def test_the_documents_are_those_of_their_json() -> None:
    for path in gpu_docs.DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert gpu_docs.filled(text) == text, f"run python benchmarks/gpu_docs.py: {path.name} differs from its JSON"


def test_tables_say_what_the_rows_say(tmp_path: Path) -> None:
    (tmp_path / "h200x4.json").write_text(json.dumps(REPORT))
    (tmp_path / "h200x2.json").write_text(json.dumps(REPORT | {"settings": {**REPORT["settings"], "ranks": 2}}))

    def table(name: str) -> str:
        text = f"before\n<!-- table: {name} -->\nold\n<!-- end of table -->\nafter\n"
        new = gpu_docs.filled(text, tmp_path)
        assert gpu_docs.filled(new, tmp_path) == new, "made twice, it is the same"
        assert new.startswith("before\n<!--") and new.endswith("-->\nafter\n") and "old" not in new
        return new

    assert "commit abc, 2026-11-21" in table("machine")
    assert "| stores | 300 | 400 |" in table("ceilings") and "| loads | 0 | 333 |" in table("ceilings")
    assert "any SM: 390 GB/s" in table("ceilings")
    assert "| BF16 dispatch | 400 | 600 | 631 | - | - |" in table("operations"), "what the caller owns"
    assert "| BF16 dispatch | 400 | 600 | 631 | - | - |" in table("operations 2")
    assert "| BF16 dispatch, left where it arrived | 400 | 460 |" in table("by sms")
    assert "| BF16 combine, rows in the Buffer's memory | 400 | 490 |" in table("by sms")
    assert "| BF16 dispatch, cached handle (view) | 460 | 460 | 348 | 97% | 700 |" in table("cases")
    assert "| BF16 dispatch, counted (view) | 520 | - | - | - | - |" in table("cases")
    assert "| FP8 dispatch | 15.2 |" in table("low latency")
    assert "| 64 B | 1.56 | - |" in table("transports")
    assert "| 2 MiB | - | 16.50 (254 GB/s) |" in table("transports")
    assert "| bytes that left the GPU | 160 MB | 348 |" in table("metrics")
    assert "| a row for each of a token's experts | 470 MB | 1020 |" in table("metrics")
    with pytest.raises(KeyError):
        table("unknown")


def test_tables_that_compare_say_where_we_lose() -> None:
    tables = {name: make(COMPARED) for name, make in gpu_docs.TABLES.items() if name.startswith("compared")}
    row = "| FP8 dispatch, cached handle | 140 (141) / 160 / 90.0 | - | - | 150 (151) / 150 / 60.0 | 180 / 200 / 99.0 |"
    assert row in tables["compared"], "owned first; no p99 where the host was late"
    assert "| 4096 x 7168 | 140 / 160 | - | - | 150 / 150 | 180 / 200 | - |" in tables["compared sizes fp8 dispatch"]
    lost = "| FP8 dispatch, cached handle | 1 of 2; 1.50 x DeepEP V2 at 4096 x 7168 zipf | 0 of 2; 1.07 x DeepEP V2 at "
    assert lost in tables["compared losses"]
    assert "| FP8 dispatch, cached handle, 3 areas | 1 of 1 | 0 of 1; 1.33 x" in tables["compared losses"]
    assert "zipf | 90.0 (91.0) | 55.0 (56.0) | - | 60.0 (61.0) | - | - |" in tables["compared skew"]
    assert "| ep_lib, FP8, 4096 tokens | 140 | - | 100 | +40% |" in tables["compared views"]
    assert "| FP8 dispatch, 7168 | 17.0 | - | - | 30.0 / 31.0 / 29.0 |" in tables["compared decode"]
    assert gpu_docs.filled("<!-- table: machine 2 -->\n<!-- end of table -->") != gpu_docs.filled(
        "<!-- table: machine -->\n<!-- end of table -->"
    )
    assert "DeepEP V1 -, DeepEP V2 dd758ca" in tables["compared machine"]


def test_rows_by_expert_stand_below_those_without(tmp_path: Path) -> None:
    rows = [
        compared("ep_lib", 140.0, 141.0, 90.0),
        compared("ep_lib", 210.0, 211.0, 91.0, note="by expert, cached handle"),
    ]
    rows += [
        compared("ep_lib, no area of its own", 139.0, 140.0, 33.0),
        compared("ep_lib", 9.0, 9.0, 9.0, outputs="view"),
    ]
    (tmp_path / "h200x2-by-expert.json").write_text(json.dumps(COMPARED | {"rows": rows}))
    text = "<!-- table: grouped machine -->\n<!-- end of table --><!-- table: grouped -->\n<!-- end of table -->"
    head, _, table = gpu_docs.filled(text, tmp_path).partition("<!-- end of table -->")
    assert "ep_lib abc, 2026-11-21; 4096 tokens per rank x 7168" in head
    assert table.splitlines()[3:5] == [
        "| FP8 dispatch, cached handle | 140 (141) / 141 / 90.0 | - | 139 (140) / 140 / 33.0 |",
        "| FP8 dispatch, by expert, cached handle | 210 (211) / 211 / 91.0 | - | - |",
    ]


def test_calls_that_differ(tmp_path: Path) -> None:
    text = "<!-- table: varied -->\nold\n<!-- end of table -->"
    assert gpu_docs.filled(text, tmp_path) == text.replace("old\n", ""), "nothing is measured yet"

    def row(by: str, us: float, **more: object) -> dict[str, object]:
        same = {"group": "vary", "what": "step", "tokens": 128, "routing": "random", "note": "routing and tokens"}
        return {**same, "by": by, "us": us, "call_us": us - 1} | more

    rows = [row("ep_lib", 150.0), row("DeepEP V1", 120.0, pace=1.6), row("NCCL", 300.0)]
    rows += [row("ep_lib", 90.0, routing="zipf"), row("ep_lib", 20.0, what="counted", note="one shape")]
    (tmp_path / "h200x2-vary.json").write_text(json.dumps(COMPARED | {"rows": rows}))
    assert gpu_docs.filled(text, tmp_path).splitlines()[1:-1] == [
        "| us per call: wall (host) | ep_lib | DeepEP V1 | NCCL | ep_lib / best peer |",
        "| --- | --- | --- | --- | --- |",
        "| FP8 dispatch, counted, 128, one shape | 20.0 (19.0) | - | - | - |",
        r"| step, 128, routing and tokens | 150 (149) | 120\* (119) | 300 (299) | 1.25\* |",
        "| step, 128, routing and tokens, zipf | 90.0 (89.0) | - | - | - |",
    ]


def test_links_exist() -> None:
    for path in gpu_docs.DOCUMENTS:
        links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text(encoding="utf-8"))
        assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.extended
@pytest.mark.slow
def test_pictures_of_the_kept_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = json.loads((gpu_docs.RESULTS / "h200x4.json").read_text(encoding="utf-8"))
    lines = gpu_figures.draw(report, tmp_path)
    assert [Path(line).name for line in lines] == ["roofline.png", "shares.png", "sms.png", "transports.png"]
    assert all((tmp_path / line).stat().st_size > 10_000 for line in lines)
    report["rows"] = [row for row in report["rows"] if row["group"] != "transport"]
    assert gpu_figures.draw(report, tmp_path)[3].startswith("transports: left out, ")


def test_programs_in_the_document_run() -> None:
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert programs
    for program in programs:
        exec(compile(program, "docs/performance.md", "exec"), {})
