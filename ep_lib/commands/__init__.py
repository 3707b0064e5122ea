"""The commands of ``ep-lib``: one module each, or a folder where a command needs several files.

    doctor    what this machine can do, and the next step for what is missing
    demo      train a small mixture-of-experts model and run it across ranks
    check     find races, missing fences and deadlocks in a script's main(rank)
    replay    go through the run of a finding step by step, on a page of HTML
    bench     measure puts, transports and modes, on GPUs or on the emulator
    dispatch-combine   the standalone API's program, which mpiexec and torchrun start as well
    grade     check your piece of an exercise with the hidden tests
    ladder    every rung of a tutorial file, checked against the reference and timed
    migrate   what a CUDA file written for IBGDA must change to run on EFA
    lab       open the notebooks in JupyterLab
    cache     show, prune or clear the cache of compiled kernels

A command has ``add_arguments(parser)`` and ``run(args) -> int``, and ep_lib/cli.py lists it. A folder's ``__init__.py``
is the command itself. Begin with lab.py, the shortest. efa_environment.py, the table of NVSHMEM's variables on EFA, is
shared by doctor and migrate.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]


class Command(Protocol):
    """The interface of a command's or benchmark's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


@dataclass(frozen=True)
class Entry:
    """A command by its name, its module (imported by ``load`` alone) and a summary in half a sentence."""

    name: str
    module: str
    summary: str

    def exists(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def load(self) -> Command:
        return cast(Command, importlib.import_module(self.module))

    def add_parser(self, parsers: SubParsers) -> argparse.ArgumentParser:
        """The command's own parser, still without arguments."""
        description = self.summary[0].upper() + self.summary[1:] + "."
        return parsers.add_parser(self.name, help=self.summary, description=description)
