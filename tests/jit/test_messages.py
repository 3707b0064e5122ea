"""What a learner is told: the own file and line of a fault, the header of a name, a compile error in a notebook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ep_lib
from ep_lib import Kernel, Rank
from ep_lib.commands import lab
from ep_lib.errors import KernelCompileError, KernelFault, PeerTimeout
from ep_lib.jit import nvrtc

FAULTS = """#include <ep/peer.cuh>
__device__ int table[8];
extern "C" __global__ void plain(int* p, int* q, int n) { p[n] = 1; }  // no header is inlined here
extern "C" __global__ void local(int* p, int* q, int n) {
    int mine[4] = {1, 2, 3, 4};
    for (int i = 0; i < n; i++) mine[i & 7] += i;  // mine has 4
    p[0] = mine[n & 3];
}
__device__ __noinline__ void fill(int* a, int n) {
    for (int i = 0; i < n; i++) a[i] = i;  // fill
}
extern "C" __global__ void through_a_pointer(int* p, int* q, int n) {
    int mine[4];
    fill(mine, n);
    p[0] = mine[1];
}
struct Four { int count; int at[4]; };
struct Open { long long count; char at[]; };
extern "C" __global__ void end_of_a_struct(int* p, int* q, int n) {
    Four four = {};
    for (int i = 0; i < n; i++) four.at[i] += i;
    p[0] = four.at[1];
}
extern "C" __global__ void array_without_a_size(int* p, int* q, int n) {
    Open open;
    open.count = n;
    if (n > 0) open.at[1 << n] = 7;
    p[0] = open.count;
    q[0] = n > 0 ? open.at[2 << n] : 0;
}
extern "C" __global__ void array_of_another_size(int* p, int* q, int n) {
    char mine[8] = {};
    (*reinterpret_cast<char (*)[1LL << 60]>(mine))[1 << n] = 7;
    p[0] = mine[n & 7];
}
extern "C" __global__ void wrong_peer(int* p, int* q, int n) {
    *ep::peer_ptr(p, n) = 1;
}
extern "C" __global__ void not_symmetric(int* p, int* q, int n) {
    *ep::peer_ptr(q, n) = 1;
}
extern "C" __global__ void shared_of_a_peer(int* p, int* q, int n) {
    __shared__ int tile[32];
    *ep::peer_ptr(tile + threadIdx.x, n) = 1;
}
extern "C" __global__ void own_variable(int* p, int* q, int n) {
    *ep::peer_ptr(table + 1, n) = 1;
}
"""


def fault_of(name: str, n: int) -> KernelFault:
    kernel = Kernel.from_source(FAULTS, name, filename="faults.cu")

    def main(rank: Rank) -> None:
        p, q = rank.symmetric(4, np.int32), rank.to_device(np.zeros(4, np.int32))
        kernel.launch(rank, 1, 1, p, q, n if rank.rank == 0 else 0)
        rank.synchronize()

    with pytest.raises(KernelFault) as caught:
        ep_lib.spawn(main, 2, "emulator", heap_bytes=1 << 20)
    return caught.value


@pytest.mark.parametrize(
    ("name", "n", "line", "says"),
    [
        ("plain", 1 << 28, "p[n] = 1", "writes 4 bytes"),
        ("local", 5, "mine[i & 7] += i", "index 4 of an array of type 'int [4]'"),
        ("end_of_a_struct", 5, "four.at[i] += i", "index 4 of an array of type 'int [4]'"),
        ("array_without_a_size", 20, "open.at[1 << n] = 7", "writes a value of type 'char' outside of the variable"),
        ("array_of_another_size", 20, "[1LL << 60]>(mine)", "outside of the variable that it indexes"),
        ("through_a_pointer", 7, "// fill", "past the end of a local array"),
        ("through_a_pointer", 40, "// fill", "past the end of a local array"),
        ("through_a_pointer", 3000, "// fill", "past the end of a local array"),
        ("wrong_peer", -1, "ep::peer_ptr(p, n)", "rank -1, and there is no such rank: ranks are 0 to 1"),
        ("wrong_peer", 2, "ep::peer_ptr(p, n)", "rank 2, and there is no such rank: ranks are 0 to 1"),
        ("not_symmetric", 1, "ep::peer_ptr(q, n)", "'s copy of an array that is not symmetric"),
        ("shared_of_a_peer", 1, "ep::peer_ptr(tile", "'s copy of __shared__ memory"),
        ("own_variable", 1, "ep::peer_ptr(table", "'s copy of the kernel's variable 'table' + 4 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_a_fault_names_the_line_and_the_mistake(name: str, n: int, line: str, says: str) -> None:
    error = fault_of(name, n)
    number = FAULTS[: FAULTS.index(line)].count("\n") + 1
    assert error.location.partition(" (in ")[0] == f"faults.cu:{number}" and line in error.source, str(error)
    assert says in str(error) and "cache" not in str(error)


def test_a_fault_in_a_file_names_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text('\n\nextern "C" __global__ void k(int* p, int i) {\n    p[i] = 7;\n}\n')

    def main(rank: Rank) -> None:
        Kernel.from_file("mine.cu", "k").launch(rank, 1, 1, rank.to_device(np.zeros(4, np.int32)), 1 << 28)
        rank.synchronize()

    with pytest.raises(KernelFault) as caught:
        ep_lib.spawn(main, 1, "emulator")
    assert (caught.value.location, caught.value.source) == ("mine.cu:4", "p[i] = 7;")


def test_a_file_of_the_workshop_is_named_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks run two folders further down."""
    for name in ("notebooks", "solutions", "kernels", "mine/notebooks"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "kernels" / "k.cu").write_text(
        'extern "C" __global__ void k(int* box) {\n    box[0] = threadIdx.x;\n}\n'
    )
    monkeypatch.chdir(tmp_path / "mine" / "notebooks")

    def main(rank: Rank) -> None:
        Kernel.from_file("../../kernels/k.cu", "k").launch(rank, 1, 2, rank.empty(1, np.int32))

    [race] = ep_lib.check(main, ranks=1, seeds=1).findings
    assert race.first is not None and race.first.location == "kernels/k.cu:2"
    assert race.where == "box[0] of rank 0" and "line 2 of kernels/k.cu" in race.place
    with pytest.raises(KernelCompileError, match=r"^kernels/k\.cu:2: error"):
        Kernel.from_file("../../kernels/k.cu", "k", defines={"threadIdx": "1"}).compile()


NAMED = """#include <ep/peer.cuh>
#include <ep/wait.cuh>
extern "C" __global__ void behind(float* few, uint64_t* flags, int n) { few[n] = 1; }
extern "C" __global__ void behind_theirs(float* few, uint64_t* flags, int n) { ep::peer_ptr(flags, 1)[n] = 1; }
extern "C" __global__ void waits(float* few, uint64_t* flags, int n) {
    while (ep::ld_acquire_sys_u64(ep::peer_ptr(flags, 1) + n) == 0) {}
}
extern "C" __global__ void two_bytes(float* few, uint64_t* flags, int n) {
    if (ep::rank() == 0) reinterpret_cast<short*>(ep::peer_ptr(flags, 1))[n] = 1;
    if (ep::rank() == 1) flags[n / 4] = 1;
}
"""


@pytest.mark.parametrize(
    ("name", "n", "says"),
    [
        ("behind", 8, "0 bytes past the end of an array of 32 bytes that was passed to the kernel as few"),
        ("behind_theirs", 5, "8 bytes past the end of the symmetric array of 32 bytes at heap+0x200 (flags)"),
        ("waits", 2, "on flags[2] of rank 1 (sees 0)"),
        ("two_bytes", 5, "where   flags[1] + 2 bytes of rank 1"),
    ],
)
def test_an_array_is_called_as_its_kernel_calls_it(name: str, n: int, says: str) -> None:
    kernel = Kernel.from_source(NAMED, name)

    def main(rank: Rank) -> None:
        flags = rank.symmetric(4, np.uint64, fill=0)
        kernel.launch(rank, 1, 1, rank.to_device(np.zeros(8, np.float32)), flags, n)

    assert says in str(ep_lib.check(main, ranks=2, seeds=1))


# ---- names without their header --------------------------------------------------------------------------------------
HINTS = [
    ("ep::signal_add((unsigned long*)p, 1, 0);", "ep::signal_add is in <ep/signal.cuh>: add #include <ep/signal.cuh>"),
    ("p[0] = ep::rank();", "ep::rank is in <ep/peer.cuh>"),
    ("ep::net_quiet();", "ep::net_quiet is in <ep/net.cuh>"),
    ("ep::st_release_sys_u32((unsigned*)p, 1);", "ep::st_release_sys_u32 is in <ep/memory.cuh>"),
    ("ep::WaitInfo info;", "ep::WaitInfo is in <ep/wait.cuh>"),
    ("cuda::atomic_ref<int> a(p[0]);", "cuda::atomic_ref is in <cuda/atomic>"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "include"), [("emulator", ""), ("sm_90", "#include <ep/platform.cuh>\n")])
@pytest.mark.parametrize(("code", "says"), HINTS, ids=[says.split()[0] for _, says in HINTS])
def test_a_missing_include_is_named(code: str, says: str, target: str, include: str) -> None:
    if target == "sm_90" and not nvrtc.available():
        pytest.skip("NVRTC or CuPy is not installed")
    if include and "memory.cuh" in says:
        return  # <ep/platform.cuh> has these too
    with pytest.raises(KernelCompileError) as caught:
        Kernel.from_source(f"{include}__global__ void k(int* p) {{\n    {code}\n}}\n", "k").compile(target)
    assert f"hint: {says}" in str(caught.value), str(caught.value)


def test_a_header_that_there_is_not_and_a_name_without_its_namespace() -> None:
    def told(source: str) -> str:
        with pytest.raises(KernelCompileError) as caught:
            Kernel.from_source(source, "k").compile("emulator")
        return str(caught.value)

    assert "did you mean <ep/signal.cuh>?" in told("#include <ep/signals.cuh>\n__global__ void k(int* p) {}\n")
    source = "#include <ep/peer.cuh>\n__global__ void k(int* p) { p = peer_ptr(p, 0); }\n"
    assert "it is in the namespace ep: write ep::peer_ptr" in told(source)
    assert "hint" not in told("#include <ep/peer.cuh>\n__global__ void k(int* p) { p = nothing(p, 0); }\n")
    through = (
        "#include <ep/write_signal.cuh>\n__global__ void k(char* p) { ep::%s(p, p, 1, 0); }\n"  # it has <ep/put.cuh>
    )
    misspelt = told(through % "put_thred")
    assert "did you mean 'put_thread'" in misspelt and "add #include" not in misspelt
    without_space = through.replace("ep::%s", "put_thread")
    assert "it is in the namespace ep: write ep::put_thread" in told(without_space)


def test_the_errors_that_follow_are_in_the_message() -> None:
    body = "\n".join(f"    unknown_{i}();" for i in range(6))
    with pytest.raises(KernelCompileError) as caught:
        Kernel.from_source(f"__global__ void k() {{\n{body}\n}}\n", "k", filename="six.cu").compile("emulator")
    text = str(caught.value)
    assert "six.cu:2: error" in text and "then six.cu:3: " in text and "unknown_3" in text
    assert "and 2 more errors (the exception's attribute `log` has them)" in text and "unknown_5" in caught.value.log


# ---- notebooks and JupyterLab ----------------------------------------------------------------------------------------
CELLS = r'''
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("""import ep_lib
kernel = ep_lib.Kernel.from_source("__global__ void k(int* p) {\\n    p[0] = oops;\\n}", "k")
def main(rank):
    kernel.launch(rank, 1, 1, rank.symmetric(4, "int32"))
ep_lib.spawn(main, 2, "emulator")""")
print("=====")
shell.run_cell("%tb")
'''


def test_a_compile_error_in_a_notebook_is_a_few_lines() -> None:
    pytest.importorskip("IPython")
    done = subprocess.run([sys.executable, "-c", CELLS], capture_output=True, text=True, check=True)
    short, whole = done.stdout.split("=====")
    assert "<kernel>:2: error: " in short and "p[0] = oops;" in short and "KernelCompileError" in short
    assert "line 4: kernel.launch(rank, 1, 1" in short and "%tb shows" in short
    assert len(short.strip().splitlines()) <= 8 and "ep_lib/" not in short, short
    assert "Traceback (most recent call last)" in whole and len(whole.splitlines()) > 15


def test_the_terminal_of_jupyterlab_finds_ep_lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = Path(sys.executable).parent
    if not (scripts / "ep-lib").exists():
        pytest.skip("ep-lib runs from a source tree that is not installed")
    path = os.pathsep.join(f for f in os.environ["PATH"].split(os.pathsep) if Path(f) != scripts)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("SHELL", shutil.which("sh") or "/bin/sh")
    [setting] = [
        w for w in lab.server_command(tmp_path / "a.ipynb", tmp_path, port=1, browser=False) if "terminado" in w
    ]
    shell: Any = re.search(r"'shell_command': \['(.*)'\]", setting)
    command = [shell[1], "-c", "command -v ep-lib"]
    done = subprocess.run(command, env=lab.server_environment(), capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == scripts / "ep-lib"


@pytest.mark.parametrize("others", [0, 1])
def test_a_timeout_names_another_buffer_if_there_is_one(others: int) -> None:
    def main(rank: ep_lib.Rank) -> None:
        buffers = [
            ep_lib.Buffer(rank, num_experts=4, top_k=2, hidden=64, max_tokens=8, dtype="float32")
            for _ in range(1 + others)
        ]
        if rank.rank == 0 and not others:
            return
        x, choices = rank.to_device(np.ones((8, 64), np.float32)), rank.to_device(np.tile([0, 3], (8, 1)))
        buffers[-rank.rank].dispatch(x, choices)

    with pytest.raises(PeerTimeout) as caught:
        ep_lib.spawn(main, 2, "emulator", timeout=2)
    notes = "".join(caught.value.__notes__)
    assert ("1 more Buffer" in notes and "waits in another Buffer" in notes) == bool(others)


def test_buffers_of_an_earlier_run_are_no_others() -> None:
    """Ranks of two runs are equal by their numbers; the note on other Buffers counts those of this run."""

    def main(rank: ep_lib.Rank) -> None:
        buffer = ep_lib.Buffer(rank, num_experts=4, top_k=2, hidden=128, max_tokens=8, dtype="float32")
        received = buffer.dispatch(np.ones((4, 128), np.float32), np.array([[0, 2]] * 4))
        if rank.rank == 0:
            buffer.combine(received.x, received.handle)

    for seed in range(4):
        with pytest.raises(PeerTimeout) as caught:
            ep_lib.spawn(main, 2, "emulator", seed=seed, timeout=1)
        assert "more Buffer" not in "".join(getattr(caught.value, "__notes__", []))
