"""``%%kernel NAME``: a notebook cell of CUDA C++ becomes a kernel. Importing ep_lib.workshop registers it in
IPython."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any, NoReturn

from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.check import check

_MAGIC = "%%kernel"


class _Parser(argparse.ArgumentParser):
    """Raises an exception for a wrong line, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{_MAGIC}: {message}; {self.format_usage().strip()}")


def _parsed(line: str) -> argparse.Namespace:
    parser = _Parser(prog=_MAGIC, add_help=False, allow_abbrev=False)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--main", default="main")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--fabric")
    parser.add_argument("--seeds", type=int, default=20)
    try:
        return parser.parse_args(shlex.split(line, comments=True))
    except ValueError as error:
        raise ArgumentError(f"{_MAGIC} {line}: {error}") from error


class KernelCell:
    """The cell magic of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def run(self, line: str, cell: str) -> None:
        """``%%kernel NAME [NAME ...] [--check [--main main] [--ranks 2] [--fabric F] [--seeds 20]]``

        The cell is CUDA C++, and each NAME is a ``__global__`` function in it (``extern "C"`` is simplest). After the
        cell, the Python variable NAME is an :class:`ep_lib.Kernel`: ``NAME.launch(rank, grid, block, *args)``. It is
        compiled now, for the emulator or, where the notebook says ``BACKEND = "cuda"``, for the GPU; errors name the
        cell's own lines, of which the one with ``%%kernel`` is the first.

        ``--check`` runs the checker as well (:func:`ep_lib.check`). A checker runs programs, not kernels, and the
        program is the notebook's own function ``main(rank)``, or the one that ``--main`` names: write it in a cell
        above, and let it launch NAME by its name, since it finds the kernel that the name means when it runs. So write,
        run the cell, read the finding, repair, and run the cell again.
        """
        options = _parsed(line)
        filename = f"cell [{getattr(self._shell, 'execution_count', None)}]"
        kernels = {}
        for name in options.names:
            if not name.isidentifier():
                raise ArgumentError(f"{_MAGIC}: {name!r} is no name that Python can give to a kernel")
            # The line of the magic is the first of the cell, and the source begins at the second.
            kernels[name] = Kernel.from_source(f"\n{cell}", name, filename=filename)
        target = self._target()
        for kernel in kernels.values():
            kernel.compile(target)
        main = self._main(options.main) if options.check else None
        self._shell.user_ns.update(kernels)
        if main is not None:
            from IPython.display import display

            from ep_lib.viz import findings

            report = check(main, ranks=options.ranks, fabric=options.fabric, seeds=options.seeds)
            display(findings(report))  # type: ignore[no-untyped-call]

    def _target(self) -> str:
        """The backend of this notebook's kernels."""
        if self._shell.user_ns.get("BACKEND") != "cuda":
            return "emulator"
        from ep_lib.cuda.devices import architecture

        return architecture(0)

    def _main(self, name: str) -> Callable[..., Any]:
        main = self._shell.user_ns.get(name)
        if not callable(main):
            raise ArgumentError(
                f"{_MAGIC} --check runs a program, and this notebook has no function {name}(rank): write one in a "
                "cell above that launches the kernel, run that cell first, or name another function with --main"
            )
        return main  # type: ignore[no-any-return]


def register(shell: Any) -> None:
    """Give an IPython shell the magic."""
    shell.register_magic_function(KernelCell(shell).run, magic_kind="cell", magic_name="kernel")
