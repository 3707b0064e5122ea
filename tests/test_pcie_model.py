"""`ep-lib bench pcie --model`: what it runs, how it counts, and what it prints, at a small size."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from ep_lib import cli
from ep_lib.errors import ArgumentError
from ep_lib.workshop import pcie_model as model
from ep_lib.workshop.pcie_model import COMBINE, DISPATCH, Setting


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


def test_what_is_published_stays_below_the_line_once_own_rows_are_taken_off() -> None:
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


SMALL = ("--model", "--ranks", "2,4", "--tokens", "24", "--scale", "56")


def test_the_command_says_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = bench(capsys, *SMALL)
    assert code == 0
    assert "FP8 dispatch" in said and "BF16 combine" in said
    for words in ("own rank included", "Line rate: 50 GB/s", "No number of the model was fitted", "MB of memory"):
        assert words in said


def test_the_command_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = bench(capsys, *SMALL, "--json", "--fabric", "srd")
    report: dict[str, Any] = json.loads(said)
    assert code == 0 and report["clock"] == "virtual" and report["hardware"]["nic"]["source"]
    assert [(row["ranks"], row["what"]) for row in report["rows"]] == [
        (ranks, what) for ranks in (2, 4) for what in (DISPATCH, COMBINE)
    ]
    for row in report["rows"]:
        assert 0 < row["wire_gbps"] <= row["line_gbps"] == 50
        assert row["wire_gbps"] < row["logical_gbps"] * 1.5 and row["us"] > 0
        assert row["wire_overhead"] > 0 and row["published_gbps"] is None


def test_without_model_it_says_what_to_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "pcie"]) == 1
    assert "bench pcie --model" in capsys.readouterr().err


def test_the_model_is_near_the_published_table() -> None:
    """With fewer tokens than published the beginning and the end weigh more: the model can only be slower."""
    setting = Setting(8, tokens=512)
    for row in model.rows_of(model.simulate_operations(setting), setting):
        assert row.ratio is not None and 0.85 <= row.ratio <= 1.15, row
