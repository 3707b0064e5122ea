"""Ranks on the emulator that are processes of several hosts: TCP for their NICs, and nothing that a stranger may do.

On one machine hosts are names (EP_LIB_HOST) on loopback, and two network namespaces where those may be made.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from support.dispatch_combine_cases import Case
from support.hierarchical_cases import in_nodes
from support.waiting import wait_until

import ep_lib
from ep_lib import Fabric
from ep_lib.bootstrap import Bootstrap
from ep_lib.emulator.host_links import HostLinks, fabric_of_hosts
from ep_lib.errors import ArgumentError, BackendUnavailable, EpError, PeerTimeout, RankFailed
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.runtime.emulated import make_machine, process_rank
from ep_lib.runtime.spawn_cuda import spawn_processes

# Ranks get what they need of this module, and need not import pytest for it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HEAP_BYTES = 16 << 20

KERNEL = """
#include <ep/net.cuh>
#include <ep/wait.cuh>
// What every kind of operation does to the other rank; `data` is two halves of n bytes.
extern "C" __global__ void all_kinds(char* data, char* got, uint64_t* signal, uint32_t* small, uint64_t* large, int n) {
    const int peer = 1 - ep::rank();
    ep::net_put_signal_nbi(data + n, data, n, signal, 7, peer, 0, ep::NetSignal::kSet);
    if (!ep::wait_until_ge(signal, 7, {ep::kPhaseUser, peer, -1})) return;
    ep::net_get_nbi(got, data, n, peer, 1);
    for (int i = 0; i < 20; ++i) {
        ep::net_atomic_add_u32_nbi(small, 3, peer, i % 4);
        ep::net_atomic_add_u64_nbi(large, uint64_t{1} << 40, peer, i % 4);
    }
    ep::net_quiet();
}
"""


def hosts_of_one(bootstrap: Bootstrap, heap_bytes: int | None, timeout: float | None, environment: Any = None) -> Any:
    """A rank of two hosts with as many ranks each; in the rank's process."""
    os.environ.update(EP_LIB_HOST=f"host{bootstrap.rank * 2 // bootstrap.world_size}", **(environment or {}))
    return process_rank(bootstrap, seed=0, fabric=None, heap_bytes=heap_bytes, timeout=timeout)


def run(main: Any, ranks: int, args: tuple[Any, ...] = (), make_rank: Any = hosts_of_one, timeout: float = 60) -> Any:
    return spawn_processes(main, ranks, args, heap_bytes=HEAP_BYTES, timeout=timeout, make_rank=make_rank)


def all_kinds(rank: Any, source: str, n: int) -> Any:
    kernel = ep_lib.Kernel.from_source(source, "all_kinds")
    data = rank.symmetric(2 * n, np.uint8)
    data[:n] = np.arange(n) % 251 + rank.rank
    got, signal = rank.symmetric(n, np.uint8), rank.symmetric(1, np.uint64)
    small, large = rank.symmetric(1, np.uint32), rank.symmetric(1, np.uint64)
    rank.barrier()
    kernel.launch(rank, 1, 1, data, got, signal, small, large, n)
    rank.barrier()
    theirs = np.arange(n) % 251 + (1 - rank.rank)
    assert (data[n:] == theirs).all() and (got == theirs).all()
    assert (signal[0], small[0], large[0]) == (7, 60, 20 << 40)
    return counted_at_rest(rank)[:2]


@pytest.mark.extended
@pytest.mark.slow
def test_every_kind_of_operation() -> None:
    n = 100_000
    for sent, received in run(all_kinds, 2, (KERNEL, n)):
        operations, headers = 1 + 1 + 40, 56 + 16
        assert sent == received == 2 * n + operations * headers


def case_of(ranks: int, tokens: int, hidden: int) -> Case:
    """The same on every rank."""
    rng, experts, top_k = np.random.default_rng(5), 4 * ranks, 4
    return Case(
        experts,
        top_k,
        hidden,
        tokens,
        "bfloat16",
        [rng.standard_normal((tokens, hidden), np.float32).astype(BFLOAT16) for _ in range(ranks)],
        [np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]) for _ in range(ranks)],
        [rng.random((tokens, top_k), np.float32) for _ in range(ranks)],
    )


def counted_at_rest(rank: Any) -> list[int]:
    """What this rank has sent and received, and what its host's cable has: once all that was sent has arrived, also the
    acknowledgements, which threads of a busy machine count late."""
    rounds: list[list[list[int]]] = []

    def all_has_arrived() -> bool:
        rounds.append(rank.all_gather([*rank.network_bytes(), *cable_counters()]))
        sent, received = np.sum(rounds[-1], axis=0)[:2]
        return len(rounds) > 1 and bool(sent == received) and rounds[-1] == rounds[-2]

    assert wait_until(all_has_arrived), rounds[-1]
    return rounds[-1][rank.rank]


def dispatch_and_combine(rank: Any, tokens: int, hidden: int) -> tuple[Any, list[Any]]:
    """What the ranks exchange, compared with the oracle in the parent: results, and bytes of it."""
    case, me = case_of(rank.world_size, tokens, hidden), rank.rank
    x, idx, weights = case.xs[me], case.topk_idx[me], case.topk_weights[me]
    with ep_lib.Buffer(rank, **case.buffer_arguments(), num_sms=3, hierarchical=True) as buffer:
        assert buffer.config.nodes == 2
        recv = buffer.dispatch(x, idx, weights)  # compiles
        buffer.combine(recv.x, recv.handle)
        before = counted_at_rest(rank)
        rank.barrier()
        recv = buffer.dispatch(x, idx, weights)
        combined = buffer.combine(recv.x, recv.handle)
        after = counted_at_rest(rank)
        rank.barrier()
    results = (recv.x.tobytes(), recv.src_token.tobytes(), combined.tobytes())
    return results, [b - a for a, b in zip(before, after, strict=True)]


def check_against_the_oracle(found: list[Any], tokens: int, hidden: int) -> None:
    case = case_of(len(found), tokens, hidden)
    expected = case.expected_dispatch()
    combined = in_nodes(case, len(found) // 2).expected_combine([each.x for each in expected], weighted=False)
    for rank, (x, src_token, out) in enumerate(found):
        assert x == expected[rank].x.tobytes(), f"rank {rank}, dispatch"
        assert src_token == expected[rank].src_token.tobytes(), f"rank {rank}, src_token"
        assert out == combined[rank].tobytes(), f"rank {rank}, combine"


@pytest.mark.extended
@pytest.mark.slow
def test_dispatch_and_combine_in_hierarchical_mode() -> None:
    results = run(dispatch_and_combine, 4, (12, 64))
    check_against_the_oracle([found for found, _ in results], 12, 64)
    assert all(sent > 0 and received > 0 for _, (sent, received) in results)


# ---- two network namespaces ----------------------------------------------------------------------------------------
def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """The names of two network namespaces, joined by a cable whose ends are called `cable`: 10.77.0.1 and 10.77.0.2."""
    names = [f"ep_lib-{os.getpid()}-{end}" for end in "ab"]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"network namespaces cannot be made here (`ip netns add`, as root): {said.strip()}")
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "cable")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "cable", "up")
        yield names


def in_namespaces(names: list[str]) -> Any:
    """Makes ranks of two hosts, each half in a namespace of its own."""

    def make_rank(bootstrap: Bootstrap, heap_bytes: int | None, timeout: float | None) -> Any:
        number = bootstrap.rank * 2 // bootstrap.world_size
        with Path("/run/netns", names[number]).open() as namespace:
            # The calling thread goes there, and all that it starts.
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000) == 0, ctypes.get_errno()
        return hosts_of_one(bootstrap, heap_bytes, timeout, {"EP_LIB_ADDRESS": f"10.77.0.{number + 1}"})

    return make_rank


def cable_counters() -> list[int]:
    """Bytes and packets that the cable's end here has received, and sent; nothing where there is none."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "cable":
            counted = [int(number) for number in numbers.split()]
            return [*counted[:2], *counted[8:10]]
    return []


@pytest.mark.extended
@pytest.mark.slow
def test_two_hosts_with_two_ranks_each(namespaces: list[str]) -> None:
    """Correct, and the cable carried what the library says, with headers of packets."""
    results = run(dispatch_and_combine, 4, (128, 2048), in_namespaces(namespaces))
    check_against_the_oracle([found for found, _ in results], 128, 2048)
    headers = 14 + 20 + 20 + 12  # of a packet: Ethernet, IPv4, TCP with its time stamps
    for host in (results[:2], results[2:]):
        told = np.sum([counted[:2] for _, counted in host], axis=0)
        received, received_packets, sent, sent_packets = host[0][1][2:]
        carried = np.array([sent - headers * sent_packets, received - headers * received_packets])
        # The rest is IP's own: questions for neighbours, and acknowledgements that name what is missing.
        assert (told > 1 << 20).all() and (abs(carried - told) < 2048).all(), (told, carried)


CUT = "cut"  # of the files by which a test and its ranks tell each other what they have done


def wait_for_a_cut_peer(rank: Any, source: str, folder: str) -> None:
    kernel = ep_lib.Kernel.from_source(source, "all_kinds")
    data, got = rank.symmetric(16, np.uint8), rank.symmetric(8, np.uint8)
    signal, large = rank.symmetric(1, np.uint64), rank.symmetric(1, np.uint64)
    small = rank.symmetric(1, np.uint32)
    kernel.compile()
    rank.barrier()
    (Path(folder) / f"ready{rank.rank}").touch()
    while not (Path(folder) / CUT).exists():
        time.sleep(0.05)
    kernel.launch(rank, 1, 1, data, got, signal, small, large, 8)
    try:
        rank.synchronize()
    except EpError as error:
        other = error.peer if isinstance(error, PeerTimeout) else getattr(error, "rank", None)
        (Path(folder) / f"said{rank.rank}").write_text(json.dumps([type(error).__name__, other]))
        while not all((Path(folder) / f"said{number}").exists() for number in range(2)):
            time.sleep(0.05)
        raise


@pytest.mark.extended
@pytest.mark.slow
def test_a_cut_cable_is_told(tmp_path: Path, namespaces: list[str]) -> None:
    """Each rank names the other, when the time of its wait is over."""

    def cut() -> None:
        while not all((tmp_path / f"ready{number}").exists() for number in range(2)):
            time.sleep(0.05)
        ip("-n", namespaces[0], "link", "set", "cable", "down")
        (tmp_path / CUT).touch()

    threading.Thread(target=cut, daemon=True).start()
    with pytest.raises((PeerTimeout, RankFailed)):
        run(wait_for_a_cut_peer, 2, (KERNEL, str(tmp_path)), in_namespaces(namespaces), timeout=4)
    for number in range(2):
        kind, other = json.loads((tmp_path / f"said{number}").read_text())
        assert kind in ("PeerTimeout", "RankFailed") and other == 1 - number


# ---- what does not work --------------------------------------------------------------------------------------------
def nothing(rank: Any) -> None:
    rank.barrier()


def other_secrets(bootstrap: Bootstrap, heap_bytes: int | None, timeout: float | None) -> Any:
    return hosts_of_one(bootstrap, heap_bytes, timeout, {"EP_LIB_SECRET": f"the secret of {bootstrap.rank}"})


def no_address(bootstrap: Bootstrap, heap_bytes: int | None, timeout: float | None) -> Any:
    return hosts_of_one(bootstrap, heap_bytes, timeout, {"EP_LIB_ADDRESS": "192.0.2.1"})


def with_proxies(bootstrap: Bootstrap, heap_bytes: int | None, timeout: float | None) -> Any:
    os.environ["EP_LIB_HOST"] = f"host{bootstrap.rank}"
    return process_rank(bootstrap, seed=0, fabric=None, transport="proxy")


def test_proxies_are_for_one_host() -> None:
    with pytest.raises(ArgumentError, match="the ranks are on 2 hosts: leave transport= out"):
        run(nothing, 2, make_rank=with_proxies)


@pytest.mark.parametrize(
    ("make_rank", "words"),
    [
        (other_secrets, "does not know this run's secret.*EP_LIB_SECRET"),
        (no_address, "cannot listen on 192.0.2.1.*EP_LIB_ADDRESS"),
    ],
)
def test_hosts_that_cannot_meet(make_rank: Any, words: str) -> None:
    with pytest.raises(BackendUnavailable, match=words):
        run(nothing, 2, make_rank=make_rank)


def one_ends(rank: Any, source: str, folder: str) -> None:
    """Rank 1's connections end as with its process, which stays meanwhile: spawn would end the other one with it."""
    kernel = ep_lib.Kernel.from_source(source, "all_kinds")
    data = rank.symmetric(16, np.uint8)
    others = [rank.symmetric(8, np.uint8).view(dtype) for dtype in (np.uint8, np.uint64, np.uint32, np.uint64)]
    kernel.compile()
    rank.barrier()
    said = Path(folder) / "said"
    if rank.rank == 1:
        rank._backend._world._end()
        rank._backend._machine.end_forwarding()
        while not said.exists():
            time.sleep(0.05)
        os._exit(3)
    kernel.launch(rank, 1, 1, data, *others, 8)
    try:
        rank.synchronize()
    except EpError as error:
        said.with_name("new").write_text(json.dumps([type(error).__name__, getattr(error, "rank", None)]))
        said.with_name("new").rename(said)
        raise


@pytest.mark.extended
def test_a_rank_of_another_host_that_ends_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankFailed):
        run(one_ends, 2, (KERNEL, str(tmp_path)))
    assert json.loads((tmp_path / "said").read_text()) == ["RankFailed", 1]


FRAME = struct.Struct("<QQQQQiiii")  # number, at, bytes, signal, value, value_bytes, signal_op, is_get, reserved
NO_SIGNAL, ADD = 2**64 - 1, 1


def test_what_a_connection_carries_stays_in_the_heap() -> None:
    good = FRAME.pack(1, 512, 4, 1024, 5, 8, ADD, 0, 0) + b"data"
    bad = {
        "behind the heap": FRAME.pack(1, 1 << 60, 4, NO_SIGNAL, 0, 0, 0, 0, 0) + b"data",
        "too long": FRAME.pack(1, 0, 1 << 50, NO_SIGNAL, 0, 0, 0, 0, 0),
        "a get of all memory": FRAME.pack(1, 0, 1 << 39, NO_SIGNAL, 0, 0, 0, 1, 0),
        "around the end of numbers": FRAME.pack(1, 2**64 - 8, 16, NO_SIGNAL, 0, 0, 0, 0, 0),
        "a signal elsewhere": FRAME.pack(1, 0, 0, 1 << 60, 1, 8, ADD, 0, 0),
        "a signal that is not aligned": FRAME.pack(1, 0, 0, 513, 1, 8, ADD, 0, 0),
        "a signal of 3 bytes": FRAME.pack(1, 0, 0, 513, 1, 3, ADD, 0, 0),
        "another number": FRAME.pack(9, 0, 0, NO_SIGNAL, 0, 0, 0, 0, 0),
        "a greeting": b"GET / HTTP/1.1\r\n" * 8,
    }
    for name, frame in bad.items():
        machine = make_machine(2, seed=0, fabric=Fabric("rc"), heap_bytes=HEAP_BYTES, home=0)
        (ours, _kept), (theirs, peer) = socket.socketpair(), socket.socketpair()
        with _kept, peer:
            machine.forward(1, ours.detach(), theirs.detach())
            peer.settimeout(10)
            peer.sendall(good)
            assert struct.unpack("<QQ", peer.recv(16)) == (1, 0), name
            heap = machine.heap_view(0)
            assert bytes(heap[512:516]) == b"data" and heap[1024:1032].view(np.uint64)[0] == 5, name
            is_as_it_is = name in ("another number", "a greeting")
            peer.sendall(frame if is_as_it_is else struct.pack("<Q", 2) + frame[8:])
            assert peer.recv(1) == b"", name
            deadline = time.monotonic() + 10
            while not machine.link_ended(1) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert machine.link_ended(1), name
            machine.close()


def test_fabrics_of_several_hosts() -> None:
    assert fabric_of_hosts(None, ["a", "a"]).kind == "p2p"
    assert fabric_of_hosts(None, ["a", "a", "b", "b"]) == Fabric("rc", ranks_per_node=2)
    assert fabric_of_hosts(Fabric("srd", 1), ["a", "a", "b", "b"]) == Fabric("srd", 1)
    for fabric in ("p2p", Fabric("rc", 4)):
        with pytest.raises(ArgumentError, match="2 ranks on each of 2 hosts, which only NICs connect"):
            fabric_of_hosts(fabric, ["a", "a", "b", "b"])
    for hosts in (["a", "b", "a", "b"], ["a", "a", "b"]):
        with pytest.raises(BackendUnavailable, match="go host by host, as many on each"):
            fabric_of_hosts(None, hosts)


def test_other_machines_are_not_looked_for_on_loopback() -> None:
    links = HostLinks.__new__(HostLinks)
    links._refuse_loopback([("127.0.0.1", "boot"), ("127.0.0.1", "boot")])
    links._refuse_loopback([("10.0.0.1", "boot"), ("10.0.0.2", "other")])
    with pytest.raises(BackendUnavailable, match=r"ranks 0 and 1 are on different machines.*EP_LIB_ADDRESS"):
        links._refuse_loopback([("10.0.0.1", "boot"), ("127.0.0.1", "other")])
