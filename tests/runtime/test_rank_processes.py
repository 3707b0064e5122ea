"""Ranks on the emulator that are processes: one program under mpiexec, torchrun, or started by hand; no GPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import buffer_cases, low_latency_cases
from support.dispatch_combine_cases import make_case
from support.mpi import mpich_memory, mpiexec
from support.rank_runs import PROGRAM, environment, finish, no_heap_is_left, read, run, start, start_in
from support.torchrun import as_torchrun
from support.waiting import CPU_S, ENOUGH, said_by, wait_until

from ep_lib.bootstrap import mpi, siblings
from ep_lib.emulator.process_world import ProcessWorld
from ep_lib.emulator.shared_heaps import _PREFIX
from ep_lib.errors import (
    BackendUnavailable,
    KernelFault,
    KernelTimeout,
    OutOfSymmetricMemory,
    PeerTimeout,
    RankFailed,
    RankMismatchError,
)
from ep_lib.processes import run as run_in_own_time
from ep_lib.shared_memory import SHARED_MEMORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler"),
]


def launch(command: list[str], name: str, folder: Path, ranks: int, fails: bool = False, **options: Any) -> list[Any]:
    """What each rank left, None for one that could not; ``fails``: whether the command's exit code says so."""
    before = mpich_memory()
    words = [*command, str(PROGRAM), name, str(folder), json.dumps(options)]
    done = run_in_own_time(words, environment=environment(), cpu_s=CPU_S, idle_s=ENOUGH)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert no_heap_is_left()
    new = mpich_memory() - before  # another program's has a name for a moment, too
    assert wait_until(lambda: not mpich_memory() & new), new
    files = [folder / f"{rank}" for rank in range(ranks)]
    return [read(file) if file.exists() else None for file in files]


@pytest.mark.extended
def test_data_comes_before_its_signal(tmp_path: Path) -> None:
    assert run("ping_pong", tmp_path, 2) == [0, 0]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("kind", ["p2p", "rc", "srd"])
def test_atomics_of_processes_lose_nothing(kind: str, tmp_path: Path) -> None:
    node = {} if kind == "p2p" else {"ranks_per_node": 3}
    total, parts, most, by_nic = run("atomics", tmp_path, 3, fabric={"kind": kind, **node})[0]
    assert (total, parts, most, by_nic) == (3 * 192, 3 * 96.0, [2063, 2 * 3 * 192], 9)


@pytest.mark.extended
def test_kernels_go_on_while_their_host_waits(tmp_path: Path) -> None:
    assert run("in_the_background", tmp_path, 2) == [True, True]


@pytest.mark.extended
@pytest.mark.slow
def test_a_buffer_under_mpiexec_equals_the_oracle(tmp_path: Path) -> None:
    check_buffers(launch(mpiexec(4), "buffers", tmp_path, 4))


@pytest.mark.extended
def test_a_buffer_through_native_proxies_equals_the_oracle(tmp_path: Path) -> None:
    options: dict[str, Any] = {"transport": "proxy", "fabric": {"kind": "rc", "ranks_per_node": 2}}
    check_buffers(run("buffers", tmp_path, 2, **options))


@pytest.mark.extended
@pytest.mark.slow
def test_a_buffer_under_torchrun_equals_the_oracle(tmp_path: Path) -> None:
    with as_torchrun(2) as environments:
        ranks = start_in(environments, "buffers", tmp_path, fabric={"kind": "srd", "ranks_per_node": 2})
        check_buffers(finish(ranks, tmp_path))


def check_buffers(results: list[Any]) -> None:
    size = len(results)
    for seed in range(2):
        buffer_cases.check_case(make_case(seed, world_size=size), [result[0][seed] for result in results])
    for seed in range(2):
        buffer_cases.check_case(make_case(seed, world_size=size), [result[1][seed] for result in results])
    for seed, fp8 in enumerate((False, True)):
        case = low_latency_cases.low_latency_case(seed, fp8=fp8, world_size=size)
        low_latency_cases.check_case(case, fp8, [result[2][seed] for result in results])


def test_a_killed_rank_is_named_by_all_others(tmp_path: Path) -> None:
    errors = run("die", tmp_path, 3, timeout=60)
    assert errors[1] is None
    for rank in (0, 2):
        assert isinstance(errors[rank], RankFailed) and errors[rank].rank == 1, errors[rank]
        assert "rank 1" in str(errors[rank]) and "ended" in str(errors[rank])
    assert "while (ld_acquire_sys_u64(signal) == 0)" in str(errors[0])


def test_a_rank_under_mpiexec_that_raises_is_named_at_once(tmp_path: Path) -> None:
    """Python ends only when MPI_Finalize has found all ranks: the others must not wait for it."""
    errors = launch(mpiexec(2), "raises", tmp_path, 2)
    assert isinstance(errors[1], RankFailed) and errors[1].rank == 0 and "finished" in str(errors[1]), errors


@pytest.mark.extended
@pytest.mark.parametrize("where", ["in its block", "unclosed"])
def test_an_error_under_mpiexec_is_told_to_who_waits_in_kernels(where: str, tmp_path: Path) -> None:
    found = launch(mpiexec(4), "works", tmp_path, 4, fails=True, arguments={"raises": where})
    assert found[1] is None
    for rank in (0, 2, 3):
        error, named, text = found[rank]
        assert (error, named) == ("RankFailed", 1), found
        assert text.startswith("rank 1 has ended with ValueError: my own mistake: "), found
        assert "check whether" not in text and "too long" not in text, text  # what nobody needs to look for


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_a_forked_child_does_not_speak_for_its_rank(launcher: str, tmp_path: Path) -> None:
    found = launch(mpiexec(2), "forks", tmp_path, 2) if launcher == "mpiexec" else run("forks", tmp_path, 2)
    assert found == [3, 3]


FORKS_AFTER_MPI = """
import os, sys
from mpi4py import MPI
import ep_lib
rank = ep_lib.init("emulator")
if rank == 1:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
rank.barrier()
rank.close()
"""


def test_a_forked_child_that_would_end_mpi_says_so() -> None:
    """mpi4py ends MPI where the program has started it, in a child, too: that is no end that others live through."""
    command = [*mpiexec(2), "-c", FORKS_AFTER_MPI]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=ENOUGH, check=False)
    assert (done.returncode, done.stdout) == (0, "child 1\n"), done.stderr
    assert "forked from rank 1's, ends here" in done.stderr and "os._exit(code)" in done.stderr


@pytest.mark.extended
def test_a_stopped_rank_under_mpiexec_is_named_and_all_end(tmp_path: Path) -> None:
    """mpiexec waits for every process, also for one that is stopped, and MPI_Finalize for every rank. Whose limit is
    over first raises PeerTimeout and tells the others, who raise RankFailed, if their own is not over."""
    found = launch(mpiexec(4), "works", tmp_path, 4, fails=True, timeout=2, arguments={"stops": True})
    assert found[1] is None
    for rank in (0, 2, 3):
        error, named, text = found[rank]
        assert error in ("PeerTimeout", "RankFailed") and named == 1 and "which is stopped" in text, found
    assert "PeerTimeout" in [found[rank][0] for rank in (0, 2, 3)]


@pytest.mark.extended
def test_ranks_under_mpiexec_go_on_without_a_killed_one(tmp_path: Path) -> None:
    """As docs/faults.md says it is started. Who remains leaves in order: MPI_Finalize would wait for the killed one."""
    program, *words = mpiexec(4)
    if "HYDRA" not in subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("needs the mpiexec of MPICH: pip install mpich")
    shell = ["sh", "-c", 'trap "" USR1; "$@"; exit $?', "sh"]
    command = [program, "-disable-auto-cleanup", *words[:2], *shell, *words[2:]]
    arguments = {"way": "normal", "dies_after": 0.1, "replaced": False}
    found = launch(command, "outlives", tmp_path, 4, fails=True, timeout=20, arguments=arguments)
    assert found[1] is None
    for rank in (0, 2, 3):
        assert "rank 1 was a process that has ended" in found[rank][0] or "rank 1's process" in found[rank][0], found


DIES_IN_INIT = """
import os, signal, time
import ep_lib
from ep_lib.bootstrap import mpi, siblings

def dies():
    time.sleep(0.2)
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
        os.kill(os.getpid(), signal.SIGKILL)

mpi._survive_deaths = dies
ep_lib.init()
"""


@pytest.mark.extended
def test_a_rank_under_mpiexec_that_dies_in_init_leaves_nothing() -> None:
    before = mpich_memory()
    command = [*mpiexec(2), "-c", DIES_IN_INIT]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=ENOUGH, check=False)
    new = mpich_memory() - before
    assert done.returncode != 0 and wait_until(lambda: not mpich_memory() & new), new


def test_mpi_without_room_in_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH would end the processes by a bus error."""
    monkeypatch.setenv("MPI_LOCALNRANKS", "8")
    monkeypatch.setattr(mpi, "free_bytes", lambda: 1 << 20)
    with pytest.raises(BackendUnavailable, match=r"/dev/shm has \d+ bytes left, and MPI needs 8512000 there for the 8"):
        mpi._require_shared_memory()
    monkeypatch.setattr(mpi, "free_bytes", lambda: 1 << 24)
    mpi._require_shared_memory()


def test_mpi_that_never_starts_ends_with_a_sentence() -> None:
    program = "import sys, time\nfrom ep_lib.bootstrap.mpi import limited_start\nwith limited_start({}): time.sleep({})"
    ended = subprocess.run([sys.executable, "-c", program.format(0.2, 60)], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGTERM and "has waited 0.2 s in MPI_Init for the other ranks" in ended.stderr
    subprocess.run([sys.executable, "-c", program.format(60, 0)], check=True, timeout=ENOUGH)


LAUNCHERS = {
    "srun": ("SLURM_LOCALID", {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": f"{os.getpid()}"}),
    "torchrun": ("LOCAL_RANK", {"LOCAL_WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "3"}),
    "mpiexec": ("MPI_LOCALRANKID", {"MPI_LOCALNRANKS": "3", "PMI_RANK": "0"}),
}
ENDS_EARLY = """
import os, sys, time
from ep_lib.bootstrap import mpi, siblings, stopped
way, number, slow = sys.argv[1:]
siblings.PATIENCE_S, siblings.LOOK_S = 0.5, 0.05
if number == "1":
    time.sleep(0.5)
    sys.exit()
if way == "mpiexec":
    siblings.__file__ = slow
    with mpi.limited_start(60):
        time.sleep(60)
look = stopped.give_up_on_ended(int(number), int(number))
while True:
    look()
    time.sleep(0.01)
"""


@pytest.mark.parametrize("way", LAUNCHERS)
def test_a_rank_that_ends_before_the_ranks_meet_is_named(way: str, tmp_path: Path) -> None:
    """Also where a script of the launcher's starts the rank. Clocks apart, nothing is a stand-in but the launcher."""
    faster = tmp_path / "siblings.py"
    faster.write_text(Path(siblings.__file__).read_text().replace("PATIENCE_S = 10.0", "PATIENCE_S = 0.5"))
    variable, more = LAUNCHERS[way]
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", ENDS_EARLY, way]
    ranks = [
        subprocess.Popen(
            [*command, str(number), str(faster)],
            env={**environment(), **more, variable: str(number)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    said = [err for _, err in said_by(ranks)]
    assert ranks[1].returncode == 0 and not said[1]
    for number in (0, 2):
        assert ranks[number].returncode != 0
        told = "number 1 of this host's" if way == "mpiexec" else "rank 1 has no process any more: it ended before"
        assert told in said[number], said


def test_a_rank_that_no_launcher_started_has_no_siblings() -> None:
    by_hand = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}  # each in its own shell
    program = "import os; from ep_lib.bootstrap.siblings import siblings_of; print(siblings_of(os.getpid()))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**environment(), **by_hand}, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


@pytest.mark.extended
def test_a_wait_without_end_names_its_line(tmp_path: Path) -> None:
    errors = run("never_sends", tmp_path, 2, timeout=2)
    assert isinstance(errors[0], KernelTimeout) and "waited for 2 s" in str(errors[0]), errors[0]
    assert "rank 0 block 0 thread 0" in str(errors[0]) and errors[0].waiters
    assert isinstance(errors[1], RankFailed) and errors[1].rank == 0, errors[1]


@pytest.mark.extended
@pytest.mark.parametrize("waits_in", ["kernel", "barrier()"])
def test_a_paused_rank_is_named_by_who_waits_for_it(waits_in: str, tmp_path: Path) -> None:
    processes = start("paused", tmp_path, 2, timeout=2, arguments={"waits_in": waits_in})
    assert wait_until(lambda: (tmp_path / "0").exists() or processes[0].poll() is not None)
    processes[1].send_signal(signal.SIGCONT)
    errors = finish(processes, tmp_path)
    assert isinstance(errors[0], PeerTimeout) and (errors[0].rank, errors[0].peer) == (0, 1), errors[0]
    assert "which is stopped" in str(errors[0])
    assert waits_in == "kernel" or "rank 0 waited 2 s in barrier() for rank 1, whose process" in str(errors[0])


def test_a_rank_stopped_before_its_close_is_named_by_all_others(tmp_path: Path) -> None:
    processes = start("paused", tmp_path, 3, timeout=2, arguments={"waits_in": "close()"})
    left = [(process, tmp_path / str(rank)) for rank, process in enumerate(processes) if rank != 1]
    assert wait_until(lambda: all(file.exists() or process.poll() is not None for process, file in left))
    processes[1].send_signal(signal.SIGCONT)
    first, _, last = finish(processes, tmp_path)
    for rank, error in ((0, first), (2, last)):
        assert isinstance(error, PeerTimeout) and (error.rank, error.peer) == (rank, 1), error
        assert f"in close() for rank 1, whose process {processes[1].pid} is stopped" in str(error)


@pytest.mark.parametrize("by_kernel", [False, True])
def test_a_rank_that_gave_up_first_is_not_the_culprit(by_kernel: bool) -> None:
    """Rank 1 is stopped, rank 0 gave up because of it, and rank 2 sees that rank 0 has ended."""
    heaps = SimpleNamespace(lost=lambda: (1, "is process 7, which is stopped"), blame=lambda rank: None)
    world: Any = SimpleNamespace(_ended=lambda: [0], heaps=heaps, gave_up=False)
    saw = RankFailed("rank 0 will not join barrier(), in which rank 2 waits: its process has ended", rank=0)
    late = PeerTimeout("...", rank=2, peer=0, phase="signal", slot=3, seen=4, expected=5)
    told = ProcessWorld.explained(world, late if by_kernel else saw)
    waited = "rank 2 waited for rank 0 (signal, slot 3): the signal is 4, and 5 was expected"
    assert str(told) == f"rank 1 is process 7, which is stopped; because of that {waited if by_kernel else saw}"
    assert isinstance(told, PeerTimeout if by_kernel else RankFailed)


@pytest.mark.extended
def test_a_buffer_closes_at_once_after_a_rank_was_lost(tmp_path: Path) -> None:
    processes = start("closes_after_an_error", tmp_path, 2, timeout=2)
    assert wait_until(lambda: (tmp_path / "0").exists() or processes[0].poll() is not None)
    processes[1].send_signal(signal.SIGCONT)
    assert finish(processes, tmp_path)[0] is True


@pytest.mark.extended
@pytest.mark.parametrize("transport", ["emulated", "proxy"])
def test_what_was_posted_arrives_though_its_rank_leaves(transport: str, tmp_path: Path) -> None:
    assert run("says_goodbye", tmp_path, 2, transport=transport) == [0, 1000]


@pytest.mark.extended
def test_a_proxy_that_has_ended_is_named(tmp_path: Path) -> None:
    error, _ = run("loses_its_proxy", tmp_path, 2, timeout=2, transport="proxy")
    assert isinstance(error, PeerTimeout) and (error.rank, error.phase) == (0, "proxy"), error
    assert "has dealt with 0 commands of a ring, and 1 were expected: has its thread ended" in str(error)


def test_a_command_that_a_proxy_refuses_ends_the_wait(tmp_path: Path) -> None:
    """At once, by an error of its own, though the kernel waits for it with a long limit."""
    arguments = {"peer": 9}
    error, _ = run("pushes_wrongly", tmp_path, 2, timeout=3600, transport="proxy", arguments=arguments)
    told = "rank 0: its proxy has given up: command 1 of ring 0 is for rank 9; ranks are 0 to 1"
    assert isinstance(error, KernelFault) and told in str(error), error


def test_an_interrupt_ends_the_kernels(tmp_path: Path) -> None:
    processes = start("never_sends", tmp_path, 2)
    assert wait_until(lambda: is_mapped(processes[0].pid))
    time.sleep(0.5)  # it may wait in a barrier, or for its kernel by now: it is to end from both
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        _, err = process.communicate(timeout=ENOUGH)
        assert process.returncode != 0 and "KeyboardInterrupt" in err
    assert no_heap_is_left()


def is_mapped(pid: int) -> bool:
    """Whether a rank has its shared heaps, and their names are gone."""
    try:
        return f"{_PREFIX}" in Path(f"/proc/{pid}/maps").read_text() and not list(SHARED_MEMORY.glob(f"{_PREFIX}*"))
    except OSError:
        return False


def test_no_room_in_shared_memory_is_told_on_every_rank(tmp_path: Path) -> None:
    errors = run("too_much", tmp_path, 2)
    assert isinstance(errors[1], OutOfSymmetricMemory) and "/dev/shm" in str(errors[1]) and "shm-size" in str(errors[1])
    assert isinstance(errors[0], OutOfSymmetricMemory) and "rank 1" in str(errors[0]), errors[0]


def test_no_room_in_shared_memory_for_a_buffer_is_told_so(tmp_path: Path) -> None:
    errors = run("too_large_a_buffer", tmp_path, 2)
    assert "/dev/shm" in str(errors[1]) and "shm-size" in str(errors[1])
    assert "rank 1 has no room" in str(errors[0]) and "heap_bytes" not in str(errors[0]), errors[0]


def test_unequal_heaps_are_refused(tmp_path: Path) -> None:
    errors = run("other_heap", tmp_path, 2)
    assert isinstance(errors[0], RankMismatchError) and isinstance(errors[1], (RankMismatchError, RankFailed)), errors
    assert "heap_bytes must be the same on all ranks; got rank 0: 1048576, rank 1: 2097152" in str(errors[0])
