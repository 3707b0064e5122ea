"""The GPU benchmarks without a GPU: how samples become rows, rows a table, and what counts as a clean log."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import gpu_faults
import gpu_inputs
import gpu_low_latency
import gpu_pairs
import gpu_report
import gpu_rows
import gpu_sanitize
import pytest
from gpu_clock import spread
from support import ROOT

import ep_lib
from ep_lib.errors import ArgumentError

pytestmark = pytest.mark.slow

CEILING = {
    "group": "ceiling",
    "by": "kernel",
    "what": "stores",
    "sms": 24,
    "us": 500.0,
    "logical_bytes": 175_000_000,
    "wire_bytes": 175_000_000,
}
DISPATCH = {
    "group": "normal",
    "by": "ep_lib",
    "what": "dispatch",
    "dtype": "fp8",
    "tokens": 4096,
    "sms": 24,
    "note": "cached handle",
    "us": 250.0,
    "logical_bytes": 100_000_000,
    "wire_bytes": 75_000_000,
}


def test_a_figure_is_the_median_of_the_slowest_rank() -> None:
    ranks = [[10.0, 20.0, 30.0, 40.0, 50.0], [11.0, 12.0, 13.0, 99.0, 14.0]]
    assert spread(ranks) == (30.0, 11.0, 99.0)  # of 11, 20, 30, 99, 50
    assert spread([[1.0, 2.0]]) == (1.5, 1.0, 2.0)


def test_rows_of_ranks_become_one() -> None:
    name = {"group": "normal", "by": "ep_lib", "what": "dispatch", "sms": 8}
    one = {**name, "samples": [1.0, 5.0, 3.0], "late": 1, "logical_bytes": 100, "wire_bytes": 50}
    two = {**name, "samples": [2.0, 4.0, 6.0], "late": 0, "logical_bytes": 300, "wire_bytes": 70}
    assert gpu_rows.merge([[one], [two]]) == [
        {**name, "us": 5.0, "us_low": 2.0, "us_high": 6.0, "logical_bytes": 200, "wire_bytes": 60, "launched_late": 1}
    ]
    many = [{**one, "divide": 100}]
    assert gpu_rows.merge([many])[0]["us"] == 0.03
    with pytest.raises(ValueError, match="different things"):
        gpu_rows.merge([[one], [{**two, "sms": 16}]])


def test_rates_and_shares_are_of_the_best_ceiling_of_kernels() -> None:
    engine = {**CEILING, "by": "copy engine", "us": 100.0}
    slower = {**CEILING, "what": "loads", "us": 600.0}
    rows = gpu_rows.with_rates([slower, CEILING, engine, DISPATCH])
    assert [row["wire_gb_s"] for row in rows] == [291.7, 350.0, 1750.0, 300.0]
    assert rows[3]["logical_gb_s"] == 400.0
    assert rows[3]["share"] == round(300 / 350, 3)
    assert gpu_rows.ceiling(rows, "loads") == 291.7
    assert "share" not in gpu_rows.with_rates([DISPATCH])[0], "no ceiling, no share"


def test_parts_become_one_table(tmp_path: Path) -> None:
    head = {"date": "2026-11-21", "commit": "abc", "machine": {"gpu": "NVIDIA H200"}, "settings": {"ranks": 4}}
    first = {**head, "wrong": [], "rows": [CEILING]}
    second = {"date": "later", "wrong": ["rank 1: combine differs"], "rows": [DISPATCH, {**DISPATCH, "tokens": 1}]}
    trip = {"transport": "nixl", "how": "packets", "bytes": 64, "us": 3.5, "us_low": 3.4, "us_high": 3.6}
    trip |= {"us_one_way": 1.75, "gbytes_per_s": 0.04}
    copy = {**trip, "how": "copy engine", "bytes": 1 << 28, "us": None, "us_one_way": 680.0, "gbytes_per_s": 394.7}
    p2p = {"benchmark": "p2p", "results": [trip, copy], "not_measured": {"nvshmem": "no wheel"}}
    paths = []
    for number, part in enumerate((first, second, p2p)):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(part))
    out = tmp_path / "table.json"
    command = [sys.executable, str(ROOT / "benchmarks/gpu_report.py"), *map(str, paths), "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, "something was wrong"
    lines = done.stdout.splitlines()
    assert lines[0].startswith("4 x NVIDIA H200;") and "stores 350" in lines[0]
    line = next(line for line in lines if line.startswith("ep_lib FP8 dispatch 4096 tokens (cached handle)"))
    assert line.split()[-8:] == ["250.00", "-", "-", "-", "400", "300", "-", "24", "86%"][1:]
    assert any(line.startswith("ep_lib FP8 dispatch 1 token (cached") for line in lines)
    assert any(line.startswith("nixl packets 64 B") and " 3.50 " in line for line in lines)
    assert any(line.startswith("copy engine one way") and " 394.7" in line for line in lines)
    assert lines[-2] == "not measured: nvshmem: no wheel"
    assert lines[-1] == "WRONG rank 1: combine differs"
    report = json.loads(out.read_text())
    assert {key: report[key] for key in head} == head
    assert report["wrong"] == ["rank 1: combine differs"]
    assert len(report["rows"]) == 5
    assert out.read_text().count('\n  {"') == 5, "a line a row"
    paths[0].write_text('{"rows": [')
    assert "not a whole JSON file" in gpu_report.read(paths[0])["wrong"][0]
    assert gpu_report.combined([report])["rows"] == report["rows"], "a report is a part"


def test_routing_and_traffic() -> None:
    pytest.importorskip("torch")
    shape = gpu_inputs.Shape(ranks=4, tokens=64, hidden=256, experts=32, top_k=4)
    idx = gpu_inputs.routing(shape, 1, "skewed", "cpu")
    assert int((idx == 0).sum()) == shape.tokens // 2, "half of the tokens name expert 0"
    assert all(len(set(row)) == shape.top_k for row in idx.tolist())
    assert [gpu_inputs.most_experts(ranks) for ranks in (2, 3, 8)] == [256, 255, 256]
    incast = gpu_inputs.routing(shape, 1, "incast", "cpu")
    assert int(incast.max()) < shape.experts_per_rank, "all go to rank 0"
    many = shape._replace(tokens=4096)
    shares = gpu_inputs.routing(many, 1, "zipf", "cpu").flatten().bincount(minlength=32).sort().values / 4096
    assert 0.8 < float(shares[-1]) < 1 and float(shares[0]) < 0.05, "the most popular expert, and the least"
    with pytest.raises(ArgumentError, match="zipf"):
        gpu_inputs.routing(shape, 1, "zip", "cpu")
    goes = gpu_inputs.goes_to(shape, idx)
    assert goes.tolist() == [[any(e // 8 == r for e in row) for r in range(4)] for row in idx.tolist()]
    total, own = int(goes.sum()), int(goes[:, 1].sum())
    assert gpu_inputs.traffic(shape, goes, 1, "bf16") == {
        "logical_bytes": 512 * total,
        "wire_bytes": 512 * (total - own),
    }
    assert gpu_inputs.traffic(shape, goes, 1, "fp8")["logical_bytes"] == (256 + 8) * total
    x, scales = gpu_inputs.rows(shape, 1, 0, "fp8", "cpu")
    assert x.shape == (64, 256) and scales.shape == (64, 2)


@pytest.mark.parametrize(
    ("log", "processes", "clean", "why"),
    [
        ("========= ERROR SUMMARY: 0 errors\n" * 3, 2, True, "clean: 3 processes"),
        ("========= ERROR SUMMARY: 0 errors\n========= ERROR SUMMARY: 2 errors\n", 2, False, "2 findings"),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n", 1, False, "1 findings"),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", 1, True, "clean"),
        ("========= ERROR SUMMARY: 0 errors\n", 2, False, "did not watch every rank"),
        ("Device not supported", 1, False, "0 summaries"),
    ],
)
def test_only_a_summary_of_every_rank_without_findings_is_clean(
    log: str, processes: int, clean: bool, why: str
) -> None:
    found, text = gpu_sanitize.judge(log, processes)
    assert found is clean
    assert why in text


def test_tools_have_gpus_of_their_own_where_there_are_enough() -> None:
    assert gpu_sanitize.places(2, 2, ["0", "1", "2", "3"]) == ["0,1", "2,3"]
    assert gpu_sanitize.places(2, 2, ["4", "5"]) == ["4,5", "4,5"]


def test_workers_begin_at_other_gpus() -> None:
    four = ["0", "1", "2", "3"]
    assert [gpu_pairs.rotated(four, worker) for worker in range(3)] == [four, ["2", "3", "0", "1"], four]
    assert gpu_pairs.rotated(["5", "7"], 3) == ["5", "7"]


def test_gpu_sh_says_how_many_gpus_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for wanted, says in (("4", "4 GPUs asked for, 2 found"), ("1", "at least 2 needed"), ("x", "must be a number")):
        done = subprocess.run(
            ["sh", str(ROOT / "benchmarks/gpu.sh"), wanted], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 2
        assert says in done.stderr


@pytest.mark.extended
def test_gpu_sh_goes_on_and_keeps_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in *"-m pytest "*) echo "FAILED tests/a.py::b"; exit 1;;\n'
        '*gpu_sanitize*) exit 3;; *"--parts ceilings"*) exec sleep 30;; esac\n'
    )
    python.chmod(0o755)
    settings = {"CUDA_VISIBLE_DEVICES": "0,1", "PYTHON": python, "OUT": tmp_path, "LIMIT": 4, "COMMIT": "abc"}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    done = subprocess.run(["sh", str(ROOT / "benchmarks/gpu.sh")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stdout.count("FAILED tests/a.py::b") == 2, "in the log, and again as what failed"
    words = {line.split()[0]: line for line in done.stdout.partition("logs and JSON in")[2].splitlines()[1:]}
    assert words["doctor"].endswith("passed")
    assert words["tests"].endswith("FAILED, exit status 1")
    assert words["sanitizer"].endswith("not there")
    assert "stopped after" in words["ceilings"]
    assert words["transports"].endswith("NOT RUN: 4 s are over")


def test_rows_of_low_latency() -> None:
    wires = [{128: {"all": 400, "wire": 300}}, {128: {"all": 402, "wire": 302}}]
    args = argparse.Namespace(ranks=4, hidden=256, experts=64, top_k=8)
    name = {"group": "low latency", "by": "ep_lib", "routing": "random", "tokens": 128}
    row = gpu_low_latency.row_of("graph dispatch in two launches fp8 128 tokens all SMs", args, wires)
    moved = {"logical_bytes": 401 * 264, "wire_bytes": 301 * 264}
    assert row == {**name, **moved, "what": "dispatch", "dtype": "fp8", "note": "graph, two launches"}
    row = gpu_low_latency.row_of("launch combine fp8 128 tokens 24 SMs", args, wires)
    assert (row["what"], row["dtype"], row["sms"], row["wire_bytes"]) == ("combine", "bf16", 24, 301 * 512)
    row = gpu_low_latency.row_of("graph both fp8 128 tokens all SMs", args, wires)
    assert row == {**name, "what": "dispatch and combine", "dtype": "fp8", "note": "graph"}


def test_what_the_tools_watch_is_right_on_the_emulator() -> None:
    pytest.importorskip("torch")
    ep_lib.spawn(gpu_sanitize.program, ranks=2, backend="emulator", heap_bytes=64 << 20)


@pytest.mark.extended
def test_the_same_script_runs_on_the_emulator() -> None:
    pytest.importorskip("torch")
    settings = {"backend": "emulator", "ranks": 2, "parts": "ceilings,normal", "tokens": 8, "hidden": 256, "experts": 8}
    options = [f"--{name}={value}" for name, value in (settings | {"top-k": 2, "repeats": 2, "sms": 24}).items()]
    command = [sys.executable, str(ROOT / "benchmarks/gpu_measure.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "kernel loads (bulk copies, 2 warps)" in done.stdout
    assert "BF16 combine skewed routing 8 tokens" in done.stdout


@pytest.mark.extended
def test_every_way_of_the_fault_step_is_right_without_a_fault() -> None:
    assert ep_lib.spawn(gpu_faults.rehearse, 2, "emulator") == [[], []]


def test_the_fault_step_knows_right_from_wrong() -> None:
    torch = pytest.importorskip("torch")

    def main(rank: ep_lib.Rank) -> list[str]:
        program = gpu_faults.Program(rank, "cached")
        program.prepare()
        found = [program.turn(1)]
        sums = program.results["sums"]
        sums[3] = torch.nan
        found.append(program._judge("sums", sums, 1))
        sums[2, 5] += 1
        found += [program._judge("sums", sums, 1), program._judge("rows", program.results["rows"], 2)]
        program.buffer.close()
        return found

    for right, nan, wrong, stale in ep_lib.spawn(main, 2, "emulator"):
        assert (right, nan) == ("right", "nan") and wrong.startswith("sums[2, 5] is ") and stale.startswith("rows[")
