"""The grader's child process: what it may not do, how it ends, and which replies the parent believes."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ep_lib import processes
from ep_lib.jit.cache import cache_dir
from ep_lib.jit.toolkit import find_compiler
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader import grading
from ep_lib.workshop.grader.feedback import failure_text
from ep_lib.workshop.grader.process import walls, zygote
from ep_lib.workshop.grader.process.sandbox import ChildFailed, ChildTookTooLong, ChildUsedItsTime, Limits, Sandbox
from ep_lib.workshop.grader.scenario import FRAME, BadReply, Outputs, Scenario, frame_sizes, pack, unpack_outputs
from ep_lib.workshop.hidden import load

pytestmark = pytest.mark.slow
Scripted = Callable[..., Sandbox]

ROOT = find("01").root
SCENARIO = Scenario(
    source="x.cu",
    ranks=2,
    seed=1,
    launches=((), ()),
    outputs=("a", "b"),
    symmetric={"a": [np.zeros(3, np.uint8), np.zeros(3, np.uint8)]},
    local={"b": [np.zeros((2, 2), np.float32), np.zeros(0, np.float32)]},
)
BODY = bytes(range(6)) + np.arange(4, dtype=np.float32).tobytes()


def unpacked(header: dict[str, object], body: bytes = BODY) -> Outputs:
    frame = pack(header, body)
    size, rest = frame_sizes(frame[:16], SCENARIO.reply_bytes())
    assert len(frame) == 16 + size + rest
    return unpack_outputs(SCENARIO, "right", frame[16 : 16 + size], frame[16 + size :])


def test_arrays_come_back_with_their_shapes() -> None:
    out = unpacked({"nonce": "right", "failure": None})
    assert [each.tolist() for each in out["a"]] == [[0, 1, 2], [3, 4, 5]]
    assert out["b"][0].tolist() == [[0, 1], [2, 3]]
    assert out["b"][1].shape == (0,)


def test_a_failure_comes_back_as_text() -> None:
    failure = {"kind": "KernelFault", "message": "no", "location": "a.cuh:3"}
    out = unpacked({"nonce": "right", "failure": failure}, b"")
    assert out.failure is not None
    assert (out.failure.kind, out.failure.message, out.failure.location) == ("KernelFault", "no", "a.cuh:3")


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ({"nonce": "wrong", "failure": None}, BODY),
        ({"failure": None}, BODY),
        ({"nonce": "right"}, BODY),
        ({"nonce": "right", "failure": None}, BODY[:-1]),
        ({"nonce": "right", "failure": None}, b""),
        ({"nonce": "right", "failure": "PASS"}, b""),
    ],
)
def test_other_replies_are_not_believed(header: dict[str, object], body: bytes) -> None:
    with pytest.raises(BadReply):
        unpacked(header, body)


def test_a_reply_that_is_nested_without_end_is_not_believed() -> None:
    with pytest.raises(BadReply):
        unpack_outputs(SCENARIO, "right", b"[" * 60000, BODY)


@pytest.mark.parametrize("prefix", [b"PASS" + bytes(12), b"EPG1" + b"\xff" * 12, b"EPG1" + bytes(8) + b"\xff\0\0\0"])
def test_a_frame_that_announces_too_much_is_not_read(prefix: bytes) -> None:
    with pytest.raises(BadReply):
        frame_sizes(prefix, 100)


def test_the_zygote_loads_neither_hidden_tests_nor_solutions() -> None:
    code = (
        "import sys, importlib, ep_lib.workshop.grader.process.zygote as zygote\n"
        "for name in (*zygote.MODULES, *sys.argv[1:]): importlib.import_module(name)\n"
        "for name, module in sys.modules.items(): print(name, getattr(module, '__file__', ''))"
    )
    imports = {name for each in names() for name in load(each, public=False).imports}
    done = subprocess.run(
        [sys.executable, "-c", code, *imports], capture_output=True, text=True, check=True, timeout=300
    )
    loaded = done.stdout.splitlines()
    assert not [line for line in loaded if "ep_lib" in line and re.search("hidden|grading|answers|puzzles", line)]
    for exercise in map(find, names()):
        for piece in exercise.pieces:
            copy = exercise.root / exercise.runs_as / piece
            assert not [line for line in loaded if line.endswith(str(copy))], f"a learner could call {copy}"


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """make(script, limits...) -> a Sandbox whose child, once limited, runs ``script`` with ``reply`` as its pipe."""
    made: list[Sandbox] = []

    def make(script: str, **limits: float) -> Sandbox:
        work = tmp_path / "cwd"
        work.mkdir(exist_ok=True)
        (work / "script.py").write_text(script)
        monkeypatch.setattr(Sandbox, "_program", lambda _: "exec(open('script.py').read())")
        around = grading._open_to(find("01"), load("01_write_signal", public=False), tmp_path)
        made.append(Sandbox(tmp_path, Limits(**limits), work, {}, around))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.end()


ANSWERS = "import os\nfrom ep_lib.workshop.grader.scenario import pack\nos.write(reply, pack({'said': %s}))\n"


def said(box: Sandbox) -> Any:
    return json.loads(ask(box)[0])["said"]


def ask(box: Sandbox, seconds: float = 120) -> tuple[bytes, bytes]:
    return box.ask({"nonce": "n"}, reply_bytes=100, seconds=seconds)


WALLS = {
    "the checkout": "open(root + '/README.md')",
    "a solution": "open(root + '/solutions/01_write_signal/ep/write_signal.cuh')",
    "the library's copy of the solution": "open(root + '/ep_lib/device/ep/write_signal.cuh')",
    "hidden tests": "open(root + '/ep_lib/workshop/hidden/ex01_write_signal.py')",
    "their bytecode": "open(bytecode)",
    "the grader's environment": "open(f'/proc/{grader}/environ')",
    "the grader's memory": "open(f'/proc/{grader}/mem', 'rb')",
    "the grader's files": "os.listdir(f'/proc/{grader}/fd')",
    "a program with root's power": "socket.sethostname('x')",
    "the supervisor's memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "writing to the user's cache": "open(cache + '/runtime/x', 'w')",
    "writing beside the submission": "open('../x', 'w')",
    "writing to the temporary folder": "open('/tmp/ep_lib_test_of_walls', 'w')",
    "writing to a terminal": "open('/dev/tty', 'w')",
    "writing to others' memory": "open('/dev/shm/x', 'w')",
    "a link out of the folder": "os.symlink(root + '/README.md', 'link') or open('link')",
    "a signal to the grader": "os.kill(grader, 0)",
    "a signal to the supervisor": "os.kill(os.getppid(), 0)",
    "a connection": "socket.create_connection(('127.0.0.1', 22))",
    "a server": "socket.socket().bind(('127.0.0.1', 0))",
    "a unix socket": "socket.socket(socket.AF_UNIX)",
    "a pair that sends anywhere": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "the grader's limits": "resource.prlimit(grader, resource.RLIMIT_CPU)",
    "the grader's cores": "os.sched_setaffinity(grader, os.sched_getaffinity(0))",
    "the grader's priority": "os.setpriority(os.PRIO_PROCESS, grader, 19)",
    "times of files": "os.utime(root + '/ep_lib/version.py')",
    "modes of files": "os.chmod(root + '/README.md', 0)",
    "owners of files": "os.chown(root + '/README.md', 0, 0)",
    "attributes of files": "os.setxattr(root + '/README.md', 'user.x', b'')",
    "leases on files": "fcntl.fcntl(0, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "signals by way of a pipe": "fcntl.fcntl(0, fcntl.F_SETOWN, grader)",
    "memory without a process": "os.memfd_create('x')",
    "memory that goes uncounted": "mmap.mmap(-1, 4096)",
    "shared memory": "called('shmget', 0, 4096, 0o1600)",
    "message queues": "called('msgget', 0, 0o1600)",
    "keys": "called('syscall', 250, 0, 0)",
    "passwords of the machine": "open('/etc/shadow')",
    "the user's home": "os.listdir(home)",
}
CONNECTED = {
    "a pair that turns to another": "socket.socketpair()[0].connect(listener)",
    "a pair that listens": "socket.socketpair()[0].listen()",
}


@pytest.mark.skipif(bool(walls.missing()), reason="; ".join(walls.missing()))
def test_a_wall_stands_on_every_side(tmp_path: Path, scripted: Scripted) -> None:
    load("01_write_signal", public=False)
    hidden = Path(sys.modules["ep_lib.workshop.hidden.ex01_write_signal"].__cached__)
    script = (
        "import ctypes, fcntl, mmap, os, resource, socket\nfrom ep_lib.workshop.grader.scenario import pack\n"
        "def called(name, *words):\n"
        "    if getattr(ctypes.CDLL(None, use_errno=True), name)(*words) < 0: raise OSError(ctypes.get_errno(), name)\n"
        f"root, cache, grader, home = {str(ROOT)!r}, {str(cache_dir())!r}, {os.getpid()}, {str(Path.home())!r}\n"
        f"bytecode, listener = {str(hidden)!r}, {str(tmp_path / 'listener')!r}\n"
        "def attempt(code):\n"
        "    try: eval(code)\n"
        "    except OSError as error: return type(error).__name__\n"
        "    return 'done'\n"
        f"os.write(reply, pack({{each: attempt(code) for each, code in {WALLS | CONNECTED!r}.items()}}))\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "listener"))
        listener.listen()
        outcomes = json.loads(scripted(script).ask({}, reply_bytes=0, seconds=120)[0])
    assert list(outcomes) == [*WALLS, *CONNECTED]
    assert {outcomes.pop(each) for each in CONNECTED} == {"OSError"}
    if not hidden.exists():
        assert outcomes.pop("their bytecode") == "FileNotFoundError"
    assert outcomes == dict.fromkeys(outcomes, "PermissionError")


def test_a_reply_is_read_and_the_output_kept_in_bounds(scripted: Scripted) -> None:
    box = scripted(
        "import os, sys\n"
        "from ep_lib.workshop.grader.scenario import pack\n"
        "print('x' * 300000, flush=True)\n"
        "os.write(reply, pack({'nonce': 'n'}, b'body'))\n"
        "import time; time.sleep(60)\n"
    )
    assert ask(box) == (b'{"nonce": "n"}', b"body")
    assert len(box.output) == Limits().output_bytes
    assert box.running
    box.end()
    assert not box.running


def test_what_is_printed_beyond_the_bound_goes_nowhere(scripted: Scripted) -> None:
    box = scripted(
        "import os, sys\n"
        "from ep_lib.workshop.grader.process import child\n"
        "from ep_lib.workshop.grader.scenario import pack\n"
        "class Prints(child.Runner):\n"
        "    def answer(self, request):\n"
        "        super().answer({**request, 'compile': (), 'import': (), 'programs': ()})\n"
        "        print('x' * 300000, flush=True)\n"
        "        return pack({}, os.readlink('/proc/self/fd/1').encode())\n"
        "child.Runner = Prints\n"
        "from pathlib import Path; child.serve(sys.stdin.buffer, reply, Path())\n"
    )
    assert ask(box)[1].startswith(b"pipe:") and ask(box)[1] == ask(box)[1] == b"/dev/null"
    assert len(box.output) == Limits().output_bytes


@pytest.mark.parametrize(
    ("script", "limits", "says"),
    [
        ("while True: pass", {"cpu_s": 1}, "CPU time|signal SIGKILL"),
        ("import os; os._exit(3)", {}, "exit code 3"),
        ("import os; os.abort()", {}, "signal SIGABRT"),
        ("import os, time; os.close(reply); time.sleep(60)", {}, "closed the grader's pipe"),
        ("x = bytearray(400 << 20); import time; time.sleep(60)", {"resident_bytes": 200 << 20}, "200 MiB of memory"),
        ("x = bytearray(4 << 30)", {"data_bytes": 1 << 30}, "exit code 1"),
        ("open('big', 'wb').write(bytes(2 << 20))", {"file_bytes": 1 << 20}, "exit code 1|SIGXFSZ"),
        (
            "import os, time\nfor i in range(6): open(f'{i}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)",
            {"written_bytes": 4 << 20},
            "more than 4 MiB into files",
        ),
        (
            "import tempfile, time\nf = tempfile.TemporaryFile()\nf.write(bytes(6 << 20))\nf.flush()\ntime.sleep(60)",
            {"written_bytes": 4 << 20},
            "more than 4 MiB into files",
        ),
        (
            "import os, time\nfor i in range(300): open(f'{i}', 'w').close()\ntime.sleep(60)",
            {"files": 200},
            "more than 200 files",
        ),
        (
            "import os, time\nfor i in range(40): os.mkdir('x'); os.chdir('x')\ntime.sleep(60)",
            {},
            "folders in each other",
        ),
        (
            "import threading, time\nfor i in range(40): threading.Thread(target=time.sleep, args=(60,)).start()",
            {"threads": 20},
            "more than 20 threads",
        ),
        (
            "import subprocess, sys, time\nfor i in range(20): subprocess.Popen(['sleep', '50'])\ntime.sleep(60)",
            {"processes": 8},
            "more than 8 processes",
        ),
    ],
)
def test_what_breaks_a_limit_ends_with_a_sentence(
    scripted: Scripted, script: str, limits: dict[str, int], says: str
) -> None:
    box = scripted(script, **limits)
    with pytest.raises(ChildFailed) as caught:
        ask(box)
    assert any(part in str(caught.value) for part in says.split("|")), caught.value
    assert not box.running


@pytest.mark.parametrize(
    ("script", "kind"), [("import time; time.sleep(60)", ChildTookTooLong), ("while True: pass", ChildUsedItsTime)]
)
def test_time_that_was_computed_is_told_from_time_that_was_waited(scripted: Scripted, script: str, kind: type) -> None:
    box = scripted(script)
    with pytest.raises(ChildFailed, match=r"did not end within 1 s") as caught:
        ask(box, 1)
    assert type(caught.value) is kind and not box.running


def test_all_scenarios_together_have_a_limit(scripted: Scripted) -> None:
    box = scripted(
        "import os, time\nfrom ep_lib.workshop.grader.scenario import pack\n"
        "while True:\n    time.sleep(0.3)\n    os.write(reply, pack({}))\n    sys.stdin.buffer.read(1)\n",
        total_s=0.5,
    )
    with pytest.raises(ChildTookTooLong, match=r"it has used the 0\.5 s that all of its tests have together"):
        for _ in range(20):
            box.ask({"run": None}, reply_bytes=0, seconds=60)


def test_nothing_survives_that_left_session_parent_and_environment(scripted: Scripted) -> None:
    box = scripted(
        "import os, subprocess, sys, time\n"
        "from ep_lib.workshop.grader.scenario import pack\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True, env={})\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.write(write, str(os.getpid()).encode())\n"
        "    os.execve('/usr/bin/sleep', ['sleep', '600'], {})\n"
        "daemon = int(os.read(read, 20))\n"
        "os.write(reply, pack({'pids': [p.pid, daemon]}))\n"
        "time.sleep(600)\n"
    )
    pids = json.loads(ask(box)[0])["pids"]
    assert set(pids) <= set(processes.descendants(os.getpid()))
    box.end()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def opened(exercise: str, work: Path) -> set[Path]:
    around = grading._open_to(find(exercise), load(exercise, public=False), work)
    return {each.resolve() for each in around["readable"]}


@pytest.mark.parametrize("exercise", [each for each in names() if any(".py" in piece for piece in find(each).pieces)])
def test_bytecode_of_a_closed_source_is_closed_too(exercise: str, tmp_path: Path) -> None:
    around = opened(exercise, tmp_path)
    for piece in find(exercise).pieces:
        source = find(exercise).root / find(exercise).runs_as / piece
        for closed in (source, Path(importlib.util.cache_from_source(str(source)))):
            assert not {closed, *closed.parents} & around, closed


def test_a_compiler_in_the_home_opens_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home" / "bin").mkdir(parents=True)
    compiler = tmp_path / "home" / "bin" / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {find_compiler().path} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EP_LIB_CXX", str(compiler))
    around = opened("01_write_signal", tmp_path / "work")
    assert compiler in around
    assert not {tmp_path / "home", tmp_path} & around


def test_an_interrupt_ends_the_child_too(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChildFailed):
        ask(scripted("import os; os._exit(0)"))  # from now on the zygote is there
    before = processes.descendants(os.getpid())
    box = scripted("import time; time.sleep(60)")

    def interrupted(self: Sandbox) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sandbox, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(box)
    assert not box.running
    assert processes.descendants(os.getpid()) == before


def test_the_child_has_no_way_to_the_zygote(scripted: Scripted) -> None:
    is_open = "[fd for fd in range(100) if os.path.lexists(f'/proc/self/fd/{fd}')]"
    fds = said(scripted(ANSWERS % f"[os.readlink(f'/proc/self/fd/{{fd}}') for fd in {is_open}]"))
    assert len(fds) == 4 or "script.py" in fds.pop(), fds  # streams and reply; the script may still be open
    assert all(link.startswith("pipe:") for link in fds), fds


@pytest.mark.parametrize("why", ["interrupted", "killed", "other limits"])
def test_a_zygote_that_is_of_no_use_is_replaced(scripted: Scripted, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    ask(scripted(ANSWERS % "[]"))
    before = zygote._kept[()]
    process = before._process
    if why == "other limits":
        hard = resource.prlimit(process.pid, resource.RLIMIT_DATA)[1]
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (64 << 20, hard))
    elif why == "killed":
        process.kill()
        process.wait(60)
    else:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(zygote, "read_exactly", interrupted)
            ask(scripted(ANSWERS % "[]"))
        process.wait(60)
    assert said(scripted(ANSWERS % "[]")) == []
    assert zygote._kept[()] is not before and zygote._kept[()]._process is not process


def test_the_child_sees_little_of_the_environment(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN_OF_THE_INSTRUCTOR", "secret")
    names = said(scripted(ANSWERS % "sorted(os.environ)"))
    assert "PATH" in names and "A_TOKEN_OF_THE_INSTRUCTOR" not in names


class _NoMemory:
    """A sandbox whose first ``failing`` children have no memory."""

    running = True

    def __init__(self, failing: int, message: str = "") -> None:
        self.failing, self.message, self.asked, self.ended = failing, message, 0, 0

    def ask(self, request: dict[str, Any], *, reply_bytes: int, seconds: float) -> tuple[bytes, bytes]:
        self.asked += 1
        failure = (
            {"kind": "MemoryError", "message": self.message, "location": ""} if self.asked <= self.failing else None
        )
        frame = pack({"nonce": request["nonce"], "failure": failure})
        return frame[FRAME.size :], b""

    def end(self) -> None:
        self.ended += 1


def test_a_child_without_memory_is_tried_once_more() -> None:
    ask = functools.partial(grading._ask, request={}, scenario=None, seconds=1.0)
    once, twice = _NoMemory(1), _NoMemory(2)
    assert ask(once).failure is None and (once.asked, once.ended) == (2, 1)
    failure = ask(twice).failure
    assert (
        failure is not None
        and failure_text(failure, Path("/proc/self/no-such")) == f"MemoryError: {grading._NO_MEMORY}"
    )
    assert twice.asked == 2, "and what judges a class tries again, alone"
    own = _NoMemory(1, " (line 3 of 10_plan.py)")  # a list of the learner's that is too long
    failure = ask(own).failure
    assert failure is not None and failure.kind == "MemoryError" and own.asked == 1
