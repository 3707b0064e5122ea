"""``ep-lib check``: what it prints, its exit codes, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ep_lib import cli, processes

pytestmark = pytest.mark.slow

KERNEL = """
import ep_lib
SOURCE = '''
#include <ep/signal.cuh>
extern "C" __global__ void greet(int* box, uint64_t* flag, int* heard) {
    const int peer = 1 - ep::rank();
    *ep::peer_ptr(box, peer) = 100 + ep::rank();
    ep::st_ORDER_sys_u64(ep::peer_ptr(flag, peer), 1);
    while (ep::read_signal(flag) == 0) {
    }
    *heard = *box;
}
'''
kernel = ep_lib.Kernel.from_source(SOURCE, "greet")


def main(rank):
    print("hello")
    box, flag, heard = rank.symmetric(1, "int32"), rank.symmetric(1, "uint64"), rank.symmetric(1, "int32")
    kernel.launch(rank, 1, 1, box, flag, heard)
    return rank.to_host(heard)
"""


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """``command(script, *words)``: `ep-lib check`, in this process; the script has one of its own in any case."""

    def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        try:
            code = cli.main(["check", str(script), *words])
        except SystemExit as ended:  # the parser's
            code = int(ended.code or 0)
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run


def written(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_a_right_script(command: Command, tmp_path: Path) -> None:
    done = command(written(tmp_path, KERNEL.replace("ORDER", "release")), "--seeds", "5")
    assert done.returncode == 0, done.stderr
    assert "no findings in 5 schedules of 2 ranks on p2p" in done.stdout and "proves nothing" in done.stdout


def test_a_wrong_script_in_json(command: Command, tmp_path: Path) -> None:
    done = command(written(tmp_path, KERNEL.replace("ORDER", "relaxed")), "--seeds", "3", "--fabric", "p2p", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert "hello" in done.stderr
    finding = report["findings"][0]
    assert finding["kind"] == "race" and "release" in finding["remedy"]
    assert finding["first"]["source"].startswith("*ep::peer_ptr(box, peer) =")
    assert not report["ok"] and report["seeds"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_module\n", "cannot be imported: ModuleNotFoundError"),
        ("def main(:\n", "cannot be imported: SyntaxError"),
        ("raise SystemExit(3)\n", "calls sys.exit(3)"),
        ("x = 1\n", "has no function main"),
        ("def main(): pass\n", "cannot be called with one argument"),
        ("def main(rank): 1 / 0\n", "main raised ZeroDivisionError"),
        ("def main(rank): raise SystemExit(0)\n", "rank 0 called sys.exit(0) before the ranks were done"),
        ("import os\nos._exit(7)\n", "ended the process itself, with exit code 7"),
    ],
)
def test_scripts_that_cannot_be_checked(command: Command, tmp_path: Path, text: str, says: str) -> None:
    done = command(written(tmp_path, text), "--seeds", "1")
    assert done.returncode == 1
    assert says in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.extended
@pytest.mark.parametrize("body", ["while True: pass", "def main(rank):\n    while True: pass"])
def test_a_script_that_never_ends_leaves_nothing_behind(command: Command, tmp_path: Path, body: str) -> None:
    forever = f"3210.{os.getpid()}{len(body)}"  # no other test's
    text = f"import subprocess, sys\nchild = subprocess.Popen(['sleep', '{forever}'])\n{body}\n"
    done = command(written(tmp_path, text), "--timeout", "2")
    assert done.returncode == 1 and "did not end within 2 s" in " ".join(done.stderr.split()), done.stderr
    assert not any(_command_line(p).startswith(b"sleep\0" + forever.encode()) for p in Path("/proc").glob("[0-9]*"))


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_exit_codes_of_exhaustive_checks(command: Command, tmp_path: Path) -> None:
    right = written(tmp_path, KERNEL.replace("ORDER", "release"))
    stores = "*heard = *box; for (int i = 0; i < 12; i++) ep::st_relaxed_sys_u64(flag, 1);"
    done = command(
        written(tmp_path, right.read_text().replace("*heard = *box;", stores)), "--exhaustive", "--events", "10"
    )
    assert done.returncode == 3 and "NOT PROVED: " in done.stdout, done
    written(tmp_path, KERNEL.replace("ORDER", "release"))
    assert command(right, "--exhaustive").returncode == 0
    both = command(right, "--exhaustive", "--seeds", "3")
    assert both.returncode == 1 and "leave one out" in both.stderr
    none = command(right, "--exhaustive", "--jobs", "0")  # not: it did not end within 300 s
    assert none.returncode == 1 and "--jobs is 0; it must be at least 1" in none.stderr


def test_more_seeds_than_a_command_line_holds(command: Command, tmp_path: Path) -> None:
    wrong = "def main(rank): 1 / 0\n"  # it ends with the first of them
    seeds = ("--seeds", "9000000000000000000", "--first-seed", "5")
    done = command(written(tmp_path, wrong), *seeds)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr, done
    assert "a seed is 13611686018427387903" in command(written(tmp_path, wrong), *seeds[:-1], str(2**62)).stderr


def test_ctrl_c_while_the_child_starts(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*waited_for: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ep_lib.commands.check.select.select", interrupted)
    done = command(written(tmp_path, "def main(rank): pass\n"), "--exhaustive")
    assert (done.returncode, done.stdout, done.stderr) == (cli.EXIT_INTERRUPTED, "", "ep-lib: interrupted\n")


def test_ctrl_c_while_the_script_is_imported(tmp_path: Path) -> None:
    text = "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)\n"
    words = processes.python("-m", "ep_lib", "check", str(written(tmp_path, text)), "--exhaustive")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (cli.EXIT_INTERRUPTED, "", "ep-lib: interrupted\n")


@pytest.mark.extended
def test_a_kernel_that_never_ends_is_named(command: Command, tmp_path: Path) -> None:
    spins = "for (uint64_t turn = 0;; turn++) ep::st_relaxed_sys_u64(flag, turn);"
    text = KERNEL.replace("ORDER", "release").replace("*heard = *box;", spins)
    done = command(written(tmp_path, text), "--seeds", "1", "--timeout", "4")
    assert done.returncode == 1 and "kernels still ran after 2 s" in done.stdout and "livelock" in done.stdout, done
    assert "st_relaxed_sys_u64(flag, turn)" in done.stdout


def test_missing_files_and_impossible_numbers(command: Command, tmp_path: Path) -> None:
    assert "there is no file" in command(tmp_path / "nothing.py").stderr
    script = written(tmp_path, "def main(rank): pass\n")
    assert "--seeds is 0" in command(script, "--seeds", "0").stderr
    assert "do not fill nodes" in command(script, "--ranks", "3", "--fabric", "rc", "--ranks-per-node", "2").stderr
    assert command(script, "--fabric", "pigeon").returncode == 2


def test_a_grid_barrier_of_more_blocks_than_are_resident(command: Command, tmp_path: Path) -> None:
    script = tmp_path / "barrier.py"
    script.write_text(
        "import numpy as np\nimport ep_lib\n"
        "SOURCE = '''extern \"C\" __global__ void meet(unsigned* count) {\n"
        "    atomicAdd(count, 1);\n    while (atomicAdd(count, 0) < gridDim.x) {\n    }\n}'''\n"
        "kernel = ep_lib.Kernel.from_source(SOURCE, 'meet')\n\n\n"
        "def main(rank):\n    kernel.launch(rank, 3, 1, rank.to_device(np.zeros(1, np.uint32)))\n"
    )
    few = ("--ranks", "1", "--seeds", "2", "--volatile", "plain")
    assert command(script, *few).returncode == 0
    stuck = command(script, *few, "--resident-blocks", "2")
    assert stuck.returncode == 1 and "deadlock" in stuck.stdout


def test_several_scripts_are_checked_one_after_the_other(tmp_path: Path, command: Command) -> None:
    for name, order in ("right", "release"), ("wrong", "relaxed"):
        (tmp_path / f"{name}.py").write_text(KERNEL.replace("ORDER", order))
    names = [str(tmp_path / name) for name in ("right.py", "kernels.cu", "wrong.py")]
    (tmp_path / "kernels.cu").touch()
    ran = command(Path(names[0]), *names[1:], "--seeds", "2")
    heads = [f"== {name}" for name in names]
    assert ran.returncode == 1 and [line for line in ran.stdout.splitlines() if line in heads] == heads, ran.stderr
    right, kernels, wrong = re.split("^== .*$", ran.stdout, flags=re.M)[1:]
    assert "no findings" in right and "main(rank) launches them" in kernels and "1. race" in wrong
    reports = json.loads(command(Path(names[0]), *names[1:], "--seeds", "2", "--json").stdout)
    assert [reports[name]["ok"] for name in names] == [True, False, False]
    assert command(Path(names[0]), names[2], "--exhaustive", "--executor", "mpi").stderr.count("one script") == 1


def test_values_that_may_differ_are_compared_unless_asked_not_to(command: Command, tmp_path: Path) -> None:
    text = """
import ep_lib
kernel = ep_lib.Kernel.from_source(
    "__global__ void last(int* out) { atomicExch(out, blockIdx.x); }", "last"
)
def main(rank):
    out = rank.symmetric(1, "int32")
    kernel.launch(rank, 2, 1, out)
    return rank.to_host(out)
"""
    script = written(tmp_path, text)
    assert "values differ" in command(script, "--ranks", "1").stdout
    assert command(script, "--ranks", "1", "--no-compare").returncode == 0
