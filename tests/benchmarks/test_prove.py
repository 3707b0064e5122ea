"""``benchmarks/prove.py``: what a row of its results says of one case."""

from __future__ import annotations

import json

import prove
import prove_cases
import prove_docs
import pytest


@pytest.mark.slow
def test_a_row_says_what_was_covered_and_how_far() -> None:
    case = next(case for case in prove_cases.CASES if case.name == "08 ping_pong_flag")
    known = json.loads(prove_docs.RESULTS.read_text())["rows"]
    row = prove.covered(case, "p2p", "sc", 600)  # seconds of the clock: the emulator may be compiled first
    assert prove_docs.is_proved(row)
    assert row["schedules"] == next(
        each["schedules"] for each in known if each["case"] == case.name and each.get("memory") == "sc"
    )
    stopped = prove.covered(case, "p2p", "ptx", 1e-6)
    assert not prove_docs.is_proved(stopped) and "not proved" in prove_docs.told(stopped)
