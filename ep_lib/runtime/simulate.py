"""``simulate``: run a program in virtual time and return its timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.emulator.hardware import Hardware, find_hardware
from ep_lib.emulator.timeline import Timeline
from ep_lib.runtime import arguments
from ep_lib.runtime.emulated import make_machine, run_program


def simulate(
    main: Callable[..., Any],
    ranks: int,
    fabric: Fabric | str | None = None,
    hardware: Hardware | str = "h20-cx7",
    *,
    args: Sequence[Any] = (),
    heap_bytes: int | None = None,
    timeout: float | None = None,
    transport: str | None = None,
) -> Timeline:
    """Call ``main(rank, *args)`` on emulated ranks in virtual time; the timeline has the results too.

    Nothing is random: the earliest event is next, so a program always takes the same time. ``hardware``: a name in
    ``ep_lib.HARDWARE`` or an ``ep_lib.Hardware``. ``fabric``: as for :func:`ep_lib.spawn`.

    Modelled: the rate at which SMs load and store, memory bandwidth, NVLink ports, posting, PCIe, NICs packet by
    packet, launches. Free: arithmetic, shared memory, barriers (which join the times of their threads), the latency of
    plain loads, and all work of hosts. Switches have room for all packets.

    Injected faults happen here too; the seconds of a fabric's ``stalled_links`` and ``delayed_messages`` are seconds
    of virtual time then. A packet that has left its NIC arrives even if the link behind it stalls.

    ``transport``, ``heap_bytes`` and ``timeout`` (seconds of real time) as for :func:`ep_lib.spawn`; raises what it
    raises, and ArgumentError for unknown hardware.
    """
    ranks, args = arguments.program(main, ranks, args)
    heap_bytes, timeout = arguments.limits(heap_bytes, timeout)
    transport = arguments.emulator_transport(transport)
    model = find_hardware(hardware)
    network = make_fabric(fabric, ranks)
    from ep_lib.emulator import virtual_time

    machine = make_machine(ranks, seed=0, heap_bytes=heap_bytes, fabric=network)
    virtual_time.begin(machine, model)
    results = run_program(main, machine, args, timeout, transport)
    machine.drain_network()  # messages in flight arrive
    return virtual_time.collect(machine, results, model, network)
