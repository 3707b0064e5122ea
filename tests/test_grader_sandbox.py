"""The grader's child process: what it may not do, how it ends, and which replies the parent believes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ep_lib import processes
from ep_lib.workshop import sandbox as sandbox_module
from ep_lib.workshop.sandbox import ChildFailed, Limits, Sandbox
from ep_lib.workshop.scenario import BadReply, Outputs, Scenario, frame_sizes, pack, unpack_outputs

pytestmark = pytest.mark.slow

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


def tagged(tag: str) -> list[int]:
    return processes.tagged(f"{sandbox_module._NONCE}={tag}")


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


def test_the_child_does_not_load_the_hidden_tests() -> None:
    code = (
        "import sys, ep_lib.workshop.child, ep_lib.workshop.runner; "
        "print([m for m in sys.modules if 'hidden' in m or 'grader' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """make(script, limits...) -> a Sandbox whose child, once limited, runs ``script`` with ``reply`` as its pipe."""
    made: list[Sandbox] = []

    def make(script: str, **limits: float) -> Sandbox:
        work = tmp_path / "cwd"
        work.mkdir(exist_ok=True)
        (work / "script.py").write_text(script)
        start = processes.Guard.start

        def instead(guard: processes.Guard, command: list[str], **options: object) -> object:
            limit, _, serve = command[-1].partition("; from pathlib")
            fd = serve.split("sys.stdin.buffer, ")[1].split(",")[0]
            code = f"{limit}; reply = {fd}; exec(open('script.py').read())"
            return start(guard, [*command[:-1], code], **options)  # type: ignore[arg-type]

        monkeypatch.setattr(processes.Guard, "start", instead)
        made.append(Sandbox(tmp_path, Limits(**limits), work, {}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.end()


def ask(box: Sandbox, seconds: float = 120) -> tuple[bytes, bytes]:
    return box.ask({"nonce": "n"}, reply_bytes=100, seconds=seconds)


def test_a_reply_is_read_and_the_output_kept_in_bounds(scripted) -> None:  # type: ignore[no-untyped-def]
    box = scripted(
        "import os, sys\n"
        "from ep_lib.workshop.scenario import pack\n"
        "print('x' * 300000, flush=True)\n"
        "os.write(reply, pack({'nonce': 'n'}, b'body'))\n"
        "import time; time.sleep(60)\n"
    )
    assert ask(box) == (b'{"nonce": "n"}', b"body")
    assert len(box.output) == Limits().output_bytes
    assert box.running
    box.end()
    assert not box.running


@pytest.mark.parametrize(
    ("script", "limits", "says"),
    [
        ("import time; time.sleep(60)", {}, "did not end within"),
        ("while True: pass", {"cpu_s": 1}, "CPU time|signal SIGKILL"),
        ("import os; os._exit(3)", {}, "exit code 3"),
        ("import os; os.abort()", {}, "signal SIGABRT"),
        ("import os, time; os.close(reply); time.sleep(60)", {}, "closed the grader's pipe"),
        ("x = bytearray(400 << 20); import time; time.sleep(60)", {"resident_bytes": 200 << 20}, "200 MiB of memory"),
        ("x = bytearray(4 << 30)", {"data_bytes": 1 << 30}, "exit code 1"),
        ("open('big', 'wb').write(bytes(2 << 20))", {"file_bytes": 1 << 20}, "exit code 1|SIGXFSZ"),
        (
            "import subprocess, sys, time\nfor i in range(20): subprocess.Popen(['sleep', '50'])\ntime.sleep(60)",
            {"processes": 8},
            "more than 8 processes",
        ),
    ],
)
def test_what_breaks_a_limit_ends_with_a_sentence(scripted, script: str, limits: dict[str, int], says: str) -> None:  # type: ignore[no-untyped-def]
    box = scripted(script, **limits)
    with pytest.raises(ChildFailed) as caught:
        ask(box, 3 if says == "did not end within" else 120)
    assert any(part in str(caught.value) for part in says.split("|")), caught.value
    assert not box.running


def test_nothing_survives_that_left_the_process_group(scripted) -> None:  # type: ignore[no-untyped-def]
    box = scripted(
        "import os, subprocess, time\n"
        "from ep_lib.workshop.scenario import pack\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    time.sleep(600)\n"
        "os.write(reply, pack({'pid': p.pid}))\n"
        "time.sleep(600)\n"
    )
    ask(box)
    tag = box._tag
    deadline = time.monotonic() + 60
    # The sleeper may be in the middle of its exec, when it has no environment to show. One look decides: by the next
    # the process between may have gone and the one that it forks not be listed yet.
    while (found := len(tagged(tag))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found >= 3
    box.end()
    deadline = time.monotonic() + 60
    while tagged(tag) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert tagged(tag) == []


def test_an_interrupt_ends_the_child_too(scripted, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    box = scripted("import time; time.sleep(60)")

    def interrupted(self: Sandbox) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sandbox, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(box)
    assert not box.running
    assert tagged(box._tag) == []


def test_the_child_sees_little_of_the_environment(scripted, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("A_TOKEN_OF_THE_INSTRUCTOR", "secret")
    box = scripted(
        "import os, time\n"
        "from ep_lib.workshop.scenario import pack\n"
        "os.write(reply, pack({'names': sorted(os.environ)}))\n"
        "time.sleep(60)\n"
    )
    header, _ = ask(box)
    assert b"A_TOKEN" not in header
    assert b"PATH" in header
    assert os.environ["A_TOKEN_OF_THE_INSTRUCTOR"] == "secret"
