"""PCIe mode on GPUs: the same kernels, the same oracle."""

from __future__ import annotations

from typing import Any

import pytest
from support.buffer_cases import check_case
from support.dispatch_combine_cases import make_case
from support.pcie_cases import check_fp8, fp8_case, run_case, run_fp8

from ep_lib import Rank, spawn
from ep_lib.transports.nvshmem import build as nvshmem

SEEDS = range(2000, 2006)


def many(rank: Rank, kind: str) -> list[Any]:
    """BF16 and float32 rows, then FP8 rows, each with other shapes and rings; all in one world."""
    plain = [run_case(rank, make_case(seed, world_size=rank.world_size), seed, kind) for seed in SEEDS]
    return [plain, [run_fp8(rank, fp8_case(seed, rank.world_size), seed, kind) for seed in SEEDS]]


def check_many(results: list[Any]) -> None:
    for i, seed in enumerate(SEEDS):
        check_case(make_case(seed, world_size=len(results)), [r[0][i] for r in results])
        check_fp8(fp8_case(seed, len(results)), [r[1][i] for r in results])


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_many_on_the_emulator(kind: str) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    check_many(spawn(many, 2, "emulator", fabric="srd", args=(kind,)))


@pytest.mark.parametrize(
    ("transport", "kind"),
    [("p2p", "native"), ("p2p", "torch"), ("nvshmem", "torch"), ("proxy", "native"), ("proxy", "torch")],
)
@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.gpu(count=2)), pytest.param(4, marks=pytest.mark.gpu(count=4))]
)
def test_many_on_gpus(ranks: int, transport: str, kind: str) -> None:
    if transport == "nvshmem" and (reason := nvshmem.unusable_reason("whole")):
        pytest.skip(reason)
    if kind == "torch":
        pytest.importorskip("torch")
    check_many(spawn(many, ranks, "cuda", args=(kind,), transport=transport))
