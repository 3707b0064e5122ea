"""Copies by cp.async (cuda_pipeline.h, cooperative groups, cuda::pipeline): they are there when they are waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import TESTS

import ep_lib
from ep_lib import Kernel, Rank

pytestmark = pytest.mark.cuda_rules

FILE = TESTS / "kernels" / "async_copies.cu"
THREADS, STAGES = 64, 4
X = np.arange(1, STAGES * THREADS + 1).reshape(STAGES, THREADS)
RIGHT = {
    "two_stages": X[:, ::-1],
    "its_own_after_the_wait": X[0],
    "the_last_word_filled_with_zeros": np.where(np.arange(THREADS) % 4 == 3, 0, X[0]),
    "source_written_after_the_wait": X[0],
    "by_the_block": X[0, ::-1],
    "by_the_block_of_odd_bytes": X[0],
    "by_the_block_in_two_stages": np.stack([X[0, ::-1], X[1]]),
    "by_a_pipeline": X[:2],
}
ARRIVAL, WAIT = "read before arrival", "put __pipeline_wait_prior(0) between"
HAND_ON = "put __pipeline_wait_prior(0) before the barrier in"
WRONG = {  # kind, and what goes where
    "two_stages_waited_for_too_laxly": (ARRIVAL, HAND_ON),
    "two_stages_filled_too_early": ("race", "runs again"),
    "waited_for_and_not_handed_on": ("race", "put __syncthreads() between"),
    "not_committed": (ARRIVAL, WAIT),
    "source_written_before_the_wait": ("source reused", WAIT),
    "by_the_block_without_a_wait": (ARRIVAL, HAND_ON),
    "by_the_block_in_two_stages_too_early": (ARRIVAL, "put __pipeline_wait_prior(0)"),
    "by_a_pipeline_read_too_early": (ARRIVAL, WAIT),
}


def main(rank: Rank, name: str) -> Any:
    x, out = rank.to_device(X.astype(np.int32)), rank.to_device(np.zeros(X.size, np.int32))
    Kernel.from_file(FILE, name).launch(rank, 1, THREADS, x, out)
    rank.synchronize()
    return rank.to_host(out).copy()


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_waited_for_is_there(name: str) -> None:
    report = ep_lib.check(main, 1, args=(name,), heap_bytes=1 << 20, exhaustive=True)
    assert report.ok, str(report)
    [out] = ep_lib.spawn(main, 1, "emulator", args=(name,))
    expected = RIGHT[name].ravel()
    assert out[: expected.size].tolist() == expected.tolist()


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_waited_for_is_found(name: str) -> None:
    report = ep_lib.check(main, 1, seeds=8, args=(name,), heap_bytes=1 << 20)
    kind, place = WRONG[name]
    assert any(f.kind == kind and place in f.place for f in report.findings), str(report)


def test_copies_take_virtual_time() -> None:
    result = ep_lib.simulate(main, 1, args=("two_stages",))
    assert result.results[0].tolist() == RIGHT["two_stages"].ravel().tolist()
