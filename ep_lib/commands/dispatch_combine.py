"""``ep-lib dispatch-combine``, or ``python -m ep_lib.dispatch_combine``: the example of the standalone API.

Every rank sends random tokens to random experts, which return them unchanged. Arriving and returning rows are compared
with the NumPy oracle, bit for bit; rank 0 prints times and bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from ep_lib import processes, reference
from ep_lib.bootstrap.base import rank_list
from ep_lib.commands.doctor.trials import find_program, pip
from ep_lib.config import parse_size
from ep_lib.cuda.devices import unusable_reason
from ep_lib.dispatch_combine import Config, DispatchCombineContext, DispatchCombineHandle
from ep_lib.dispatch_combine.context import NETWORKS, expected_arguments
from ep_lib.emulator.fabric import Fabric
from ep_lib.errors import ArgumentError, BackendUnavailable, EpError, everywhere
from ep_lib.jit.device_state import MAX_RANKS
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.require import one_of, whole_number
from ep_lib.runtime import launcher
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn

_ARGUMENTS = (
    ("hidden_dim", 4096, "elements of a token"),
    ("max_tokens_per_rank", 128, "tokens that each rank sends"),
    ("num_experts_per_rank", 8, "experts that live on each rank"),
    ("num_experts_per_token", 2, "experts that each token chooses"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, default, meaning in _ARGUMENTS:
        parser.add_argument(name, nargs="?", type=_number, default=default, help=f"{meaning} (default: {default})")
    parser.add_argument(
        "--gpu-per-node", type=_number, default=8, help="ranks of a node; between nodes NICs (default: 8)"
    )
    parser.add_argument("--dtype", default="bfloat16", help="of the tokens: bfloat16 (default) or float32")
    parser.add_argument("--network", default="rc", help="the emulated NICs between nodes: rc (default) or srd")
    parser.add_argument("--window", help="flow control: the most bytes under way from one rank to another, as in 256K")
    parser.add_argument(
        "--rounds", type=_number, default=3, help="timed rounds, after one that is checked (default: 3)"
    )
    parser.add_argument("--seed", type=_number, default=0, help="of tokens and routing (default: 0)")
    worlds = parser.add_mutually_exclusive_group()
    worlds.add_argument("--processes", type=int, metavar="N", help="start N ranks with mpiexec")
    worlds.add_argument("--ranks", type=int, metavar="N", help="N ranks, an emulated GPU each, in this one process")


def _number(text: str) -> int | str:
    """A number, or the text of an invalid one, which is refused later together with the other ranks, so that only one
    reports it."""
    try:
        return int(text)
    except ValueError:
        return text


def run(args: argparse.Namespace) -> int:
    world = launcher.detect()
    started = args.ranks if args.processes is None else args.processes
    problem = None
    try:
        if started is not None and world.launcher != "single":
            raise ArgumentError(
                f"--processes and --ranks are for a program that starts alone, and {world.launcher} has started this "
                "one: leave them out"
            )
        one_of("--network", args.network, NETWORKS)
        config = _config(args, world, started)
        expected_arguments(config, "emulator" if unusable_reason() else "cuda")
        rounds, seed = whole_number("--rounds", args.rounds, 1, 1000), whole_number("--seed", args.seed, 0, 2**31 - 1)
    except ArgumentError as error:
        problem = error
    _require_no_problem(world, problem)

    def program(rank: Rank | None) -> list[str]:
        own = config if rank is None else replace(config, rank=rank.rank)
        with DispatchCombineContext(own, rank, network=args.network) as context:
            return measure(context, rounds, seed)

    if args.processes is not None:
        return _start_processes(config.world_size, args)
    if args.ranks is None:
        with warnings.catch_warnings():  # the table says so, too
            warnings.filterwarnings("ignore", "the ranks run on the emulator", RuntimeWarning)
            lines = program(None)
    else:
        has_nodes = config.world_size > config.gpu_per_node
        fabric = Fabric(args.network, ranks_per_node=config.gpu_per_node) if has_nodes else None
        lines = spawn(program, config.world_size, "emulator", fabric=fabric, transport="by_pair")[0]
    if world.rank == 0:
        print("\n".join(lines), flush=True)
    return 0


def _require_no_problem(world: launcher.Placement, problem: ArgumentError | None) -> None:
    """Collective: raises ArgumentError on every rank if one has a problem with its command line."""
    if world.launcher == "single":
        if problem is not None:
            raise problem
        return
    try:
        bootstrap = launcher.make_bootstrap(world)
    except EpError as error:  # the ranks cannot meet, so each reports its own error
        raise problem or error from None
    try:
        said = bootstrap.all_gather(None if problem is None else str(problem))
    finally:
        bootstrap.close()
    for text in said:
        if text is not None:
            sayers = [rank for rank, other in enumerate(said) if other == text]
            whose = "" if len(sayers) == len(said) else f"{rank_list(sayers)}: "
            raise everywhere(ArgumentError(f"{whose}{text}"))


def _config(args: argparse.Namespace, world: launcher.Placement, started: int | None) -> Config:
    """The configuration of the command line. Raises ArgumentError."""
    size = world.world_size if started is None else whole_number("the number of ranks", started, 1, MAX_RANKS)
    if size is None:
        raise ArgumentError("PMIx does not say how many ranks there are: start them with mpiexec or torchrun")
    return Config(
        world_size=size,
        rank=world.rank,
        **{name: getattr(args, name) for name, _, _ in _ARGUMENTS},
        gpu_per_node=args.gpu_per_node,
        dtype=args.dtype,
        window_bytes=None if args.window is None else parse_size(args.window),
    )


def _start_processes(size: int, args: argparse.Namespace) -> int:
    """Starts this program again as ``size`` processes; returns its exit code."""
    mpiexec = find_program("mpiexec")
    if mpiexec is None:
        raise BackendUnavailable(
            f"--processes {size} needs mpiexec, which is neither beside this Python nor on the PATH. Install it with "
            f"{pip('mpich', 'mpi4py')} (or your system's MPI), or take --ranks {size}: all ranks in one process"
        )
    words = [str(getattr(args, name)) for name, _, _ in _ARGUMENTS]
    words += [f"--gpu-per-node={args.gpu_per_node}", f"--dtype={args.dtype}", f"--network={args.network}"]
    words += [f"--rounds={args.rounds}", f"--seed={args.seed}"]
    if args.window is not None:
        words.append(f"--window={args.window}")
    command = [mpiexec, "-n", str(size), *processes.python("-m", "ep_lib.dispatch_combine", *words)]
    with processes.guarded() as guard:
        process = guard.start(command, process_group=0)
        try:
            return process.wait()
        finally:
            processes.end_group(process)


def measure(context: DispatchCombineContext, rounds: int, seed: int) -> list[str]:
    """Collective: a checked round, then timed ones; the lines to print. Raises EpError if a result is wrong."""
    config, rank = context.config, context.rank
    batch = _batch(config, seed, rank.rank)
    tokens, *routing = batch
    bits = tokens.view(np.uint16) if config.dtype == BFLOAT16 and rank.backend == "cuda" else tokens
    handle = DispatchCombineHandle(context)
    handle.prepare_inference(*(rank.to_device(array) for array in (bits, *routing)))
    handle.launch_dispatch()
    handle.launch_combine()
    received, rows = handle.received, handle.rows_received
    found = [received.x, received.topk_idx, received.topk_weights, received.src_token, handle.get_output_buffer()]
    _check(config, seed, rank, [_digest(rank.to_host(array)) for array in found])
    seconds = []
    for _ in range(rounds):
        rank.barrier()
        begin = time.perf_counter()
        handle.launch_dispatch()
        rank.synchronize()
        middle = time.perf_counter()
        rank.barrier()
        again = time.perf_counter()
        handle.launch_combine()
        rank.synchronize()
        seconds.append((middle - begin, time.perf_counter() - again))
    medians = [statistics.median(phase) for phase in zip(*seconds, strict=True)]
    return _table(context, rank.all_gather((medians, rows)))


def _batch(config: Config, seed: int, rank: int) -> tuple[Any, Any, Any]:
    """A rank's tokens, experts and weights: the same on every rank that computes them."""
    rng = np.random.default_rng((seed, rank))
    shape = config.max_tokens_per_rank, config.num_experts_per_token
    tokens = rng.standard_normal((shape[0], config.hidden_dim), np.float32).astype(config.dtype)
    experts = np.argsort(rng.random((shape[0], config.num_experts)), axis=1)[:, : shape[1]].astype(np.int32)
    weights = rng.random(shape, np.float32)
    return tokens, experts, weights / weights.sum(axis=1, keepdims=True)


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _check(config: Config, seed: int, rank: Rank, digests: list[str]) -> None:
    """Collective: raises EpError on every rank if one's bits differ from the oracle's, which rank 0 computes."""
    gathered = rank.all_gather(digests)
    wrong = ""
    if rank.rank == 0:
        batches = [_batch(config, seed, number) for number in range(config.world_size)]
        xs, ids, weights = (list(arrays) for arrays in zip(*batches, strict=True))
        arrived = reference.dispatch(xs, ids, weights, num_experts=config.num_experts)
        outputs = reference.combine([each.x for each in arrived], ids, weights, num_experts=config.num_experts)
        names = "rows", "expert ids", "weights", "source tokens", "output"
        for number, (want, output) in enumerate(zip(arrived, outputs, strict=True)):
            expected = want.x, want.topk_idx, want.topk_weights, want.src_token, output
            for name, array, got in zip(names, expected, gathered[number], strict=True):
                if _digest(array) != got and not wrong:
                    wrong = f"rank {number}'s {name} differ from what the NumPy oracle (ep_lib.reference) has"
    wrong = rank.all_gather(wrong)[0]
    if wrong:
        raise EpError(f"{wrong}: this is a fault of ep_lib; please report it, with the command and --seed={seed}")


def _table(context: DispatchCombineContext, gathered: list[Any]) -> list[str]:
    config, rank = context.config, context.rank
    rows = {way: sum(counts[way] for _, counts in gathered) for way in ("own", "p2p", "network")}
    way = "stores" if context.buffer.config.allow_nvlink_for_normal_mode else "rings with credits"
    nodes = -(-config.world_size // config.gpu_per_node)
    lines = [
        f"ranks: {config.world_size} ({rank.backend}), nodes: {nodes}, way: {way}; "
        f"{config.max_tokens_per_rank} tokens a rank of {config.hidden_dim} {config.dtype.name}, "
        f"{config.num_experts_per_token} of {config.num_experts} experts each",
        "every rank's rows and output equal the NumPy oracle's, bit for bit",
        "",
        f"{'':<10}{'median':>10}{'slowest':>10}{'rows':>9}{'stay':>11}{'by P2P':>11}{'network':>11}",
    ]
    sizes = "".join(f"{rows[way] * config.row_bytes / 1e6:>8.2f} MB" for way in ("own", "p2p", "network"))
    total = [0.0, 0.0]
    for phase, name in enumerate(("dispatch", "combine")):
        times = [1e3 * medians[phase] for medians, _ in gathered]
        median, slowest = statistics.median(times), max(times)
        total = [total[0] + median, total[1] + slowest]
        lines.append(f"{name:<10}{median:>7.2f} ms{slowest:>7.2f} ms{sum(rows.values()):>9}{sizes}")
    lines.append(f"{'both':<10}{total[0]:>7.2f} ms{total[1]:>7.2f} ms")
    if rank.backend == "emulator":
        lines += ["", "Times of the emulator on this machine's CPU; GPUs take microseconds."]
        if reason := unusable_reason():
            lines.append(f"No GPU to use: {reason}")
    return lines
