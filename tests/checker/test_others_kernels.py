"""Models of others' kernels: the published protocol is clean, and each published mistake is told with its line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import others_kernels
import pytest
from others_kernels import CASES, MODELS

pytestmark = pytest.mark.cuda_rules

DOCS = MODELS.parents[1] / "docs" / "others_kernels.md"
_MOST_S = 60.0  # of an exhaustive check: LL's under weak memory takes longer than anybody waits, the others seconds


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted({case.model for case in CASES}))
def test_a_model_is_right_and_its_mistakes_are_told_with_the_line(model: str, seeds: int) -> None:
    cases = [case for case in CASES if case.model == model]
    if (
        seeds <= 10
    ):  # each mistake is another kernel to compile: `make nightly` has them all, and this one of each model
        cases = [cases[0], next(case for case in cases if case.line)]
    for case in cases:
        report = case.check(exhaustive=True, seconds=_MOST_S, stop_at_first=True, progress=False)
        assert report.ok == (not case.line), str(report)
        if case.line and not others_kernels.findings(report, case):
            random = case.check(seeds=others_kernels.SEEDS)
            assert others_kernels.findings(random, case), f"{report}\n{random}"


def test_every_function_of_a_model_is_a_case_and_is_told_in_the_docs() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert {case.model for case in CASES} == {path.stem for path in MODELS.glob("*.py")} - {"changed"}
    for model in {case.model for case in CASES}:
        programs = re.findall(r"^def (\w+)\(rank: ep_lib.Rank\) ->", (MODELS / f"{model}.py").read_text("utf-8"), re.M)
        assert set(programs) == {case.function for case in CASES if case.model == model}
        for name in programs:
            row = f"| `{model}` | {others_kernels.told(name)} |"
            assert row in text, f"{DOCS.name} has no row that begins with {row}"


@pytest.mark.extended
@pytest.mark.slow
def test_the_command_checks_another_function_and_says_how_to_see_it_again() -> None:
    script = str(MODELS / "deepep_intranode.py")
    command = [sys.executable, "-m", "ep_lib", "check", script, "--main"]
    options = {"cwd": Path(os.sep), "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*command, "cheap_fence", "--seeds", "1", "--json"], check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 1, done.stderr
    assert "--main cheap_fence" in json.loads(done.stdout)["findings"][0]["replay"]
    done = subprocess.run([*command, "expensive_fence", "--seeds", "1"], check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 1 and "has no function expensive_fence" in done.stderr
