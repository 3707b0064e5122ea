"""DeviceHost with a name: NIXL agents of processes without a GPU. What needs NIXL skips where it is not installed."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import ROOT
from support.mpi import mpiexec

import ep_lib
from ep_lib import Kernel, Rank
from ep_lib.bootstrap import meeting
from ep_lib.compat import nixl as compat
from ep_lib.errors import ArgumentError, BackendUnavailable, BufferClosedError, EpError, PeerTimeout, RankFailed
from ep_lib.nixl import DeviceHost, Signal, Transfer
from ep_lib.transports.nixl import build, host
from ep_lib.workshop.lessons.host_setup import missing

PROGRAM = ROOT / "tutorial_kernels" / "01_nixl_two_processes.py"
GUIDE = ROOT / "tests" / "kernels" / "nixl_guide.cu"
SECRET = b"known to this run"
Pair = tuple[DeviceHost, DeviceHost]
Array = np.ndarray[Any, np.dtype[np.uint8]]


needs_nixl = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two agents of this process that do not know each other yet."""
    with DeviceHost("writer", timeout=60, telemetry=True) as one, DeviceHost("reader", timeout=60) as other:
        yield one, other


def words(size: int, fill: int = 0) -> Array:
    return np.full(size, fill, np.uint8)


def joined(pair: Pair, size: int) -> tuple[Array, Array, bytes]:
    """Memory of both, registered and known to each other; and the descriptors of the second's."""
    writer, reader = pair
    mine, theirs = words(size, 7), words(size)
    writer.register(mine)
    reader.register_dram(theirs.ctypes.data, theirs.nbytes)
    assert writer.add_remote_agent(reader.get_metadata()) == "reader"
    assert reader.add_remote_agent(writer.get_metadata()) == "writer"
    return mine, theirs, reader.serialize_xfer_descs(theirs.ctypes.data, theirs.nbytes, 0)


# ---- transfers -------------------------------------------------------------------------------------------------------
@needs_nixl
@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_write_notify_signal_read(pair: Pair, size: int) -> None:
    writer, reader = pair
    mine, theirs, descs = joined(pair, size)
    write = writer.create_write_req(mine.ctypes.data, size, 0, descs, "reader")
    assert isinstance(write, Transfer)
    for turn in range(1, 4):
        mine[:] = turn
        writer.transfer(write, b"turn %d" % turn)
        assert reader.wait_notification("writer") == b"turn %d" % turn
        assert (theirs == turn).all()
    took = writer.telemetry(write)
    assert (took.nbytes, took.descriptors) == (size, 1) and took.transfer_us >= 0
    theirs[:] = 9
    read = writer.create_read_req(mine.ctypes.data, size, 0, descs, "reader")
    while not writer.post(read):
        writer.wait(read)
    assert (mine == 9).all() and writer.is_done(read)
    writer.release(read)
    with pytest.raises(ArgumentError, match="was released; make one"):
        writer.post(read)
    reader.notify("writer", b"one")
    reader.notify("writer", b"two")
    assert writer.wait_notification("reader", b"two") == b"two" and writer.notifications() == {"reader": [b"one"]}


@needs_nixl
def test_a_notification_is_sent_with_its_own_post_only(pair: Pair) -> None:
    writer, reader = pair
    mine, _, descs = joined(pair, 64)
    write = writer.create_write_req(mine.ctypes.data, 64, 0, descs, "reader")
    assert isinstance(write, Transfer)
    for notification in (b"one", b"", b"", b"two"):  # NIXL keeps it for the next post
        writer.transfer(write, notification)
    assert [reader.wait_notification("writer") for _ in range(2)] == [b"one", b"two"]
    assert not reader.notifications().get("writer")


@needs_nixl
def test_a_successor_may_have_its_predecessors_name(pair: Pair) -> None:
    writer, _ = pair
    mine, theirs = words(64, 7), words(64)
    writer.register(mine)
    for _ in range(2):
        theirs[:] = 0
        with DeviceHost("owner", timeout=60) as owner:
            owner.register(theirs)
            writer.add_remote_agent(owner.get_metadata())
            descs = owner.serialize_xfer_descs(theirs.ctypes.data, 64)
            write = writer.create_write_req(mine.ctypes.data, 64, 0, descs, "owner")
            assert isinstance(write, Transfer)
            writer.transfer(write)
            assert (theirs == 7).all()


@needs_nixl
def test_signals_add(pair: Pair) -> None:
    writer, reader = pair
    mine, signals = words(8), np.zeros(3, np.uint64)
    writer.register(mine)
    reader.register(signals)
    writer.add_remote_agent(reader.get_metadata())
    reader.add_remote_agent(writer.get_metadata())
    ring = writer.create_signal_req(reader.serialize_xfer_descs(signals.ctypes.data, 24), "reader")
    assert isinstance(ring, Signal)
    for _ in range(3):
        writer.signal(ring, 2, 8)
    writer.signal(ring)
    assert reader.wait_signal(signals.ctypes.data + 8, 6, "writer") == 6 and signals.tolist() == [1, 6, 0]
    with pytest.raises(PeerTimeout, match=r"'reader' waited 0\.01 s for signal 7 \(sees 1\) of 'writer'"):
        reader.wait_signal(signals[:1], 7, "writer", timeout=0.01)
    for offset in (3, 24, -8):
        with pytest.raises(ArgumentError, match="offset is"):
            writer.signal(ring, 1, offset)


@needs_nixl
def test_a_region_is_registered_once(pair: Pair) -> None:
    writer, _ = pair
    data = words(4096)
    calls = []
    real = writer._agent("")._api.register_memory
    writer._agent("")._api.register_memory = lambda descs: (calls.append(descs), real(descs))[1]
    first = writer.register(data)
    again = [writer.register(data), writer.register(data[100:200]), writer.register_dram(data.ctypes.data, 4096)]
    assert again == [first] * 3 and len(calls) == 1
    other = words(64)
    assert writer.register(other) != first and len(calls) == 2
    writer.deregister(first)
    with pytest.raises(ArgumentError, match="are not registered; registered: 64 bytes of DRAM"):
        writer.serialize_xfer_descs(data.ctypes.data, 10)
    assert writer.register(data) != first and len(calls) == 3
    with pytest.raises(ArgumentError, match="there is no registration 1; there are: 2, 3"):
        writer.deregister(first)


@needs_nixl
def test_memory_registered_after_the_exchange_needs_another(pair: Pair) -> None:
    writer, reader = pair
    mine, _theirs, _ = joined(pair, 64)  # kept: what is freed may be given out again
    later = words(64)
    reader.register(later)
    descs = reader.serialize_xfer_descs(later.ctypes.data, 64)
    with pytest.raises(ArgumentError, match=r"are not in its metadata, which have 64 bytes .* exchange metadata then"):
        writer.create_write_req(mine.ctypes.data, 64, 0, descs, "reader")
    writer.add_remote_agent(reader.get_metadata())
    writer.transfer(writer.create_write_req(mine.ctypes.data, 64, 0, descs, "reader"))
    assert (later == 7).all()


@needs_nixl
def test_this_process_listens_on_the_loopback_interface_alone() -> None:
    with DeviceHost("alone", port=0):
        sockets = {str(f.readlink()) for f in Path("/proc/self/fd").iterdir() if f.is_symlink()}
        listening = [
            line.split()[1]
            for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in sockets
        ]
    assert len(listening) >= 2 and {place.partition(":")[0] for place in listening} == {"0100007F"}
    assert "UCX_NET_DEVICES" not in os.environ


# ---- what NIXL lets pass ---------------------------------------------------------------------------------------------
@needs_nixl
def test_mistakes_are_named(pair: Pair) -> None:
    writer, reader = pair
    mine, theirs, descs = joined(pair, 64)
    ptr = mine.ctypes.data
    request = writer.create_write_req(ptr, 64, 0, descs, "reader")
    half = reader.serialize_xfer_descs(theirs.ctypes.data, 32)
    tries: list[tuple[Callable[[], object], str]] = [
        (lambda: writer.register_dram(0, 64), "ptr is 0; it must be a whole number, at least 1"),
        (lambda: writer.register_dram(0x7F, 1 << 20), "0x7f is not in memory that this process can read and write"),
        (lambda: writer.register_dram(ptr, 1 << 46), "is not in memory that this process can read and write"),
        (lambda: writer.register_dram(ptr, 0), "size is 0; it must be a whole number, at least 1"),
        (lambda: writer.register_dram(ptr, -1), "size is -1"),
        (lambda: writer.register_dram(2**64 - 8, 64), "beyond the last address"),
        (lambda: writer.register_dram("x", 64), "ptr is 'x'"),  # type: ignore[arg-type]
        (lambda: writer.register_vram(ptr, 64, -1), "device_id is -1"),
        (lambda: writer.register([1]), "expected a NumPy, CuPy or torch array"),
        (lambda: writer.serialize_xfer_descs(ptr, 65), "65 bytes at 0x.* are not registered"),
        (lambda: writer.serialize_xfer_descs(ptr, 0), "size is 0"),
        (lambda: writer.create_write_req(ptr, 32, 0, descs, "reader"), "has 32 bytes here and 64 at 'reader'"),
        (lambda: writer.create_write_req(ptr, 64, 0, half, "reader"), "has 64 bytes here and 32 at 'reader'"),
        (lambda: writer.create_write_req(ptr, 64, 0, descs, "nobody"), "there is no peer 'nobody'.*; known: 'reader'"),
        (lambda: writer.create_write_req(ptr, 64, 0, descs[:-1], "reader"), "descriptors was cut short: 1.. of 1"),
        (lambda: writer.create_write_req(mine, 1), r"are for DeviceHost\(rank\)"),
        (
            lambda: writer.create_signal_req(reader.serialize_xfer_descs(theirs.ctypes.data, 7), "reader"),
            "64-bit words",
        ),
        (
            lambda: writer.create_gpu_req(request),
            "kernels post from VRAM to VRAM, and this request has 64 bytes of DRAM",
        ),
        (lambda: writer.create_gpu_req(17), "expected what create_write_req"),  # type: ignore[arg-type]
        (lambda: reader.post(request), "of another DeviceHost"),  # type: ignore[arg-type]
        (lambda: writer.transfer(17), "request is 17; it must be what create_write_req"),  # type: ignore[arg-type]
        (lambda: writer.transfer(request, b"x" * 4097), "the notification is 4097 bytes; it must be bytes, 1 to 4096"),
        (lambda: writer.notify("reader", b""), "the notification is 0 bytes"),
        (lambda: writer.deregister(mine), "1 requests still use the 64 bytes of DRAM"),
        (
            lambda: reader.telemetry(
                reader.create_read_req(theirs.ctypes.data, 64, 0, writer.serialize_xfer_descs(ptr, 64), "writer")
            ),
            "telemetry=True",
        ),
        (lambda: writer.publish("x", b"no descriptors"), "not what a DeviceHost returns"),
        (lambda: writer.publish("x", writer.get_metadata()), "expected a DeviceHost's descriptors, got its metadata"),
        (lambda: writer.accept(), "make it with port=0"),
        (lambda: writer.add_remote_agent(writer.get_metadata()), "the peer is called 'writer' as this agent is"),
        (lambda: DeviceHost("", "UCX"), "name is ''; it must be 1 to 64 characters"),
        (lambda: DeviceHost(3), "a name, or the Rank that main got"),  # type: ignore[arg-type]
        (lambda: DeviceHost("x", "USX"), r"backend is 'USX', and NIXL .* has .*UCX.*: take one of these"),
        (
            lambda: DeviceHost("x", secret="short"),
            "the secret is 5 characters long; it must be a str or bytes of at least 8",
        ),
        (lambda: DeviceHost("x", telemetry="yes"), "telemetry is 'yes'; it must be True or False"),  # type: ignore[arg-type]
        (lambda: DeviceHost("x", port=70000), "port is 70000; it must be from 0 to 65535"),
        (lambda: DeviceHost("x", host="no such host"), "host is 'no such host'"),
        (lambda: writer.wait_notification("reader", timeout=0), "timeout is 0"),
    ]
    for attempt, says in tries:
        with pytest.raises(EpError, match=says) as caught:
            attempt()
        assert isinstance(caught.value, (ArgumentError, BackendUnavailable)), says
    assert not theirs.any()
    writer.close()
    writer.close()
    with pytest.raises(BufferClosedError):
        writer.register(mine)
    with pytest.raises(BufferClosedError):
        writer.transfer(request)  # type: ignore[arg-type]


@needs_nixl
def test_metadata_cut_short_garbled_or_of_another_version(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = pair
    reader.register(words(64))
    good = reader.get_metadata()
    monkeypatch.setattr(pickle, "loads", lambda data: pytest.fail("something was unpickled"))
    tries = [(good[:cut], "cut short|begins with") for cut in range(len(good))]
    for at in range(0, len(good)):
        tries.append((good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :], "begins with|format|cut short|checksum"))
    tries += [(good + b"x", "checksum"), (pickle.dumps([1]), "begins with"), (b"nixlSerDes|Agent", "begins with")]
    tries += [(good[:8] + (2).to_bytes(4, "little") + good[12:], "has format 2, and ep_lib .* reads format 1: install")]
    for data, says in tries:
        with pytest.raises(ArgumentError, match=says):
            writer.add_remote_agent(data)
    body = host.unpack("metadata", good)
    with pytest.raises(BackendUnavailable, match=r"runs NIXL 0\.9\.0, this process NIXL .*: install one version"):
        writer.add_remote_agent(host.pack("metadata", {**body, "nixl": "0.9.0"}))
    with pytest.raises(ArgumentError, match="uses backend 'GDS'"):
        writer.add_remote_agent(host.pack("metadata", {**body, "backend": "GDS"}))
    with pytest.raises(ArgumentError, match="are of agent 'reader' and say 'other'"):
        writer.add_remote_agent(host.pack("metadata", {**body, "name": "other"}))
    with pytest.raises(ArgumentError, match="names no memory"):
        writer.add_remote_agent(host.pack("metadata", {**body, "regions": [["DRAM", "x", 1, 0]]}))
    with pytest.raises(BackendUnavailable, match=r"reading 'reader''s metadata failed with nixl.*Error"):
        writer.add_remote_agent(host.pack("metadata", {**body, "agent": body["agent"][:60]}))
    assert writer.add_remote_agent(good) == "reader"


# ---- how they meet ---------------------------------------------------------------------------------------------------
def both(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[Any, Any]:
    """What two calls return or raise, at the same time."""
    results: list[Any] = [None, None]

    def keep(index: int, call: Callable[[], Any]) -> None:
        try:
            results[index] = call()
        except EpError as error:
            results[index] = error

    thread = threading.Thread(target=keep, args=(0, one))
    thread.start()
    keep(1, other)
    thread.join()
    return results[0], results[1]


def met(here: bytes, there: bytes, limit: float = 5) -> tuple[Any, Any]:
    with meeting.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        return both(
            lambda: meeting.accept(listener, here, b"of the server", limit, "server"),
            lambda: meeting.connect("127.0.0.1", port, there, b"of the client", 5, "client"),
        )


def test_two_meet_and_each_gets_what_the_other_has() -> None:
    assert met(SECRET, SECRET) == (b"of the client", b"of the server")


def test_who_does_not_know_the_secret_is_turned_away() -> None:
    server, client = met(SECRET, b"another secret", limit=0.3)
    assert isinstance(client, RankFailed) and "does not know this run's secret; set EP_LIB_SECRET" in str(client)
    assert isinstance(server, PeerTimeout) and "turned away: 127.0.0.1: it does not know" in str(server)


def test_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    greetings = itertools.count(1)
    monkeypatch.setattr(meeting, "_GREETING", SimpleNamespace(size=44, pack=None, unpack=None))
    real = meeting.struct.Struct("<8sI32s")
    pack = lambda magic, version, number: real.pack(magic, next(greetings), number)  # noqa: E731
    monkeypatch.setattr(meeting, "_GREETING", SimpleNamespace(size=44, pack=pack, unpack=real.unpack))
    told = " ".join(str(each) for each in met(SECRET, SECRET, limit=0.3))
    assert "it speaks version 2, this ep_lib version 1: install the same ep_lib" in told


def test_strangers_do_not_keep_a_peer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_GREETING_SECONDS", 1e9)  # as long as they like
    monkeypatch.setattr(meeting, "_MOST_GREETED", 8)
    with meeting.listen("127.0.0.1", 0) as listener, contextlib.ExitStack() as strangers:
        port = listener.getsockname()[1]

        def stranger(says: bytes) -> None:
            strangers.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(says)

        for _ in range(12):
            stranger(b"")
        stranger(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(b"EP")
        before = threading.active_count()
        server, client = both(
            lambda: meeting.accept(listener, SECRET, b"a", 5, "server"),
            lambda: meeting.connect("127.0.0.1", port, SECRET, b"b", 5, "client"),
        )
        assert threading.active_count() == before
    assert (server, client) == (b"b", b"a")


def test_a_wrong_address_or_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with meeting.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            BackendUnavailable, match=rf"port {port} of 127\.0\.0\.1 is in use, .*; take another port, or 0"
        ):
            meeting.listen("127.0.0.1", port)
        with pytest.raises(PeerTimeout, match=rf"'server' waited 0\.01 s for a peer on 127\.0\.0\.1, port {port}"):
            meeting.accept(listener, SECRET, b"", 0.01, "server")
    with pytest.raises(PeerTimeout, match=rf"found no peer at 127\.0\.0\.1, port {port}, .*refused"):
        meeting.connect("127.0.0.1", port, SECRET, b"", 0.1, "client")
    with pytest.raises(BackendUnavailable, match=r"cannot listen on 192\.0\.2\.250, port 0"):
        meeting.listen("192.0.2.250", 0)
    with pytest.raises(ArgumentError, match=r"host is 'no\.such\.host\.invalid'"):
        meeting.connect("no.such.host.invalid", 1, SECRET, b"", 0.1, "client")
    monkeypatch.setattr(meeting, "_GREETING_SECONDS", 0.05)
    for answer, says in (
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "it greets with b'HTTP/1.1'"),
        (b"", "another program"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as other, contextlib.ExitStack() as stack:

            def serve(other: socket.socket = other, answer: bytes = answer, stack: Any = stack) -> None:
                connection = stack.enter_context(other.accept()[0])
                connection.sendall(answer)

            port = other.getsockname()[1]
            _, client = both(serve, lambda port=port: meeting.connect("127.0.0.1", port, SECRET, b"", 0.3, "client"))
        assert isinstance(client, RankFailed) and says in str(client)


def test_files_carry_the_secrets_seal(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    with pytest.raises(PeerTimeout, match=r"waited 0\.01 s for the file .*meta; does the peer write there"):
        meeting.read_file(path, SECRET, 0.01, "reader")
    meeting.write_file(path, SECRET, b"mine")
    assert meeting.read_file(path, SECRET, 1, "reader") == b"mine" and path.stat().st_mode & 0o077 == 0
    whole = path.read_bytes()
    for data, secret in ((whole[:-1], SECRET), (whole, b"another secret"), (b"x" * 100, SECRET), (b"", SECRET)):
        path.write_bytes(data)
        with pytest.raises(RankFailed, match=r"was not written by|was cut short or changed, or its writer"):
            meeting.read_file(path, secret, 1, "reader")
    with pytest.raises(ArgumentError, match="cannot write"):
        meeting.write_file(tmp_path / "no" / "meta", SECRET, b"mine")
    with pytest.raises(ArgumentError, match="cannot read"):
        meeting.read_file(tmp_path, SECRET, 0.01, "reader")


def test_the_runs_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EP_LIB_SECRET", raising=False)
    monkeypatch.setattr(meeting, "private_folder", lambda: tmp_path)
    own = meeting.run_secret()
    assert len(own) == 32 and meeting.run_secret() == own and (tmp_path / "secret").stat().st_mode & 0o077 == 0
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]
    monkeypatch.setenv("EP_LIB_SECRET", "from the environment")
    assert meeting.run_secret() == b"from the environment" and meeting.run_secret("by argument") == b"by argument"
    for bad in ("short", b"", 3):
        with pytest.raises(ArgumentError, match="at least 8"):
            meeting.run_secret(bad)  # type: ignore[arg-type]


@needs_nixl
def test_hosts_meet_over_tcp_and_files(tmp_path: Path) -> None:
    data = words(64)
    with DeviceHost("a", port=0, secret=SECRET, timeout=60) as a, DeviceHost("b", secret=SECRET, timeout=60) as b:
        a.register(data)
        a.publish("data", a.serialize_xfer_descs(data.ctypes.data, 64))
        assert isinstance(a.port, int) and b.port is None
        seen_by_a, seen_by_b = both(a.accept, lambda: b.connect("127.0.0.1", a.port or 0))
        assert (seen_by_a.name, seen_by_a.descs) == ("b", {}) and seen_by_b.name == "a"
        with pytest.raises(BackendUnavailable, match=rf"port {a.port} of 127\.0\.0\.1 is in use"):
            DeviceHost("c", port=a.port)
        a.write_metadata(tmp_path / "a")
        again = b.read_metadata(tmp_path / "a")
        assert again == seen_by_b and list(again.descs) == ["data"]
        mine = words(64, 5)
        b.register(mine)
        b.transfer(b.create_write_req(mine.ctypes.data, 64, 0, again.descs["data"], "a"))
        assert (data == 5).all()


# ---- ranks: the same set-up, and kernels post -----------------------------------------------------------------------
def guide_setup(rank: Rank, level: str, size: int) -> Any:
    """The set-up of the guide, step by step, then its kernels."""
    host = DeviceHost(rank)
    data, signal = rank.symmetric(size, np.uint8), rank.symmetric(1, np.uint64)
    ptr, ring_ptr = (int(a.ctypes.data) for a in (data, signal))
    assert host.register_vram(ptr, size, 0) == host.register_vram(ptr, size, 0)
    host.register_vram(ring_ptr, 8, 0)
    metas = rank.all_gather(
        (host.get_metadata(), host.serialize_xfer_descs(ptr, size), host.serialize_xfer_descs(ring_ptr, 8))
    )
    remote_meta, remote_descs, remote_ring = metas[1 - rank.rank]
    peer_name = host.add_remote_agent(remote_meta)
    assert peer_name == f"rank {1 - rank.rank}"
    for bad, says in (
        (lambda: host.create_write_req(ptr, size - 1, 0, remote_descs, peer_name), "bytes here and"),
        (lambda: host.create_write_req(ptr, size, 0, metas[rank.rank][1], peer_name), "descriptors are of"),
        (lambda: host.add_remote_agent(remote_descs), "got its descriptors"),
        (lambda: host.notify(peer_name, b"x"), "kernels post"),
        (lambda: host.create_write_req(ptr, size, 0, remote_descs, "rank 7"), "no peer 'rank 7'"),
    ):
        with pytest.raises(ArgumentError, match=says):
            bad()
    if rank.rank == 1:
        Kernel.from_file(GUIDE, "wait_for_signal_kernel_thread").launch(rank, 1, 32, signal, 1)
        return rank.to_host(data)
    data[:] = 3
    write = host.create_gpu_req(host.create_write_req(ptr, size, 0, remote_descs, peer_name))
    ring = host.create_gpu_req(host.create_signal_req(remote_ring, peer_name))
    Kernel.from_file(GUIDE, f"{level}_level_kernel").launch(rank, 1, 32, write, ring, size)
    host.close()
    return None


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("level", ["thread", "warp"])
def test_the_guides_set_up_on_ranks(level: str) -> None:
    for seed in range(3):
        assert (ep_lib.spawn(guide_setup, 2, "emulator", args=(level, 1000), seed=seed)[1] == 3).all()


# ---- VRAM, over a stand-in for NIXL and CUDA -------------------------------------------------------------------------
def test_a_kernels_handle_of_vram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Untried on a GPU: this shows what is asked of NIXL, UCX and CUDA, and what lies behind the handle."""
    asked: list[str] = []

    class Agent:
        plugin_list = ("UCX",)
        backends = {"UCX": 1}  # noqa: RUF012
        nixl_ops = {"WRITE": 1}  # noqa: RUF012
        agent = SimpleNamespace(
            postXferReq=None,
            getXferStatus=None,
            createXferReq=lambda *a: 5,
            releaseXferReq=lambda h: asked.append("release request"),
        )

        def __getattr__(self, name: str) -> Any:
            def answer(*args: Any, **named: Any) -> Any:
                asked.append(name)
                return {"add_remote_agent": b"peer", "get_agent_metadata": b"md", "prep_mem_view": 0x900}.get(name)

            return answer

    library = SimpleNamespace(
        api=SimpleNamespace(nixl_agent=lambda *a: Agent(), nixl_agent_config=lambda **k: None),
        bindings=SimpleNamespace(NIXL_SUCCESS=0, NIXL_IN_PROG=1, HAVE_UCX_GPU_DEVICE_API=True),
        failures=(OSError,),
    )
    runtime = SimpleNamespace(deviceSynchronize=lambda: asked.append("synchronize"))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, driver=None), asarray=lambda words: words)
    monkeypatch.setattr(host, "find_wheel", lambda *_: build.Wheel("nixl_cu13", "1.5.1", 13))
    monkeypatch.setattr(host, "load", lambda wheel: library)
    monkeypatch.setattr(host, "_require_gpu_memory", lambda memory: asked.append(f"look at {memory}"))
    monkeypatch.setattr(compat, "import_cupy", lambda: cupy)
    monkeypatch.setattr(compat.build, "find", lambda major: f"for CUDA {major}")
    monkeypatch.setattr(compat.views, "require_version", lambda *a: asked.append(f"version of {a[2]:x} with {a[3]}"))
    mapped = [0xABC000]
    monkeypatch.setattr(compat.views, "mapped_addresses", lambda *a: list(mapped))
    here = DeviceHost("here")
    here.register_vram(0x1000, 256, 1)
    regions = [["VRAM", 0x2000, 256, 0], ["VRAM", 0x3000, 8, 0]]
    meta = host.pack("metadata", {"name": "peer", "backend": "UCX", "nixl": "1.5.0", "agent": b"x", "regions": regions})
    assert here.add_remote_agent(meta) == "peer"
    data, ring = (host.pack("descriptors", {"name": "peer", "memory": region}) for region in regions)
    write = here.create_gpu_req(here.create_write_req(0x1000, 256, 1, data, "peer"))
    signal = here.create_gpu_req(here.create_signal_req(ring, "peer"))
    assert here._tables[write].tolist()[1:] == [2, 0x1000, 256, 2**64 - 1, 0xABC000, 256, 2**64 - 1]
    assert here._tables[signal].tolist()[1:] == [1, 0xABC000, 8, 2**64 - 1]
    assert "look at 256 bytes of VRAM of GPU 1 at 0x1000" in asked and "version of 900 with 1" in asked
    mapped[0] = 0
    with pytest.raises(ArgumentError, match="UCX has not mapped 256 bytes of VRAM of GPU 0 at 0x2000 of 'peer' here"):
        here.create_gpu_req(here.create_write_req(0x1000, 256, 1, data, "peer"))
    asked.clear()
    here.close()
    order = ["synchronize", "release request", "release_mem_view", "remove_remote_agent", "deregister_memory"]
    assert [step for step, _ in itertools.groupby(asked)] == order


# ---- two processes ---------------------------------------------------------------------------------------------------
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM"))}
    return {**kept, "EP_LIB_BACKEND": "emulator"}


@pytest.mark.slow
@needs_nixl
def test_two_processes_write_notify_and_signal() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "wrote 1048576 bytes to 'target'" in done.stdout and "signal 1 arrived from 'initiator'" in done.stdout


@pytest.mark.extended
@pytest.mark.slow
@needs_nixl
def test_under_mpiexec_kernels_post_at_both_levels() -> None:
    command = [*mpiexec(2), str(PROGRAM), "--size", "5000"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert all(f"written at {level} level" in done.stdout for level in ("THREAD", "WARP")), done.stdout


LOST = """
import os, sys, numpy as np
from ep_lib.nixl import DeviceHost
data = np.zeros(64, np.uint8)
host = DeviceHost("lost", port=0, secret="of this test")
host.register(data)
host.publish("data", host.serialize_xfer_descs(data.ctypes.data, 64))
print(host.port, flush=True)
host.accept()
host.notify("here", b"ready")
host.wait_notification("here", b"go")
os.kill(os.getpid(), 9)
"""


@needs_nixl
def test_a_peer_that_was_closed_in_this_process_is_named(pair: Pair) -> None:
    """UCX would write to its memory, and say that all is well."""
    writer, reader = pair
    mine, theirs, descs = joined(pair, 64)
    request = writer.create_write_req(mine.ctypes.data, 64, 0, descs, "reader")
    reader.close()
    for post in (lambda: writer.transfer(request), lambda: writer.notify("reader", b"there?")):
        with pytest.raises(RankFailed, match="the peer 'reader' was closed, in this process; exchange metadata"):
            post()
    assert not theirs.any()


@pytest.mark.slow
@needs_nixl
def test_a_killed_peer_is_named(pair: Pair) -> None:
    mine = words(64)
    with (
        subprocess.Popen([sys.executable, "-c", LOST], stdout=subprocess.PIPE, text=True) as child,
        DeviceHost("here", secret="of this test", timeout=20) as here,
    ):
        assert child.stdout is not None
        here.register(mine)
        peer = here.connect("127.0.0.1", int(child.stdout.readline()))
        write = here.create_write_req(mine.ctypes.data, 64, 0, peer.descs["data"], "lost")
        assert isinstance(write, Transfer)
        here.wait_notification("lost", b"ready")
        here.transfer(write, b"go")
        assert child.wait(120) == -9
        with pytest.raises(RankFailed, match=r"the peer 'lost' is gone .*exchange metadata with the one"):
            here.transfer(write)
