"""What GPUs of one host reach: writes to a peer, write + signal + answer, and dispatch and combine of a Buffer.

    python benchmarks/gpu_measure.py [--ranks 2] [--tokens 4096] [--hidden 7168] [--json FILE]

Results are checked before anything is timed. Times are medians of ``--repeats``, of the slowest rank. "wire" counts the
bytes of rows that leave a GPU, "logical" also those that stay; published figures are most often logical. A Buffer's
time is that of the whole call as Python sees it, its checks and host synchronisations included; "kernels" is the part
between the first and the last kernel on the GPU's own clock.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_lib
from ep_lib.moe import Buffer

SOURCE = """
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void put_slices(char* mine, const char* data, size_t bytes, int peer) {
    const size_t slice = (bytes / gridDim.x + 15) / 16 * 16, begin = blockIdx.x * slice;
    if (begin < bytes) ep::put_block(mine + begin, data + begin, min(slice, bytes - begin), peer);
}
extern "C" __global__ void ping(char* mine, const char* data, size_t bytes, uint64_t* flag, int rounds, int peer) {
    for (int round = 1; round <= rounds; ++round) {
        ep::put_block(mine, data, bytes, peer);
        __syncthreads();
        if (threadIdx.x == 0) ep::signal_set(flag, round, peer);
        if (!ep::wait_until_ge_block(flag, round, {ep::kPhaseSignal, peer, round})) return;
    }
}
extern "C" __global__ void answer(uint64_t* flag, int rounds, int peer) {
    for (int round = 1; round <= rounds; ++round) {
        if (!ep::wait_until_ge(flag, round, {ep::kPhaseSignal, peer, round})) return;
        ep::signal_set(flag, round, peer);
    }
}
"""


def kernel(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_source(SOURCE, name, filename="gpu_measure.cu")


def gpu_microseconds(rank: ep_lib.Rank, launch: Callable[[], Any], repeats: int) -> float:
    """Median time of ``launch`` on this GPU's clock; all ranks start at about the same time."""
    events = rank.xp.cuda.Event(), rank.xp.cuda.Event()
    times: list[float] = []
    for repeat in range(repeats + 3):
        rank.barrier()
        events[0].record()
        launch()
        events[1].record()
        rank.synchronize()
        if repeat >= 3:
            times.append(1e3 * rank.xp.cuda.get_elapsed_time(*events))
    return statistics.median(times)


def p2p(rank: ep_lib.Rank, repeats: int) -> dict[str, Any]:
    """GB/s of stores from this GPU to the next, all ranks at once, and of a copy engine; round trips in us."""
    size = 128 << 20
    peer = (rank.rank + 1) % rank.world_size
    mine = rank.symmetric(size, "uint8")
    flag = rank.symmetric(1, "uint64")
    pattern = (rank.xp.arange(size, dtype="uint32") % 251).astype("uint8")
    data = pattern + rank.rank
    put = kernel("put_slices")
    put.launch(rank, 24, 1024, mine, data, size, peer)
    rank.barrier()
    source = (rank.rank - 1) % rank.world_size
    assert bool((mine == pattern + source).all()), "the peer's bytes are not what it wrote"
    found: dict[str, Any] = {"write_gb_s": {}}
    for blocks in (4, 8, 16, 24, 64, 132):
        launch = functools.partial(put.launch, rank, blocks, 1024, mine, data, size, peer)
        found["write_gb_s"][blocks] = size / gpu_microseconds(rank, launch, repeats) / 1e3
    address = rank.peer_address(mine, peer)
    stream = rank.xp.cuda.get_current_stream().ptr
    copy = functools.partial(rank.xp.cuda.runtime.memcpyAsync, address, data.data.ptr, size, 3, stream)
    us = gpu_microseconds(rank, copy, repeats)
    found["copy_engine_gb_s"] = size / us / 1e3
    if rank.world_size == 2:
        found["round_trip_us"] = {}
        rounds = 1000
        for size in (64, 1024, 16384, 65536):
            flag[:] = 0
            rank.barrier()
            start = time.perf_counter()
            if rank.rank == 0:
                kernel("ping").launch(rank, 1, 512, mine, data, size, flag, rounds, peer)
            else:
                kernel("answer").launch(rank, 1, 1, flag, rounds, peer)
            rank.synchronize()
            found["round_trip_us"][size] = 1e6 * (time.perf_counter() - start) / rounds
            rank.barrier()
    rank.free(flag)
    rank.free(mine)
    return found


def moe(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Any]:
    """Dispatch and combine of BF16 rows by a Buffer."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(1000 + rank.rank)
    x = torch.randint(-64, 64, (args.tokens, args.hidden), generator=generator, device="cuda").bfloat16()
    scores = torch.rand(args.tokens, args.experts, generator=generator, device="cuda")
    topk_idx = torch.topk(scores, args.top_k, dim=-1).indices
    destination = torch.zeros(args.tokens, rank.world_size, dtype=torch.bool, device="cuda")
    destination.scatter_(1, topk_idx // (args.experts // rank.world_size), True)
    rows, local = int(destination.sum()), int(destination[:, rank.rank].sum())
    result: dict[str, Any] = {"rows_sent": rows, "rows_that_stay": local}
    shape = {"num_experts": args.experts, "top_k": args.top_k, "hidden": args.hidden, "max_tokens": args.tokens}
    with Buffer(rank, **shape, num_sms=args.sms) as buffer:
        recv = buffer.dispatch(x, topk_idx)
        out = buffer.combine(recv.x, recv.handle)
        expected = (x.float() * destination.sum(1, keepdim=True)).bfloat16()  # small whole numbers: exact
        assert torch.equal(out, expected), "combine does not give back what dispatch sent"
        operations: dict[str, Callable[[], Any]] = {
            "dispatch": lambda: buffer.dispatch(x, topk_idx),
            "dispatch_with_handle": lambda: buffer.dispatch(x, handle=recv.handle),
            "combine": lambda: buffer.combine(recv.x, recv.handle),
        }
        for name, operation in operations.items():
            walls, kernels = [], []
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for repeat in range(args.repeats + 3):
                rank.barrier()
                start = time.perf_counter()
                events[0].record()
                operation()
                events[1].record()
                rank.synchronize()
                if repeat >= 3:
                    walls.append(1e6 * (time.perf_counter() - start))
                    kernels.append(1e3 * events[0].elapsed_time(events[1]))
            result[name] = {"wall_us": statistics.median(walls), "gpu_us": statistics.median(kernels)}
    return result


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.cuda.set_device(rank.rank)
    return {"p2p": p2p(rank, args.repeats), "moe": moe(rank, args), "gpu": torch.cuda.get_device_name()}


def slowest(results: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """One report of all ranks: the slowest rank's times, and rates from the mean number of bytes a rank."""
    moes = [result["moe"] for result in results]
    row = 2 * args.hidden
    logical = row * statistics.mean(m["rows_sent"] for m in moes)
    wire = row * statistics.mean(m["rows_sent"] - m["rows_that_stay"] for m in moes)
    report: dict[str, Any] = {"settings": vars(args), "gpu": results[0]["gpu"], "wire_mb": wire / 1e6}
    for name in ("dispatch", "dispatch_with_handle", "combine"):
        times = {key: max(m[name][key] for m in moes) for key in ("wall_us", "gpu_us")}
        rates = {"logical_gb_s": logical / times["wall_us"] / 1e3, "wire_gb_s": wire / times["wall_us"] / 1e3}
        report[name] = times | rates
    first = results[0]["p2p"]
    blocks = first["write_gb_s"]
    report["p2p"] = first | {"write_gb_s": {b: min(r["p2p"]["write_gb_s"][b] for r in results) for b in blocks}}
    return report


def show(report: dict[str, Any]) -> None:
    for blocks, rate in report["p2p"]["write_gb_s"].items():
        print(f"stores to a peer, all ranks at once, {blocks:4} blocks of 1024: {rate:6.0f} GB/s")
    print(f"copy engine to a peer: {report['p2p']['copy_engine_gb_s']:.0f} GB/s")
    for size, us in report["p2p"].get("round_trip_us", {}).items():
        print(f"write {size:6} B + signal + answer: {us:.2f} us")
    for name in ("dispatch", "dispatch_with_handle", "combine"):
        r = report[name]
        print(
            f"{name:21} {r['wall_us']:7.0f} us (kernels and waits between them {r['gpu_us']:.0f} us), "
            f"logical {r['logical_gb_s']:.0f} GB/s, wire {r['wire_gb_s']:.0f} GB/s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--sms", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    options = parser.parse_args()
    shape = {"num_experts": options.experts, "top_k": options.top_k, "hidden": options.hidden}
    heap = Buffer.symmetric_bytes(options.ranks, **shape, max_tokens=options.tokens) + (160 << 20)
    target = options.json
    options.json = None if target is None else str(target)  # it is printed with the settings
    found = slowest(ep_lib.spawn(main, ranks=options.ranks, backend="cuda", args=(options,), heap_bytes=heap), options)
    show(found)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(found, indent=2) + "\n")
