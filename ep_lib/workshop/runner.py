"""Runs scenarios on the emulator with the learner's piece first among the include roots. Part of the child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ep_lib
from ep_lib.errors import KernelCompileError
from ep_lib.workshop.scenario import Array, Ref, Scenario, pack

MAX_MESSAGE = 4000  # characters of an exception that travel to the parent


class Runner:
    """Compiles each kernel once with ``include=[mine]`` and runs scenarios."""

    def __init__(self, mine: Path) -> None:
        self._mine = mine
        self._kernels: dict[tuple[str, str], ep_lib.Kernel] = {}

    def answer(self, request: Mapping[str, Any]) -> bytes:
        """The reply frame for {"nonce", "compile": [(source, kernel)...]} or {"nonce", "run": Scenario}."""
        nonce = request["nonce"]
        try:
            if "compile" in request:
                for source, name in request["compile"]:
                    self._kernel(source, name).compile("emulator")
                return pack({"nonce": nonce, "failure": None})
            return pack({"nonce": nonce, "failure": None}, self._run(request["run"]))
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the parent judges it
            failure = {"kind": type(error).__name__, "message": str(error)[:MAX_MESSAGE], "location": _location(error)}
            return pack({"nonce": nonce, "failure": failure})

    def _kernel(self, source: str, name: str) -> ep_lib.Kernel:
        key = (source, name)
        if key not in self._kernels:
            self._kernels[key] = ep_lib.Kernel.from_file(source, name, include=[self._mine])
        return self._kernels[key]

    def _run(self, scenario: Scenario) -> bytes:
        def main(rank: ep_lib.Rank) -> list[Array]:
            me = rank.rank
            arrays: dict[str, Any] = {}
            for name, contents in scenario.symmetric.items():
                arrays[name] = rank.symmetric(contents[me].shape, contents[me].dtype)
                arrays[name][...] = contents[me]
            for name, contents in scenario.local.items():
                arrays[name] = rank.to_device(contents[me].copy())
            rank.barrier()
            for launch in scenario.launches[me]:
                args = [_argument(arrays, arg) for arg in launch.args]
                self._kernel(scenario.source, launch.kernel).launch(rank, launch.grid, launch.block, *args)
            rank.synchronize()
            rank.barrier()
            return [rank.to_host(arrays[name]).copy() for name in scenario.outputs]

        results = ep_lib.spawn(
            main,
            ranks=scenario.ranks,
            backend="emulator",
            seed=scenario.seed,
            heap_bytes=scenario.heap_bytes,
            timeout=scenario.timeout_s,
        )
        by_name = zip(*results, strict=True)
        return b"".join(np.ascontiguousarray(array).tobytes() for arrays in by_name for array in arrays)


def _argument(arrays: Mapping[str, Any], arg: int | float | Ref) -> Any:
    if not isinstance(arg, Ref):
        return arg
    array = arrays[arg.name]
    return array if arg.offset == 0 else array.reshape(-1).view(np.uint8)[arg.offset :]


def _location(error: Exception) -> str:
    if isinstance(error, KernelCompileError):
        return f"{error.file}:{error.line}" if error.file else ""
    return str(getattr(error, "location", ""))
