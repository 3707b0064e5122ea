"""Notebooks 06 and 07: one rung of a ladder at a time, with few and short tokens, on any backend and seed."""

from __future__ import annotations

from typing import Any

import ep_lib
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.ladders import Memory, load
from ep_lib.workshop.ladders.exchange import FULL, RANKS, SMALL, Exchange, Shape, combined

__all__ = ["FULL", "RANKS", "SMALL", "combine", "combine_runs", "combined", "dispatch", "dispatch_orders"]


def dispatch(rank: Rank, name: str, shape: Shape = SMALL) -> dict[str, Any]:
    """The kernel ``name`` of 06_dispatch.cu or 06_dispatch_broken.cu, and a reader behind it: what came here."""
    exchange = Exchange(Memory(rank), load("06").path, shape)
    rank.barrier()
    exchange.dispatch(name)
    exchange.read_rows()
    rank.barrier()
    return exchange.received()


def combine(rank: Rank, name: str, shape: Shape = SMALL) -> Any:
    """The experts and the kernel ``name`` of 07_combine.cu or 07_combine_broken.cu: the sums of this rank's tokens."""
    exchange = Exchange(Memory(rank), load("07").path, shape)
    out = exchange.prepare_combine()
    rank.barrier()
    exchange.experts_and_combine(name)
    rank.barrier()
    return rank.to_host(out)


def dispatch_orders(name: str, backend: str, seeds: int) -> list[list[tuple[int, int]]]:
    """For each seed (on GPUs: each run), whose tokens lie in rank 0's rows, as (source rank, token)."""
    runs = (_spawn(dispatch, name, backend, seed) for seed in range(seeds))
    return [[(int(rank), int(token)) for rank, token in results[0]["source"]] for results in runs]


def combine_runs(name: str, backend: str, seeds: int) -> list[list[Any]]:
    """For each seed (on GPUs: each run), the sums of all ranks."""
    return [_spawn(combine, name, backend, seed) for seed in range(seeds)]


def _spawn(main: Any, name: str, backend: str, seed: int) -> list[Any]:
    results: list[Any] = ep_lib.spawn(main, RANKS, backend, seed=seed if backend == "emulator" else None, args=(name,))
    return results
