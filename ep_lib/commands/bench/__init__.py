"""``ep-lib bench NAME``: measurements, each in a module of its own with ``add_arguments`` and ``run`` like a command.

A benchmark named ``x`` is a row of ``_BENCHMARKS`` and a module in this folder. It prints a table or, with ``--json``,
only one JSON object on the standard output. Begin with put.py; this file has the benchmarks' shared code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ep_lib.commands import Entry
from ep_lib.config import BACKENDS, Config, parse_size
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.errors import ArgumentError
from ep_lib.runtime.simulate import simulate
from ep_lib.runtime.spawn import spawn

_BENCHMARKS = (
    Entry("put", "ep_lib.commands.bench.put", "cycles of one put through the IBGDA/EFA shim, and what a quiet costs"),
    Entry(
        "pcie", "ep_lib.commands.bench.pcie", "dispatch and combine in PCIe mode, modelled, against published figures"
    ),
    Entry("p2p", "ep_lib.commands.bench.p2p", "latency and bandwidth between two GPUs, by transport and size"),
    Entry("local", "ep_lib.commands.bench.local", "the CPU proxy on this machine: delay of a push, commands/s, GB/s"),
    Entry("remote", "ep_lib.commands.bench.remote", "the CPU proxy between two processes or hosts, by NIXL (UCX)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="benchmark", metavar="NAME", required=True)
    for entry in _BENCHMARKS:
        if not entry.exists():
            continue
        sub, module = entry.add_parser(names), entry.load()  # a quick import: no torch, no CuPy
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object for programs")
        sub.set_defaults(run_benchmark=module.run)


def run(args: argparse.Namespace) -> int:
    return int(args.run_benchmark(args))


def sizes_from_zero(text: str) -> list[int]:
    """ "8,4096,1M" as bytes: the ``type`` of an option such as ``--bytes``."""
    try:
        return [parse_size(word) for word in text.split(",")]
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sizes(text: str) -> list[int]:
    """The same, for sizes of at least one byte."""
    found = sizes_from_zero(text)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds a size below one byte")
    return found


def show(report: dict[str, Any], args: argparse.Namespace, table: str) -> None:
    """Prints the result as text or JSON, and saves the figure if requested."""
    print(json.dumps(report) if args.json else table)
    if args.figure:
        from ep_lib.viz import transports_compared  # imported here: it needs matplotlib

        transports_compared(report["results"]).savefig(args.figure)


@contextlib.contextmanager
def stdout_kept_for_json(wanted: bool) -> Iterator[None]:
    """If ``wanted``, output of kernels and other processes goes to the standard error output within this context."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


# ---- where a benchmark's kernels run: on GPUs, or on emulated ranks in modelled time or counting steps ---------------
STEPS = "none"  # for --hardware: count steps
_USUAL = {"p2p": "h100-cx7", "rc": "h100-cx7", "srd": "p5-efa"}
_NOTES = {
    "real": "",
    "modelled": "Modelled, not measured: see ep_lib.simulate for what is modelled. A store to a P2P peer costs\n"
    "its share of the bandwidth there, and no latency.",
    "virtual": "Virtual cycles: they count steps of the emulator, not time (--hardware models time, GPUs measure it).",
}


def add_world_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks share."""
    parser.add_argument("--backend", choices=BACKENDS, help="default: EP_LIB_BACKEND, else the emulator")
    parser.add_argument(
        "--hardware",
        choices=(*HARDWARE, STEPS),
        help=f"what the emulator models; {STEPS}: count steps (default: h100-cx7, or p5-efa with fabric srd)",
    )


@dataclass(frozen=True)
class Platform:
    """Where ranks run: ``backend``, ``network`` (a fabric's kind, or a transport of GPUs), ``hardware`` and the kind of
    ``clock``: "real", "modelled" or "virtual"."""

    backend: str
    network: str
    hardware: str | None
    clock: str

    @property
    def place(self) -> str:
        """The platform in words, for a table's headline."""
        if self.backend == "cuda":
            return f"GPUs, transport {self.network}"
        model = "" if self.clock == "virtual" else f", modelled {self.hardware}"
        return f"the emulator, fabric {self.network}{model}"

    @property
    def note(self) -> str:
        """A note about the figures; empty for real ones."""
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
        """Runs ``main(rank, *args)`` on all ranks; ``quiet`` keeps kernels' output from the standard output."""
        fabric = Fabric(self.network, ranks_per_node=ranks_per_node) if self.backend == "emulator" else None
        with stdout_kept_for_json(quiet):
            if self.clock == "modelled":
                assert self.hardware is not None
                return simulate(main, ranks, fabric, self.hardware, args=args, heap_bytes=heap_bytes).results
            if self.backend == "emulator":
                return spawn(main, ranks, "emulator", seed=seed, args=args, heap_bytes=heap_bytes, fabric=fabric)
            return spawn(main, ranks, "cuda", args=args, heap_bytes=heap_bytes, transport=self.network)

    def facts(self) -> dict[str, Any]:
        """The platform as fields of the JSON report."""
        kind = "transport" if self.backend == "cuda" else "fabric"
        return {"backend": self.backend, kind: self.network, "hardware": self.hardware, "clock": self.clock}


def choose_backend(args: argparse.Namespace) -> str:
    """The backend that the options select. Raises ArgumentError if they contradict each other."""
    backend: str = args.backend or Config.from_environment().backend
    if backend == "cuda" and args.hardware is not None:
        raise ArgumentError(f"--hardware {args.hardware} is what the emulator models; leave it out on GPUs")
    return backend


def make_world(args: argparse.Namespace, backend: str, network: str) -> Platform:
    if backend == "cuda":
        return Platform("cuda", network, None, "real")
    hardware = args.hardware or _USUAL[network]
    return Platform("emulator", network, *((None, "virtual") if hardware == STEPS else (hardware, "modelled")))
