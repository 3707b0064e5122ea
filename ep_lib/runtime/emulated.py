"""Emulated ranks: a machine for them, and a program that runs on it. ``spawn``, ``check`` and ``simulate`` use both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Bootstrap
from ep_lib.config import Config
from ep_lib.emulator.fabric import Fabric
from ep_lib.errors import ArgumentError
from ep_lib.runtime.arguments import run_main
from ep_lib.runtime.rank import Rank

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Machine
    from ep_lib.emulator.shared_heaps import Invitation

_HEAP_BYTES = 1 << 30  # address space; memory is taken as it is touched
_TIMEOUT_S = 60.0
_STACK_BYTES = 16 << 10
# Resident threads per rank, at most: blocks that wait for each other must fit, as on a GPU of 132 SMs. Usually fewer
# are resident (emulator/runtime/scheduler.cpp says when).
_RESIDENT_THREADS = 132 * 1024


def make_machine(
    ranks: int,
    *,
    seed: int,
    fabric: Fabric,
    heap_bytes: int | None = None,
    resident_blocks: int | None = None,
    program_steps: int = 0,
    home: int = -1,
) -> Machine:
    """A machine of ``ranks`` ranks. ``heap_bytes``: of each rank's symmetric heap. Raises BackendUnavailable.

    ``resident_blocks``: the most blocks of a rank that run at a time. ``program_steps``: Machine.steps of another run
    of the same program, for the schedules of PCT. ``home``: the rank of this process, where each rank is one.
    """
    from ep_lib.emulator.machine import Machine

    stack_bytes = Config.from_environment().stack_bytes
    return Machine(
        ranks,
        seed=seed,
        heap_bytes=_HEAP_BYTES if heap_bytes is None else heap_bytes,
        stack_bytes=_STACK_BYTES if stack_bytes is None else -(-stack_bytes // 4096) * 4096,
        max_resident_threads=_RESIDENT_THREADS,
        fabric=fabric,
        max_resident_blocks=resident_blocks or 0,
        program_steps=program_steps,
        home=home,
    )


def run_program(
    main: Callable[..., Any],
    machine: Machine,
    args: Sequence[Any] = (),
    timeout: float | None = None,
    transport: str = "emulated",
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Any]:
    """Calls ``main(rank, *args)`` on every rank of the machine, a thread each, and returns the results in rank order.

    ``timeout``: seconds that kernels may run while every rank waits for them. ``transport``: one that is registered for
    the emulator. ``around``: the context in which main runs on each rank's thread.

    Raises what the first rank raised. The machine takes no further program.
    """
    from ep_lib.backends.emulator import EmulatorBackend
    from ep_lib.emulator.world import World

    world = World(machine, timeout=_TIMEOUT_S if timeout is None else timeout)

    def body(number: int) -> Any:
        rank = Rank(EmulatorBackend(world, number, transport))
        with around():
            result = run_main(main, rank, args)
        if not rank.is_closed:
            rank.synchronize()
            rank.close()
        return result

    results: list[Any] = world.run_all(body)
    return results


def solo_rank(
    *, seed: int, heap_bytes: int | None = None, timeout: float | None = None, transport: str = "emulated"
) -> Rank:
    """A world of one emulated rank in the calling thread (what ``ep_lib.init()`` gives without GPUs)."""
    from ep_lib.backends.emulator import EmulatorBackend
    from ep_lib.emulator.world import SoloWorld

    machine = make_machine(1, seed=seed, heap_bytes=heap_bytes, fabric=Fabric())
    world = SoloWorld(machine, timeout=_TIMEOUT_S if timeout is None else timeout)
    return Rank(EmulatorBackend(world, 0, transport))


def process_rank(
    bootstrap: Bootstrap,
    *,
    seed: int,
    fabric: Fabric | str | None,
    heap_bytes: int | None = None,
    timeout: float | None = None,
    transport: str = "emulated",
    invitation: Invitation | None = None,
) -> Rank:
    """The rank of this process. Processes of one host share the heaps as shared memory; TCP connections lead to other
    hosts. Collective, except with an ``invitation``, by which this process replaces a rank that has ended (all ranks on
    one host).

    Real concurrency decides the order of events; ``seed`` is for the delays of the emulated NICs.
    """
    from ep_lib.backends.emulator import EmulatorBackend
    from ep_lib.bootstrap.stopped import Watched
    from ep_lib.emulator.host_links import HostLinks, fabric_of_hosts, gather_hosts
    from ep_lib.emulator.process_world import ProcessWorld
    from ep_lib.emulator.shared_heaps import SharedHeaps
    from ep_lib.jit import device_state

    timeout = _TIMEOUT_S if timeout is None else timeout
    size = bootstrap.world_size if invitation is None else len(invitation.processes)
    meeting_timeout, links = max(DEFAULT_TIMEOUT, timeout), None
    watched = bootstrap if invitation is not None else Watched(bootstrap, timeout, meeting_timeout)
    hosts = [""] * size if invitation is not None else gather_hosts(watched, meeting_timeout)
    connected = fabric_of_hosts(fabric, hosts)
    if transport == "proxy" and len(set(hosts)) > 1:
        raise ArgumentError(
            "transport is 'proxy', whose native threads copy between heaps that the processes of one host share, and "
            f"the ranks are on {len(set(hosts))} hosts: leave transport= out, or start all ranks on one host"
        )
    machine = make_machine(size, seed=seed, fabric=connected, heap_bytes=heap_bytes, home=bootstrap.rank)
    if invitation is None:
        heaps = SharedHeaps.share(watched, machine, hosts, meeting_timeout)
        if len(set(hosts)) > 1:
            links = HostLinks(watched, machine, hosts, meeting_timeout)
    else:
        heaps = SharedHeaps.join(invitation, bootstrap.rank, machine)
    limit_ns = min(device_state.DEFAULT_TIMEOUT_NS, int(timeout / 2 * 1e9))  # a kernel gives up before its host does
    begin = device_state.HEADER.offsets["timeout_ns"]
    machine.heap_view(bootstrap.rank)[begin : begin + 8].view(np.uint64)[0] = limit_ns
    world = ProcessWorld(machine, bootstrap, heaps, links, timeout=timeout)
    return Rank(EmulatorBackend(world, bootstrap.rank, transport))
