"""``spawn``: one SPMD function, called once a rank, on the emulator or on GPUs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ep_lib.config import BACKENDS, Config
from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.errors import ArgumentError
from ep_lib.runtime.rank import Rank

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Machine

MAX_RANKS = 64  # EP_MAX_RANKS in <ep/device_state.cuh>
EMULATOR_HEAP_BYTES = 1 << 30  # address space; memory is taken as it is touched
EMULATOR_TIMEOUT_S = 60.0
EMULATOR_STACK_BYTES = 16 << 10
# A rank's blocks become resident up to this many threads, the rest follow as they end: 132 blocks of 1,024 or so.
EMULATOR_RESIDENT_THREADS = 132 * 1024


def spawn(
    main: Callable[..., Any],
    ranks: int,
    backend: str | None = None,
    *,
    seed: int | None = None,
    args: Sequence[Any] = (),
    heap_bytes: int | None = None,
    timeout: float | None = None,
    fabric: Fabric | str | None = None,
) -> list[Any]:
    """Call ``main(rank, *args)`` on every rank and return the results in rank order.

    ``backend``: "emulator" (threads of this process, no GPU needed; the run is determined by ``seed``) or "cuda" (a
    process a GPU; ``main`` and its results travel through cloudpickle). ``heap_bytes``: size of each rank's symmetric
    heap. ``timeout``: seconds that kernels may run while every rank waits for them. What is not given comes from the
    EP_LIB_* environment variables (see :mod:`ep_lib.config`), then from the backend. ``fabric``: what connects emulated
    ranks, an :class:`ep_lib.Fabric` or its kind ("p2p", the default, "rc" or "srd").

    Raises the exception of the first rank that failed; the others are ended. Ctrl-C ends all of them.
    """
    config = Config.from_environment()
    backend = config.backend if backend is None else backend
    if backend not in BACKENDS:
        raise ArgumentError(f"backend is {backend!r}; it must be one of {', '.join(map(repr, BACKENDS))}")
    if not callable(main):
        raise ArgumentError(f"main is {main!r}; it must be a function that takes a Rank")
    ranks = _whole("ranks", ranks, 1, MAX_RANKS)
    seed = _whole("seed", config.seed if seed is None else seed, 0, 2**63 - 1)
    if heap_bytes is None:
        heap_bytes = config.heap_bytes
    if heap_bytes is not None:
        heap_bytes = _whole("heap_bytes", heap_bytes, 4096, 1 << 46)
    timeout = config.timeout_s if timeout is None else timeout
    if timeout is not None and not timeout > 0:
        raise ArgumentError(f"timeout is {timeout!r}; it must be a number of seconds above zero")
    if backend == "cuda" and fabric is not None:
        raise ArgumentError(f"fabric is {fabric!r}; GPUs are connected as they are, only the emulator has a choice")
    if backend == "cuda":
        from ep_lib.runtime.spawn_cuda import spawn_processes

        return spawn_processes(main, ranks, tuple(args), heap_bytes=heap_bytes, timeout=timeout)
    machine = _emulated_machine(ranks, seed, heap_bytes, make_fabric(fabric, ranks))
    return _spawn_threads(main, machine, tuple(args), timeout)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be a whole number") from None
    if not low <= number <= high:
        raise ArgumentError(f"{name} is {number}; it must be from {low} to {high}")
    return number


def _emulated_machine(ranks: int, seed: int, heap_bytes: int | None, fabric: Fabric) -> Machine:
    from ep_lib.emulator.machine import Machine

    return Machine(
        ranks,
        seed=seed,
        heap_bytes=EMULATOR_HEAP_BYTES if heap_bytes is None else heap_bytes,
        stack_bytes=_stack_bytes(),
        max_resident_threads=EMULATOR_RESIDENT_THREADS,
        fabric=fabric,
    )


def emulated_solo_rank(*, seed: int, heap_bytes: int | None = None, timeout: float | None = None) -> Rank:
    """A world of one emulated rank in the calling thread (what ``ep_lib.init()`` gives without GPUs)."""
    from ep_lib.backends.emulator import EmulatorBackend
    from ep_lib.emulator.world import SoloWorld

    machine = _emulated_machine(1, seed, heap_bytes, Fabric())
    world = SoloWorld(machine, timeout=EMULATOR_TIMEOUT_S if timeout is None else timeout)
    return Rank(EmulatorBackend(world, 0))


def _stack_bytes() -> int:
    size = Config.from_environment().stack_bytes
    return EMULATOR_STACK_BYTES if size is None else -(-size // 4096) * 4096


def _spawn_threads(
    main: Callable[..., Any], machine: Machine, args: tuple[Any, ...], timeout: float | None
) -> list[Any]:
    from ep_lib.backends.emulator import EmulatorBackend
    from ep_lib.emulator.world import World

    world = World(machine, timeout=EMULATOR_TIMEOUT_S if timeout is None else timeout)

    def body(number: int) -> Any:
        rank = Rank(EmulatorBackend(world, number))
        result = main(rank, *args)
        if not rank.is_closed:
            rank.synchronize()
            rank.close()
        return result

    results: list[Any] = world.run_all(body)
    return results
