"""Exercise 05_pipeline: mistakes are seen on InfiniBand and on EFA alike, unless a network forgives them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from grader_answers import submission

from ep_lib.workshop import hidden
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader.feedback import what_failed
from ep_lib.workshop.grader.process.runner import Runner
from ep_lib.workshop.grader.scenario import FRAME, Scenario, frame_sizes, unpack_outputs
from ep_lib.workshop.hidden import Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler"),
]

EXERCISE = find("05_pipeline")
# Together in one file, so that there is less to compile: no test of the one runs code of the other.
PAIRS = [
    ("wrong_two_operations", "wrong_credit_first"),
    ("wrong_arrival_first", "wrong_credit_of_every_lane"),
    ("wrong_does_not_ask", "wrong_sends_first"),
    ("wrong_no_quiet", "wrong_merged_without_quiet"),
]


@functools.cache
def runner_of(answers: tuple[str, str], folder: Path) -> Runner:
    mine = submission(EXERCISE, answers, folder)
    for name in EXERCISE.also:
        shutil.copyfile(EXERCISE.exercise_dir / name, mine / name)
    return Runner(mine, EXERCISE.root / EXERCISE.runs_as)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


def outcome(runner: Runner, scenario: Scenario, case: Case) -> str:
    reply = runner.answer({"nonce": "n", "run": scenario})
    header, _ = frame_sizes(reply[: FRAME.size], 1 << 30)
    body = reply[FRAME.size :]
    outputs = unpack_outputs(scenario, "n", body[:header], body[header:])
    return what_failed(scenario, outputs, Path("mine"), EXERCISE.also) or case.verdict(outputs) or ""


def cases_of(task: int, network: str, *, checked: bool) -> Iterator[Case]:
    for behaviour in hidden.load(EXERCISE.name, public=False).behaviours:
        if behaviour.task != task:
            continue
        for case in behaviour.cases(np.random.default_rng(5)):
            fabric = case.scenario.fabric
            assert fabric is not None
            if fabric.kind == network and bool(case.scenario.check_seeds) == checked:
                yield case


@pytest.mark.parametrize("network", ["rc", "srd"])
@pytest.mark.parametrize(
    ("answer", "task", "checked", "networks"),
    [
        ("wrong_two_operations", 2, True, "srd"),  # InfiniBand's queue pair forgives it
        ("wrong_arrival_first", 2, True, "rc srd"),
        ("wrong_credit_first", 3, True, "rc srd"),
        ("wrong_credit_of_every_lane", 3, False, "rc srd"),
        ("wrong_does_not_ask", 4, True, "rc srd"),
        ("wrong_no_quiet", 4, True, "rc srd"),
        ("wrong_sends_first", 5, False, "rc srd"),
        ("wrong_sends_first", 5, True, "rc srd"),
        ("wrong_merged_without_quiet", 5, True, "rc srd"),
    ],
)
def test_a_mistake_is_seen_on_each_network_that_does_not_forgive_it(
    answer: str, task: int, checked: bool, networks: str, network: str, folder: Path
) -> None:
    (pair,) = (pair for pair in PAIRS if answer in pair)
    runner = runner_of(pair, folder / "-".join(pair))
    failed = [outcome(runner, case.scenario, case) for case in cases_of(task, network, checked=checked)]
    assert failed, "no such tests"
    assert any(failed) == (network in networks.split()), failed


def test_every_task_is_tested_on_both_networks_and_under_the_checker() -> None:
    for task in (2, 3, 4, 5):
        for network in ("rc", "srd"):
            assert list(cases_of(task, network, checked=True)) and list(cases_of(task, network, checked=False))
