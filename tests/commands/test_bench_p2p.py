"""The GPU part of ``ep-lib bench p2p``: its kernels on the emulator, its table and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ep_lib import Fabric, Rank, cli, spawn
from ep_lib.commands.bench import Platform
from ep_lib.commands.bench import p2p as bench_p2p
from ep_lib.commands.bench import p2p_gpu as bench_p2p_gpu
from ep_lib.commands.bench.p2p_gpu import COPY, GOOD_LINES, PACKETS, STORES, WRITE, Plan
from ep_lib.errors import ArgumentError, BackendUnavailable

SIZES = (8, 64, 100, 1024, 40_000)


def large_only(rank: Rank, plan: Plan) -> list[dict[str, Any]]:
    """Without packets, which need loads and stores that reach the peer."""
    return [row for size in plan.sizes for row in bench_p2p_gpu._Pair(rank, plan).write_and_signal(size)]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("fabric", ["p2p", "rc", "srd"])
def test_the_kernels_run_on_every_fabric(fabric: str) -> None:
    plan = Plan(SIZES, rounds=3, blocks=2, ceilings=False, lines=4)
    main = bench_p2p_gpu.measure if fabric == "p2p" else large_only
    for seed in range(3):
        world = Fabric(fabric, ranks_per_node=1) if fabric != "p2p" else None
        rows = spawn(main, 2, "emulator", seed=seed, args=(plan,), fabric=world, heap_bytes=4 << 20)[0]
        sent = [(row["how"], row["bytes"], row["blocks"]) for row in rows]
        assert sent[:5] == [(WRITE, size, 2 if size == 40_000 else 1) for size in SIZES]
        in_packets = [(PACKETS, size, 1) for size in (8, 64, 1024)] + [(GOOD_LINES, size, 1) for size in (8, 64)]
        assert sent[5:] == (in_packets if fabric == "p2p" else [])
        assert all(row["us_one_way"] == pytest.approx(row["us"] / 2, abs=1e-3) for row in rows)


@pytest.mark.gpu(count=2)
def test_all_ways_are_measured_on_gpus() -> None:
    plan = Plan((64, 1 << 20), rounds=50, blocks=8)
    rows = spawn(bench_p2p_gpu.measure, 2, "cuda", args=(plan,), heap_bytes=64 << 20)[0]
    ways = [WRITE, WRITE, PACKETS, GOOD_LINES, COPY, COPY, STORES]
    assert [row["how"] for row in rows] == ways and all(row["gbytes_per_s"] > 0 for row in rows)


def test_large_messages_take_more_blocks_and_fewer_rounds() -> None:
    plan = Plan((8,), rounds=500, blocks=32)
    assert [plan.grid_of(size) for size in (0, 8, 64, 600, 16 << 10, 64 << 10, 256 << 20)] == [
        (1, 32), (1, 32), (1, 32), (1, 64), (1, 1024), (4, 1024), (32, 1024),
    ]  # fmt: skip
    assert [plan.rounds_of(size) for size in (0, 64, 4 << 20, 256 << 20, 1 << 40)] == [500, 500, 256, 4, 3]


class Answers(Platform):
    """A transport whose measurement is known beforehand."""

    def run(self, main: Any, ranks: int, *args: Any, **settings: Any) -> list[Any]:
        (plan,) = args
        if self.network == "nixl":
            raise BackendUnavailable("NIXL is not installed")
        rows = [fake_row(WRITE, size) for size in plan.sizes]
        rows += [fake_row(PACKETS, 8)] if plan.packets else []
        if plan.ceilings:
            rows += [fake_row(COPY, size) for size in plan.sizes] + [fake_row(STORES, max(plan.sizes))]
        return [rows, rows]


def fake_row(how: str, size: int) -> dict[str, Any]:
    us = None if how in (COPY, STORES) else 3.0
    row = {"how": how, "bytes": size, "blocks": 132, "threads": 1024, "us": us, "us_one_way": 1.5}
    return row | {"gbytes_per_s": round(size / 1.5 / 1e3, 3)}


def worlds(*names: str) -> list[Platform]:
    return [Answers("cuda", name, None, "real") for name in names]


def test_what_does_not_work_is_left_out_and_named() -> None:
    plan = Plan((8, 1 << 20), rounds=5, blocks=4)
    rows, missing = bench_p2p_gpu.compare(worlds("p2p", "nvshmem", "nixl"), plan, quiet=True)
    assert missing == {"nixl": "NIXL is not installed"}
    assert {row["transport"] for row in rows} == {"p2p", "nvshmem"}
    assert sum(row["how"] == STORES for row in rows) == 1, "the ceilings are measured once"
    with pytest.raises(BackendUnavailable, match=r"(?s)none of the transports .*works here.*NIXL is not installed"):
        bench_p2p_gpu.compare(worlds("nixl"), plan, quiet=True)
    table = bench_p2p.table_of_gpus(rows, missing).splitlines()
    head = "bytes p2p us packets us nvshmem us p2p GB/s nvshmem GB/s copies GB/s"
    assert " ".join(table[3].split()) == head
    assert " ".join(table[4].split()) == "8 3.000 3.000 3.000 0.005 0.005 0.005"
    assert " ".join(table[5].split()) == "1M 3.000 - 3.000 699.1 699.1 699.1"
    assert "bare stores of 132 blocks, one way: 699.1 GB/s" in "\n".join(table)
    assert table[-1] == "Not measured: nixl: NIXL is not installed"


def test_the_picture_has_a_line_for_each_way(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from ep_lib import viz

    plan = Plan((8, 1 << 20), rounds=5, blocks=4)
    rows, _ = bench_p2p_gpu.compare(worlds("p2p", "nvshmem"), plan, quiet=True)
    figure = viz.transports_compared(rows, title="two GPUs")
    latency, bandwidth = figure.axes
    assert {line.get_label() for line in latency.lines} == {
        "p2p, write, then signal", "p2p, packets", "nvshmem, write, then signal",
        "copy engine (no signal)",
    }  # fmt: skip
    assert len(bandwidth.lines) == 4 and "699 GB/s" in bandwidth.texts[0].get_text()
    figure.savefig(tmp_path / "p2p.png")
    for bad in ([], [{"transport": "p2p"}], [row for row in rows if row["how"] == STORES]):
        with pytest.raises(ArgumentError, match="transports_compared needs"):
            viz.transports_compared(bad)


def test_bad_options_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    for words, complaint in (
        (["--blocks", "65"], "--blocks is 65; it must be from 1 to 64"),
        (["--rounds", "0"], "--rounds is 0; it must be from 1 to"),
        (["--figure", "x.png"], "--figure draws what was measured on GPUs"),
        (["--backend", "cuda", "--transports", "p2p,tcp"], "'tcp' is not one of auto, p2p"),
    ):
        assert cli.main(["bench", "p2p", *words]) == 1
        assert complaint in capfd.readouterr().err
