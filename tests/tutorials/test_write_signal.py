"""tutorial_kernels/01_write_signal.cu: every rung on both backends; notebook 01 and the checker run the broken ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Spmd
from support.write_signal import RIGHT, TUTORIAL, kernel, pipeline, ring, several

import ep_lib


def names(file: str) -> list[str]:
    text = (TUTORIAL / file).read_text()
    return [line.split("__global__ void ")[1].split("(")[0] for line in text.splitlines() if "__global__" in line]


def test_every_way_has_a_kernel() -> None:
    assert {f"write_signal_{way}" for way in RIGHT} <= set(names("01_write_signal.cu"))


# ---- one write, one signal -----------------------------------------------------------------------------------------


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("way", RIGHT)
def test_write_and_signal_around_a_ring(spmd: Spmd, backend: str, way: str) -> None:
    for seed in range(30) if backend == "emulator" else [0]:
        ranks = 2 if backend == "cuda" else 2 + seed % 7
        size = (1, 13, 2048, 5001)[seed % 4] if backend == "emulator" else 100_001
        results = spmd(ring, ranks, kernel(f"write_signal_{way}"), kernel("wait_and_read"), size, seed=seed)
        assert results == [(True, [1])] * ranks, f"seed {seed}"


# ---- several writes under one signal -------------------------------------------------------------------------------


def test_several_writes_under_one_signal(spmd: Spmd) -> None:
    assert spmd(several, 2, [0, 1, 1, 500, 4096, 4099]) == [(True, [1])] * 2


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 700), max_size=32), seed=st.integers(0, 2**32))
def test_any_writes_under_one_signal_on_the_emulator(sizes: list[int], seed: int) -> None:
    offsets = np.cumsum([0, *sizes]).tolist()
    assert ep_lib.spawn(several, ranks=2, backend="emulator", seed=seed, args=(offsets,)) == [(True, [1])] * 2


# ---- many rounds through a few slots -------------------------------------------------------------------------------


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("num_slots", [1, 2, 5])
def test_a_pipeline_with_credits(spmd: Spmd, backend: str, num_slots: int) -> None:
    for seed in range(40) if backend == "emulator" else [0]:
        rounds = (0, 1, 4, 23)[seed % 4] if backend == "emulator" else 1000
        slot_bytes = 160 + seed
        pair = kernel("pipelined_send"), kernel("pipelined_receive")
        sender, receiver = spmd(pipeline, 2, *pair, slot_bytes, num_slots, rounds, seed=seed)
        assert sender == (True, [0], [rounds]), f"seed {seed}"
        assert receiver == (True, [rounds], [0]), f"seed {seed}"
