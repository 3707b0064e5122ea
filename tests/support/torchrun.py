"""What torchrun is to its ranks: a store in its own process, and variables that lead there. It imports torch once more
and starts slowly; test_bootstrap.py has it itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def as_torchrun(ranks: int) -> Iterator[list[dict[str, str]]]:
    """The variables of each rank, as long as this process keeps their store. Skips the test where there is no torch."""
    dist = pytest.importorskip("torch.distributed", reason="needs torch: pip install torch")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    world["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    yield [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    del store  # it listens no longer
