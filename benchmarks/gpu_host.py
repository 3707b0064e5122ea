"""What a call costs the host, and what a queue of calls costs the GPU: the clocks "host" and "queued".

    python benchmarks/gpu_host.py [--ranks 2] [--tokens 128,1000,4096] [--default-device] [--pin]

"host": microseconds of the host per call, in a row of 300 calls of 64 tokens that the GPU keeps up with. "queued": 50
calls one behind the other between two events, with ``--tokens`` tokens; the slowest rank's median of 5. "changing
counts": T/2 to T tokens, another number in every call; "wall": of 200 calls, until the GPU is done. Below them, what a
call is made of: the cost of an empty tensor, of a look at one, of a launch. All of it at the host's full pace
(gpu_pace.py); "at 1/1.9" stands where that did not come in time. With --ranks 1 one GPU is enough for "host".
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import gpu_inputs
from gpu_inputs import Shape
from gpu_machine import git_commit
from gpu_pace import at_full_pace

import ep_lib
from ep_lib.memory.arrays import describe

HOST_TOKENS, HOST_CALLS, QUEUED_CALLS, WALL_CALLS = 64, 300, 50, 200
EMPTY = """
extern "C" __global__ void nothing(int* p) { if (p) *p = 1; }
"""
Calls = dict[str, Callable[[], Any]]
Found = tuple[str, list[float]]  # a unit, and the repeats


def normal_calls(rank: ep_lib.Rank, buffer: Any, shape: Shape) -> Calls:
    """The calls of normal mode, by name, on rows that are made here."""
    device, me = gpu_inputs.device_of(rank), rank.rank
    idx, weights = gpu_inputs.routing(shape, me, "random", device), gpu_inputs.weights(shape, me, device)
    x, _ = gpu_inputs.rows(shape, me, 0, "bf16", device)
    fp8 = gpu_inputs.rows(shape, me, 0, "fp8", device)
    first = buffer.dispatch(x, idx, weights)
    handle, y = first.handle, first.x.clone()
    views = {
        "fp8 dispatch, view": lambda: buffer.dispatch(fp8, handle=handle, copy=False),
        "bf16 dispatch, view": lambda: buffer.dispatch(x, handle=handle, copy=False),
    }
    return (views if buffer.config.receive_areas else {}) | {
        "fp8 dispatch, owned": lambda: buffer.dispatch(fp8, handle=handle),
        "bf16 dispatch, owned": lambda: buffer.dispatch(x, handle=handle),
        "bf16 dispatch, owned, weights": lambda: buffer.dispatch(x, None, weights, handle=handle),
        "fp8 dispatch, counted": lambda: buffer.dispatch(fp8, idx, weights),
        "bf16 dispatch, num_worst_tokens": lambda: buffer.dispatch(
            x, idx, weights, num_worst_tokens=shape.ranks * shape.tokens
        ),
        "bf16 combine": lambda: buffer.combine(y, handle),
        "fp8 dispatch and bf16 combine": lambda: (buffer.dispatch(fp8, handle=handle), buffer.combine(y, handle)),
    }


def changing_calls(rank: ep_lib.Rank, buffer: Any, shape: Shape) -> Calls:
    """The same of normal and low-latency mode with T/2 to T tokens, another number in every call."""
    device, me = gpu_inputs.device_of(rank), rank.rank
    idx, weights = gpu_inputs.routing(shape, me, "random", device), gpu_inputs.weights(shape, me, device)
    (x, _), fp8 = (gpu_inputs.rows(shape, me, 0, dtype, device) for dtype in ("bf16", "fp8"))
    counts = itertools.cycle([shape.tokens - (shape.tokens // 2) * ((7 * turn + me) % 33) // 33 for turn in range(33)])
    firsts = [buffer.dispatch(x[:count], idx[:count]) for count in itertools.islice(counts, 33)]
    handles = itertools.cycle([(first.handle, first.x.clone()) for first in firsts])

    def by_handle() -> None:
        handle, _ = next(handles)
        buffer.dispatch(tuple(part[: handle.num_tokens] for part in fp8), handle=handle)

    def combine() -> None:
        handle, rows = next(handles)
        buffer.combine(rows, handle)

    def counted() -> None:
        count = next(counts)
        buffer.dispatch(tuple(part[:count] for part in fp8), idx[:count], weights[:count])

    def step() -> None:
        count = next(counts)
        first = buffer.dispatch(x[:count], idx[:count])
        buffer.combine(first.x, first.handle)
        buffer.combine(buffer.dispatch(x[:count], handle=first.handle).x, first.handle)

    return {"slices alone": lambda: [part[: next(counts)] for part in (*fp8, idx, weights)]} | {
        "fp8 dispatch, owned": by_handle,
        "bf16 combine": combine,
        "fp8 dispatch, counted": counted,
        "step": step,
    }


def changing_low_latency(rank: ep_lib.Rank, buffer: Any, shape: Shape) -> Calls:
    """The same of low-latency mode."""
    device, me = gpu_inputs.device_of(rank), rank.rank
    idx, weights = gpu_inputs.routing(shape, me, "random", device), gpu_inputs.weights(shape, me, device)
    x, _ = gpu_inputs.rows(shape, me, 0, "bf16", device)
    counts = itertools.cycle(range(shape.tokens // 2, shape.tokens + 1))
    firsts = [buffer.low_latency_dispatch(x[:count], idx[:count]) for count in itertools.islice(counts, 8)]
    handles = itertools.cycle([(first.handle, first.recv_x[0].bfloat16()) for first in firsts])

    def dispatch() -> None:
        count = next(counts)
        buffer.low_latency_dispatch(x[:count], idx[:count])

    def combine() -> None:
        handle, rows = next(handles)
        count = handle.num_tokens
        buffer.low_latency_combine(rows, idx[:count], weights[:count], handle)

    return {"low latency fp8 dispatch": dispatch, "low latency combine": combine}


def low_latency_calls(rank: ep_lib.Rank, buffer: Any, shape: Shape) -> Calls:
    """The same of low-latency mode."""
    device, me = gpu_inputs.device_of(rank), rank.rank
    idx, weights = gpu_inputs.routing(shape, me, "random", device), gpu_inputs.weights(shape, me, device)
    x, _ = gpu_inputs.rows(shape, me, 0, "bf16", device)
    got = buffer.low_latency_dispatch(x, idx, use_fp8=False)
    return {
        "low latency fp8 dispatch": lambda: buffer.low_latency_dispatch(x, idx),
        "low latency bf16 dispatch": lambda: buffer.low_latency_dispatch(x, idx, use_fp8=False),
        "low latency combine": lambda: buffer.low_latency_combine(got.recv_x, idx, weights, got.handle),
    }


def face_calls(rank: ep_lib.Rank, shape: Shape) -> Calls:
    """Calls of DeepEP V1's face, with its own names."""
    from ep_lib.compat import deep_ep

    device, me, experts = gpu_inputs.device_of(rank), rank.rank, shape.experts
    idx, weights = gpu_inputs.routing(shape, me, "random", device), gpu_inputs.weights(shape, me, device)
    x, _ = gpu_inputs.rows(shape, me, 0, "bf16", device)
    buffer = deep_ep.Buffer(rank, low_latency_mode=True)
    counts = weights.new_zeros(shape.experts_per_rank, dtype=idx.dtype).int()

    def dispatch() -> Any:
        return buffer.low_latency_dispatch(x, idx, shape.tokens, experts, counts)

    got = dispatch()
    rows = got[0][0].bfloat16()
    return {
        "get_dispatch_layout": lambda: buffer.get_dispatch_layout(idx, experts),
        "low_latency_dispatch": dispatch,
        "low_latency_combine": lambda: buffer.low_latency_combine(rows, idx, weights, got[2]),
        "the two, one by one": lambda: buffer.low_latency_combine(rows, idx, weights, dispatch()[2]),
    }


def parts_of_a_call(rank: ep_lib.Rank) -> Calls:
    """What calls are made of."""
    import torch

    x = torch.zeros(HOST_TOKENS, 7168, dtype=torch.bfloat16, device="cuda")
    kernel = ep_lib.Kernel.from_source(EMPTY, "nothing")
    kernel.launch(rank, 1, 32, None)
    place, device = rank.xp.cuda.get_current_stream(), torch.device("cuda", torch.cuda.current_device())
    empty = rank.xp.RawKernel(EMPTY, "nothing")
    raw = torch._C._cuda_getCurrentRawStream
    streams = torch.cuda.current_stream
    return {
        "torch.empty": lambda: torch.empty((HOST_TOKENS, 7168), dtype=torch.bfloat16, device=device),
        "describe": lambda: describe(x),
        "data_ptr": x.data_ptr,
        "shape": lambda: x.shape,
        "dtype": lambda: x.dtype,
        "device": lambda: x.device,
        "is_contiguous": x.is_contiguous,
        "stream of torch": lambda: streams(0).cuda_stream,
        "raw stream of torch": lambda: raw(0),
        "stream of CuPy": lambda: rank.xp.cuda.get_current_stream().ptr,
        "Kernel.launch": lambda: kernel.launch(rank, 1, 32, None),
        "RawKernel of CuPy": lambda: empty((1,), (32,), (0,)),
        "event and wait": lambda: place.wait_event(place.record()),
    }


def timed(rank: ep_lib.Rank, call: Callable[[], Any], calls: int, wait: bool) -> Found:
    """Microseconds per call of the host, or with ``wait`` until the GPU is done."""
    for _ in range(40):
        call()

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        returned = time.perf_counter()
        rank.synchronize()
        return 1e6 * ((time.perf_counter() if wait else returned) - begin) / calls

    found, pace = at_full_pace(rank, once)
    return ("wall us" if wait else "host us") + (f" at 1/{pace:.2f}" if pace else ""), found


def host_us(rank: ep_lib.Rank, call: Callable[[], Any]) -> Found:
    """Of the host."""
    return timed(rank, call, HOST_CALLS, wait=False)


def wall_us(rank: ep_lib.Rank, call: Callable[[], Any]) -> Found:
    """Of the wall's clock."""
    return timed(rank, call, WALL_CALLS, wait=True)


def queued_us(rank: ep_lib.Rank, call: Callable[[], Any]) -> Found:
    """Microseconds of the GPU per call, of calls that are queued one behind the other."""
    import torch

    def once() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(QUEUED_CALLS):
            call()
        end.record()
        rank.synchronize()
        return 1e3 * begin.elapsed_time(end) / QUEUED_CALLS

    found, pace = at_full_pace(rank, once)
    return "queued us" + (f" at 1/{pace:.2f}" if pace else ""), found


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Found]:
    """One rank's figures, by what was timed: the unit, and one figure or those of the repeats."""
    import torch

    torch.cuda.set_device(rank.rank % torch.cuda.device_count())  # with EP_LIB_GPUS=1 the host's times still count
    if args.pin:  # this thread alone
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank.rank * len(cores) // args.ranks]})
    if args.default_device:
        torch.set_default_device("cuda")
    shape = Shape(args.ranks, HOST_TOKENS, 7168, 256, 8)
    sizes = {"num_experts": 256, "top_k": 8, "hidden": 7168}
    found: dict[str, Found] = {}
    with ep_lib.Buffer(rank, max_tokens=max(args.tokens), receive_areas=args.areas, **sizes) as buffer:
        for name, call in changing_calls(rank, buffer, shape).items():
            found[f"changing counts, {name}"] = host_us(rank, call)
        for tokens in args.tokens:
            for name, call in changing_calls(rank, buffer, shape._replace(tokens=tokens)).items():
                found[f"{tokens} tokens, changing counts, {name}"] = wall_us(rank, call)
        for name, call in normal_calls(rank, buffer, shape).items():
            found[name] = host_us(rank, call)
        for tokens in args.tokens:
            for name, call in normal_calls(rank, buffer, shape._replace(tokens=tokens)).items():
                found[f"{tokens} tokens, one count, {name}"] = wall_us(rank, call)
                found[f"{tokens} tokens, {name}"] = queued_us(rank, call)
    with ep_lib.Buffer(rank, max_tokens=128, num_max_dispatch_tokens_per_rank=128, **sizes) as buffer:
        for name, call in changing_low_latency(rank, buffer, shape).items():
            found[f"changing counts, {name}"] = host_us(rank, call)
        for name, call in low_latency_calls(rank, buffer, shape).items():
            found[name] = host_us(rank, call)
        for name, call in low_latency_calls(rank, buffer, shape._replace(tokens=128)).items():
            found[f"128 tokens, {name}"] = queued_us(rank, call)
    for name, call in face_calls(rank, shape._replace(tokens=128)).items():
        found[f"DeepEP's face, 128 tokens, {name}"] = host_us(rank, call)
    for name, call in parts_of_a_call(rank).items():
        found[f"a part: {name}"] = host_us(rank, call)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", default="128,1000,4096", help="for the clock 'queued'")
    parser.add_argument("--areas", type=int, default=1, help="receive_areas of the Buffer")
    parser.add_argument("--default-device", action="store_true", help="as after torch.set_default_device('cuda')")
    parser.add_argument("--pin", action="store_true", help="each rank's calls on a core of their own")
    parser.add_argument("--commit", default=git_commit(), help="of the tree, if git cannot tell")
    options = parser.parse_args()
    options.tokens = [int(number) for number in options.tokens.split(",")]
    sizes = {"num_experts": 256, "top_k": 8, "hidden": 7168}
    most = max(options.tokens)
    heap = ep_lib.Buffer.symmetric_bytes(options.ranks, max_tokens=most, receive_areas=options.areas, **sizes)
    small = sizes | {"max_tokens": 128, "num_max_dispatch_tokens_per_rank": 128}
    heap += 2 * ep_lib.Buffer.symmetric_bytes(options.ranks, **small)  # another one for DeepEP's face
    results = ep_lib.spawn(main, options.ranks, "cuda", args=(options,), heap_bytes=heap + (4 << 20))
    device = ", default device cuda" if options.default_device else ""
    print(f"commit {options.commit}, receive_areas={options.areas}{device}{', pinned' if options.pin else ''}")
    for what, (unit, _) in results[0].items():
        slowest = [max(repeat) for repeat in zip(*(result[what][1] for result in results), strict=True)]
        print(f"{statistics.median(slowest):8.1f} {unit:18} {what}")
