"""Ranks started by Slurm's srun on one node: rank 0 hosts a hub behind a Unix socket in the user's own directory.

The directory is private (0700, and refused if it belongs to another user) and the socket requires a random key that
only this user can read, since its messages are unpickled.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Look, check_rank, missing_error, read_int
from ep_lib.bootstrap.hub import Hub, HubBootstrap
from ep_lib.bootstrap.siblings import LOOK_S
from ep_lib.bootstrap.stopped import give_up_on_ended
from ep_lib.errors import BackendUnavailable
from ep_lib.processes import private_folder

_RETRY_SECONDS = 0.05
_STALE_SECONDS = 2 * DEFAULT_TIMEOUT


class SrunBootstrap(HubBootstrap):
    """One node only: for several, use torchrun or mpirun."""

    def __init__(self, environ: Mapping[str, str] | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        env = os.environ if environ is None else environ
        rank = read_int(env, "SLURM_PROCID")
        size = read_int(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        if rank is None or size is None:
            raise BackendUnavailable("SLURM_PROCID and SLURM_STEP_NUM_TASKS are not both set; start ranks by srun")
        nodes = read_int(env, "SLURM_STEP_NUM_NODES", "SLURM_NNODES") or 1
        if nodes > 1:
            raise BackendUnavailable(
                f"srun started {size} ranks on {nodes} nodes; ep_lib's srun bootstrap works on one. For several, start "
                "one torchrun a node, or use mpirun."
            )
        local = read_int(env, "SLURM_LOCALID")
        check_rank("srun", rank, size, local)
        place = private_folder() / f"srun-{env.get('SLURM_JOB_ID', '0')}-{env.get('SLURM_STEP_ID', '0')}"
        self._hub: Hub | None = None
        look = give_up_on_ended(rank, rank if local is None else local)
        if rank == 0:
            connection = self._host(place, size, timeout, look)
        else:
            connection = _connect(place, rank, size, timeout, look)
        super().__init__(connection, rank, size, "srun", rank if local is None else local)

    def _host(self, place: Path, size: int, timeout: float, look: Look) -> Connection:
        """Accept all other ranks, then serve them and ourselves."""
        from multiprocessing import Pipe

        key = secrets.token_bytes(32)
        socket_path, key_path = place.with_suffix(".sock"), place.with_suffix(".key")
        socket_path.unlink(missing_ok=True)  # of a killed step
        _sweep(place.parent)
        ours, hubs = Pipe()
        peers: dict[int, Connection] = {0: hubs}
        with Listener(str(socket_path), family="AF_UNIX", backlog=size, authkey=key) as listener:
            fresh = key_path.with_suffix(".new")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
            fresh.replace(key_path)
            gave_up = threading.Event()
            accepting = threading.Thread(target=_accept, args=(listener, peers, size, gave_up), daemon=True)
            accepting.start()
            deadline = time.monotonic() + timeout
            try:
                while accepting.is_alive():
                    if time.monotonic() > deadline:
                        raise missing_error(0, size, set(range(size)) - set(peers), 0, timeout)
                    look()
                    accepting.join(LOOK_S)
            except BaseException:
                gave_up.set()
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as nobody:
                    nobody.connect(str(socket_path))  # the thread returns from accept(), and ends
                raise
            finally:
                key_path.unlink(missing_ok=True)
        self._hub = Hub(peers)
        return ours

    def close(self, timeout: float | None = None) -> None:
        super().close()
        if self._hub is not None:
            self._hub.join(
                DEFAULT_TIMEOUT if timeout is None else timeout
            )  # the others still need it until they have left as well
            self._hub.close()


def _sweep(folder: Path) -> None:
    """Removes leftovers of steps that were killed at their start."""
    for path in folder.glob("srun-*.sock"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < _STALE_SECONDS:
                continue  # its rank 0 may be about to listen
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.with_suffix(".key").unlink(missing_ok=True)
                    path.unlink()


def _accept(listener: Listener, peers: dict[int, Connection], size: int, gave_up: threading.Event) -> None:
    while len(peers) < size and not gave_up.is_set():
        with contextlib.suppress(AuthenticationError, EOFError, OSError):
            connection = listener.accept()
            peers[int(connection.recv())] = connection


def _connect(place: Path, rank: int, size: int, timeout: float, look: Look) -> Connection:
    """Retry until rank 0 answers: it may start later, and a killed step's key may be stale."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(AuthenticationError, EOFError, OSError):
            key = place.with_suffix(".key").read_bytes()
            connection = Client(str(place.with_suffix(".sock")), family="AF_UNIX", authkey=key)
            connection.send(rank)
            return connection
        look()
        time.sleep(_RETRY_SECONDS)
    raise missing_error(rank, size, [0], 0, timeout)
