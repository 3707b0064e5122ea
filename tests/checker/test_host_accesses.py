"""What a rank's Python reads and writes, against kernels of other ranks and NICs."""

from __future__ import annotations

import copy
import os
from typing import Any, NamedTuple

import numpy as np
import pytest

import ep_lib
from ep_lib import Kernel, Rank

SOURCE = """
#include <ep/net.cuh>
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>
#define KERNEL extern "C" __global__ void
KERNEL put(uint64_t* box, uint64_t* source, int quiet) {
    if (ep::rank() != 0) return;
    ep::net_put_nbi(box, source, 8, 1);  // post
    if (quiet) ep::net_quiet(1);
}
KERNEL meet(uint64_t* flag) {
    ep::signal_add(flag, 1, 1 - ep::rank());
    ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, 0, 0});
}
KERNEL store(uint64_t* box) { *ep::peer_ptr(box, 1 - ep::rank()) = 7; }
KERNEL own(uint64_t* box) { box[0] = 7; }
KERNEL listen(uint64_t* flag) { ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, 0, 0}); }
KERNEL take(uint64_t* box, uint64_t* out) { out[0] = box[0]; }
"""


def launch(rank: Rank, name: str, *args: Any) -> None:
    Kernel.from_source(SOURCE, name).launch(rank, 1, 1, *args)


def boxes(rank: Rank) -> tuple[Any, Any]:
    return rank.symmetric(4, np.uint64), rank.symmetric(4, np.uint64)


def source_is_written(rank: Rank, right: bool) -> None:
    box, source = boxes(rank)
    launch(rank, "put", box, source, right)
    rank.synchronize()
    source[0] = 9
    rank.barrier()


def target_is_read(rank: Rank, right: bool) -> None:
    box, source = boxes(rank)
    launch(rank, "put", box, source, right)
    rank.barrier()
    _ = int(box[0])


def target_is_taken_by_a_kernel(rank: Rank, right: bool) -> None:
    box, source = boxes(rank)
    launch(rank, "put", box, source, right)
    rank.barrier()
    launch(rank, "take", box, source[1:])
    rank.synchronize()


def freed_while_a_nic_reads(rank: Rank, right: bool) -> None:
    box, source = boxes(rank)
    launch(rank, "put", box, source, right)
    rank.synchronize()
    rank.free(source)


def freed_while_a_kernel_runs(rank: Rank, right: bool) -> None:
    box, _ = boxes(rank)
    launch(rank, "own", box)
    if right:
        rank.synchronize()
    rank.free(box)


def freed_while_another_ranks_kernel_runs(rank: Rank, right: bool) -> None:
    box, _ = boxes(rank)
    launch(rank, "store", box)
    rank.synchronize()
    if right:
        rank.barrier()
    rank.free(box)


def flag_is_cleared_before_the_first_launch(rank: Rank, right: bool) -> None:
    flag, _ = boxes(rank)
    flag[0] = 0
    if right:
        rank.barrier()
    launch(rank, "meet", flag)
    rank.synchronize()


def copied_to_the_host(rank: Rank, right: bool) -> None:
    box, _ = boxes(rank)
    launch(rank, "store", box)
    if right:
        rank.barrier()
    rank.to_host(box)


def copied_by_numpy(rank: Rank, right: bool) -> None:
    box, _ = boxes(rank)
    launch(rank, "own", box)
    if right:
        rank.synchronize()
    np.array(box)
    rank.synchronize()


def a_view_by_numpy(rank: Rank, right: bool) -> None:
    box, _ = boxes(rank)
    launch(rank, "own", box)
    view = np.asarray(box)
    if right:
        rank.synchronize()
    _ = int(view[0])
    rank.synchronize()


def filled(rank: Rank, right: bool) -> None:
    box, _ = boxes(rank)
    if right:
        rank.barrier()
    launch(rank, "store", box)
    if right:
        rank.barrier()
    np.copyto(box, np.uint64(1))
    box.fill(2)
    rank.barrier()


def flag_is_set_while_a_kernel_waits(rank: Rank, right: bool) -> None:
    flag = rank.host_array(1, np.uint64) if right else rank.symmetric(1, np.uint64)
    launch(rank, "listen", flag)
    flag[0] = 1
    rank.synchronize()


class Mistake(NamedTuple):
    main: Any
    fabric: str
    kind: str
    remedy: str


QUIET, BARRIER, WAIT = "a quiet in the kernel", "rank.barrier() between", "rank.synchronize() between"
MISTAKES = [
    Mistake(source_is_written, "srd", "source reused", QUIET),
    Mistake(target_is_read, "srd", "race", QUIET),
    Mistake(target_is_read, "rc", "race", QUIET),
    Mistake(freed_while_a_nic_reads, "rc", "source reused", QUIET),
    Mistake(freed_while_a_kernel_runs, "p2p", "race", WAIT),
    Mistake(freed_while_another_ranks_kernel_runs, "p2p", "race", BARRIER),
    Mistake(target_is_taken_by_a_kernel, "srd", "signal overtakes data", "quiet"),
    Mistake(flag_is_cleared_before_the_first_launch, "p2p", "race", BARRIER),
    Mistake(copied_to_the_host, "p2p", "race", BARRIER),
    Mistake(copied_by_numpy, "p2p", "race", WAIT),
    Mistake(a_view_by_numpy, "p2p", "race", WAIT),
    Mistake(flag_is_set_while_a_kernel_waits, "p2p", "race", "rank.host_array()"),
    Mistake(filled, "p2p", "race", BARRIER),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{m.main.__name__}-{m.fabric}" for m in MISTAKES])
def test_the_mistake_is_found_and_its_right_twin_is_not(mistake: Mistake) -> None:
    report = ep_lib.check(mistake.main, 2, mistake.fabric, seeds=6, args=(False,), compare_values=False)
    found = {(f.kind, mistake.remedy in f.remedy) for f in report.findings}
    assert (mistake.kind, True) in found, str(report)
    assert "test_host_accesses.py:" in str(report) or mistake.main is target_is_taken_by_a_kernel, str(report)
    report = ep_lib.check(mistake.main, 2, mistake.fabric, args=(True,), exhaustive=True)
    assert report.ok, str(report)


READS: dict[str, Any] = {
    "weights": lambda box: np.bincount(np.zeros(4, np.int64), weights=box),
    "named": lambda box: np.sum(a=box),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "tofile": lambda box: box.tofile(os.devnull),
    "flatten": lambda box: box.flatten(),
    "argpartition": lambda box: box.argpartition(1),
    "__array__": lambda box: box.__array__(),
}
WRITES: dict[str, Any] = {
    "sort": lambda box: box.sort(),
    "partition": lambda box: box.partition(1),
    "byteswap": lambda box: box.byteswap(inplace=True),
    "out": lambda box: np.take(np.zeros(4, np.uint64), [0, 1, 2, 3], out=box, mode="clip"),
}


@pytest.mark.parametrize(
    ("verb", "use"),
    [pytest.param("reads", use, id=name) for name, use in READS.items()]
    + [pytest.param("writes", use, id=name) for name, use in WRITES.items()],
)
def test_what_goes_by_a_name_or_by_a_method_is_seen(verb: str, use: Any) -> None:
    def main(rank: Rank, right: bool) -> None:
        box, _ = boxes(rank)
        launch(rank, "own", box)
        if right:
            rank.synchronize()
        use(box)
        rank.synchronize()

    report = ep_lib.check(main, 1, seeds=2, args=(False,))
    assert f"rank 0's host {verb} what a kernel of rank 0" in str(report), str(report)
    assert ep_lib.check(main, 1, seeds=2, args=(True,)).ok


def test_bytes_swapped_into_a_copy_are_read_only() -> None:
    def main(rank: Rank) -> None:
        box, out = boxes(rank)
        launch(rank, "take", box, out)
        assert not box.byteswap().any()
        rank.synchronize()

    assert ep_lib.check(main, 1, seeds=2).ok


def test_numpy_is_as_it_was() -> None:
    before = np.array, np.asarray, np.ascontiguousarray, np.asfortranarray
    ep_lib.check(copied_by_numpy, 1, seeds=1, args=(True,))
    assert before == (np.array, np.asarray, np.ascontiguousarray, np.asfortranarray)


def test_the_host_fills_one_half_while_a_kernel_uses_the_other() -> None:
    def main(rank: Rank) -> None:
        box, out = boxes(rank)
        launch(rank, "take", box, out)  # box[0] and out[0]
        box[2:] = 9
        _ = int(out[1])
        launch(rank, "take", box[2:], out)
        assert rank.to_host(out)[0] == 9

    assert ep_lib.check(main, 2, exhaustive=True).proved
