"""Starting, watching and ending the processes of ``spawn(backend="cuda")``, with a stand-in for the GPU's rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from support.waiting import wait_until

from ep_lib.bootstrap import Bootstrap
from ep_lib.errors import BackendUnavailable, KernelTimeout, OutOfSymmetricMemory, PeerTimeout, RankFailed
from ep_lib.processes import is_alive
from ep_lib.runtime import spawn_cuda
from ep_lib.runtime.spawn_cuda import spawn_processes

# Ranks get what they need of this module, and need not import pytest for it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class StandIn:
    """What main gets here: the bootstrap, and the methods of a Rank that spawn calls."""

    def __init__(self, bootstrap: Bootstrap, heap_bytes: int | None, timeout: float | None) -> None:
        self.rank, self.world_size = bootstrap.rank, bootstrap.world_size
        self.bootstrap, self.options = bootstrap, (heap_bytes, timeout)
        self.is_closed = False
        self.synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1

    def close(self) -> None:
        self.is_closed = True
        self.bootstrap.barrier(timeout=LONG)


def run(main: Any, ranks: int = 2, args: tuple[Any, ...] = (), **options: Any) -> list[Any]:
    return spawn_processes(main, ranks, args, make_rank=StandIn, **options)


LONG = 60  # seconds that a rank would sleep or wait, were it not ended before


@pytest.fixture
def woke(tmp_path: Path) -> Path:
    """A file that a rank makes after it has slept or waited for :data:`LONG` seconds: nothing ended it."""
    return tmp_path / "woke"


def sleep(woke: Path) -> None:
    time.sleep(LONG)
    woke.touch()


def wait_for_all(rank: StandIn, woke: Path) -> None:
    try:
        rank.bootstrap.barrier(timeout=LONG)
    except PeerTimeout:
        woke.touch()
        raise


def children() -> set[int]:
    """The process ids of this process's children."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.fixture(autouse=True)
def no_orphans() -> Any:
    before = children()
    yield
    assert children() <= before


def test_results_come_in_rank_order_and_arguments_arrive() -> None:
    def main(rank: StandIn, base: int) -> Any:
        time.sleep(0.1 * (3 - rank.rank))
        return base + rank.rank, rank.bootstrap.all_gather(rank.rank), rank.options, os.getpid()

    results = run(main, 4, (100,), heap_bytes=4096, timeout=7.0)
    assert [number for number, *_ in results] == [100, 101, 102, 103]
    assert all(gathered == [0, 1, 2, 3] and options == (4096, 7.0) for _, gathered, options, _ in results)
    assert len({pid for *_, pid in results} | {os.getpid()}) == 5


@pytest.mark.extended
def test_large_results_and_prints_arrive(capfd: pytest.CaptureFixture[str]) -> None:
    def main(rank: StandIn) -> bytes:
        print("hello from", rank.rank)
        return bytes(5_000_000)

    assert [len(result) for result in run(main)] == [5_000_000] * 2
    assert sorted(capfd.readouterr().out.splitlines()) == ["hello from 0", "hello from 1"]


def test_a_forked_child_does_not_speak_for_its_rank() -> None:
    def main(rank: StandIn) -> int:
        if rank.rank == 0:
            return 0
        child = os.fork()
        if child == 0:
            sys.exit(3)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert run(main) == [0, 3]


def test_an_exception_keeps_its_type_and_says_where_it_was_raised(woke: Path) -> None:
    def main(rank: StandIn) -> None:
        if rank.rank == 1:
            raise KeyError("lost")
        wait_for_all(rank, woke)

    with pytest.raises(KeyError, match="lost") as caught:
        run(main, 3)
    assert not woke.exists()
    note = "\n".join(caught.value.__notes__)
    assert "raised in rank 1" in note
    assert 'raise KeyError("lost")' in note


class OwnError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def test_exceptions_with_keyword_arguments_and_of_local_classes_come_back() -> None:
    def out_of_memory(rank: StandIn) -> None:
        raise OutOfSymmetricMemory("too small", requested=10, available=4)

    with pytest.raises(OutOfSymmetricMemory, match="too small") as caught:
        run(out_of_memory, 1)
    assert caught.value.short_by == 6

    def own(rank: StandIn) -> None:
        raise OwnError(code=5)

    with pytest.raises(OwnError) as own_caught:
        run(own, 1)
    assert own_caught.value.code == 5


def test_exceptions_that_cannot_be_pickled_become_rank_failed() -> None:
    def main(rank: StandIn) -> None:
        error = ValueError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(RankFailed, match="rank 0 raised ValueError: holds a lock"):
        run(main, 1)

    def leave(rank: StandIn) -> None:
        sys.exit(3)

    with pytest.raises(RankFailed, match=r"rank 0 called sys.exit\(3\) before the ranks were done: return"):
        run(leave, 1)


def test_a_result_that_cannot_be_pickled_is_said_so() -> None:
    with pytest.raises(TypeError, match="main returned a lock"):
        run(lambda rank: threading.Lock(), 1)


def test_the_cause_is_raised_and_not_its_consequence() -> None:
    """Rank 0 sees that rank 1 is gone; what counts is why."""

    def main(rank: StandIn) -> None:
        rank.bootstrap.barrier(timeout=LONG)  # both have started
        if rank.rank == 1:
            time.sleep(0.3)
            raise ZeroDivisionError("the cause")
        rank.bootstrap.barrier(timeout=0.1)

    with pytest.raises(ZeroDivisionError):
        run(main)


@pytest.mark.slow
def test_a_peer_timeout_alone_is_raised(woke: Path) -> None:
    def main(rank: StandIn) -> None:
        if rank.rank == 0:
            rank.bootstrap.barrier(timeout=0.2)
        sleep(woke)

    with pytest.raises(PeerTimeout, match="for rank 1 of 2") as caught:
        run(main)
    assert (caught.value.rank, caught.value.peer) == (0, 1)
    assert not woke.exists()


def test_a_killed_process_is_named_with_its_signal(woke: Path) -> None:
    def main(rank: StandIn) -> None:
        if rank.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for_all(rank, woke)

    with pytest.raises(RankFailed, match="rank 2's process was killed by SIGKILL") as caught:
        run(main, 4)
    assert caught.value.rank == 2
    assert not woke.exists()


def test_a_process_that_leaves_by_itself_is_named(woke: Path) -> None:
    def main(rank: StandIn) -> None:
        if rank.rank == 1:
            os._exit(9)
        sleep(woke)

    with pytest.raises(RankFailed, match="rank 1's process ended with exit code 9"):
        run(main)
    assert not woke.exists()


def test_the_overall_time_limit_names_who_still_runs(woke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def main(rank: StandIn) -> None:
        if rank.rank != 1:
            rank.is_closed = True  # no barrier at the end
            return
        sleep(woke)

    finished, receive = [], spawn_cuda._Crew._receive

    def noted(crew: spawn_cuda._Crew, rank: int) -> bool:
        finished.extend([rank] * (done := receive(crew, rank)))
        return done

    # However busy the machine is: the limit passes once the two others have finished.
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 100 * (len(finished) == 2))
    monkeypatch.setattr(spawn_cuda._Crew, "_receive", noted)
    monkeypatch.setattr(spawn_cuda, "time", clock)
    with pytest.raises(KernelTimeout, match="rank 1 of 3 did not finish within 90 s"):
        run(main, 3, total_timeout=90)
    assert not woke.exists()


@pytest.mark.slow
def test_interrupt_ends_all_ranks_at_once(woke: Path) -> None:
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(lambda rank: sleep(woke), 2)
    assert not woke.exists()


SCRIPT = """
import os, sys, time
from ep_lib.runtime.spawn_cuda import spawn_processes

class StandIn:  # no guard around the call below: the script must not run again in the children
    def __init__(self, bootstrap, heap_bytes, timeout):
        self.rank, self.is_closed = bootstrap.rank, True

factor = 3

def main(rank):
    if "sleep" in sys.argv:
        print("child", os.getpid(), flush=True)
        time.sleep(60)
    return factor * rank.rank

print("results", spawn_processes(main, 2, make_rank=StandIn))
"""


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("results [0, 3]\n", "")


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, script, "sleep"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline().split()[1]) for _ in range(2)]
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids), LONG)
    parent.stdout.close()


def test_without_gpus_spawn_says_so_before_it_starts_anything() -> None:
    from ep_lib.cuda.devices import unusable_reason

    if unusable_reason(64) is None:
        pytest.skip("this machine has 64 GPUs")
    with pytest.raises(BackendUnavailable, match="emulator"):
        spawn_processes(lambda rank: None, 64)
