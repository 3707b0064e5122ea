"""Ranks started by torchrun, through its key-value store at MASTER_ADDR:MASTER_PORT.

Keys carry their own prefix and no process group is made: the program's own torch.distributed stays as it was.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, dumps, loads, missing_error, read_int
from ep_lib.errors import BackendUnavailable, RankFailed

_SLICE = 0.5  # seconds of waiting inside the store at a time: between two, Ctrl-C gets through
_worlds_made = 0  # a second init() in the same processes must not read the first one's keys


class TorchrunBootstrap:
    """Every rank sets its key, waits for all keys, and removes its key of the previous collective."""

    kind = "torchrun"

    def __init__(self, environ: Mapping[str, str] | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        global _worlds_made
        env = os.environ if environ is None else environ
        try:
            dist: Any = importlib.import_module("torch.distributed")
        except ImportError as error:
            raise BackendUnavailable(
                f"RANK and WORLD_SIZE are set as by torchrun, but torch.distributed cannot be imported: {error}"
            ) from error
        absent = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
        if absent:
            raise BackendUnavailable(f"torchrun sets {', '.join(absent)}, but the environment lacks it; use torchrun")
        self.rank = int(env["RANK"])
        self.world_size = int(env["WORLD_SIZE"])
        local = read_int(env, "LOCAL_RANK")
        self.local_rank = self.rank if local is None else local
        # torchrun's agent usually hosts the store already; without an agent rank 0 does, and shares the server with
        # a process group that the program may make at the same address.
        agent_hosts = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = dist.TCPStore(
            env["MASTER_ADDR"],
            int(env["MASTER_PORT"]),
            self.world_size,
            is_master=self.rank == 0 and not agent_hosts,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
        attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"ep_lib/{attempt}/{_worlds_made}", store)
        _worlds_made += 1
        self._store_error: type[Exception] = dist.DistStoreError
        self._operation = 0
        self._closed = False

    def all_gather(self, obj: object, timeout: float | None = None) -> list[Any]:
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        operation, self._operation = self._operation, self._operation + 1
        keys = [f"{operation}/{rank}" for rank in range(self.world_size)]
        self._store.set(keys[self.rank], dumps(obj))
        deadline = time.monotonic() + limit
        while missing := [rank for rank, key in enumerate(keys) if not self._store.check([key])]:
            lost = [rank for rank in missing if self._store.check([f"bye/{rank}"])]
            # It may have set its key between our two looks, so look again.
            if lost and not self._store.check([keys[lost[0]]]):
                raise RankFailed(
                    f"rank {lost[0]} will not join host collective {operation}: it had already finished", rank=lost[0]
                )
            left = deadline - time.monotonic()
            if left <= 0:
                raise missing_error(self.rank, self.world_size, missing, operation, limit)
            self._wait(keys[missing[0]], min(left, _SLICE))
        parts = [loads(self._store.get(key)) for key in keys]
        if operation > 0:  # all ranks have set a key of this one, so all are past the one before
            self._store.delete_key(f"{operation - 1}/{self.rank}")
        return parts

    def _wait(self, key: str, seconds: float) -> None:
        try:
            self._store.wait([key], timedelta(seconds=seconds))
        except self._store_error:
            return  # the slice is over; the caller looks again and keeps the time

    def barrier(self, timeout: float | None = None) -> None:
        self.all_gather(None, timeout)

    def close(self, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._store.set(f"bye/{self.rank}", b"")
        except RuntimeError:
            return  # the store's host has left before us
