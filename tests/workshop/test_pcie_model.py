"""`ep-lib bench pcie --model`: what it runs, how it counts, and what it prints, at a small size."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT
from support.tagged import tagged
from support.waiting import wait_until

from ep_lib import cli
from ep_lib.commands.bench import pcie as bench_pcie
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.errors import ArgumentError
from ep_lib.workshop import pcie_model as model
from ep_lib.workshop.pcie_model import COMBINE, DISPATCH, Setting

RESULT = ROOT / "benchmarks" / "results" / "h20-cx7-model-2026-11-21.json"


# ---- what is counted -------------------------------------------------------------------------------------------------
def test_rows_have_the_published_bytes() -> None:
    assert model.row_bytes(DISPATCH) == 7168 + 56 * 4
    assert model.row_bytes(COMBINE) == 2 * 7168
    assert model.row_bytes(DISPATCH, 256) * 28 == model.row_bytes(DISPATCH), "scales shrink with the rows"


@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_a_token_goes_to_as_many_ranks_as_chance_says(ranks: int) -> None:
    """A rank is spared if all 8 experts are among the others' 256 - 256 / ranks."""
    spared = math.comb(256 - 256 // ranks, 8) / math.comb(256, 8)
    goes = model.ranks_of_tokens(model.routing(Setting(ranks), rank=3), ranks)
    assert goes.shape == (4096, ranks)
    assert abs(goes.sum(axis=1).mean() - ranks * (1 - spared)) < 0.1


def test_a_routing_names_different_experts_and_is_repeatable() -> None:
    topk_idx = model.routing(Setting(8, tokens=50), rank=1)
    assert topk_idx.shape == (50, 8) and topk_idx.min() >= 0 and topk_idx.max() < 256
    assert all(len(set(experts)) == 8 for experts in topk_idx.tolist())
    assert np.array_equal(topk_idx, model.routing(Setting(8, tokens=50), rank=1))
    assert not np.array_equal(topk_idx, model.routing(Setting(8, tokens=50), rank=2))


def test_published_figures_stay_below_the_line_without_own_rows() -> None:
    assert len(model.PUBLISHED) == 4
    for (_, ranks), gbps in model.PUBLISHED.items():
        assert 40 < gbps * (ranks - 1) / ranks < 50


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(1), "2 to 32"),
        (Setting(64), "2 to 32"),
        (Setting(12), "divide the 256 experts"),
        (Setting(8, tokens=0), "at least 1"),
        (Setting(8, scale=3), "1, 2, 4, 7, 8, 14, 28, 56"),
        (Setting(8, hardware="abacus"), "'h20-cx7'"),
    ],
)
def test_what_cannot_be_run_is_refused(setting: Setting, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        setting.check()


# ---- the command -----------------------------------------------------------------------------------------------------
def bench(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(["bench", "pcie", *words])
    return code, capsys.readouterr().out


SMALL = ("--model", "--ranks", "2,4", "--tokens", "24", "--scale", "56", "--jobs", "1")
PLAIN, MERGED = "--no-merge-sender-receiver", "--merge-sender-receiver"


def test_the_default_is_the_published_setting_and_the_curve_to_32_ranks() -> None:
    parser = argparse.ArgumentParser()
    bench_pcie.add_arguments(parser)
    args = parser.parse_args(["--model"])
    assert args.tokens == model.TOKENS and args.ranks == [8, 16, 32] and args.merge_sender_receiver is None
    setting = Setting(8)
    assert setting.hidden * setting.scale == 7168 and setting.num_sms == 24 and setting.hardware == "h20-cx7"
    assert Setting(8, merge_sender_receiver=True).num_sms == 12, "as many channels on half as many SMs"


def test_the_command_says_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["bench", "pcie", *SMALL])
    said = capsys.readouterr()
    assert code == 0
    assert "FP8 dispatch" in said.out and "BF16 combine" in said.out and "12 merged" in said.out
    for words in ("own rank included", "Line rate: 50 GB/s", "No number of the model was fitted", "MB of memory"):
        assert words in said.out
    assert said.err.splitlines()[0] == "4 runs of 24 tokens per rank, 1 at a time"
    assert re.search(r"^4 of 4: \d ranks, (merged, )?\d+ s of a core$", said.err, re.MULTILINE)


def test_the_command_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = bench(capsys, *SMALL, PLAIN, "--json", "--fabric", "srd")
    report: dict[str, Any] = json.loads(said)
    assert code == 0 and report["clock"] == "virtual" and report["hardware"]["nic"]["source"]
    assert [(row["ranks"], row["what"]) for row in report["rows"]] == [
        (ranks, what) for ranks in (2, 4) for what in (DISPATCH, COMBINE)
    ]
    for row in report["rows"]:
        assert 0 < row["wire_gbps"] <= row["line_gbps"] == 50
        assert row["wire_gbps"] < row["logical_gbps"] * 1.5 and row["us"] > 0
        assert row["wire_overhead"] > 0 and row["published_gbps"] is None and not row["merge_sender_receiver"]
        assert row["wire_gbps"] == pytest.approx(
            row["logical_gbps"] * row["leaving_share"] * (1 + row["wire_overhead"])
        )
        assert 0 < row["first_rank_us"] <= row["last_rank_us"] <= row["us"]


@pytest.mark.slow
def test_two_runs_at_a_time_find_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    alone, together = (json.loads(bench(capsys, *SMALL[:-1], jobs, MERGED, "--json")[1]) for jobs in ("1", "2"))
    assert alone["rows"] == together["rows"] and len(alone["rows"]) == 4
    assert all(row["num_sms"] == 12 and row["merge_sender_receiver"] for row in alone["rows"])


def _workers(tag: str) -> list[int]:
    """The processes of a run that compute for its first one."""
    found = []
    for pid in tagged(tag):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"worker_processes" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_its_processes_end_with_it(how: signal.Signals) -> None:
    name, value = "EP_LIB_TEST_RUN", f"bench-pcie-{os.getpid()}-{how:d}"
    command = [sys.executable, "-m", "ep_lib", "bench", "pcie", "--model", "--jobs", "2"]
    with subprocess.Popen(command, env={**os.environ, name: value}, stderr=subprocess.DEVNULL) as run:
        assert wait_until(lambda: len(_workers(value)) >= 2)
        run.send_signal(how)
    assert run.returncode == -how and wait_until(lambda: tagged(f"{name}={value}") == [])


def test_no_runs_at_a_time_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "pcie", "--model", "--jobs", "0"]) == 1
    assert "--jobs is 0" in capsys.readouterr().err


def test_ranks_out_of_step_are_named() -> None:
    row = {"ranks": 8, "what": COMBINE, "merge_sender_receiver": False, "us": 6600.0, "last_rank_us": 6560.0}
    (said,) = bench_pcie._uneven([row | {"first_rank_us": 5500.0}, row | {"first_rank_us": 6500.0}])
    assert said.endswith("EP8 BF16 combine 5,500 to 6,560 us.")
    assert bench_pcie._uneven([row | {"first_rank_us": 6500.0}]) == []


def test_without_model_it_says_what_to_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "pcie"]) == 1
    assert "bench pcie --model" in capsys.readouterr().err


@pytest.mark.parametrize("what", [DISPATCH, COMBINE])
def test_the_committed_result_is_near_the_published_table(what: str) -> None:
    """The default run, which takes minutes: 4096 tokens, EP8 and EP16 within 15 %, and the curve on to EP32."""
    report = json.loads(RESULT.read_text())
    rows = [row for row in report["rows"] if row["what"] == what]
    assert {row["ranks"] for row in rows} == {8, 16, 32} and all(s["tokens"] == 4096 for s in report["settings"])
    for row in rows:
        if not row["merge_sender_receiver"] and row["ranks"] < 32:
            assert row["published_gbps"] == model.PUBLISHED[what, row["ranks"]] and 0.85 <= row["ratio"] <= 1.15, row
    hardware = dataclasses.asdict(HARDWARE["h20-cx7"])
    assert report["hardware"] == hardware, "hardware.py has changed: run `ep-lib bench pcie --model --json` again"


@pytest.mark.extended
@pytest.mark.slow
def test_the_model_is_near_the_published_table() -> None:
    """With fewer tokens than published the beginning and the end weigh more: the model can only be slower."""
    setting = Setting(8, tokens=512)
    for row in model.rows_of(model.simulate_operations(setting), setting):
        assert row.ratio is not None and 0.85 <= row.ratio <= 1.15, row
