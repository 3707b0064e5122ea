"""``ep_lib.init()``: a rank of a world that mpirun, torchrun or srun started, found from the environment."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, Bootstrap, LateBootstrap, SingleBootstrap, check_rank, read_int
from ep_lib.bootstrap.group import make_group_bootstrap
from ep_lib.bootstrap.torchrun import check_port
from ep_lib.config import BACKENDS, Config
from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.errors import ArgumentError, EpError
from ep_lib.require import is_about_the_call, one_of, show, whole_number
from ep_lib.runtime import arguments
from ep_lib.runtime.rank import Rank

Launcher = Literal["torchrun", "mpi", "srun", "single"]


class Placement(NamedTuple):
    """A rank's place, from the environment. ``world_size`` and ``local_rank`` are None where only MPI knows them
    (Slurm's PMIx)."""

    launcher: Launcher
    rank: int
    world_size: int | None
    local_rank: int | None


def detect(environ: Mapping[str, str] | None = None) -> Placement:
    """Which launcher started this process.

    In this order, since launchers run inside one another: torchrun inside a Slurm job sets both sets of variables, and
    mpirun does as well. Slurm counts only inside a step that srun made: a batch script has SLURM_PROCID too.

    Raises ArgumentError, which names the variable, for values that no launcher sets, and for an incomplete set.
    """
    env = os.environ if environ is None else environ
    world = _detect(env)
    check_rank(world.launcher, world.rank, world.world_size, world.local_rank)
    if world.launcher == "torchrun":
        check_port(env)
    return world


def _detect(env: Mapping[str, str]) -> Placement:
    rank, size = read_int(env, "RANK"), read_int(env, "WORLD_SIZE")
    if rank is not None and size is not None and env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        return Placement("torchrun", rank, size, read_int(env, "LOCAL_RANK"))
    size = read_int(env, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    rank = read_int(env, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
    local = read_int(env, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
    if rank is not None and size is not None:
        return Placement("mpi", rank, size, local)
    tasks = read_int(env, "SLURM_STEP_NUM_TASKS")
    if (rank := read_int(env, "PMIX_RANK")) is not None and importlib.util.find_spec("mpi4py") is not None:
        return Placement("mpi", rank, None, local)
    rank = read_int(env, "SLURM_PROCID")
    if rank is not None and tasks is not None and env.get("SLURM_STEP_ID"):
        return Placement("srun", rank, tasks, read_int(env, "SLURM_LOCALID"))
    rank, size = read_int(env, "RANK"), read_int(env, "WORLD_SIZE")
    # a size other than 1: alone, this rank would wait for ever
    if rank is not None and (rank != 0 or size not in (None, 1)):
        absent = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not env.get(name, "").strip()]
        raise ArgumentError(
            f"RANK is set to {rank}, as torchrun does, and {', '.join(absent)} not: start the ranks by torchrun, which "
            f"sets all of them, or unset RANK for a world of one"
        )
    return Placement("single", 0, 1, 0)


def make_bootstrap(world: Placement, timeout: float = DEFAULT_TIMEOUT, patience: float | None = None) -> Bootstrap:
    """Join the other ranks; waits up to ``timeout`` seconds for them. At the end a rank under mpiexec waits
    ``patience`` seconds for a stopped one (None: 120)."""
    if world.world_size == 1:
        return SingleBootstrap()
    if world.launcher == "torchrun":
        from ep_lib.bootstrap.torchrun import TorchrunBootstrap

        return TorchrunBootstrap(timeout=timeout)
    if world.launcher == "mpi":
        from ep_lib.bootstrap.mpi import MpiBootstrap

        return MpiBootstrap(world.world_size, world.local_rank, patience=patience)
    from ep_lib.bootstrap.srun import SrunBootstrap

    return SrunBootstrap(timeout=timeout)


def decline(world: Placement) -> None:
    """Tell the other ranks that this one will not take part, since it failed before :func:`init`.

    They raise RankFailed. Otherwise they would wait until their time limit, and inside MPI for ever.
    """
    with contextlib.suppress(EpError):  # other errors do not matter any more
        make_bootstrap(world).close()


def init(
    backend: str | None = None,
    *,
    group: Any = None,
    seed: int | None = None,
    heap_bytes: int | Callable[[int], int] | None = None,
    timeout: float | None = None,
    transport: str | None = None,
    fabric: Fabric | str | None = None,
) -> Rank:
    """This process's :class:`Rank`: one of many under mpirun, torchrun or srun, the only one otherwise. Collective.

    ``backend`` is "cuda" or "emulator"; the default is EP_LIB_BACKEND, else "cuda" if there are usable GPUs. On the
    emulator each process runs the kernels of its own rank, the symmetric heaps are memory that the processes of a host
    share, NICs between hosts are TCP connections (docs/multinode.md), and real concurrency decides the order
    (:func:`ep_lib.spawn` is the deterministic one).

    ``group``: a process group of torch.distributed, which may hold only some processes, or a communicator of mpi4py; it
    replaces the environment's. Only its members call this, each on torch's current GPU; a process may be in any number
    of worlds at once.

    ``heap_bytes`` is the size of the symmetric heap, or a function that gives it for a number of ranks
    (:meth:`ep_lib.Buffer.heap_bytes` knows what a Buffer takes; None: EP_LIB_HEAP_BYTES, else 256 MiB on GPUs and 1 GiB
    of address space on the emulator). ``timeout`` the seconds that kernels may take until a wait for them is an error,
    ``seed`` the emulator's, ``fabric`` the network of emulated ranks, ``transport`` how ranks reach each other (both as
    in :func:`ep_lib.spawn`). Call ``rank.close()`` at the end, or use ``with ep_lib.init() as rank:``.

    Raises BackendUnavailable where the backend cannot work, PeerTimeout when other ranks do not join.
    """
    config = Config.from_environment()
    _, timeout = arguments.limits(None if callable(heap_bytes) else heap_bytes, timeout)
    seed = arguments.a_seed(config.seed if seed is None else seed)
    grouped = None if group is None else make_group_bootstrap(group, timeout)
    world = detect() if grouped is None else Placement("torchrun", grouped.rank, grouped.world_size, grouped.local_rank)
    chosen = choose_backend(backend, config, world)
    if chosen == "emulator":
        transport = arguments.emulator_transport(transport)
    elif fabric is not None:
        raise ArgumentError(f"fabric is {fabric!r}; GPUs are connected as they are, only the emulator has a choice")
    else:
        transport = arguments.a_transport(config.transport if transport is None else transport)
    alone = chosen == "emulator" and world.world_size == 1
    if alone:
        bootstrap: Bootstrap = SingleBootstrap()
    else:
        bootstrap = make_bootstrap(world, patience=timeout) if grouped is None else grouped
    wanted = _of_ranks(heap_bytes, bootstrap.world_size) if callable(heap_bytes) else heap_bytes
    heap, _ = arguments.limits(wanted, None)
    if chosen == "emulator":
        from ep_lib.runtime.emulated import process_rank, solo_rank

        if alone:
            make_fabric(fabric, 1)
            return solo_rank(seed=seed, heap_bytes=heap, timeout=timeout, transport=transport)
        return process_rank(bootstrap, seed=seed, fabric=fabric, heap_bytes=heap, timeout=timeout, transport=transport)
    from ep_lib.backends.cuda import CudaBackend

    gpus = arguments.shared_gpus(config.gpus, bootstrap.world_size, transport)
    device = bootstrap.local_rank if bootstrap.kind == "group" and gpus is None else None
    return Rank(
        CudaBackend(bootstrap, heap_bytes=heap, kernel_timeout=timeout, device=device, transport=transport, gpus=gpus)
    )


def _of_ranks(heap_bytes: Callable[[int], int], ranks: int) -> int:
    try:
        return heap_bytes(ranks)
    except TypeError as error:
        if not is_about_the_call(error):
            raise
        raise ArgumentError(f"heap_bytes is {show(heap_bytes)}; it must be bytes, or take a number of ranks") from error


def rejoin(
    invitation: str,
    rank: int,
    *,
    seed: int | None = None,
    timeout: float | None = None,
    transport: str | None = None,
    fabric: Fabric | str | None = None,
) -> Rank:
    """Replace ``rank``, whose process has ended, by this process, among ranks on the emulator that are processes of
    this host. ``invitation`` is the result of :meth:`ep_lib.Rank.invitation` on any other rank; the other arguments
    must be those of the ranks' :func:`init`.

    Make the same Buffers and symmetric arrays as the others, in the same order, then call
    :meth:`ep_lib.Buffer.connect_ranks` where they do. The new rank takes no part in ``rank.all_gather()`` and
    ``rank.barrier()``.

    Raises ArgumentError for an invalid invitation, RankFailed if the others are gone, BackendUnavailable if ``rank``
    lives.
    """
    from ep_lib.emulator.shared_heaps import Invitation
    from ep_lib.runtime.emulated import process_rank

    config = Config.from_environment()
    invited = Invitation.read(invitation)
    size = len(invited.processes)
    rank = whole_number("rank", rank, 0, size - 1)
    _, timeout = arguments.limits(None, timeout)
    return process_rank(
        LateBootstrap(rank, size),
        seed=arguments.a_seed(config.seed if seed is None else seed),
        fabric=make_fabric(fabric, size),
        heap_bytes=invited.heap_bytes,
        timeout=timeout,
        transport=arguments.emulator_transport(transport),
        invitation=invited,
    )


def choose_backend(backend: str | None, config: Config, world: Placement) -> str:
    """The backend to use. Rank 0 of several warns (RuntimeWarning) if the emulator is only the fallback."""
    from ep_lib.cuda.devices import unusable_reason

    if backend is not None:
        return one_of("backend", backend, BACKENDS)
    if os.environ.get("EP_LIB_BACKEND", "").strip():
        return config.backend
    reason = unusable_reason()
    if reason is None:
        return "cuda"
    if world.world_size != 1 and world.rank == 0:
        warnings.warn(
            f"the ranks run on the emulator, since there is no GPU to use here: {reason.rstrip('.')}. "
            "backend='emulator', or EP_LIB_BACKEND=emulator, says that this is meant",
            RuntimeWarning,
            stacklevel=3,
        )
    return "emulator"
