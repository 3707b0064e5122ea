"""What is a comment and what a literal in C++: the lexer, with g++ as the judge."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ep_lib.jit import host_code
from ep_lib.jit.lexer import code_of, logical, without_comments

PARTS = [
    "//",
    "/*",
    "*/",
    "'",
    '"',
    'R"',
    'u8R"',
    'R"x(',
    ')x"',
    "(",
    ")",
    ')"',
    "\\",
    "\\\n",
    "\\ \n",
    "\n",
    "1'0",
    ".5",
]
PARTS += [
    "e+1'2",
    "1e",
    "a",
    "xR",
    "L",
    "u8",
    "x",
    "$",
    "/",
    "*",
    " ",
    "it's",
    "a.1'000'",
    '"/*"',
    "'//'",
    "<",
    ">",
    "\t",
    "ä",
    "b;",
]


def by_the_compiler(text: str) -> str | None:
    """The text without comments and spaces, by g++; None if it does not take the text."""
    command = ["g++", "-std=c++17", "-E", "-P", "-w", "-x", "c++", "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    text = re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), done.stdout.decode())  # as g++ writes ä
    return re.sub(r"\s", "", text) if done.returncode == 0 and b"error" not in done.stderr else None


def by_us(text: str) -> str:
    return re.sub(r"\s", "", logical(text))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(PARTS), max_size=14).map("".join))
def test_comments_are_where_the_compiler_sees_them(text: str) -> None:
    text += "\n"
    if (told := by_the_compiler(text)) is not None:
        assert by_us(text) == told


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("int a = 1'000; char c = '\"'; f(\"/*\"); // x", "int a = 1'000; char c = '\"'; f(\"/*\");     "),
        ('R"(/*)" /* " */ b', 'R"(/*)"         b'),
        ('R"x(")" // )x" b', 'R"x(")" // )x" b'),
        ('xR"(/*)" b', 'xR"(/*)" b'),
        ("// a \\\n b\nc", "      \n  \nc"),
        ("/\\\n/ a\nc", "  \n   \nc"),
        ('"a\\\n// b" c', '"a\\\n// b" c'),
        ("a /* b", "a     "),
    ],
)
def test_nothing_moves(text: str, bare: str) -> None:
    found = without_comments(text, keep_strings=True)
    assert len(found) == len(text)
    assert found.replace("\\", " ") == bare.replace("\\", " ")


@pytest.mark.parametrize(
    "attempt",
    [
        "#if 0\nout\n#endif\nstays",
        "#if 0 // why\nit's out, \"all of it\n#if A\nout\n#else\nout\n#endif\nout\n # else\nstays\n#endif",
        "#if 0\nout\n%:endif\nstays",
        "#if 1\nstays\n#if 0\nout\n#elif A\nstays\n#endif\n#endif\nstays",
        "#define A \\\n#if 0\nstays",
        'auto a = R"(\n#if 0\n)"; stays',
    ],
)
def test_an_attempt_that_is_switched_off_is_no_code(attempt: str) -> None:
    code = code_of(attempt)
    assert "out" not in code and code.count("stays") == attempt.count("stays")


KERNEL = "__global__ void k(Row* r, int n) { r->x = twice<N>(n); }\n"


@pytest.mark.parametrize(
    "host",
    [
        "int main() { k<<<1, 1>>>(0, 0); }",
        "static void helper(std::vector<int>& v) { v.clear(); }",
        "template <typename T, int M = (3 > 2)> void launch(T* p) { k<<<M, 1>>>(p, 0); }",
        "template void launch<float>(float*);",
        "struct Timer { cudaEvent_t start; Timer() { cudaEventCreate(&start); } };",
        "class Pool : public Base<int> { std::mutex lock; };",
        "Timer::Timer(int) : start{}, stop(nullptr) {}",
        "std::ostream& operator<<(std::ostream& out, const Ms& t) { return out << t.x; }\nstruct Ms { double x; };",
        "std::map<int, float> table = {{1, 2.f}}, other;",
        "const auto compare = [](int a, int b) { return a < b; };",
        "using Clock = std::chrono::steady_clock;",
        "enum class Kind { kOne, kTwo };",
        'extern "C" int last(Row* r);',
        "void Solver::operator()(Row* r) const { k<<<1, 1>>>(r, 0); }",
        'PYBIND11_MODULE(EXTENSION, m) { m.def("f", &f); }\nBENCHMARK(f);',
        "int main() try { run(); } catch (const Error& e) { return 1; } catch (...) { return 2; }",
        "static std::function<void(int)> callback = [](int x) { (void)x; };",
        "#include <thrust/reduce.h>\nusing namespace thrust;\nfloat sum(float* p) { return thrust::reduce(p, p + 4); }",
    ],
)
def test_what_only_the_host_has_is_set_aside(host: str) -> None:
    kept = (
        "#define N 4\nstruct Row { int x; };\ntemplate <int M> int twice(int x) { return half(x); }\nint half(int x);\n"
    )
    assert host_code.without_host_code([f"{kept}{KERNEL}{host}\n"])[0].split() == f"{kept}{KERNEL}".split()


@pytest.mark.parametrize(
    "kept",
    [
        "#define N (1 + count)\nint count = 3;",
        "struct Row { Cell cell; };\nstruct Cell { int x; };",
        "float4 operator+(float4 a, float4 b) { return a; }",
        "Row operator-(Row a) { return a; }\nstruct Row { int x; };",
        "#define HOST_DEVICE __host__ __device__\nHOST_DEVICE int unused(int x) { return x; }",
        "#define KERNEL __global__ void\n#define MAKE_KERNEL(name, T) KERNEL name(T* x) {}\nMAKE_KERNEL(copy, float)",
        "#define ROW(T) struct Line { T x; };\nROW(int)",
        "namespace cg = cooperative_groups;\nusing namespace std;",
        "__constant__ float unused[4];",
    ],
)
def test_what_kernels_name_or_what_is_for_gpus_stays(kept: str) -> None:
    assert host_code.without_host_code([f"{kept}\n{KERNEL}"])[0] == f"{kept}\n{KERNEL}"


def test_branches_that_open_what_another_closes_are_one_declaration() -> None:
    lines = ["#ifdef A", "int f() {", "#else", "int f(int n) {", "#endif", "return 0; }"]
    left = host_code.without_host_code(["\n".join([KERNEL, *lines, "int unused;", KERNEL])])[0]
    assert [line for line in left.split("\n") if line.strip()] == [
        KERNEL.strip(),
        *lines[::2][:2],
        lines[4],
        KERNEL.strip(),
    ]


def test_what_another_file_names_stays() -> None:
    texts = ["struct Row { int x; };\nint count(Row* r);\nint main() { return count(0); }", KERNEL]
    header, source = host_code.without_host_code(texts)
    assert header.strip() == "struct Row { int x; };" and source == KERNEL


@given(
    st.lists(st.sampled_from([*"{}()[];=<>:\"'#", "\n", "f", "operator", "struct S", "template <", "#if 0\n", "/*"]))
)
def test_whatever_is_set_aside_lines_stay_lines(parts: list[str]) -> None:
    text = " ".join(parts)
    assert [len(line) for line in host_code.without_host_code([text])[0].split("\n")] == [
        len(line) for line in text.split("\n")
    ]
