"""What GPUs of one host reach: stores to and loads from a peer, signals, and dispatch and combine of a Buffer.

    python benchmarks/gpu_measure.py [--ranks 2] [--blocks 8,16,24,48] [--tokens 4096] [--hidden 7168] [--json FILE]

Everything is checked before it is timed. A figure is the median over ``--repeats`` of the slowest rank. "kernels": the
GPU's time in the kernels of an operation, added up, each by events around it and begun by all ranks at once; "call":
the whole Python call, with its checks, copies and waits, by the host's clock. GB/s are 1e9 bytes a second and rank;
"logical" counts all rows that a rank sends, as most papers do, "wire" those that leave its GPU. The share is that of
"wire" in the best rate that bare stores (dispatch) or loads (combine) reached in the same run, all ranks at once.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ep_lib
from ep_lib.moe import Buffer

SOURCE = Path(__file__).resolve().with_name("gpu_measure.cu")
P2P_BYTES = 128 << 20  # well above the L2 cache
P2P_BLOCKS = (8, 16, 24, 48, 132)
PING_BYTES = (0, 64, 1024, 16384, 65536)
PING_ROUNDS, PING_BATCHES = 500, 9
HOLD_NS = 1_000_000  # Python needs 0.1 ms and more for a launch, most of all when it has just slept
WARM_UP = 3
OPERATIONS = {"dispatch": "write", "dispatch_with_handle": "write", "combine": "read"}  # and the ceiling of each


def kernel(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_file(SOURCE, name)


class Stopwatch:
    """Times on this GPU's clock, of work that all ranks begin together."""

    def __init__(self, rank: ep_lib.Rank) -> None:
        self._rank, self._meet, self._meetings = rank, kernel("meet"), 0
        self._flags = rank.symmetric(rank.world_size, "uint64")
        self._marks: list[tuple[str, Any, Any, bool]] = []
        self.late = 0  # launches that the GPU had to wait for, so that their times are too long

    def time(self, name: str, launch: Callable[[], Any]) -> None:
        self._meetings += 1
        self._meet.launch(self._rank, 1, 64, self._flags, self._meetings, HOLD_NS)
        begin, end = self._rank.xp.cuda.Event(), self._rank.xp.cuda.Event()
        begin.record()
        launch()
        late = begin.done
        end.record()
        self._marks.append((name, begin, end, late))

    @contextlib.contextmanager
    def every_kernel(self) -> Iterator[None]:
        """Time all launches, whoever makes them."""
        original = ep_lib.Kernel.launch

        def launch(what: ep_lib.Kernel, *args: Any, **options: Any) -> None:
            if what is self._meet:
                original(what, *args, **options)
            else:
                self.time(what.name.partition("<")[0], lambda: original(what, *args, **options))

        ep_lib.Kernel.launch = launch
        try:
            yield
        finally:
            ep_lib.Kernel.launch = original

    def microseconds(self, operation: Callable[[], Any], repeats: int) -> list[dict[str, float]]:
        """For each repeat: microseconds by name of what ``operation`` timed, after a warm-up."""
        found = []
        for repeat in range(repeats + WARM_UP):
            self._rank.barrier()
            operation()
            self._rank.synchronize()
            elapsed = self._rank.xp.cuda.get_elapsed_time
            times: dict[str, float] = {}
            for name, begin, end, late in self._marks:
                times[name] = times.get(name, 0.0) + 1e3 * elapsed(begin, end)
                self.late += late and repeat >= WARM_UP
            found.append(times)
            self._marks.clear()
        return found[WARM_UP:]


def p2p(rank: ep_lib.Rank, watch: Stopwatch, repeats: int) -> dict[str, list[dict[str, float]]]:
    """Times of stores, loads and a copy engine between this GPU and the next, and of round trips between 0 and 1."""
    xp, me, size = rank.xp, rank.rank, P2P_BYTES
    peer, source = (me + 1) % rank.world_size, (me - 1) % rank.world_size
    mine = rank.symmetric(size, "uint8")
    flag = rank.symmetric(1, "uint64")
    pattern = (xp.arange(size, dtype="uint32") % 251).astype("uint8")
    data, out = pattern + me, xp.empty(size, "uint8")
    put, get, ping, answer = kernel("put_slices"), kernel("get_slices"), kernel("ping"), kernel("answer")
    put.launch(rank, 24, 1024, mine, data, size, peer)
    rank.barrier()
    assert bool((mine == pattern + source).all()), "the peer's bytes are not what it wrote"
    get.launch(rank, 24, 1024, out, mine, size, peer)
    rank.barrier()
    assert bool((out == data).all()), "the bytes read from the peer are not what was written there"
    found: dict[str, list[dict[str, float]]] = {}
    with watch.every_kernel():
        for b in P2P_BLOCKS:
            found[f"write {b}"] = watch.microseconds(
                lambda b=b: put.launch(rank, b, 1024, mine, data, size, peer), repeats
            )
            found[f"read {b}"] = watch.microseconds(
                lambda b=b: get.launch(rank, b, 1024, out, mine, size, peer), repeats
            )
    address, stream = rank.peer_address(mine, peer), xp.cuda.get_current_stream().ptr
    copy = xp.cuda.runtime.memcpyAsync
    found["copy engine"] = watch.microseconds(
        lambda: watch.time("copy", lambda: copy(address, data.data.ptr, size, 3, stream)), repeats
    )
    done = 0

    def batch(nbytes: int) -> None:
        nonlocal done
        if me == 0:
            launch = lambda: ping.launch(rank, 1, 512, mine, data, nbytes, flag, done, PING_ROUNDS, 1)  # noqa: E731
        else:
            launch = lambda: me == 1 and answer.launch(rank, 1, 1, flag, done, PING_ROUNDS, 0)  # noqa: E731
        watch.time("ping", launch)
        done += PING_ROUNDS

    for nbytes in PING_BYTES:
        found[f"ping {nbytes}"] = watch.microseconds(lambda nbytes=nbytes: batch(nbytes), PING_BATCHES)
    rank.free(flag)
    rank.free(mine)
    return found


def moe(rank: ep_lib.Rank, watch: Stopwatch, args: argparse.Namespace) -> dict[str, Any]:
    """Times of dispatch and combine of BF16 rows in torch tensors."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(1000 + rank.rank)
    x = torch.randint(-64, 64, (args.tokens, args.hidden), generator=generator, device="cuda").bfloat16()
    scores = torch.rand(args.tokens, args.experts, generator=generator, device="cuda")
    topk_idx = torch.topk(scores, args.top_k, dim=-1).indices
    destination = torch.zeros(args.tokens, rank.world_size, dtype=torch.bool, device="cuda")
    destination.scatter_(1, topk_idx // (args.experts // rank.world_size), True)
    expected = (x.float() * destination.sum(1, keepdim=True)).bfloat16()  # small whole numbers: exact
    result: dict[str, Any] = {"rows": int(destination.sum()), "rows_that_stay": int(destination[:, rank.rank].sum())}
    shape = {"num_experts": args.experts, "top_k": args.top_k, "hidden": args.hidden, "max_tokens": args.tokens}
    for blocks in args.blocks:
        with Buffer(rank, **shape, num_sms=blocks) as buffer:
            recv = buffer.dispatch(x, topk_idx)
            assert torch.equal(buffer.combine(recv.x, recv.handle), expected), (
                "combine does not give back what was sent"
            )
            own = recv.src_rank == rank.rank
            assert torch.equal(recv.x[own], x[recv.src_token[own].long()]), "a row did not arrive as it was sent"
            operations: dict[str, Callable[[], Any]] = {
                "dispatch": lambda buffer=buffer: buffer.dispatch(x, topk_idx),
                "dispatch_with_handle": lambda buffer=buffer, recv=recv: buffer.dispatch(x, handle=recv.handle),
                "combine": lambda buffer=buffer, recv=recv: buffer.combine(recv.x, recv.handle),
            }
            for name, operation in operations.items():
                with watch.every_kernel():
                    kernels = watch.microseconds(operation, args.repeats)
                calls = []
                for _ in range(args.repeats + WARM_UP):
                    rank.barrier()
                    start = time.perf_counter()
                    operation()
                    rank.synchronize()
                    calls.append({"call": 1e6 * (time.perf_counter() - start)})
                result[f"{name} {blocks}"] = {"kernels": kernels, "call": calls[WARM_UP:]}
    return result


def machine(rank: ep_lib.Rank) -> dict[str, Any]:
    """What the figures depend on."""
    import numpy
    import torch

    from ep_lib.jit import nvrtc

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    runtime = rank.xp.cuda.runtime
    versions = {"CUDA of the driver": runtime.driverGetVersion(), "CUDA runtime of CuPy": runtime.runtimeGetVersion()}
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus_present": runtime.getDeviceCount(),
        "driver": driver,
        **{name: f"{number // 1000}.{number % 1000 // 10}" for name, number in versions.items()},
        "CUDA of torch": torch.version.cuda,
        "CuPy": rank.xp.__version__,
        "torch": torch.__version__,
        "NVRTC": nvrtc.version(),
        "NumPy": numpy.__version__,
        "Python": platform.python_version(),
        "kernel": platform.release(),
    }


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.cuda.set_device(rank.rank)
    watch = Stopwatch(rank)
    found = {"p2p": p2p(rank, watch, args.repeats), "moe": moe(rank, watch, args), "machine": machine(rank)}
    return found | {"late": watch.late}


def slowest(ranks: list[list[dict[str, float]]]) -> dict[str, float]:
    """``ranks[r][repeat][name]``: the median over repeats of the slowest rank, by name; "sum" is that of the sums."""
    repeats = [[times | {"sum": sum(times.values())} for times in repeat] for repeat in zip(*ranks, strict=True)]
    names = repeats[0][0]
    return {name: round(statistics.median(max(t[name] for t in repeat) for repeat in repeats), 2) for name in names}


def summarise(results: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """One report of all ranks. Rates are from the mean number of bytes that a rank sends."""
    p2ps, moes = [r["p2p"] for r in results], [r["moe"] for r in results]
    us = {name: slowest([p[name] for p in p2ps])["sum"] for name in p2ps[0]}
    rates = {name: round(P2P_BYTES / us[name] / 1e3, 1) for name in us if not name.startswith("ping")}
    peers: dict[str, Any] = {
        "bytes": P2P_BYTES,
        "write_gb_s": {b: rates[f"write {b}"] for b in P2P_BLOCKS},
        "read_gb_s": {b: rates[f"read {b}"] for b in P2P_BLOCKS},
        "copy_engine_gb_s": rates["copy engine"],
        "round_trip_us": {n: round(slowest([p2ps[0][f"ping {n}"]])["sum"] / PING_ROUNDS, 2) for n in PING_BYTES},
    }
    row = 2 * args.hidden
    logical = row * statistics.mean(m["rows"] for m in moes)
    wire = row * statistics.mean(m["rows"] - m["rows_that_stay"] for m in moes)
    buffers: dict[str, Any] = {"logical_mb": logical / 1e6, "wire_mb": wire / 1e6, "blocks": {}}
    for blocks in args.blocks:
        found = buffers["blocks"][blocks] = {}
        for name, direction in OPERATIONS.items():
            kernels = slowest([m[f"{name} {blocks}"]["kernels"] for m in moes])
            whole = slowest([m[f"{name} {blocks}"]["call"] for m in moes])["call"]
            ceiling = max(peers[f"{direction}_gb_s"].values())
            found[name] = {
                clock: {
                    "us": time_us,
                    "logical_gb_s": round(logical / time_us / 1e3, 1),
                    "wire_gb_s": round(wire / time_us / 1e3, 1),
                    "share_of_ceiling": round(wire / time_us / 1e3 / ceiling, 3),
                }
                for clock, time_us in (("kernels", kernels.pop("sum")), ("call", whole))
            }
            found[name]["kernels"]["each_us"] = kernels
    head = {"date": args.date, "commit": args.commit, "machine": results[0]["machine"]}
    settings = {k: v for k, v in vars(args).items() if k not in ("json", "date", "commit")}
    late = sum(r["late"] for r in results)
    return head | {"settings": settings, "launched_late": late, "p2p": peers, "moe": buffers}


def show(report: dict[str, Any]) -> None:
    peers, settings = report["p2p"], report["settings"]
    print(f"{settings['ranks']} x {report['machine']['gpu']}, all ranks at once, {P2P_BYTES >> 20} MiB, GB/s:")
    for name in ("write", "read"):
        print(f"  {name:5} " + "  ".join(f"{b} blocks {rate:.0f}" for b, rate in peers[f"{name}_gb_s"].items()))
    print(f"  copy engine {peers['copy_engine_gb_s']:.0f}")
    trips = "  ".join(f"{size} B {us:.2f}" for size, us in peers["round_trip_us"].items())
    print(f"write + signal, and the peer's signal back, us: {trips}")
    print(
        f"{settings['tokens']} tokens x {settings['hidden']} BF16 a rank, top-{settings['top_k']} of "
        f"{settings['experts']}: us, GB/s logical, GB/s wire, share of the ceiling"
    )
    for blocks, operations in report["moe"]["blocks"].items():
        for name, clocks in operations.items():
            columns = [
                f"{clock} {c['us']:6.0f} {c['logical_gb_s']:5.0f} {c['wire_gb_s']:5.0f} {c['share_of_ceiling']:4.0%}"
                for clock, c in clocks.items()
            ]
            each = ", ".join(f"{kernel} {us:.0f}" for kernel, us in clocks["kernels"]["each_us"].items())
            print(f"  {blocks:3} blocks {name:21} " + "   ".join(columns) + f"   ({each})")
    if report["launched_late"]:
        print(f"{report['launched_late']} launches came after the GPU was ready for them: some times are too long")


def git_commit() -> str:
    """This tree's commit, with a plus where files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in {
        "ranks": 2, "tokens": 4096, "hidden": 7168, "experts": 256, "top-k": 8, "repeats": 20
    }.items():  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--blocks", default="8,16,24,48", help="num_sms of the Buffers, default 8,16,24,48")
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    parser.add_argument("--commit", default=git_commit(), help="of the tree, where git cannot tell")
    options = parser.parse_args()
    if options.ranks < 2:
        parser.error("--ranks must be 2 or more: a peer is another GPU")
    options.blocks = [int(number) for number in options.blocks.split(",")]
    options.date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    sizes = {"num_experts": options.experts, "top_k": options.top_k, "hidden": options.hidden}
    heap = Buffer.symmetric_bytes(options.ranks, **sizes, max_tokens=options.tokens) + P2P_BYTES + (1 << 20)
    everybody = ep_lib.spawn(main, ranks=options.ranks, backend="cuda", args=(options,), heap_bytes=heap)
    outcome = summarise(everybody, options)
    show(outcome)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(outcome, indent=2) + "\n")
