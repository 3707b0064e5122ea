"""Notebook 02: the second process, the cells that need NIXL, and how long each step takes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib import viz
from ep_lib.errors import BackendUnavailable, RankFailed
from ep_lib.jit.kernel import Kernel
from ep_lib.nixl import DeviceHost
from ep_lib.runtime.rank import Rank
from ep_lib.transports.nixl import build
from ep_lib.viz.style import INK, tidy
from ep_lib.workshop.course.notes import Note, show_note
from ep_lib.workshop.notebook import find

_PROGRAM = "tutorial_kernels/02_peer.py"


def missing() -> str:
    """Why this machine has no NIXL, and how to install it; "" if it has."""
    try:
        build.find_wheel()
    except BackendUnavailable as error:
        return str(error)
    return ""


def run_cell(shell: Any, cell: str) -> None:
    """``%%with_nixl``: runs the cell, or prints what is missing."""
    why = missing()
    if why:
        show_note(Note("This cell needs NIXL, and was left out", f"{why}\nRead on: only cells that begin so need it."))
        return
    shell.run_cell(cell).raise_error()


class Owner:
    """The process of tutorial_kernels/02_peer.py. It ends with this one, or with :meth:`stop`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(find(_PROGRAM))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt of the notebook must not reach it
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RankFailed("the other process ended at once; its message stands above", rank=-1)
        self.port = int(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def meet(self, handshake: ModuleType, host: DeviceHost, mine: bytes) -> Any:
        """Connects to it, and swaps hellos by ``handshake.meet``."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as stream:
            return handshake.meet(host, mine, stream.sendall, stream.recv)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(timeout=10)

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


def read_first(handshake: ModuleType, nbytes: int, patience: float = 0.5) -> list[str]:
    """The outcome if both ends of a stream read the other's hello of ``nbytes`` before they send their own."""
    ends = socket.socketpair()

    def meet(end: socket.socket) -> str:
        end.settimeout(patience)
        try:
            handshake.read_frame(end.recv)
            end.sendall(handshake.frame(bytes(nbytes)))
        except TimeoutError:
            return f"still reads after {patience:g} s"
        return "met the other"

    with ends[0], ends[1], ThreadPoolExecutor(2) as both:
        return list(both.map(meet, ends))


def watch_cache(module: ModuleType, sends: Sequence[tuple[int, int]], limits: Sequence[int]) -> Any:
    """A picture of the registrations that a RegistrationCache of ``module`` keeps while (address, bytes) are sent in
    turn, with each of ``limits`` as its idle_bytes. A line is a send, a bar a registration."""
    picture = viz.new_picture(viz.NARROW, 3.0)
    for axes, limit in zip(picture.subplots(1, len(limits), sharey=True), limits, strict=True):
        lives = _lives(module, sends, limit)
        for begin, end, address, nbytes in lives:
            lived = begin - 0.3, max(end - begin, 0.6)
            axes.broken_barh([lived], (address, nbytes), color="#BBBBBB", edgecolor="white")
        for step, (address, nbytes) in enumerate(sends):
            axes.vlines(step, address, address + nbytes, color=INK, linewidth=2)
        axes.set(xlabel="send number")
        tidy(axes)
        axes.set_title(f"limit {limit}:\n{len(lives)} registrations", loc="left", fontsize=10, color=INK)
        axes.set_xticks(range(0, len(sends) + 1, 2))
        picture.describe(f"With a limit of {limit} idle bytes {len(lives)} registrations serve {len(sends)} sends.")
    picture.axes[0].set_ylabel("registered addresses")
    return picture


def _lives(module: ModuleType, sends: Sequence[tuple[int, int]], limit: int) -> list[list[int]]:
    """[from this send on, to this one, address, bytes] of each registration."""
    lives: list[list[int]] = []

    def register(address: int, nbytes: int) -> int:
        lives.append([step, len(sends), address, nbytes])
        return len(lives) - 1

    def deregister(number: int) -> None:
        lives[number][1] = step

    cache = module.RegistrationCache(register, deregister, limit)
    for step, (address, nbytes) in enumerate(sends):  # noqa: B007 - the two functions read it
        cache.release(cache.acquire(address, nbytes))
    return lives


def microseconds(call: Callable[[], Any], times: int = 1) -> float:
    """The median time of a call."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return float(np.median(took)) * 1e6


def step_times(handshake: ModuleType, owner: Owner, data: NDArray[Any], descs: bytes) -> dict[str, float]:
    """Microseconds of an agent's setup steps, before it writes ``data`` to the ``descs`` of ``owner``."""
    began = time.perf_counter()
    with DeviceHost("second writer") as agent:
        took = {"make an agent": 1e6 * (time.perf_counter() - began)}
        hello = handshake.hello(agent, {})
        took["meet the peer"] = microseconds(lambda: owner.meet(handshake, agent, hello))
        took["register 16 MiB"] = microseconds(lambda: agent.register(data))
        at, size = data.ctypes.data, data.nbytes
        took["make a handle"] = microseconds(lambda: agent.create_write_req(at, size, 0, descs, "owner"))
    return took


def times_picture(took: Mapping[str, float], title: str) -> Any:
    """A bar for each step, in microseconds; the quickest is dark."""
    picture = viz.new_picture(viz.NARROW, 2.8)
    axes = picture.add_subplot()
    least = min(took.values())
    looks = [INK if us == least else "#BBBBBB" for us in took.values()]  # no rank's colours
    axes.barh(list(took), list(took.values()), color=looks)
    for place, us in enumerate(took.values()):
        axes.text(
            us * 1.15, place, f"{us:,.0f} µs", va="center", fontsize=9, weight="bold" if us == least else "normal"
        )
    axes.set(xscale="log", xlabel="µs, ten times as many from line to line", xlim=(1, 20 * max(took.values())))
    axes.invert_yaxis()
    tidy(axes, title=title, grid="x")
    picture.describe(f"{title}: {', '.join(f'{name} {us:,.0f} µs' for name, us in took.items())}.")
    return picture


def write_by_view(
    rank: Rank, kernel: Kernel, receive: Kernel, size: int = 64, registered: int | None = None
) -> bool | None:
    """Rank 0's kernel writes ``size`` bytes and signals, by memory views; returns whether rank 1 found them right.
    ``registered``: the number of registered bytes, by default all."""
    registered = size if registered is None else registered
    data, bell = rank.symmetric(registered, np.uint8), rank.symmetric(1, np.uint64)
    values = np.random.default_rng(2).integers(1, 256, registered, np.uint8)
    if rank.rank == 1:
        out = rank.to_device(np.zeros(size, np.uint8))
        receive.launch(rank, 1, 32, bell, data, out, size)
        return bool((rank.to_host(out) == values).all())
    with DeviceHost(rank) as host:
        source = rank.to_device(values)
        for array in (source, data, bell):
            host.register(array)
        local = host.prep_local_view([source])
        remote = host.prep_remote_view([(data, 1), (bell, 1)])
        kernel.launch(rank, 1, 32, local, remote, size)
    return None
