"""Where a benchmark's kernels run: on GPUs, or on emulated ranks in modelled time or counting steps."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ep_lib.commands.bench import stdout_kept_for_json
from ep_lib.config import BACKENDS, Config
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.errors import ArgumentError
from ep_lib.runtime.simulate import simulate
from ep_lib.runtime.spawn import spawn

STEPS = "none"  # of --hardware
_USUAL = {"p2p": "h100-cx7", "rc": "h100-cx7", "srd": "p5-efa"}
_NOTES = {
    "real": "",
    "modelled": "Modelled, not measured: ep_lib.simulate says what of the hardware counts. A store to a P2P\n"
    "peer costs its share of the bandwidth there, and no latency.",
    "virtual": "Virtual cycles: they count steps of the emulator, not time (--hardware models time, GPUs take it).",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks share."""
    parser.add_argument("--backend", choices=BACKENDS, help="default: EP_LIB_BACKEND, else the emulator")
    parser.add_argument(
        "--hardware",
        choices=(*HARDWARE, STEPS),
        help=f"what the emulator models; {STEPS}: count steps (default: h100-cx7, with fabric srd p5-efa)",
    )


@dataclass(frozen=True)
class World:
    """``backend``, ``network`` (a fabric's kind, or a transport of GPUs), ``hardware`` and the kind of ``clock``:
    "real", "modelled" or "virtual"."""

    backend: str
    network: str
    hardware: str | None
    clock: str

    @property
    def place(self) -> str:
        """For a table's headline."""
        if self.backend == "cuda":
            return f"GPUs, transport {self.network}"
        model = "" if self.clock == "virtual" else f", modelled {self.hardware}"
        return f"the emulator, fabric {self.network}{model}"

    @property
    def note(self) -> str:
        """What must be known about the figures; empty for real ones."""
        return _NOTES[self.clock]

    def run(
        self,
        main: Callable[..., Any],
        ranks: int,
        *args: Any,
        heap_bytes: int,
        quiet: bool,
        ranks_per_node: int = 1,
        seed: int | None = None,
    ) -> list[Any]:
        """``main(rank, *args)`` of all ranks; ``quiet`` keeps what kernels print from the standard output."""
        fabric = Fabric(self.network, ranks_per_node=ranks_per_node) if self.backend == "emulator" else None
        with stdout_kept_for_json(quiet):
            if self.clock == "modelled":
                assert self.hardware is not None
                return simulate(main, ranks, fabric, self.hardware, args=args, heap_bytes=heap_bytes).results
            if self.backend == "emulator":
                return spawn(main, ranks, "emulator", seed=seed, args=args, heap_bytes=heap_bytes, fabric=fabric)
            return spawn(main, ranks, "cuda", args=args, heap_bytes=heap_bytes, transport=self.network)

    def facts(self) -> dict[str, Any]:
        """For the JSON report."""
        kind = "transport" if self.backend == "cuda" else "fabric"
        return {"backend": self.backend, kind: self.network, "hardware": self.hardware, "clock": self.clock}


def choose_backend(args: argparse.Namespace) -> str:
    """The backend that the options ask for. Raises ArgumentError where they contradict each other."""
    backend: str = args.backend or Config.from_environment().backend
    if backend == "cuda" and args.hardware is not None:
        raise ArgumentError(f"--hardware {args.hardware} is what the emulator models; GPUs are what they are")
    return backend


def make_world(args: argparse.Namespace, backend: str, network: str) -> World:
    if backend == "cuda":
        return World("cuda", network, None, "real")
    hardware = args.hardware or _USUAL[network]
    return World("emulator", network, *((None, "virtual") if hardware == STEPS else (hardware, "modelled")))
