"""<ep/nixl_device.cuh> and its host half: the guide's kernels unchanged, the newer names, and mistakes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import TESTS, Spmd
from support.write_signal import data_of

from ep_lib import Kernel, Rank
from ep_lib.compat.nixl import DeviceHost
from ep_lib.errors import ArgumentError, BufferClosedError, EpError, KernelFault

pytestmark = pytest.mark.slow

KERNELS = TESTS / "kernels"
IN_PROG, SUCCESS, INVALID = 1, 0, -2


@functools.lru_cache(maxsize=32)
def kernel(file: str, name: str) -> Kernel:
    return Kernel.from_file(KERNELS / f"{file}.cu", name)


# ---- the guide's kernels, unchanged ---------------------------------------------------------------------------------
def guide_pair(rank: Rank, which: str, size: int) -> np.ndarray[Any, Any] | None:
    """Rank 0 writes to rank 1 and signals; rank 1 waits and reads."""
    data, signal = rank.symmetric(size, np.uint8), rank.symmetric(1, np.uint64)
    host = DeviceHost(rank)
    host.register(data)
    host.register(signal)
    if rank.rank == 1:
        kernel("nixl_guide", "wait_for_signal_kernel_thread").launch(rank, 1, 32, signal, 7 if which == "post" else 1)
        return rank.to_host(data)
    source = rank.to_device(data_of(0, size))
    host.register(source)
    write = host.create_gpu_req(host.create_write_req(source, 1, remote=data))
    ring = host.create_gpu_req(host.create_signal_req(signal, 1))
    if which == "post":
        post = kernel("nixl_guide", "post_write_and_signal_kernel_warp")
        post.launch(rank, 1, 32, host.handle_array([write]), 1, ring, signal, size, 7, 0)
    else:
        kernel("nixl_guide", f"{which}_level_kernel").launch(rank, 1, 64, write, ring, size)
    host.close()
    return None


@pytest.mark.parametrize("which", ["post", "thread", "warp"])
def test_the_guides_kernels_run_unchanged(spmd: Spmd, backend: str, which: str) -> None:
    for seed in range(20) if backend == "emulator" else [2]:
        size = (1, 15, 1000, 8192)[seed % 4]
        received = spmd(guide_pair, 2, which, size, seed=seed)[1]
        assert np.array_equal(received, data_of(0, size)), f"seed {seed}"


# ---- levels, several targets, offsets -----------------------------------------------------------------------------
def all_to_all(rank: Rank, level: int, size: int, wait: bool) -> tuple[Any, Any, Any]:
    """Every rank writes part of its data to every other rank, into that rank's slot for it."""
    data = rank.symmetric((rank.world_size, size), np.uint8)
    signals = rank.symmetric(2, np.uint64)
    source = rank.to_device(data_of(rank.rank, size + 5))
    host = DeviceHost(rank)
    for array in (data, signals, source):
        host.register(array)
    peers = [peer for peer in range(rank.world_size) if peer != rank.rank]
    write = host.create_gpu_req(host.create_write_req(source, peers, remote=data))
    ring = host.create_gpu_req(host.create_signal_req(signals, peers))
    send = kernel("nixl_more", "send_at_level")
    send.launch(rank, 2, 64, level, write, ring, len(peers), rank.rank * size, 5, size, wait)
    out, seen = rank.empty((rank.world_size, size), np.uint8), rank.to_device(np.zeros(64, np.uint64))
    receive = kernel("nixl_more", "receive_at_level")
    receive.launch(rank, 1, 64, level, signals[1:], 3 * len(peers), data, data.nbytes, out, seen)
    return rank.to_host(out), rank.to_host(seen), rank.to_host(signals)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_writes_and_signals_at_every_level(spmd: Spmd, backend: str, level: int) -> None:
    ranks = 2 if backend == "cuda" else 4
    for seed in range(10) if backend == "emulator" else [1]:
        size = 700 + 37 * seed
        for rank, (out, seen, signals) in enumerate(spmd(all_to_all, ranks, level, size, seed % 2 == 0, seed=seed)):
            for source in range(ranks):
                expected = data_of(source, size + 5)[5:] if source != rank else np.zeros(size, np.uint8)
                assert np.array_equal(out[source], expected), f"seed {seed}, rank {rank}, source {source}"
            assert signals.tolist() == [0, 3 * (ranks - 1)]  # the second word, and once a sender
            assert set(seen[: (1, 32, 64)[level]].tolist()) == {3 * (ranks - 1)}  # all threads saw one value


# ---- the newer names ---------------------------------------------------------------------------------------------
def put(rank: Rank, level: int, **change: int) -> Any:
    """Rank 0 puts 100 bytes into its peers' second array with the newer API, then adds 5 to their counters."""
    peer = (rank.rank + 1) % rank.world_size
    first, second = rank.symmetric(64, np.uint8), rank.symmetric(200, np.uint8)
    counter, source = rank.symmetric(2, np.uint64), rank.to_device(data_of(rank.rank, 150))
    host = DeviceHost(rank)
    for array in (first, second, counter, source):
        host.register(array)
    local = host.prep_local_view([source])
    remote = host.prep_remote_view([(first, peer), (second, peer), (counter, peer)])
    statuses = rank.to_device(np.full(3, -99, np.int32))
    what = {"local": local, "remote": remote, "src_index": 0, "src_offset": 50, "dst_index": 1, "dst_offset": 9}
    what |= {"counter_index": 2, "counter_offset": 8, "size": 100}
    what |= {name: value for name, value in change.items()}
    failure = ""
    try:
        if rank.rank == 0:
            kernel("nixl_more", "put_at_level").launch(rank, 1, 64, level, *what.values(), statuses)
        rank.synchronize()
    except KernelFault as error:
        failure = str(error)
    pointers = rank.to_device(np.zeros(3, np.uint64))
    if not failure:
        kernel("nixl_more", "get_pointers").launch(rank, 1, 1, remote, 3, pointers)
    reachable = [rank.peer_address(array, peer) for array in (first, second, counter)]
    found = rank.to_host(pointers).tolist()
    rank.barrier()
    host.close()
    return rank.to_host(second), rank.to_host(counter), rank.to_host(statuses), failure, found, reachable


@pytest.mark.parametrize("level", [0, 1, 2])
def test_put_atomic_add_and_status(spmd: Spmd, level: int) -> None:
    (_, _, statuses, failure, found, reachable), (second, counter, *_) = spmd(put, 2, level)
    assert failure == "" and statuses.tolist() == [IN_PROG, SUCCESS, IN_PROG]
    assert np.array_equal(second[9:109], data_of(0, 150)[50:])
    assert not second[:9].any() and not second[109:].any()
    assert counter.tolist() == [0, 5]
    assert found == reachable


BAD_PUTS: list[tuple[dict[str, int], str]] = [
    ({"size": 101}, "only 150 bytes"),  # beyond the source
    ({"src_offset": 151, "size": 0}, "only 150 bytes"),
    ({"dst_offset": 101}, "only 200 bytes"),  # beyond the target
    ({"dst_offset": 2**64 - 1}, "only 200 bytes"),
    ({"size": 2**64 - 1}, "only 150 bytes"),
    ({"dst_index": 3}, "entry 3 does not exist"),
    ({"local": 0}, "not a handle of that kind"),
    ({"remote": 0}, "not a handle of that kind"),
]
BAD_COUNTERS: list[tuple[dict[str, int], str]] = [
    ({"counter_offset": 4}, "multiple of 8"),
    ({"counter_offset": 16}, "only 16 bytes"),
    ({"counter_offset": 2**64 - 8}, "only 16 bytes"),
    ({"counter_index": 3}, "entry 3 does not exist"),
]


def puts(rank: Rank, level: int, changes: list[dict[str, int]]) -> list[Any]:
    return [put(rank, level, **change) for change in changes]


@pytest.mark.parametrize("level", [0, 1])
def test_a_bad_put_moves_nothing_and_is_reported(spmd: Spmd, level: int) -> None:
    senders, receivers = spmd(puts, 2, level, [change for change, _ in BAD_PUTS])
    for (change, message), sent, received in zip(BAD_PUTS, senders, receivers, strict=True):
        _, _, statuses, failure, *_ = sent
        second, counter, *_ = received
        assert message in failure, change
        assert statuses.tolist()[:2] == [INVALID, INVALID], change
        assert not second.any(), change
        assert not counter.any(), f"{change}: no signal announces data that was refused"


def test_a_counter_outside_or_misaligned_is_refused(spmd: Spmd) -> None:
    senders, receivers = spmd(puts, 2, 1, [change for change, _ in BAD_COUNTERS])
    for (change, message), sent, received in zip(BAD_COUNTERS, senders, receivers, strict=True):
        assert "refused" in sent[3] and message in sent[3], change
        assert sent[2].tolist() == [IN_PROG, SUCCESS, INVALID], change
        assert not received[1].any(), change


def refused_then_waited_for(rank: Rank) -> None:
    """The sender's write is refused, so its signal is too, and the receiver waits for ever: which error comes out?"""
    data, signal = rank.symmetric(64, np.uint8), rank.symmetric(1, np.uint64)
    host = DeviceHost(rank)
    host.register(data)
    host.register(signal)
    write = host.create_gpu_req(host.create_write_req(data, 1 - rank.rank))
    ring = host.create_gpu_req(host.create_signal_req(signal, 1 - rank.rank))
    if rank.rank == 0:
        kernel("nixl_guide", "warp_level_kernel").launch(rank, 1, 32, write, ring, 65)
    else:
        kernel("nixl_guide", "wait_for_signal_kernel_thread").launch(rank, 1, 1, signal, 1)
    rank.synchronize()


def test_a_refused_write_is_named_though_the_peer_waits(spmd: Spmd) -> None:
    with pytest.raises(EpError, match=r"bytes 0 to 65 of rank .*memory was refused: only 64 bytes"):
        spmd(refused_then_waited_for, 2, timeout=10)


# ---- the host's checks -----------------------------------------------------------------------------------------------
def host_mistakes(rank: Rank) -> dict[str, str]:
    data, signal = rank.symmetric((8, 8), np.uint8), rank.symmetric(2, np.uint64)
    local, stranger = rank.empty(8, np.uint8), rank.symmetric(8, np.uint8)
    host = DeviceHost(rank)
    for array in (data, signal, local, local):
        host.register(array)
    request = host.create_write_req(data[2:4], 0)
    handle = host.create_gpu_req(request)
    tries: dict[str, Callable[[], object]] = {
        "unregistered": lambda: host.create_write_req(stranger, 0),
        "not symmetric": lambda: host.create_write_req(local, 0),
        "no such peer": lambda: host.create_write_req(data, rank.world_size),
        "no peers": lambda: host.create_write_req(data, []),
        "not contiguous": lambda: host.create_write_req(data[:, 1], 0),
        "empty": lambda: host.register(data[:0]),
        "not an array": lambda: host.register([1, 2]),
        "not 64 bits": lambda: host.create_signal_req(data, 0),
        "not a request": lambda: host.create_gpu_req(handle),  # type: ignore[arg-type]
        "not a handle": lambda: host.handle_array([handle + 8]),
        "no handles": lambda: host.handle_array([]),
        "empty view": lambda: host.prep_local_view([]),
        "deregistered": lambda: host.deregister(stranger),
        "released": lambda: [host.release(handle), host.release(handle)],
        "closed": lambda: [host.close(), host.close(), host.create_write_req(data, 0)],
    }
    found = {}
    for name, attempt in tries.items():
        try:
            attempt()
            found[name] = "nothing was raised"
        except (ArgumentError, BufferClosedError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_mistakes_on_the_host_are_named(spmd: Spmd) -> None:
    expected = {
        "unregistered": "not registered",
        "not symmetric": "symmetric heap",
        "no such peer": "no rank 2",
        "no peers": "at least one peer",
        "not contiguous": "contiguous",
        "empty": "not be empty",
        "not an array": "got list",
        "not 64 bits": "uint8",
        "not a request": "create_write_req",
        "not a handle": "not a handle",
        "no handles": "at least one handle",
        "empty view": "at least one entry",
        "deregistered": "not registered",
        "released": "released twice",
        "closed": "BufferClosedError",
    }
    for found in spmd(host_mistakes, 2):
        assert {name: message for name, message in found.items() if expected[name] not in message} == {}
        assert found.keys() == expected.keys()
