"""``ep-lib lab``: JupyterLab on the learner's copies of the notebooks, for this machine only (localhost, token on).

It first compiles the emulator, with a progress bar, if the cache lacks this version. An ep_lib installed as a wheel
contains the notebooks, and first copies them to the current folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from urllib.parse import quote

from ep_lib.errors import ArgumentError, BackendUnavailable, EpError, GradingError
from ep_lib.jit.runtime_library import build_runtime
from ep_lib.require import whole_number
from ep_lib.workshop.course.copies import update
from ep_lib.workshop.exercises import CARRIED, make_workshop, workshop_root

LOOPBACK = "127.0.0.1"
FIRST_NOTEBOOK = "00_start_here.ipynb"
_WORKSHOP = Path(__file__).resolve().parents[1] / "workshop"
SETTINGS = _WORKSHOP / "jupyter"  # a folder of Jupyter's configuration
NEW_KERNEL = _WORKSHOP / "course" / "new_kernel.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", nargs="?", default=FIRST_NOTEBOOK, help="which notebook (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8888, help="the first port to try (default: %(default)s)")
    parser.add_argument(
        "--ip",
        default=LOOPBACK,
        help="where to listen; another address only in a container (default: %(default)s)",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")


def run(args: argparse.Namespace) -> int:
    whole_number("--port", args.port, 1, 65535)
    if importlib.util.find_spec("jupyterlab") is None:
        raise BackendUnavailable(
            f"JupyterLab is not installed for this Python: run `{sys.executable} -m pip install 'jupyterlab>=4.2,<5'`"
        )
    try:
        root = workshop_root("notebooks", ArgumentError)
    except ArgumentError:
        if not CARRIED.is_dir() or os.environ.get("EP_LIB_WORKSHOP"):
            raise
        root = make_workshop(Path.cwd())
        print(f"The workshop's notebooks, exercises and kernels are now in {root}.")
    notebook = own_copy(find_notebook(root, args.notebook), root)
    command = server_command(notebook, root, port=args.port, browser=not args.no_browser, ip=args.ip)
    try:
        build_runtime()  # here, with a progress bar, rather than in the first cell
    except EpError as error:  # the notebooks are still readable
        print(
            f"ep-lib lab: warning: the emulator cannot be compiled, so no cell will run on it: {error}", file=sys.stderr
        )
    sys.stdout.flush()
    os.execve(command[0], command, server_environment())  # replaces this process: Ctrl-C reaches only the server


def find_notebook(root: Path, name: str) -> Path:
    """The notebook called ``name`` in ``root/notebooks``; a number is enough (``01``). Raises ArgumentError."""
    folder = root / "notebooks"
    everything = sorted(path for path in folder.glob("*.ipynb"))
    matches = [path for path in everything if name in (path.name, path.stem, path.name.split("_")[0], str(path))]
    if len(matches) != 1:
        names = ", ".join(path.stem for path in everything) or "none yet"
        raise ArgumentError(f"there is no notebook {name!r} in {folder}; there are: {names}")
    return matches[0]


def own_copy(notebook: Path, root: Path) -> Path:
    """The learner's copy of a notebook, up to date. If it cannot be written, the course's own, with a message."""
    try:
        copies = update(root)
    except GradingError as error:
        print(f"The notebooks are opened where they are, since {error}.", file=sys.stderr)
        return notebook
    for message in copies.messages:
        print(message)
    return copies.folder / notebook.name


def server_command(notebook: Path, root: Path, *, port: int, browser: bool, ip: str = LOOPBACK) -> list[str]:
    """The JupyterLab command: bound to localhost (or ``ip``), with its random token, rooted in the checkout."""
    command = [sys.executable, "-P", "-m", "jupyterlab", f"--ServerApp.ip={ip}", f"--ServerApp.port={port}"]
    # A login shell, which JupyterLab's terminals are without a terminal of its own, would forget the PATH
    shell = os.environ.get("SHELL") or "/bin/sh"
    command.append(f"--ServerApp.terminado_settings={{'shell_command': [{shell!r}]}}")
    # As the default address, the notebook is also part of the address that --no-browser prints.
    address = quote(notebook.relative_to(root).as_posix())
    command += [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{address}"]
    command.append(f"--LabApp.extra_labextensions_path={SETTINGS / 'labextensions'}")  # .cuh files have colours
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:  # containers; still localhost and token only
        command.append("--allow-root")
    return command


def server_environment() -> dict[str, str]:
    """The server's environment: ``ep-lib`` of this Python comes first on the PATH of its terminals and notebooks, and
    Jupyter reads the course's settings besides the user's. A kernel without an executed cell says so, unless the user
    has a startup file."""
    scripts = sysconfig.get_path("scripts")
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    settings = [str(SETTINGS), *os.environ.get("JUPYTER_CONFIG_PATH", "").split(os.pathsep)]
    return {
        "PYTHONSTARTUP": str(NEW_KERNEL),
        **os.environ,
        "PATH": os.pathsep.join([scripts, *(folder for folder in path if folder != scripts)]),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, settings)),
    }
