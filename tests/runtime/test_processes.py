"""Children end with their parent and leave nothing; limits count their own time; the folder's files stay unread."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import ROOT
from support.waiting import wait_until

from ep_lib import processes
from ep_lib.processes import OwnTime, TookTooLong

until = functools.partial(wait_until, seconds=60.0)


def running(word: str) -> list[int]:
    """Processes with a word in their command line, apart from this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def python(code: str, *words: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *words], cwd=cwd, stderr=subprocess.DEVNULL)


RUNS = "import sys; from ep_lib import processes; processes.run(['sleep', sys.argv[1]], cpu_s=1e9, idle_s=1e9)"
FOLDER = (
    "import sys, time; from pathlib import Path; from ep_lib import processes\n"
    "with processes.temporary_folder('x', Path(sys.argv[1])) as folder:\n    (folder / 'file').touch()\n"
    "    time.sleep(1e6)\n"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_ends_with_the_process_that_ran_it(how: signal.Signals) -> None:
    word = f"4321.{os.getpid()}{how:02d}"
    parent = python(RUNS, word)
    assert until(lambda: any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in running(word)))
    parent.send_signal(how)
    parent.wait()
    assert until(lambda: not running(word))


STARTS_AND_DIES = """
import os, signal, sys
from ep_lib import processes
guard = processes.Guard()
guard.start(["sleep", sys.argv[1]], process_group=0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.extended
@pytest.mark.slow
def test_a_parent_that_dies_right_after_a_start_leaves_no_orphan() -> None:
    words = [f"5432.{os.getpid()}{number}" for number in range(10)]
    for word in words:
        assert python(STARTS_AND_DIES, word).wait() == -signal.SIGKILL
    assert until(lambda: not any(map(running, words)))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_temporary_folder_goes_with_its_process(how: signal.Signals, tmp_path: Path) -> None:
    parent = python(FOLDER, str(tmp_path))
    assert until(lambda: bool(list(tmp_path.rglob("file"))))
    parent.send_signal(how)
    parent.wait()
    assert until(lambda: not list(tmp_path.iterdir()))


def test_guards_end_with_what_they_guard(tmp_path: Path) -> None:
    for _ in range(3):
        with processes.temporary_folder("x", tmp_path) as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir()) and not running(str(tmp_path))


def test_a_command_is_ended_when_it_has_had_its_time() -> None:
    begin = time.process_time()
    with pytest.raises(TookTooLong, match="did nothing for"):
        processes.run(["sleep", "1000"], cpu_s=1000, idle_s=0.3)
    with pytest.raises(TookTooLong, match="of CPU time"):
        processes.run(["sh", "-c", "while :; do :; done"], cpu_s=0.3, idle_s=1000)
    assert time.process_time() - begin < 30
    done = processes.run(["sh", "-c", "cat; echo err >&2; exit 3"], cpu_s=9, idle_s=9, stdin="in")
    assert (done.returncode, done.stdout, done.stderr) == (3, "in", "err\n")
    with pytest.raises(FileNotFoundError):
        processes.run(["/proc/self/no-such/program"], cpu_s=1, idle_s=1)


def test_a_group_that_was_ended_runs_no_more() -> None:
    """Not only its first process: a signal that was sent is not yet an end, and much memory takes a while to free."""
    large = "import time; memory = bytearray(256 << 20); print(flush=True); time.sleep(1000)"
    with processes.guarded() as guard:
        first = guard.start(
            ["sh", "-c", f'"{sys.executable}" -c "{large}" & wait'], stdout=subprocess.PIPE, process_group=0
        )
        assert first.stdout is not None and first.stdout.read(1) == b"\n"
        processes.end_group(first)
        assert not [pid for pid in processes.in_group(first.pid) if processes.is_alive(pid)]


def test_waiting_for_a_cpu_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(float(second) for second in range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    states = iter([(0.0, True), (0.0, True), (0.1, True), (0.1, False), (0.1, False), (0.7, False)])
    monkeypatch.setattr(processes, "_usage", lambda pids: next(states))
    own = OwnTime(lambda: [])
    had = []
    for _ in range(5):
        own.look()
        had.append((round(own.cpu, 3), round(own.idle, 3)))
    assert had == [(0, 0), (0.1, 0), (0.1, 1), (0.1, 2), (0.7, 2.4)]


def test_a_stopped_process_is_idle_and_a_busy_one_is_not() -> None:
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        own = OwnTime(lambda: [busy.pid])
        while own.cpu < 0.05:
            own.look()
        idle = own.idle
        busy.send_signal(signal.SIGSTOP)
        until(lambda: Path(f"/proc/{busy.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        own.look()
        time.sleep(0.05)
        own.look()
        assert own.idle - idle >= 0.05
    finally:
        busy.kill()
        busy.wait()


def test_children_do_not_import_what_lies_in_the_folder(tmp_path: Path) -> None:
    for name in ("numpy", "json", "runpy", "ep_lib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('wrong file')\n")
    command = processes.python("-c", "import json, numpy, ep_lib, sys; print(ep_lib.__file__)")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and Path(done.stdout.strip()).parent == Path(processes.__file__).parent, done.stderr
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.slow
def test_check_imports_no_numpy_of_the_folder_and_leaves_no_bytecode(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "numpy.py").write_text("raise SystemExit('wrong file')\n")
    (tmp_path / "script.py").write_text("def main(rank):\n    return rank.rank\n")
    command = [sys.executable, "-P", "-m", "ep_lib", "check", str(tmp_path / "script.py"), "--seeds", "1"]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_looping_script_ends_with_ep_lib_check(how: signal.Signals, tmp_path: Path) -> None:
    word = f"loop{os.getpid()}_{how:d}.py"
    (tmp_path / word).write_text("import subprocess\nsubprocess.Popen(['sleep', '7654'])\nwhile True: pass\n")
    (own := tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "ep_lib", "check", str(tmp_path / word)]
    parent = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(own)})
    assert until(lambda: len(running(word)) == 2 and bool(running("7654")))
    parent.send_signal(how)
    parent.wait()
    assert until(lambda: not running(word) and not running("7654"))
    assert list(own.iterdir()) == []


@pytest.mark.slow
def test_a_killed_grader_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(ROOT / "solutions" / "01_write_signal", mine)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "ep_lib", "grade", "01", "--mine", str(mine)]
    grader = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    assert until(lambda: bool(running(f"{tmp_path}/ep_grade_")))
    grader.kill()
    grader.wait()
    assert until(lambda: not running(str(tmp_path)) and not list(tmp_path.glob("ep_grade_*")))


def test_a_thread_that_is_told_to_stop_ends_its_command() -> None:
    stop, word = threading.Event(), f"4324.{os.getpid()}"
    with ThreadPoolExecutor(1, initializer=processes.stop_by, initargs=(stop,)) as threads:
        running_one = threads.submit(processes.run, ["sleep", word], cpu_s=1e9, idle_s=1e9)
        assert until(lambda: running(word))
        stop.set()
        assert isinstance(running_one.exception(), processes.Stopped)
    assert not running(word)
