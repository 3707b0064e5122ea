"""What a hidden test calls is bound before the piece, whatever the piece declares: ep_lib/workshop/bound.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ep_lib import Kernel
from ep_lib.errors import KernelCompileError
from ep_lib.jit.lexer import without_comments
from ep_lib.workshop import bound, grader
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.hidden import load

HIDDEN = Path(grader.__file__).with_name("hidden")
EXERCISE = find("01_write_signal")
(TEST,) = {Path(path) for path, _ in load(EXERCISE.name, public=False).kernels}
PIECE = EXERCISE.pieces[0]

# Each takes a call of the test's, or a type, where the test stands behind it as it is written. A deleted function that
# is chosen is an error.
TAKES = """
namespace {
struct Deleted { template <class... T> void operator()(T...) const = delete; };
constexpr Deleted let_others_run{}, min{};
struct forget_fault { forget_fault() = delete; };
struct Job { int64_t to; };
inline void slow_receive(const ep::Pipe&, char*, int, int64_t, int, int64_t, void*) = delete;
}  // namespace
template <int kUnused = 0> EP_DEVICE void look_at(char*, char*, int64_t) = delete;
template <class T, class = T> EP_DEVICE void canary(T*) = delete;
typedef int many_writes;
enum { kArrived = 3 };
template <class T, class = T> EP_DEVICE int __all_sync(unsigned, T) = delete;
namespace test { struct Memory {}; }
namespace held { EP_DEVICE int lane_id(int = 0) = delete; }
namespace ep {
template <class T, class = T> EP_DEVICE void signal_add(uint64_t*, T, int) = delete;
EP_DEVICE int warp_id(int = 0) = delete;
EP_DEVICE char* peer_ptr(char*, int) = delete;
template <int = 0> EP_DEVICE void put_warp(char*, const char*, size_t, int) = delete;
template <class T = int> EP_DEVICE uint64_t ld_acquire_sys_u64(uint64_t*) = delete;
namespace detail { template <class F> struct Nothing {}; }
}  // namespace ep
"""
OF_THE_ENTRY = """
#define Entry Nothing
#define detail nothing
#define kTable nothing
"""


def compiled(mine: Path, bind: bool = True) -> None:
    text, name = bound.put_together(TEST, mine, "examine") if bind else (TEST.read_text("utf-8"), "examine")
    Kernel(text, name, path=TEST, filename=str(TEST), include=[mine]).compile()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_no_call_of_a_test_is_taken(tmp_path: Path) -> None:
    (tmp_path / PIECE).parent.mkdir(parents=True)
    takes = (EXERCISE.solution_dir / PIECE).read_text("utf-8") + TAKES
    (tmp_path / PIECE).write_text(takes + OF_THE_ENTRY, "utf-8")
    compiled(tmp_path)
    (tmp_path / PIECE).write_text(takes, "utf-8")
    with pytest.raises(KernelCompileError, match=r"deleted|ambiguous|redeclared|different kind"):
        compiled(tmp_path, bind=False)
    called = 'extern "C" { EP_DEVICE void calls() { void examine(int task); examine(3); } }\n'
    called += "__device__ void (*kept)() = calls;"
    (tmp_path / PIECE).write_text((EXERCISE.solution_dir / PIECE).read_text("utf-8") + called, "utf-8")
    with pytest.raises(KernelCompileError, match=r"undefined .*examine"):
        compiled(tmp_path)
    special = "namespace ep { template <> char* peer_ptr(char* mine, int) { return mine; } }"
    (tmp_path / PIECE).write_text((EXERCISE.solution_dir / PIECE).read_text("utf-8") + special, "utf-8")
    with pytest.raises(KernelCompileError, match=r"specialization of .* after instantiation"):
        compiled(tmp_path)


def test_nobody_can_write_the_endings(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("int a;")
    first, kernel = bound.put_together(TEST, tmp_path, "examine")
    (ending,) = set(re.findall(r"\blook_at_([0-9a-f]{32})\b", first))
    assert kernel == f"examine_{ending}" and bound.put_together(TEST, tmp_path, "examine") == (first, kernel)
    (tmp_path / "a.cuh").write_text(f"void look_at_{ending}();")
    assert ending not in bound.put_together(TEST, tmp_path, "examine")[0]
    assert bound.plain(first).count("look_at(") >= 3 and ending not in bound.plain(first)
    lines = TEST.read_text("utf-8").splitlines()
    text = bound.plain(first).partition(f'#line 1 "{TEST}"\n')[2].splitlines()
    assert [line for line in text if "role:" in line] == [
        re.sub(r"\bep::(?=ld_|put_warp|lane_id)", "", line) for line in lines if "role:" in line
    ]


CALL = re.compile(r"(?<![\w.>])((?:\w+::)*)(\w+)\s*(?:<[\w ]+>)?\(")
NO_CALLS = re.compile(
    r"if|for|void|while|switch|return|sizeof|decltype|static_assert|\w+_cast|u?int(?:\d+_t)?|size_t"
    r"|GRADER_\w+|__is_\w+"
)


@pytest.mark.parametrize("name", [each for each in names() if Path(HIDDEN, f"ex{each}.cu").is_file()])
def test_each_call_of_a_test_is_its_own_or_held_or_the_pieces(name: str, tmp_path: Path) -> None:
    exercise, test = find(name), Path(HIDDEN, f"ex{name}.cu")
    if "#include <grader.cuh>" not in test.read_text("utf-8"):
        pytest.skip("no piece in C++")
    text = bound.put_together(test, tmp_path, "examine")[0].partition("\n#line 1 ")[2].partition("\n#undef ")[0]
    code = re.sub(r"(?m)^(?:[ \t]*#|template (?!<)).*$", "", without_comments(text))
    pieces = "".join((exercise.solution_dir / each).read_text("utf-8") for each in exercise.pieces)
    local = set(re.findall(r"\b(\w+) = \[", code)) | set(
        re.findall(r"&&? ?(\w+)[,)]", code)
    )  # lambdas, and as arguments
    open_ = {
        f"{scope}{call}"
        for scope, call in CALL.findall(code)
        if not bound._ENDING.search(f"{scope}{call}(")
        and not NO_CALLS.fullmatch(call)
        and call not in local
        and not re.search(rf"\b{call}\(", pieces)
    }
    assert not open_
