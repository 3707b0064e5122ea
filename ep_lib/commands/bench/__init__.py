"""``ep-lib bench NAME``: measurements, each in a module of its own with ``add_arguments`` and ``run`` like a command.

A benchmark named ``x`` is a row of ``_BENCHMARKS`` and a module. It prints a table for people or, with ``--json``, one
JSON object and nothing else on the standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from ep_lib.config import parse_size
from ep_lib.errors import ArgumentError


class Benchmark(Protocol):
    """What a benchmark's module offers; importing it is quick (no torch, no CuPy)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


@dataclass(frozen=True)
class _Entry:
    name: str
    module: str
    summary: str


_BENCHMARKS = (
    _Entry("put", "ep_lib.commands.bench.put", "cycles of one put through the IBGDA/EFA shim, and what a quiet costs"),
    _Entry(
        "pcie", "ep_lib.commands.bench.pcie", "dispatch and combine in PCIe mode, modelled, against published figures"
    ),
    _Entry("p2p", "ep_lib.commands.bench.p2p", "latency and bandwidth between two GPUs, by transport and size"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="benchmark", metavar="NAME", required=True)
    for entry in _BENCHMARKS:
        if importlib.util.find_spec(entry.module) is None:
            continue
        description = entry.summary[0].upper() + entry.summary[1:] + "."
        sub = names.add_parser(entry.name, help=entry.summary, description=description)
        module = cast(Benchmark, importlib.import_module(entry.module))
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object for programs")
        sub.set_defaults(run_benchmark=module.run)


def run(args: argparse.Namespace) -> int:
    return int(args.run_benchmark(args))


def sizes_from_zero(text: str) -> list[int]:
    """ "8,4096,1M" as bytes: the ``type`` of an option such as ``--bytes``."""
    try:
        found = [parse_size(word) for word in text.split(",")]
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found


def sizes(text: str) -> list[int]:
    """The same for what cannot be empty."""
    found = sizes_from_zero(text)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds a size below one byte")
    return found


@contextlib.contextmanager
def stdout_kept_for_json(wanted: bool) -> Iterator[None]:
    """While it lasts, what kernels and other processes print goes to the standard error output, if ``wanted``."""
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
