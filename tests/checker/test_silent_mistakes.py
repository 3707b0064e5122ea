"""Mistakes that must not pass in silence: each raises, with the value and what to do."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ep_lib
from ep_lib import Buffer, Kernel, Rank
from ep_lib.errors import (
    ArgumentError,
    BufferClosedError,
    EpError,
    HandleError,
    KernelFault,
    KernelLaunchError,
    RankFailed,
    RankMismatchError,
)

SOURCE = """
#include <cuda_bf16.h>
#include <ep/platform.cuh>
#include <ep/net.cuh>
#include <ep/peer.cuh>
extern "C" __global__ void put(int* x, long long i, int rank) { ep::peer_ptr(x, rank)[i] = 42; }
extern "C" __global__ void get(const int* x, long long i, int rank, int* out) { *out = ep::peer_ptr(x, rank)[i]; }
extern "C" __global__ void send(int* x, long long i, int rank) { ep::net_put_nbi(x + i, x, 4, rank); }
extern "C" __global__ void types(int* i, float* f, const __nv_bfloat16* b, unsigned char* c, void* v, float4* s) {}
"""


def kernel(name: str) -> Kernel:
    return Kernel.from_source(SOURCE, name)


def refusal(main: Callable[[Rank], Any], ranks: int = 1, **options: Any) -> EpError:
    with pytest.raises(EpError) as caught:
        ep_lib.spawn(main, ranks, "emulator", **options)
    return caught.value


# ---- symmetric memory, in a plain spawn ------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [16, 100])
@pytest.mark.parametrize("peer", [0, 1])
@pytest.mark.parametrize("past", [0, 7])
def test_an_index_past_a_symmetric_array_among_others(elements: int, peer: int, past: int) -> None:
    def main(rank: Rank) -> None:
        arrays = [rank.symmetric(elements, np.int32) for _ in range(3)]
        kernel("put").launch(rank, 1, 1, arrays[1], elements - 1, peer)
        rank.synchronize()
        if rank == 0:
            kernel("put").launch(rank, 1, 1, arrays[1], elements + past, peer)
        rank.barrier()

    fault = refusal(main, 2)
    assert isinstance(fault, KernelFault)
    assert f"{4 * past} bytes past the end of the symmetric array of {4 * elements} bytes" in str(fault)


OWN: dict[str, Callable[[Rank], Any]] = {
    "to_device": lambda rank: rank.to_device(np.zeros(30, np.int32)),
    "empty": lambda rank: rank.empty(30, np.int32),
    "host_array": lambda rank: rank.host_array(30, np.int32),
}


@pytest.mark.parametrize("make", OWN)
def test_an_index_past_an_array_of_a_ranks_own_among_others(make: str) -> None:
    """malloc puts arrays of this size 8 bytes from each other. Found each time, and never proved."""

    def main(rank: Rank, number: int, index: int) -> None:
        arrays = [OWN[make](rank) for _ in range(4)]
        kernel("put").launch(rank, 1, 1, arrays[number], index, 0)
        rank.synchronize()

    for number in (0, 2):
        for index in (-1, 34, 100, 1000):
            fault = refusal(main, args=(number, index))
            assert isinstance(fault, KernelFault) and (index < 0 or f" {4 * (index - 30)} bytes past" in str(fault))
    found = ep_lib.check(main, 1, args=(0, 34), exhaustive=True, progress=False)
    assert not found.ok and not found.proved


def test_a_view_keeps_the_memory_of_its_array_reachable() -> None:
    def main(rank: Rank) -> None:
        halves = [rank.to_device(np.arange(8, dtype=np.int32))[4:], rank.empty(8, np.int32)[4:]]
        for half in halves:
            kernel("put").launch(rank, 1, 1, half.ctypes.data, 3, 0)  # by its address alone
        rank.synchronize()
        assert [half[3] for half in halves] == [42, 42]

    ep_lib.spawn(main, 1, "emulator")


def test_to_device_keeps_what_numpys_copy_keeps() -> None:
    def main(rank: Rank) -> None:
        plain = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
        for array in (plain, plain.T, plain[:, ::-1], plain[:, 1:2], np.float64(3), plain[:0], np.array(5)):
            here, there = np.array(array), rank.to_device(array)
            assert np.array_equal(here, there) and here.dtype == there.dtype and here.strides == there.strides

    ep_lib.spawn(main, 1, "emulator")


@pytest.mark.parametrize(
    ("name", "fabric", "says"),
    [("get", "p2p", "252 bytes past the end of"), ("send", "rc", "past the end of")],
    ids=["before an array", "by a NIC"],
)
def test_an_index_outside_of_a_symmetric_array(name: str, fabric: str, says: str) -> None:
    def main(rank: Rank) -> None:
        arrays = [rank.symmetric(64, np.int32) for _ in range(3)]
        args = (-1, 0, arrays[0]) if name == "get" else (64, 1)
        kernel(name).launch(rank, 1, 1, arrays[1], *args)
        rank.synchronize()

    assert f"{says} the symmetric array of 256 bytes" in str(refusal(main, 2, fabric=fabric))


def test_memory_after_free_by_its_address() -> None:
    def main(rank: Rank) -> None:
        x = rank.symmetric(64, np.int32)
        address = rank.peer_address(x, 0)
        rank.free(x)
        kernel("put").launch(rank, 1, 1, address, 3, 0)
        rank.synchronize()

    fault = refusal(main)
    assert isinstance(fault, KernelFault) and "symmetric array of 256 bytes at heap+0x200, which was freed" in str(
        fault
    )


@pytest.mark.parametrize("reused", [False, True])
def test_a_freed_array_is_refused(reused: bool) -> None:
    def main(rank: Rank) -> None:
        x = rank.symmetric(64, np.int32)
        rank.free(x)
        if reused:
            rank.free(rank.symmetric(64, np.int32))  # the first one that follows has another address
            assert rank.symmetric(64, np.int32).ctypes.data == x.ctypes.data
        kernel("put").launch(rank, 1, 1, x[8:], 3, 0)

    error = refusal(main)
    assert isinstance(error, BufferClosedError) and "that rank.free() has given back; allocate it again" in str(error)


def test_launches_before_a_free_may_finish() -> None:
    def main(rank: Rank) -> int:
        x = rank.symmetric(64, np.int32)
        kernel("put").launch(rank, 1, 1, x, 3, (rank.rank + 1) % 2)
        rank.free(x)
        rank.barrier()
        return int(x[3])

    assert ep_lib.spawn(main, 2, "emulator") == [42, 42]


def test_a_heap_has_room_for_what_it_says() -> None:
    def main(rank: Rank) -> int:
        arrays = [rank.symmetric(1024, np.uint8) for _ in range(15)]
        arrays.append(rank.symmetric(rank.heap_bytes - 15 * 1024 - 256, np.uint8))
        arrays[-1][:] = 1
        assert not any(array.any() for array in arrays[:-1])
        return len(arrays)

    assert ep_lib.spawn(main, 2, "emulator", heap_bytes=1 << 16) == [16, 16]


# ---- types of elements -----------------------------------------------------------------------------------------------

GOOD = ("int32", "float32", ml_dtypes.bfloat16, "float64", "int64", "float32")


@pytest.mark.parametrize(
    ("position", "dtype", "says"),
    [
        (0, "float32", r"argument 1 of 'types' points to int32, and the array of shape (4,) has type float32"),
        (0, "int64", "array.astype(np.int32) to convert the values, or array.view(np.int32) if its bytes are int32"),
        (1, "float64", "points to float32"),
        (1, "int32", "points to float32"),
        (1, "complex64", "points to float32"),
        (2, "float32", "array.view(ml_dtypes.bfloat16)"),
        (2, "float16", "points to bfloat16"),
        (0, ">i4", "array.astype(array.dtype.newbyteorder('='))"),
        (0, object, "holds Python objects"),
        (3, object, "holds Python objects"),
        (4, object, "holds Python objects"),
    ],
)
def test_an_array_of_another_type_than_the_pointer(position: int, dtype: Any, says: str) -> None:
    def main(rank: Rank) -> None:
        arrays = [np.zeros(4, d) for d in GOOD]
        arrays[position] = np.zeros(4, dtype)
        kernel("types").launch(rank, 1, 1, *arrays)

    error = refusal(main)
    assert isinstance(error, KernelLaunchError) and says in str(error), error


def test_arrays_that_fit_a_pointer() -> None:
    def main(rank: Rank) -> None:
        fitting: list[tuple[Any, ...]] = [
            GOOD,
            ("uint32", "float32", "uint16", "bool", "complex64", "int8"),
            ("i4", "f4", "i2", "float8_e4m3fn", "S3", "f8"),
        ]
        for dtypes in fitting:
            kernel("types").launch(rank, 1, 1, *(np.zeros(4, d) for d in dtypes))
        kernel("types").launch(rank, 1, 1, None, rank.empty(4, "f4").ctypes.data, *[np.zeros(0)] * 4)
        rank.synchronize()

    ep_lib.spawn(main, 1, "emulator")


# ---- a rank is its number --------------------------------------------------------------------------------------------


def test_a_rank_equals_its_number() -> None:
    def main(rank: Rank) -> tuple[Any, ...]:
        other = 1 - rank.rank
        assert rank == rank.rank and rank != other and (rank == other) is False
        assert rank == np.int64(rank.rank) and rank != str(rank.rank) and rank != float("nan") and rank != None  # noqa: E711
        assert {0: "a", 1: "b"}[rank] == "ab"[rank] and rank in (0, 1) and hash(rank) == hash(rank.rank)
        return int(rank), (rank if rank == 0 else 0) == 0

    assert ep_lib.spawn(main, 2, "emulator") == [(0, True), (1, True)]


# ---- flags, numbers, types of arguments ------------------------------------------------------------------------------

SHAPE: dict[str, Any] = {"num_experts": 4, "top_k": 2, "hidden": 128, "max_tokens": 4, "num_sms": 2}
X = np.zeros((4, 128), ml_dtypes.bfloat16)
IDX = np.array([[0, 1], [1, 2], [3, -1], [2, 3]])
NOT_A_FLAG = ["False", None, 2, 0.0, np.zeros(1)]
FLAGS: dict[str, Callable[[Rank, Any], Any]] = {
    "allow_nvlink_for_normal_mode": lambda rank, v: Buffer(rank, **SHAPE, allow_nvlink_for_normal_mode=v),
    "merge_sender_receiver": lambda rank, v: Buffer(rank, **SHAPE, merge_sender_receiver=v),
    "low_latency_mask_on_timeout": lambda rank, v: Buffer(rank, **SHAPE, low_latency_mask_on_timeout=v),
    "async_finish": lambda rank, v: Buffer(rank, **SHAPE).dispatch(X, IDX, async_finish=v),
    "copy": lambda rank, v: Buffer(rank, **SHAPE).dispatch(X, IDX, copy=v),
    "sorted_by_expert": lambda rank, v: Buffer(rank, **SHAPE).dispatch(X, IDX, sorted_by_expert=v),
    "p2p": lambda rank, v: ep_lib.Fabric("rc", p2p=v),
    "compare_values": lambda rank, v: ep_lib.check(print, 1, compare_values=v),
    "stop_at_first": lambda rank, v: ep_lib.check(print, 1, stop_at_first=v),
    "stop_at_failure": lambda rank, v: ep_lib.check(print, 1, stop_at_failure=v),
}
LOW_LATENCY_FLAGS = ["use_fp8", "async_finish", "return_recv_hook"]


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str) -> None:
    def main(rank: Rank) -> None:
        for value in NOT_A_FLAG:
            with pytest.raises(ArgumentError, match=rf"{name} is .*; it must be True or False"):
                FLAGS[name](rank, value)

    ep_lib.spawn(main, 1, "emulator")


def test_flags_of_low_latency_mode_are_true_or_false() -> None:
    def main(rank: Rank) -> None:
        buffer = Buffer(rank, **SHAPE, num_max_dispatch_tokens_per_rank=4)
        sent = buffer.low_latency_dispatch(X, IDX, use_fp8=False)
        rows, weights = sent.recv_x, np.ones((4, 2), np.float32)
        for value in NOT_A_FLAG:
            for name in LOW_LATENCY_FLAGS:
                with pytest.raises(ArgumentError, match=rf"{name} is .*; it must be True or False"):
                    buffer.low_latency_dispatch(X, IDX, **{name: value})
            for name in ("zero_copy", *LOW_LATENCY_FLAGS[1:]):
                with pytest.raises(ArgumentError, match=rf"{name} is .*; it must be True or False"):
                    buffer.low_latency_combine(rows, IDX, weights, sent.handle, **{name: value})

    ep_lib.spawn(main, 1, "emulator")


@pytest.mark.parametrize("ranks", [-1, 0, 2.5, "2", None, True, 65])
def test_symmetric_bytes_of_a_world_that_cannot_be(ranks: Any) -> None:
    with pytest.raises(ArgumentError, match="world_size is "):
        Buffer.symmetric_bytes(ranks, **SHAPE)


@pytest.mark.parametrize("rank", [0, None, "rank 0", object()])
def test_what_is_no_rank_is_refused(rank: Any) -> None:
    with pytest.raises(ArgumentError, match=r"rank is .*; it must be the Rank that main got"):
        kernel("put").launch(rank, 1, 1, None, 0, 0)
    with pytest.raises(ArgumentError, match=r"rank is .*; it must be the Rank that main got"):
        Buffer(rank, **SHAPE)


def test_to_host_of_a_tensor_says_what_to_call() -> None:
    torch = pytest.importorskip("torch")

    def main(rank: Rank) -> None:
        rank.to_host(torch.zeros(2, 3))

    error = refusal(main)
    assert isinstance(error, ArgumentError)
    assert "an array of shape (2, 3) and type torch.float32" in str(error) and "then tensor.cpu()" in str(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda rank: rank.symmetric(4, ">f4"),
        lambda rank: rank.empty(4, object),
        lambda rank: rank.symmetric(4, None),
        lambda rank: rank.to_device(np.zeros(4, ">i4")),
        lambda rank: rank.to_host(np.zeros(4, ">i4")),
        lambda rank: rank.to_device(np.array([None])),
        lambda rank: rank.symmetric(4, "i4", fill=float("nan")),
        lambda rank: rank.symmetric(4, "u1", fill=300),
        lambda rank: rank.symmetric(True, "u1"),
        lambda rank: rank.to_device(np.ma.masked_array([1, 2], mask=[0, 1])),
    ],
)
def test_arrays_that_kernels_cannot_use(call: Callable[[Rank], Any]) -> None:
    assert isinstance(refusal(call), ArgumentError)


def test_ranks_that_free_different_arrays_are_told() -> None:
    def main(rank: Rank) -> None:
        a, b = rank.symmetric(64, "i4"), rank.symmetric(64, "i4")
        rank.free(a if rank == 0 else b)
        rank.symmetric(64, "i4")

    assert isinstance(refusal(main, 2), RankMismatchError)


@pytest.mark.parametrize(
    "call",
    [
        lambda other: other.barrier(),
        lambda other: other.all_gather(1),
        lambda other: other.symmetric(4, "f4"),
        lambda other: Buffer(other, **SHAPE),
        lambda other: kernel("put").launch(other, 1, 1, None, 0, 0),
    ],
)
def test_the_rank_of_another_main(call: Callable[[Rank], Any]) -> None:
    ranks: dict[int, Rank] = {}

    def main(rank: Rank) -> None:
        ranks[rank.rank] = rank
        rank.barrier()
        if rank == 0:
            call(ranks[1])
        rank.barrier()

    error = refusal(main, 2)
    assert isinstance(error, ArgumentError)
    assert "this is the Rank of rank 1, and the main of rank 0 uses it" in str(error)


def test_an_array_of_another_rank() -> None:
    arrays: dict[int, Any] = {}

    def main(rank: Rank) -> None:
        arrays[rank.rank] = rank.symmetric(64, np.int32)
        rank.barrier()
        kernel("put").launch(rank, 1, 1, arrays[1], 0, 0)

    assert "of another rank; pass this rank's own" in str(refusal(main, 2))


def test_a_rank_after_its_spawn() -> None:
    kept: list[Rank] = []

    def main(rank: Rank) -> None:
        kept.append(rank)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        ep_lib.spawn(main, 1, "emulator")
    with pytest.raises(BufferClosedError, match="is of a spawn\\(\\) that has ended"):
        kept[0].barrier()


@pytest.mark.parametrize("main", [lambda: None, lambda rank, more: None, lambda *, rank: None])
def test_a_main_that_does_not_take_a_rank(main: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match="cannot be called with a Rank and 0 more"):
        ep_lib.spawn(main, 1, "emulator")


def test_a_rank_is_not_sent() -> None:
    assert "pass rank.rank, its number" in str(refusal(lambda rank: rank.all_gather([rank])))


# ---- what the checker says of hosts ----------------------------------------------------------------------------------

CHECKED = """
#include <ep/platform.cuh>
#include <ep/net.cuh>
extern "C" __global__ void sum(const int* x, int n, int* out) {
    for (int i = 0; i < n; i++) *out += x[i];  // read
}
extern "C" __global__ void fill(int* x, int n) { for (int i = 0; i < n; i++) x[i] = i; }
extern "C" __global__ void count(int* x) { atomicAdd(x, 1); }
extern "C" __global__ void swap(int* x) { atomicExch(x, 1); }
extern "C" __global__ void send(int* x) { ep::net_put_nbi(x, x + 16, 64, 1); ep::net_quiet(); }
"""


def checked(name: str) -> Kernel:
    return Kernel.from_source(CHECKED, name)


def unwritten(rank: Rank, how: str, where: str) -> None:
    x = rank.symmetric(64, np.int32, fill=None) if where == "symmetric" else rank.empty(64, np.int32)
    out = rank.to_device(np.zeros(1, np.int32))
    if how == "host":
        x[:] = 1
    if how in ("kernel", "half"):
        checked("fill").launch(rank, 1, 1, x, 64 if how == "kernel" else 32)
    if how in ("count", "swap"):
        checked(how).launch(rank, 1, 1, x)
    elif how == "send":
        if rank == 0:
            checked("send").launch(rank, 1, 1, x)
    else:
        checked("sum").launch(rank, 1, 1, x, 64, out)
    rank.synchronize()


@pytest.mark.parametrize("where", ["symmetric", "empty"])
@pytest.mark.parametrize("how", ["nobody", "half", "count", "host", "kernel", "swap"])
def test_memory_that_nobody_has_written(how: str, where: str) -> None:
    report = ep_lib.check(unwritten, 1, seeds=1, args=(how, where))
    if how in ("host", "kernel", "swap"):
        assert report.ok, str(report)
        return
    [finding] = report.findings
    assert finding.kind == "uninitialised" and "neither the host nor a kernel has written" in finding.message, str(
        report
    )
    assert "to_device()" in finding.remedy and ("// read" in str(finding) or how == "count")


def test_a_nic_sends_what_nobody_has_written() -> None:
    report = ep_lib.check(unwritten, 2, "rc", seeds=1, args=("send", "symmetric"))
    assert [f.kind for f in report.findings] == ["uninitialised"], str(report)
    assert "the NIC reads" in str(report)


@pytest.mark.parametrize("kind", ["symmetric", "to_device", "plain", "host"])
@pytest.mark.parametrize("when", ["launch", "gather", "after"])
def test_the_host_writes_what_a_kernel_may_be_using(kind: str, when: str) -> None:
    def main(rank: Rank) -> None:
        zeros = np.zeros(64, np.int32)
        make: dict[str, Callable[[], Any]] = {
            "symmetric": lambda: rank.symmetric(64, np.int32),
            "to_device": lambda: rank.to_device(zeros),
            "plain": zeros.copy,
            "host": lambda: rank.host_array(64, np.int32),
        }
        x, out = make[kind](), rank.to_device(zeros[:1])
        x[:] = 1
        checked("sum").launch(rank, 1, 1, x, 64, out)
        if when == "gather":
            rank.all_gather(None)
        if when == "after":
            rank.synchronize()
        x[3:5] = 2
        checked("sum").launch(rank, 1, 1, x, 64, out)
        rank.synchronize()

    report = ep_lib.check(main, 2, seeds=1)
    if kind == "host" or when == "after":
        assert report.ok, str(report)
        return
    [finding] = report.findings
    assert finding.kind == "race" and "rank.synchronize() between the launch" in finding.remedy, str(report)
    assert finding.ranks == (0, 1)
    if kind == "plain":
        assert "(bytes 12 to 17) that the kernel 'sum' may be using" in finding.message
        assert len({*finding.lines}) == 2 and all("test_silent_mistakes.py:" in line for line in finding.lines)
    else:
        assert "host writes what a kernel of rank" in finding.message and "test_silent_mistakes.py:" in str(finding)


READS: dict[str, Callable[[Any], Any]] = {
    "an element": lambda x: int(x[2]),
    "from the end": lambda x: x[-62],
    "a sum": lambda x: x.sum(),
    "a slice": lambda x: x[1:9].max(),
    "places": lambda x: x[[2, 3]],
    "those that are": lambda x: x[x > 0],
    "a comparison": lambda x: x == 1,
    "a function": lambda x: np.array_equal(x, x),
    "in a list": lambda x: np.concatenate([x, x]),
    "a function in C": lambda x: np.bincount(x),
    "an ordinary array": lambda x: x.view(np.ndarray)[3],
    "a loop": lambda x: [int(value) for value in x],
    "a list": lambda x: x.tolist(),
    "a copy": lambda x: x.copy(),
    "a text": str,
    "to the others": lambda x: x.__reduce_ex__(4),
}
LOOKS: dict[str, Callable[[Any], Any]] = {
    "a view": lambda x: x[2:4],
    "its shape": np.shape,
    "what the kernel leaves": lambda x: int(x[60]),
    "one like it": np.zeros_like,
    "its halves": lambda x: np.split(x, 2),
    "its transpose": np.transpose,
    "its bytes": lambda x: x.view(np.uint8).reshape(2, -1),
}
ADDS = """
extern "C" __global__ void adds(int* x) { x[threadIdx.x] += 1; }
"""


def reads(rank: Rank, make: str, read: Callable[[Any], Any], when: str) -> None:
    zeros = np.zeros(64, np.int32)
    x = {"symmetric": rank.symmetric, "empty": rank.empty, "to_device": lambda *_: rank.to_device(zeros)}[make](
        64, np.int32
    )
    x[...] = 0
    for step in range(2):
        if when == "before":
            read(x)
        ep_lib.Kernel.from_source(ADDS, "adds").launch(rank, 1, 32, x)
        if when == "launch":
            read(x)
        rank.synchronize()
        assert when != "after" or int(x[3]) == step + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "what"),
    [*(("symmetric", what) for what in [*READS, *LOOKS]), ("to_device", "an element"), ("empty", "an element")],
)
def test_the_host_reads_what_a_kernel_has_yet_to_write(make: str, what: str) -> None:
    for when in ("before", "launch", "after"):
        report = ep_lib.check(reads, 1, seeds=1, args=(make, {**READS, **LOOKS}[what], when))
        if when != "launch" or what in LOOKS:
            assert report.ok, str(report)
            continue
        [finding] = report.findings
        assert finding.kind == "race" and "between the launch and what the host does" in finding.remedy, str(report)
        assert "rank 0's host reads what a kernel of rank 0 writes" in finding.message
        assert "test_silent_mistakes.py:" in str(finding)


def test_what_is_computed_from_a_ranks_array_is_an_ordinary_one() -> None:
    def main(rank: Rank) -> Any:
        x = rank.symmetric(8, np.float32, 2)
        x += 1
        np.add(x, 1, out=x)
        x[2:4] *= 2
        made = (x + x, -x, x.copy(), x.astype(np.int32), np.where(x > 4, x, 0), x[[1, 2]], *rank.all_gather(x))
        assert all(type(each) is np.ndarray for each in made)
        return x, made

    assert ep_lib.check(main, 2, seeds=2).ok
    assert ep_lib.spawn(main, 1, "emulator")[0][0].tolist() == [4, 4, 8, 8, 4, 4, 4, 4]


def test_two_symmetric_arrays_in_another_order() -> None:
    def main(rank: Rank) -> None:
        if rank == 0:
            data = rank.symmetric(64, np.int32)
            flags = rank.symmetric(64, np.int32)
        else:
            flags, data = rank.symmetric(64, np.int32), rank.symmetric(64, np.int32)
        del data, flags

    with pytest.raises(RankMismatchError, match=r"rank 0 data \(.*:\d+\) and then flags .*, rank 1 flags .* then data"):
        ep_lib.check(main, 2, seeds=1)


def test_symmetric_arrays_of_different_names_in_the_same_order() -> None:
    def main(rank: Rank) -> None:
        if rank == 0:
            mine, theirs = rank.symmetric(64, np.int32), rank.symmetric(64, np.int32)
        else:
            inbox, outbox = rank.symmetric(64, np.int32), rank.symmetric(64, np.int32)
            mine, theirs = outbox, inbox
        both = {name: rank.symmetric(8, np.int32) for name in ("a", "b")}
        for array in (mine, theirs, *both.values()):
            rank.free(array)

    assert ep_lib.check(main, 2, seeds=1).ok


# ---- handles ---------------------------------------------------------------------------------------------------------


def test_rows_of_another_dispatch_with_as_many_rows() -> None:
    def main(rank: Rank) -> None:
        buffer = Buffer(rank, **SHAPE)
        first, second = buffer.dispatch(X, IDX), buffer.dispatch(X, IDX[::-1].copy())
        same = buffer.dispatch(X, IDX)
        assert first.x.shape == second.x.shape
        buffer.combine(same.x, first.handle)  # rows of the same tokens
        buffer.combine(second.x, second.handle)
        buffer.combine(second.x.copy(), first.handle)  # what experts made of anything
        buffer.combine(second.x, first.handle)

    with pytest.raises(HandleError, match="x is what another dispatch than this handle's brought"):
        ep_lib.spawn(main, 2, "emulator")


def test_rows_of_another_low_latency_dispatch() -> None:
    def main(rank: Rank) -> None:
        buffer = Buffer(rank, **SHAPE, num_max_dispatch_tokens_per_rank=4)
        weights = np.ones((4, 2), np.float32)
        ids = [IDX, IDX, IDX[::-1].copy()]
        first, same, other = (buffer.low_latency_dispatch(X, each, use_fp8=False) for each in ids)
        buffer.low_latency_combine(same.recv_x, IDX, weights, first.handle)
        buffer.low_latency_combine(other.recv_x, IDX, weights, first.handle)

    with pytest.raises(HandleError, match="x is what another low_latency_dispatch than this handle's brought"):
        ep_lib.spawn(main, 2, "emulator")


# ---- a rank that ends the process ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, None])
def test_sys_exit_in_a_rank_is_an_exception_that_names_it(code: int | None) -> None:
    """With 0, a CI step that checks a kernel would be green, whatever the kernel does."""

    def main(rank: Rank) -> None:
        if rank == 1:
            sys.exit(code)
        rank.barrier()

    says = "" if code is None else code
    runs = (ep_lib.spawn, functools.partial(ep_lib.check, progress=False), ep_lib.simulate)
    for run in runs:
        with pytest.raises(RankFailed, match=rf"rank 1 called sys.exit\({says}\) before") as caught:
            run(main, 2)
        assert caught.value.rank == 1
