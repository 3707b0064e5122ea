"""Bootstraps: the hub, mpiexec and torchrun, with real processes and no GPU."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Pipe
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import TESTS
from support.mpi import mpiexec
from support.threads import on_threads
from support.torchrun import as_torchrun

from ep_lib.bootstrap import SingleBootstrap, meeting, wire
from ep_lib.bootstrap import torchrun as torchrun_module
from ep_lib.bootstrap.base import dumps, loads, within
from ep_lib.bootstrap.hub import Hub, HubBootstrap
from ep_lib.bootstrap.srun import SrunBootstrap, _sweep
from ep_lib.bootstrap.stopped import Watched
from ep_lib.bootstrap.torchrun import TorchrunBootstrap
from ep_lib.errors import ArgumentError, BackendUnavailable, PeerTimeout, RankFailed
from ep_lib.processes import Identity
from ep_lib.transports.base import closing_barrier

pytestmark = pytest.mark.slow

PROGRAM = TESTS / "programs" / "bootstrap_program.py"


@pytest.fixture
def hub_of_four() -> Iterator[list[HubBootstrap]]:
    """Four ranks of this process at one hub."""
    pairs = [Pipe() for _ in range(4)]
    hub = Hub({rank: theirs for rank, (_, theirs) in enumerate(pairs)})
    ranks = [HubBootstrap(ours, rank, 4, "local", rank) for rank, (ours, _) in enumerate(pairs)]
    yield ranks
    for rank in ranks:
        rank.close()
    hub.close()


def test_a_world_of_one_gathers_a_copy() -> None:
    thing = [1, 2]
    assert SingleBootstrap().all_gather(thing) == [[1, 2]]
    assert SingleBootstrap().all_gather(thing)[0] is not thing


def test_hub_gathers_in_rank_order_many_times(hub_of_four: list[HubBootstrap]) -> None:
    def body(me: HubBootstrap) -> list[list[Any]]:
        return [me.all_gather((me.rank, turn, b"x" * (turn * 70_000))) for turn in range(5)]

    results = on_threads({me.rank: (lambda me=me: body(me)) for me in hub_of_four})
    for gathered in results.values():
        assert [[(rank, turn) for rank, turn, _ in parts] for turn, parts in enumerate(gathered)] == [
            [(rank, turn) for rank in range(4)] for turn in range(5)
        ]


def test_hub_gathers_classes_of_a_notebook(hub_of_four: list[HubBootstrap]) -> None:
    """cloudpickle carries functions that have no module to import them from."""

    def body(me: HubBootstrap) -> list[Any]:
        number = me.rank * 10
        return me.all_gather(lambda: number)

    results = on_threads({me.rank: (lambda me=me: body(me)) for me in hub_of_four})
    assert [function() for function in results[2]] == [0, 10, 20, 30]


def test_functions_keep_the_names_of_their_files() -> None:
    """cloudpickle 3.1.3 and newer would send "<dynamic-code>", and no traceback would show the user's line."""

    class Local:
        def method(self) -> CodeType:
            return (lambda: None).__code__

    def outer() -> CodeType:
        return (lambda: None).__code__

    for code in (loads(dumps(outer)).__code__, loads(dumps(outer))(), loads(dumps(Local))().method()):
        assert code.co_filename == __file__


def test_hub_names_all_missing_ranks(hub_of_four: list[HubBootstrap]) -> None:
    results = on_threads({rank: (lambda r=rank: hub_of_four[r].barrier(timeout=0.3)) for rank in (0, 2)})
    for rank in (0, 2):
        error = results[rank]
        assert isinstance(error, PeerTimeout)
        assert "ranks 1, 3" in str(error)
        assert (error.rank, error.peer, error.seen, error.expected) == (rank, 1, 2, 4)


def test_hub_tells_who_has_left(hub_of_four: list[HubBootstrap]) -> None:
    hub_of_four[3].close()
    results = on_threads({rank: (lambda r=rank: hub_of_four[r].barrier(timeout=60)) for rank in (0, 1, 2)})
    for error in results.values():
        assert isinstance(error, RankFailed)
        assert error.rank == 3
        assert "already finished" in str(error)


def test_hub_tells_whose_process_died() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = Pipe()
    dying, its_end = context.Pipe()
    hub = Hub({0: theirs, 1: dying})
    me = HubBootstrap(ours, 0, 2, "local", 0)
    process = context.Process(target=os._exit, args=(7,))
    process.start()
    its_end.close()
    process.join()
    with pytest.raises(RankFailed, match="rank 1 will not join"):
        me.barrier(timeout=60)
    me.close()
    hub.close()


def _srun_environment(rank: int, size: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_LOCALID": str(rank),
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
    }


def test_srun_ranks_meet_behind_a_private_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stale = tmp_path / f"ep_lib-{os.getuid()}"
    stale.mkdir(mode=0o700)
    (stale / "srun-17-0.key").write_bytes(b"of a step that was killed")

    def body(rank: int) -> Any:
        bootstrap = SrunBootstrap(_srun_environment(rank, 3), timeout=60)
        gathered = bootstrap.all_gather(rank)
        bootstrap.barrier()
        bootstrap.close()
        return gathered, bootstrap.local_rank, bootstrap.kind

    results = on_threads({rank: (lambda r=rank: body(r)) for rank in range(3)})
    assert results == {rank: ([0, 1, 2], rank, "srun") for rank in range(3)}
    assert list(stale.iterdir()) == []


def test_srun_names_the_ranks_that_never_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    with pytest.raises(PeerTimeout, match="ranks 1, 2"):
        SrunBootstrap(_srun_environment(0, 3), timeout=0.3)
    for left in set(threading.enumerate()) - before:
        left.join(60)
        assert not left.is_alive(), "it would take its listener's error for a stranger's, again and again"


def test_srun_removes_what_steps_left_that_were_killed_at_their_start(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as alive:
        for number, each in enumerate((dead, alive)):
            each.bind(str(tmp_path / f"srun-{number}-0.sock"))
            (tmp_path / f"srun-{number}-0.key").touch()
        alive.listen()
        _sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) == 4, "too young"
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        _sweep(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["srun-1-0.key", "srun-1-0.sock"]


def test_srun_refuses_several_nodes_and_foreign_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match="2 nodes"):
        SrunBootstrap({**_srun_environment(0, 2), "SLURM_STEP_NUM_NODES": "2"})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"ep_lib-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(BackendUnavailable, match="only you can read"):
        SrunBootstrap(_srun_environment(0, 2), timeout=1)


def run_program(launcher: list[str], what: str, ranks: int) -> list[dict[str, Any]]:
    """Start the program on ``ranks`` ranks; their reports in rank order."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM"))}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # Open MPI in a container
    result = subprocess.run(
        [*launcher, str(PROGRAM), what], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    reports = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == ranks, result.stdout + result.stderr
    return sorted(reports, key=lambda report: int(report["rank"]))


def check_gathered(reports: list[dict[str, Any]], kind: str) -> None:
    ranks = len(reports)
    for rank, report in enumerate(reports):
        assert report["kind"] == kind
        assert report["local_rank"] == rank
        assert report["ranks"] == list(range(ranks))
        assert report["sums"] == [0, 11 * ranks, 300_002 * ranks]


@pytest.fixture
def torchrun() -> list[str]:
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.extended
def test_mpiexec_names_a_late_rank() -> None:
    reports = run_program(mpiexec(2), "late", 2)
    check_gathered(reports, "mpi")
    assert "PeerTimeout" in reports[0]["error"]
    assert "rank 1" in reports[0]["error"]


@pytest.mark.extended
def test_mpiexec_names_a_rank_that_left() -> None:
    reports = run_program(mpiexec(2), "leave", 2)
    assert "RankFailed: rank 1" in reports[0]["error"]


@pytest.mark.extended
def test_torchrun_leaves_the_process_group_alone_and_names_leavers(torchrun: list[str]) -> None:
    reports = run_program(torchrun, "pg+leave", 2)
    check_gathered(reports, "torchrun")
    assert [report["reduced"] for report in reports] == [2, 2]
    assert "RankFailed: rank 1" in reports[0]["error"]


PLAIN = [
    None,
    True,
    -3,
    2.5,
    float("inf"),
    "tex\u0442\n",
    b"\0\xff",
    (1, (2, [3, {"a": {4}}])),
    {1: "x", (2, "y"): None},
    frozenset({b"z"}),
    [],
    (),
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_data_crosses_a_network_unchanged(value: Any) -> None:
    got = wire.loads(wire.dumps(value), 0)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("kind", ["int8", "float32", "bool", "complex64", "bfloat16", "float8_e4m3fn", "U3", "M8[s]"])
def test_arrays_cross_a_network_unchanged(kind: str) -> None:
    array = np.ones((2, 3), np.int64).astype(kind)
    sent = [array, array[:, :0], array[0, 0], array[1]]
    for before, after in zip(sent, wire.loads(wire.dumps(sent), 0), strict=True):
        assert after.dtype == before.dtype and after.shape == before.shape and after.tobytes() == before.tobytes()
        assert isinstance(after, np.ndarray) == isinstance(before, np.ndarray)


class Opens:
    """What a stranger would send: unpickling it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


STRANGE = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[1]",
    b'{"bytes": "?"}',
    b'{"list": 3}',
    b'{"a": 1, "b": 2}',
    b'{"exec": "1"}',
    b'{"array": ["O", [1], "AAAA", false]}',
    b'{"array": ["int8", [9], "AA==", false]}',
    b'{"array": ["(2,", [], "", false]}',
    b'{"array": ["<f4", [1180591620717411303424], "AAAAAA==", false]}',
    b'{"dict": [[{"list": []}, 1]]}',
    b'{"list": [' * 5000,
]


@pytest.mark.parametrize("data", STRANGE, ids=range(len(STRANGE)))
def test_what_a_stranger_sends_is_refused_and_names_the_rank(data: bytes) -> None:
    with pytest.raises(RankFailed, match="from rank 5 was not sent by ep_lib") as caught:
        wire.loads(data, 5)
    assert caught.value.rank == 5


_WORDS = st.sampled_from(["list", "tuple", "set", "frozenset", "dict", "bytes", "array", "AAAA", "<f4", "V0", "O"])
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _WORDS, st.text(max_size=8))
_DTYPES = st.one_of(_WORDS, st.text("(),[]{}<>|=?:'0129abfiuOSUVM ", max_size=10))
_ARRAYS = st.tuples(_DTYPES, st.lists(_LEAVES, max_size=2), _LEAVES, st.booleans()).map(lambda it: {"array": list(it)})
_SENT = st.recursive(
    st.one_of(_LEAVES, _ARRAYS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_WORDS, inner, max_size=2)),
    max_leaves=12,
)


@given(sent=_SENT)
def test_whatever_arrives_is_a_value_or_that_error(sent: Any) -> None:
    with contextlib.suppress(RankFailed):
        wire.loads(json.dumps(sent).encode(), 5)


def test_what_is_not_plain_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    for value in (Opens("x"), len, np.array([None]), {"deep": [Opens("x")]}):
        with pytest.raises(ArgumentError, match=r"plain data .* not unpickled"):
            wire.dumps(value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ArgumentError, match="64 containers"):
        wire.dumps(endless)


@pytest.fixture
def in_store() -> Iterator[list[TorchrunBootstrap]]:
    """Two ranks in torch's store, both in this process."""
    made = []
    with as_torchrun(2) as environments:
        for environment in environments:
            made.append(TorchrunBootstrap(environment, timeout=30))
            torchrun_module._worlds_made -= 1
        yield made


@pytest.mark.extended
def test_torchrun_ranks_exchange_more_than_the_store_takes_at_once(in_store: list[TorchrunBootstrap]) -> None:
    big = np.arange(3 << 20, dtype=np.int32)  # 12 MiB, 16 as text
    calls = {me.rank: (lambda me=me: [me.all_gather((me.rank, big)), me.all_gather(me.rank)]) for me in in_store}
    for first, second in on_threads(calls).values():
        assert [rank for rank, _ in first] == second == [0, 1]
        assert all(np.array_equal(array, big) for _, array in first)


def test_torchrun_names_late_ranks_and_leaves_them_out(in_store: list[TorchrunBootstrap]) -> None:
    with pytest.raises(PeerTimeout, match="rank 1"):
        in_store[0].barrier(timeout=0.3)
    in_store[0].leave_out([1])
    assert in_store[0].all_gather("alone", timeout=30) == ["alone", None]


def test_a_key_that_is_taken_back_between_two_questions_is_waited_for(
    in_store: list[TorchrunBootstrap], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's own get() would wait for it five minutes."""
    monkeypatch.setattr(in_store[0], "_missing", lambda keys: [])
    with pytest.raises(PeerTimeout, match=r"waited 0\.3 s .* for rank 1"):
        in_store[0].barrier(timeout=0.3)
    in_store[1]._store.set("0/1", "2")  # two pieces, of which one is there
    in_store[1]._store.set("0/1/0", b"[")
    assert in_store[0].peek(1) is in_store[0].hear(1) is None


def test_a_store_that_does_not_answer_is_named_within_the_limit(
    in_store: list[TorchrunBootstrap], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does not whose process is stopped: torch's client waits for it without end, and takes no signal."""
    monkeypatch.setenv("EP_LIB_TIMEOUT_S", "0.2")
    answer = threading.Event()
    silent = SimpleNamespace(**dict.fromkeys(("set", "check", "compare_set", "delete_key"), lambda *_: answer.wait()))
    monkeypatch.setattr(in_store[0], "_store", silent)
    for call in (lambda: in_store[0].peek(1), lambda: in_store[0].tell(1), lambda: in_store[0].barrier(timeout=0.2)):
        with pytest.raises(PeerTimeout, match=r"rank 0 waited 0\.2 s for an answer of torchrun's store"):
            call()
    in_store[0].close(0.2)
    answer.set()


def test_a_stranger_at_the_store_runs_no_code(in_store: list[TorchrunBootstrap], tmp_path: Path) -> None:
    prefix = in_store[0]._store  # where the second rank would write
    prefix.set("0/1", pickle.dumps(Opens(str(tmp_path / "made"))))
    with pytest.raises(RankFailed, match="from rank 1 was not sent by ep_lib"):
        in_store[0].all_gather("mine", timeout=20)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("rank", "says"), [(0, "choose another MASTER_PORT"), (1, "it may be another program")])
def test_another_program_at_the_stores_port_is_told(rank: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    monkeypatch.setattr(torchrun_module, "_GRACE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        env = {"RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": f"{rank}", "MASTER_ADDR": "127.0.0.1"}
        with pytest.raises(BackendUnavailable, match=says):
            TorchrunBootstrap({**env, "MASTER_PORT": str(other.getsockname()[1])}, timeout=0.3)


def test_a_store_that_is_not_there_is_named() -> None:
    pytest.importorskip("torch.distributed", reason="needs torch: pip install torch")
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = str(unused.getsockname()[1])
    environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "RANK": "1", "WORLD_SIZE": "2"}
    with pytest.raises(BackendUnavailable, match=f"cannot reach torchrun's store at localhost:{port}"):
        TorchrunBootstrap(environment, timeout=0.5)


class Stopped(SingleBootstrap):
    """What carries messages between ranks is stopped: nobody answers, and no connection ends."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def all_gather(self, obj: object, timeout: float | None = None) -> list[Any]:
        self.goes_on.wait()
        return []


def test_closing_does_not_wait_for_a_process_that_is_stopped() -> None:
    stopped = Stopped()
    assert not closing_barrier(stopped, 0.05)
    stopped.goes_on.set()
    assert closing_barrier(stopped, 60)
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)


class Beside(SingleBootstrap):
    """This process is rank 0; rank 1 is another process of the host, rank 2 is elsewhere."""

    world_size = 3

    def __init__(self, other: int) -> None:
        self._other = Identity.of(other)

    def all_gather(self, obj: object, timeout: float | None = None, look: Any = None) -> list[Any]:
        return [obj, tuple(self._other), ("elsewhere", self._other.pid, self._other.started)]


def test_a_process_that_is_stopped_is_named_by_who_waits_for_it() -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        at_once, patient = (Watched(Beside(other.pid), seconds, 1).look("barrier()") for seconds in (0, 600))
        at_once()
        other.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        patient()
        with pytest.raises(
            PeerTimeout, match=rf"rank 0 waited 0 s in barrier\(\) for rank 1, .* {other.pid} is stopped"
        ):
            at_once()
        other.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, other.pid, os.WCONTINUED)
        at_once()
    finally:
        other.kill()
        other.wait()


def test_the_hub_tells_who_waits_for_a_process_that_is_stopped() -> None:
    other = subprocess.Popen(["sleep", "600"])
    pipes = [Pipe() for _ in range(2)]
    hub = Hub({rank: ours for rank, (ours, _) in enumerate(pipes)})
    hub.watch(1, Identity.of(other.pid), 0)
    try:
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(PeerTimeout, match=r"rank 0 waited 0 s in host collective 0 .* for rank 1, whose process"):
            HubBootstrap(pipes[0][1], 0, 2, "local", 0).barrier()
    finally:
        hub.close()
        other.kill()
        other.wait()


def test_a_peer_whose_bytes_trickle_has_its_time_once() -> None:
    ours, theirs = socket.socketpair()
    enough = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while not enough.wait(0.05):
                theirs.send(b"E")

    slow = threading.Thread(target=trickle)
    slow.start()
    with ours, theirs:
        ours.settimeout(0.2)
        with pytest.raises(TimeoutError):
            meeting.greet(ours, b"a secret of the run", is_server=True)
        enough.set()
        slow.join()


def test_a_listener_that_accepts_nothing_is_waited_for_until_the_limit() -> None:
    with meeting.listen("127.0.0.1", 0) as listener, meeting.Door(listener, b"secret") as door:
        listener.shutdown(socket.SHUT_RDWR)  # always ready from here on
        assert door.next(0.05) is None


def test_who_has_been_met_is_hung_up_on_by_none() -> None:
    """Where the last peer has come, the door shuts at once, while the thread that greeted it is still there."""
    secret = b"a secret of the run"
    with meeting.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        def meets() -> list[bytes]:
            return [meeting.connect("127.0.0.1", port, secret, b"mine", 30, "peer") for _ in range(100)]

        with ThreadPoolExecutor(1) as others:
            met = others.submit(meets)
            for _ in range(100):
                with meeting.Door(listener, secret) as door:
                    peer = door.next(30)
                assert peer is not None
                with peer.connection as connection:
                    assert meeting.receive(connection, peer.key) == b"mine"
                    meeting.send(connection, peer.key, b"yours")
            assert met.result() == [b"yours"] * 100
