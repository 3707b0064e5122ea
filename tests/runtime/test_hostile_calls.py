"""Hostile calls end in a right result or in an exception of ep_lib.errors: nothing else, and nothing obscure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import hostile, hostile_calls
from support.hostile import Call, Tally

import ep_lib
from ep_lib import Rank

ONE_IN = 9  # values that each parameter gets; another choice for each, so that all values are tried
TAKES_LONG = {"int max", "2**31", "2**63"}  # of blocks, of schedules

OF_A_RANK: dict[str, Callable[[Rank], list[Call]]] = {
    "rank": hostile_calls.of_a_rank,
    "buffer": hostile_calls.of_a_buffer,
    "pcie": lambda rank: hostile_calls.of_a_buffer(rank, allow_nvlink_for_normal_mode=False),
    "low latency": hostile_calls.of_low_latency,
    "compat": hostile_calls.of_compat,
    "dispatch_combine": hostile_calls.of_dispatch_combine,
}


def values() -> dict[str, Any]:
    """What every parameter may get."""
    return {name: value for name, value in hostile.nasty_values().items() if name not in TAKES_LONG}


def try_some(calls: list[Call], every: Callable[[], dict[str, Any]] = values) -> Tally:
    tally, names = Tally(), list(every())
    for number, (call, parameter) in enumerate(hostile.parameters(calls)):
        hostile.try_one(call, {parameter: names[number % ONE_IN :: ONE_IN]}, every, tally)
    return tally


def check(tally: Tally) -> None:
    assert tally.calls > 50 and not tally.obscure, "\n".join(map(str, tally.obscure))


def test_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(try_some(hostile_calls.of_values(tmp_path)))


def test_spawn() -> None:
    check(try_some(hostile_calls.of_spawn()))


def test_workshop(tmp_path: Path) -> None:
    check(try_some(hostile_calls.of_the_workshop(tmp_path)))


@pytest.mark.slow
def test_viz(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    check(try_some(hostile_calls.of_viz()))


def test_reference() -> None:
    check(try_some(hostile_calls.of_the_reference()))


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_A_RANK)
def test_what_a_rank_has(name: str) -> None:
    [tally] = ep_lib.spawn(lambda rank: try_some(OF_A_RANK[name](rank)), 1, "emulator")
    check(tally)


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("name", ["of_torch", pytest.param("of_deep_ep", marks=pytest.mark.slow)])
def test_torch(name: str) -> None:
    pytest.importorskip("torch")

    def main(rank: Rank) -> Tally:
        return try_some(getattr(hostile_calls, name)(rank), lambda: {**values(), **hostile.torch_values()})

    [tally] = ep_lib.spawn(main, 1, "emulator")
    check(tally)


@pytest.mark.parametrize("name", OF_A_RANK)
def test_several_parameters_at_once(name: str) -> None:
    """Any two parameters of any call, with any two values."""

    def main(rank: Rank) -> None:
        calls = OF_A_RANK[name](rank)
        names = list(values())

        @given(st.sampled_from(calls), st.data())
        @settings(
            max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        def attack(call: Call, data: st.DataObject) -> None:
            chosen = data.draw(st.lists(st.sampled_from(list(call.fresh())), min_size=1, max_size=2, unique=True))
            tally = Tally()
            hostile.try_one(call, {name: [data.draw(st.sampled_from(names))] for name in chosen}, values, tally)
            assert not tally.obscure, str(tally.obscure)

        attack()

    ep_lib.spawn(main, 1, "emulator")
