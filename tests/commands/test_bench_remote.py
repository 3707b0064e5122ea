"""``ep-lib bench remote``: two processes whose proxies write through NIXL, and what goes wrong at the start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ep_lib import cli
from ep_lib.bootstrap import meeting
from ep_lib.commands.bench import remote
from ep_lib.errors import BackendUnavailable, PeerTimeout, RankMismatchError
from ep_lib.transports.proxy import engine
from ep_lib.transports.proxy.rings import Rings, op
from ep_lib.version import __version__

pytest.importorskip("nixl_cu13", reason="needs NIXL: pip install --no-deps nixl-cu13")

ENOUGH = 60.0  # seconds after which a test gives up waiting
QUICK = ["--seconds", "0.02", "--bytes", "64,64K"]
HEAP_BYTES = 1 << 16


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    monkeypatch.setenv("EP_LIB_SECRET", "a secret of the tests")


def a_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(*options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ep_lib", "bench", "remote", *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=ENOUGH)
    return process.returncode, out, " ".join(err.split())


@pytest.mark.extended
def test_every_operation_between_two_agents() -> None:
    heaps = [np.zeros(HEAP_BYTES, np.uint8) for _ in range(2)]
    agents = [engine.Nixl(heap, f"proxy {rank}", ranks=2, rank=rank) for rank, heap in enumerate(heaps)]
    for rank, agent in enumerate(agents):
        agent.connect(1 - rank, agents[1 - rank].metadata(), heaps[1 - rank].ctypes.data)
    rings = [Rings(1, 32) for _ in range(2)]
    proxies = [engine.Proxy(ring, agent) for ring, agent in zip(rings, agents, strict=True)]
    mine, theirs = heaps
    mine[:1000], theirs[5000:5100] = np.arange(1000) % 251, 9

    def push(name: str, count: int = 1, **fields: int) -> None:
        engine.push(rings[0], 0, {"op": op(name), "peer": 1, **fields}, count)

    push("kProxyWrite", target=1000, source=1, bytes=499)
    push("kProxyWrite", target=1499, source=500, bytes=500)
    push("kProxyWriteSetSignal", target=2000, source=0, bytes=8, signal=16, value=5)
    push("kProxyFence")
    push("kProxyWriteAddSignal", target=2008, source=8, bytes=8, signal=16, value=2)
    push("kProxyAdd64", count=3, signal=32, value=2**40)
    push("kProxyAdd32", signal=24, value=3)
    push("kProxyWrite", bytes=0)
    push("kProxyRead", target=9000, source=5000, bytes=100)
    engine.flush(rings[0], 0, ENOUGH)
    counters = theirs[16:40].view(np.uint64)
    while list(counters) != [7, 3, 3 * 2**40]:  # notifications: the peer's proxy adds
        assert [proxy.failure() for proxy in proxies] == ["", ""]
    assert np.array_equal(theirs[1000:1999], mine[1:1000])
    assert np.array_equal(theirs[2000:2016], mine[:16])
    assert (mine[9000:9100] == 9).all()
    for proxy in proxies:
        proxy.stop()


def test_metadata_that_are_none() -> None:
    agent = engine.Nixl(np.zeros(64, np.uint8), "alone", ranks=2, rank=0)
    for data in (b"", b"nonsense", agent.metadata()[:-9]):
        with pytest.raises(BackendUnavailable, match="NIXL failed"):
            agent.connect(1, data, 0)
    engine.Proxy(Rings(1, 32), agent).stop()  # which gives the agent back


@pytest.mark.extended
@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    figure, port = tmp_path / "remote.png", str(a_port())
    receiver = start("--rank", "1", "--port", port, *QUICK)
    sender = start("--rank", "0", "--port", port, *QUICK, "--json", "--figure", str(figure))
    code, out, err = finish(sender)
    assert code == 0, err
    assert finish(receiver)[0] == 0
    assert [(row["bytes"], row["gbytes_per_s"] > 0) for row in json.loads(out)["results"]] == [
        (64, True),
        (65536, True),
    ]
    assert figure.read_bytes().startswith(b"\x89PNG")


FOR_LONG = ("--seconds", "3600", "--bytes", "64K")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told"),
    [
        (signal.SIGKILL, "rank 1 has lost rank 0, at 127.0.0.1: its process has ended"),
        (signal.SIGSTOP, "rank 1 waited 2 s for a sign of life of rank 0, at 127.0.0.1"),
    ],
)
def test_a_lost_sender_is_named(
    how: signal.Signals, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had work for an hour."""
    port = str(a_port())
    sender = start("--rank", "0", "--port", port, *FOR_LONG)
    receive = remote._Peer.receive

    def receive_and_lose(peer: remote._Peer) -> int:
        sender.send_signal(how)
        return receive(peer)

    accept = meeting.accept_and_keep
    monkeypatch.setattr(meeting, "accept_and_keep", lambda *given: accept(*given[:3], ENOUGH, given[-1]))
    monkeypatch.setattr(remote._Peer, "receive", receive_and_lose)
    try:
        assert cli.main(["bench", "remote", "--rank", "1", "--port", port, *FOR_LONG, "--timeout", "2"]) == 1
    finally:
        sender.kill()
        sender.communicate()
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.extended
@pytest.mark.slow
def test_a_lost_receiver_is_named() -> None:
    """UCX says nothing of it: the sender's ring is full for ever."""
    heap = np.zeros(HEAP_BYTES * 2, np.uint8)
    agent = engine.Nixl(heap, "receiver", ranks=2, rank=1)
    mine = {"version": __version__, "rank": 1, "bytes": [65536], "address": heap.ctypes.data}
    mine["metadata"] = agent.metadata().hex()
    with meeting.listen("127.0.0.1", 0) as listener:
        sender = start("--rank", "0", "--port", str(listener.getsockname()[1]), *FOR_LONG)
        secret = meeting.run_secret()
        _, connection = meeting.accept_and_keep(listener, secret, json.dumps(mine).encode(), ENOUGH, "receiver")
        connection.close()
        code, _, err = finish(sender)
    engine.Proxy(Rings(1, 32), agent).stop()  # which gives the agent back
    assert code == 1 and "rank 0 has lost rank 1, at 127.0.0.1: its process has ended" in err, err


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["bench", "remote", "--timeout", "0.5", *options]) == 1
    return " ".join(capsys.readouterr().err.split())


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    port = str(a_port())
    assert f"found no peer at 127.0.0.1, port {port}, within 0.5 s" in refused(capsys, "--rank", "0", "--port", port)
    assert "waited 0.5 s for a peer" in refused(capsys, "--rank", "1", "--port", port)
    told = refused(capsys, "--rank", "0", "--peer", "no-such-host.invalid")
    assert "--peer is 'no-such-host.invalid', which does not resolve" in told
    assert "pass --host" in refused(capsys, "--rank", "1", "--peer", "192.0.2.1")


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with meeting.listen("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in refused(capsys, "--rank", "1", "--port", str(port))
    assert "--port is 65536" in refused(capsys, "--rank", "1", "--port", "65536")


def test_another_secret_and_a_description_that_is_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    for secret, told in (
        ("another secret", "does not know this run's secret"),
        ("a secret of the tests", "cut short or no description of a proxy"),
    ):
        listener, done = meeting.listen("127.0.0.1", 0), threading.Event()

        def serve(listener: socket.socket = listener, secret: str = secret, done: threading.Event = done) -> None:
            while not done.is_set():  # what it turned away is for the other side to tell
                with contextlib.suppress(PeerTimeout):
                    meeting.accept(listener, secret.encode(), b'{"version": "', 0.2, "a peer")

        server = threading.Thread(target=serve)
        server.start()
        with listener:
            assert told in refused(capsys, "--rank", "0", "--port", str(listener.getsockname()[1]))
            done.set()
            server.join()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"version": "0.0.1"}, f"the peer has ep_lib 0.0.1, this side {__version__}"),
        ({"rank": 0}, "both sides are rank 0"),
        ({"bytes": [1]}, "the peer's side: pass the same to both"),
        ({"metadata": "xy"}, "no description of a proxy"),
        ({"address": None}, "no description of a proxy"),
    ],
)
def test_sides_that_do_not_fit(changed: dict[str, Any], told: str) -> None:
    mine = {"version": __version__, "rank": 0, "bytes": [64], "address": 0, "metadata": ""}
    assert remote._understand(json.dumps({**mine, "rank": 1}).encode(), mine) == {"address": 0, "metadata": b""}
    with pytest.raises(RankMismatchError, match=told):
        remote._understand(json.dumps({**mine, "rank": 1, **changed}).encode(), mine)
