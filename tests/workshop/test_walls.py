"""Cheats: none harms the machine or another one's grade, reads what is expected, or gets points."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader import grading
from ep_lib.workshop.grader.grading import Grade, grade
from ep_lib.workshop.grader.process import walls

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler"),
    pytest.mark.skipif(bool(walls.missing()), reason="; ".join(walls.missing())),
]
ROOT = find("01").root

# ---- pieces in Python ------------------------------------------------------------------------------------------------
SPY = """
    modules = [name for name in sys.modules if "hidden" in name or "play{name}" in name]
    code = [each.__code__.co_filename for each in gc.get_objects() if type(each) is type(cheat)]
    code = [file for file in code if "hidden" in file or "/play" in file]
    try: open("/proc/self/maps")
    except PermissionError: code.append("maps are shut")
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 99) if os.path.lexists(f"/proc/self/fd/{fd}")]
    pipes = [link.partition(":")[0] for link in links if link != "/dev/null"]
    raise RuntimeError(f"found: {modules} {code} {pipes} in {len(sys.modules)} modules, ...")
"""
FRAMES = (
    "\n    for fd in range(3, 30):\n        try: crossing.write(fd, {})\n        except OSError: pass\n    os._exit(0)"
)
# What each function does instead of its task, and what is said of it.
PYTHON = {
    "the cases of a test": ("open(ep_lib.__path__[0] + '/workshop/hidden/ex10_plan.py')", "Permission denied"),
    "its own file": ("open(__file__, 'w')", "Permission denied"),
    "the folder around its own": ("open('../x', 'w')", "Permission denied"),
    "names of others' folders": ("os.listdir('..')", "Permission denied"),
    "the network": ("socket.create_connection(('127.0.0.1', 22))", "not permitted"),
    "the test's half": ("open(f'/proc/{os.getppid()}/mem', 'rb').read(9)", "Permission denied"),
    "its command line": ("open(f'/proc/{os.getppid()}/cmdline')", "Permission denied"),
    "its end": ("os.kill(os.getppid(), 9)", "not permitted"),
    "the end of its group": ("os.killpg(os.getpgid(os.getppid()), 9)", "not permitted"),
    "the end of all": ("os.kill(-1, 9)", "returned nothing"),
    "its group": ("os.setpgid(0, os.getpgid(os.getppid())); return 1 / 0", "division by zero"),
    "a daemon": ("os.fork() or os.setsid() or os.fork() or time.sleep(99); return 1 / 0", "division by zero"),
    "many processes": (
        "\n    for _ in range(60): os.fork() or time.sleep(20)\n    time.sleep(3)",
        "started more than 32 processes",
    ),
    "other limits": ("resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))", "not allowed"),
    "another program": (f"os.execv('/bin/cat', ['cat', '{ROOT}/solutions/10_plan/10_plan.py'])", "exit code 1"),
    "a forged answer": (FRAMES.format('b\'{"value": [[0]], "error": null}\''), "was not sent by ep_lib"),
    "one without an end": (FRAMES.format("b'[' * 200000"), "was not sent by ep_lib"),
    "no memory": ("raise MemoryError()", "MemoryError"),
    "a number like any": ("return Any(3)", "is right"),
}
TOP = """
import os, resource, socket, sys, time
import ep_lib
from ep_lib.workshop.grader.process import crossing
class Any(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
sys.modules.update({name: sys for name in ("antigravity", "__main__", "a" * 9999, "ep_lib.workshop.hidden.ex10_plan")})
"""
# Of ranks: how a number goes to the next one without a kernel.
RANKS = {
    "the program's output": (
        "print(rank.rank, mine, flush=True)\n    rank.barrier()\n"
        "    return [int(x) for x in open('/proc/self/fd/1').readline().split('[')[1].rstrip('],\\n').split(',')]"
    ),
    "a gather": "return rank.all_gather(mine)[(rank.rank - 1) % rank.world_size]",
    "a file": (
        "open(f'{rank.rank}', 'w').write(str(mine))\n    rank.barrier()\n"
        "    return eval(open(f'{(rank.rank - 1) % rank.world_size}').read())"
    ),
    "another rank's memory": (
        "\n    for at in (-4, -3, -2, -1, 1, 2, 3, 4): open(f'/proc/{os.getpid() + at}/mem', 'rb')"
    ),
}


ALONE = {1: "destinations", 2: "messages", 4: "first_rows"}  # tasks of 10_plan that stand on no other one


def graded(exercise: str, cheats: dict[str, str], tmp_path: Path, tasks: tuple[int, ...] = (), top: str = TOP) -> Grade:
    """A solution in which these functions do something else; "" stands for all."""
    (piece,) = find(exercise).pieces
    text = (find(exercise).solution_dir / piece).read_text("utf-8")
    everything = " = ".join(re.findall(r"(?m)^(?:def|class) (\w+)", text))
    for function, instead in cheats.items():
        top += f"def cheat(*given, **named):\n    {instead}\n{function or everything} = cheat\n"
    (tmp_path / piece).write_text(text + top)
    return grade(exercise, tmp_path, seed=1, tasks=tasks)


@pytest.mark.parametrize("cheats", [[*PYTHON][at::7] for at in range(7)], ids="-".join)
def test_a_piece_in_python_reaches_nothing(cheats: list[str], tmp_path: Path) -> None:
    tasks = dict(zip(ALONE, cheats, strict=False))
    found = graded("10_plan", {ALONE[task]: PYTHON[cheat][0] for task, cheat in tasks.items()}, tmp_path, (*tasks,))
    for result in found.tasks:
        assert not result.passed and PYTHON[tasks[result.task.number]][1] in result.message, found.as_json()


@pytest.mark.parametrize("cheat", RANKS)
def test_ranks_reach_each_other_by_kernels_alone(cheat: str, tmp_path: Path) -> None:
    instead = f"rank, _, mine = given\n    {RANKS[cheat]}"
    (result,) = graded("00_first_main", {"": instead}, tmp_path, (2,)).tasks
    assert not result.passed and result.message


@pytest.mark.extended(after=3)
@pytest.mark.parametrize("name", [name for name in names() if find(name).pieces[0].endswith(".py")])
def test_a_pieces_process_holds_nothing_of_its_test(name: str, tmp_path: Path) -> None:
    """Looked at from within the calls of each task. Besides its streams it has two pipes."""
    result = graded(name, {"": SPY.replace("{name}", name)}, tmp_path, top="import gc, os, sys\n")
    told = {found[0] for each in result.tasks if (found := re.search(r"found: .*(?= in \d{3,} modules)", each.message))}
    assert told == {"found: [] ['maps are shut'] ['pipe', 'pipe']"}, result.as_json()


# ---- pieces in C++ ---------------------------------------------------------------------------------------------------
EXERCISE = find("01")
PIECE = EXERCISE.pieces[0]
SOLUTION = (EXERCISE.solution_dir / PIECE).read_text("utf-8")
WRITE = "put_thread(target, source, bytes, peer);"
AT_LOAD = (
    "static __device__ void run() {} __attribute__((section(SECTION), used)) static void (*const at_load)() = run;"
)
# What stands in the file, what in place of the write of task 1, and what is said.
CPP = {
    "assembly": (
        "",
        "char* to = (char*)peer_ptr(target, peer); const void* from = source; size_t n = bytes;"
        ' asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");',
        "`asm` is an instruction of this machine's processor|your writes could not be watched",
    ),
    "a call of Linux": (
        'static __device__ long call() { long r; asm volatile("syscall" : "=a"(r) : "a"(39)); return r; }',
        f"if (call()) {WRITE}",
        "`asm` is an instruction of this machine's processor|inline assembly",
    ),
    "a copy without the sanitizer": (
        '__attribute__((no_sanitize("thread"), noinline)) static __device__ void copy(char* to, const char* from, '
        "size_t n) { for (size_t i = 0; i < n; ++i) to[i] = from[i]; }",
        "copy((char*)peer_ptr(target, peer), (const char*)source, bytes);",
        "your writes could not be watched",
    ),
    "functions of the checker": (
        'extern "C" __attribute__((visibility("default"))) void __tsan_write1(void*) {}',
        WRITE,
        "your code defines __tsan_write1()",
    ),
    "functions of libraries, by templates too": (
        'extern "C" void swab(const void*, void*, ssize_t) noexcept;\n'
        "}\n#include <algorithm>\n#include <functional>\nnamespace ep {",
        "swab(source, (void*)source, 0);"
        "if (!std::equal((const char*)source, (const char*)source + 4, (const char*)target)"
        f" && std::_Hash_bytes(source, bytes, 7) != 3) {WRITE}",
        "std::_Hash_bytes(void const*, unsigned long, unsigned long), swab(), which kernels do not have",
    ),
    "the address of a library's function": (
        "",
        f"static char* volatile near; near = (char*)(long (*)(long))&labs; {WRITE}",
        "takes the address of labs(), which kernels do not have",
    ),
    "the loader": (
        'extern "C" void* dlsym(void*, const char*);',
        f'if (dlsym(nullptr, "system")) {WRITE}',
        "calls, defines or takes the address of dlsym()",
    ),
    "the environment": ('extern "C" char** environ;', f"if (environ[0]) {WRITE}", "address of environ()"),
    "the test's own numbers changed": (
        "",
        f"*const_cast<char*>(static_cast<const char*>(source)) ^= 1; {WRITE}",
        "your code has written into 'source'",
    ),
    **{
        f"what runs at load, in {section}": (AT_LOAD.replace("SECTION", f'"{section}"'), WRITE, "runs when|be linked")
        for section in (".init_array.00005", ".preinit_array")
    },
    "what runs at the end": (
        "__attribute__((destructor)) static __device__ void run() { __trap(); }",
        WRITE,
        "runs when",
    ),
    "a file without an end": ('}\n#include "/dev/zero"\nnamespace ep {', WRITE, "Permission denied"),
    "a solution": (f'}}\n#include "{EXERCISE.solution_dir / PIECE}"\nnamespace ep {{', WRITE, "Permission denied"),
    "more text than memory": (
        "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(A(A(A(A(A(A(x))))))))))\nint b[] = {B(B(1,)) 0};",
        WRITE,
        "more than 2048 MiB of memory|not compiled within",
    ),
}


@pytest.mark.parametrize("rules", [0, pytest.param(1, marks=pytest.mark.extended)], ids=["by g++", "by NVRTC, too"])
@pytest.mark.parametrize("cheat", CPP)
def test_a_piece_in_cpp_is_caught(cheat: str, rules: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its words: nothing reads them."""
    monkeypatch.setattr(grading, "read", lambda *_: ("", []))
    monkeypatch.setenv("EP_LIB_CUDA_RULES", str(rules))
    top, body, says = CPP[cheat]
    at = SOLUTION.index("namespace ep {") + len("namespace ep {")
    (tmp_path / PIECE).parent.mkdir()
    (tmp_path / PIECE).write_text(f"{SOLUTION[:at]}\n{top}\n{SOLUTION[at:].replace(WRITE, body, 1)}", "utf-8")
    (result,) = grade("01", tmp_path, tasks=[1], seed=1).tasks
    assert not result.passed
    assert rules or any(part in result.message for part in says.split("|")), result.message
