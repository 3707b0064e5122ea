"""``accesses_of``: run a program once, and say which thread read and wrote which bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ep_lib.emulator.accesses import Accesses
from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.errors import EpError
from ep_lib.runtime import arguments
from ep_lib.runtime.emulated import make_machine, run_program


def accesses_of(
    main: Callable[..., Any],
    ranks: int,
    fabric: Fabric | str | None = None,
    *,
    seed: int = 0,
    args: Sequence[Any] = (),
    timeout: float | None = None,
    heap_bytes: int | None = None,
    most: int = 1 << 16,
) -> Accesses:
    """Calls ``main(rank, *args)`` on emulated ranks under the checker, with the schedule of ``seed``; returns the first
    ``most`` memory accesses of kernels and NICs, in the order in which they happened.

    If the program fails (a deadlock, a fault, an assertion in main), returns its accesses up to the failure. The
    arguments are those of :func:`ep_lib.check`.
    """
    ranks, args = arguments.program(main, ranks, args)
    heap_bytes, timeout = arguments.limits(heap_bytes, timeout)
    from ep_lib.emulator import accesses

    machine = make_machine(ranks, seed=seed, fabric=make_fabric(fabric, ranks), heap_bytes=heap_bytes)
    machine.begin_checks()
    accesses.keep(machine, most)
    try:
        run_program(main, machine, args, timeout)
        machine.drain_network()
    except (EpError, AssertionError):
        pass  # ep_lib.check reports the error
    finally:
        found = accesses.collect(machine)
        machine.end_checks()
    return found
