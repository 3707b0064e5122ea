"""``spawn``: one SPMD function, called once per rank, on the emulator or on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ep_lib.config import BACKENDS, Config
from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.errors import ArgumentError, DeadlockError, KernelCompileError, KernelFault, KernelTimeout, PeerTimeout
from ep_lib.jit import pieces
from ep_lib.require import brief, one_of
from ep_lib.runtime import arguments
from ep_lib.runtime.emulated import make_machine, run_program

T = TypeVar("T")

# Errors that a learner's piece may have caused
_OF_KERNELS = (KernelCompileError, KernelFault, KernelTimeout, DeadlockError, PeerTimeout, AssertionError)


def spawn(
    main: Callable[..., T],
    ranks: int,
    backend: str | None = None,
    *,
    seed: int | None = None,
    args: Sequence[Any] = (),
    heap_bytes: int | None = None,
    timeout: float | None = None,
    fabric: Fabric | str | None = None,
    transport: str | None = None,
    gpus: int | None = None,
) -> list[T]:
    """Call ``main(rank, *args)`` on every rank and return the results in rank order.

    ``backend``: "emulator" (threads of this process, no GPU needed; the run is determined by ``seed``) or "cuda" (a
    process per rank, on a GPU each; ``main`` and its results travel through cloudpickle). ``heap_bytes``: size of each
    rank's symmetric heap. ``timeout``: seconds that kernels may run while every rank waits for them (CPU time on the
    emulator, so that a busy machine is no error). Defaults come from the EP_LIB_* environment variables (see
    :mod:`ep_lib.config`), then from the backend. ``fabric``: the network of emulated ranks, an :class:`ep_lib.Fabric`
    or its kind ("p2p", the default, "rc" or "srd"). ``transport``: how GPUs reach each other: "p2p" (stores over NVLink
    or PCIe), "nvshmem" (``ep::net_*`` are NVSHMEM's operations; "nvshmem:ROUTE" names the build route of kernels, see
    :mod:`ep_lib.transports.nvshmem.build`), "nixl", "proxy" (commands to threads of the host, which use the copy
    engine), "nccl" (stores to memory that NCCL has mapped), or "auto" (P2P where all GPUs have it). On the emulator
    ``ep::net_*`` are its NICs ("emulated"), with "by_pair" stores inside a node and NICs between nodes, or commands to
    a "proxy". ``gpus``: the ranks share so many GPUs (1 is enough for 8 ranks), each with its own part of a GPU's SMs;
    NVIDIA's MPS, which this starts if it does not run, lets their kernels run at the same time.

    Raises the exception of the first rank that failed; the others are ended. Ctrl-C ends all of them.
    """
    config = Config.from_environment()
    backend = one_of("backend", config.backend if backend is None else backend, BACKENDS)
    ranks, args = arguments.program(main, ranks, args)
    seed = arguments.a_seed(config.seed if seed is None else seed)
    heap_bytes, timeout = arguments.limits(heap_bytes, timeout)
    if backend == "cuda" and fabric is not None:
        raise ArgumentError(f"fabric is {fabric!r}; GPUs are connected as they are, only the emulator has a choice")
    if backend == "emulator" and gpus is not None:
        raise ArgumentError(f"gpus is {brief(gpus)}; the emulator needs none: leave it out, or take backend='cuda'")
    try:
        if backend == "cuda":
            from ep_lib.runtime.spawn_cuda import spawn_processes

            transport = arguments.a_transport(config.transport if transport is None else transport)
            gpus = arguments.shared_gpus(config.gpus if gpus is None else gpus, ranks, transport)
            return spawn_processes(
                main, ranks, args, heap_bytes=heap_bytes, timeout=timeout, transport=transport, gpus=gpus
            )
        transport = arguments.emulator_transport(transport)
        machine = make_machine(ranks, seed=seed, heap_bytes=heap_bytes, fabric=make_fabric(fabric, ranks))
        return run_program(main, machine, args, timeout, transport)
    except _OF_KERNELS as error:
        pieces.note(error)
        raise
