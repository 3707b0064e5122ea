"""`ep-lib migrate`: what it finds, where, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ROOT

from ep_lib import cli
from ep_lib.commands import efa_environment, migrate
from ep_lib.jit import cuda_source

pytestmark = pytest.mark.slow

TUTORIAL = ROOT / "tutorial_kernels"
READY = {"NVSHMEM_BOOTSTRAP": "MPI", "NVSHMEM_DISABLE_IB": "1", "FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}
PUT = "nvshmemi_ibgda_put_nbi_warp<true>(r, l, n, pe, qp, lane, i);"
AMO = "nvshmemi_ibgda_amo_nonfetch_add(c, 1, pe, qp);"
QUIET = "nvshmemi_ibgda_quiet(pe, qp);"

OLD = """\
// #include "efa_device_fixed.cuh"  (one day)
#include "ibgda_device.cuh"
#include <cstdio>

/* nvshmemi_ibgda_quiet(pe, qp); is what
   we need */
__device__ __forceinline__ void post(uint64_t r, uint64_t l, int pe, int qp, int lane) {
    nvshmemi_ibgda_put_nbi_warp<true>(r, l, 64, pe, qp, lane, 0);
}

template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 1) send(uint64_t r, uint64_t l, int pe, int qp, int* tail) {
    const int lane = threadIdx.x % 32;
    post(r, l, pe, qp, lane);
    printf("nvshmemi_ibgda_quiet(pe, qp);");
    if (lane == 0) {
        nvshmemi_ibgda_amo_nonfetch_add(tail, 1, pe, qp);
    }
}

__global__ void slow(uint64_t r, uint64_t l, int pe, int qp, int* tail) {
    for (int i = 0; i < 10; ++i) {
        nvshmemi_ibgda_put_nbi_warp(r + i * 64, l, 64, pe, qp, threadIdx.x, i);
        if (threadIdx.x == 0) nvshmemi_ibgda_quiet(pe, qp);
        __syncwarp();
    }
    if (pe == 0) nvshmem_barrier_all();
}

int main() {
    nvshmem_init();
    send<4><<<1, 128>>>(0, 0, 1, 0, nullptr);
}
"""


def found(text: str) -> list[tuple[str, str, int | None]]:
    return [(f.rule, f.severity, f.line) for f in migrate.migrate(text, "x.cu", READY).findings]


def test_an_old_file() -> None:
    assert found(OLD) == [
        ("old-include", "wrong", 2),
        ("unordered-signal", "wrong", 17),
        ("quiet-in-loop", "slow", 24),
        ("barrier-in-branch", "look", 27),
        ("no-init", "wrong", 32),
    ]
    result = migrate.migrate(OLD, "x.cu", READY)
    assert result.must_change
    signal = result.findings[1]
    assert "line 8" in signal.message and signal.source.startswith("nvshmemi_ibgda_amo_nonfetch_add(tail")
    steps = [item.step for item in result.checklist]
    assert steps == ["to do", "to do", "done", "by hand", "by hand", "by hand", "to do", "to do"]


def test_the_same_file_migrated() -> None:
    new = OLD.replace('#include "ibgda_device.cuh"', "#include <ep/ibgda_shim.cuh>")
    new = new.replace("        nvshmemi_ibgda_amo", "        nvshmemi_ibgda_quiet(pe, qp); nvshmemi_ibgda_amo")
    new = new.replace("if (threadIdx.x == 0) nvshmemi_ibgda_quiet(pe, qp);", "").replace("if (pe == 0) ", QUIET)
    new = new.replace("nvshmem_init();", "nvshmem_init(); deep_ep::init_efa_device_state(16, 1);")
    result = migrate.migrate(new, "x.cu", READY)
    assert result.findings == () and not result.must_change
    assert {item.step for item in result.checklist} == {"done", "by hand"}


def kernel(body: str) -> str:
    head = "#include <ep/ibgda_shim.cuh>\nvoid host() { init_efa_device_state(16, 1); k<<<1, 32>>>(); }\n"
    return f"{head}__global__ void k() {{\n{body}\n}}\n"


@pytest.mark.parametrize(
    "body",
    [
        PUT + QUIET + AMO,
        PUT + f"if (lane == 0) {QUIET} __syncwarp(); if (lane == 0) {AMO}",
        PUT + f"if (lane == 0) {{ {QUIET} }} else {{ {QUIET} }} {AMO}",
        f"if (near) {{ {PUT} }} else {{ {AMO} }}",
        f"if (near) {{ {PUT} return; }} {AMO}",
        f"for (;;) {{ for (int i = 0; i < 4; ++i) {{ {PUT} }} {QUIET} {AMO} }}",
        f"switch (way) {{ case A::b: {{ {PUT} }} break; case 2: {AMO} break; default: {AMO} }}",
        PUT + "nvshmem_fence();" + AMO,
        PUT + "nvshmemi_ibgda_amo_nonfetch_add(c, f(1, 2), pe, qp, true);",
        f'// {PUT}\n/* {PUT} */ const char* s = "{PUT}"; {AMO}',
        f"#define SEND {PUT} \\\n {PUT}\n{AMO}",
        "nvshmemx_putmem_signal_nbi_warp(a, b, n, s, 1, NVSHMEM_SIGNAL_ADD, pe);" + AMO,
        PUT + f"for (int p = 0; p < n; ++p) {QUIET}" + AMO,
    ],
)
def test_what_is_right_is_left_alone(body: str) -> None:
    assert found(kernel(body)) == []


@pytest.mark.parametrize(
    ("body", "rule", "line"),
    [
        (f"{PUT}\n{AMO}", "unordered-signal", 5),
        (f"{PUT}\nif (lane == 0)\n{AMO}", "unordered-signal", 6),
        (f"{QUIET}\n{PUT}\n{AMO}", "unordered-signal", 6),
        (f"if (near) {QUIET}\nelse\n{PUT}\n{AMO}", "unordered-signal", 7),
        (f"do {{\n{AMO}\n{PUT}\n}} while (more());", "unordered-signal", 5),
        (f"switch (way) {{ case 1:\n{PUT}\ncase 2:\n{AMO} }}", "unordered-signal", 7),
        (f"auto send = [&](int i) {{ {PUT} }};\nsend(0);\n{AMO}", "unordered-signal", 6),
        ("nvshmem_putmem_nbi(a, b, n, pe);\nnvshmemx_signal_op(s, 1, NVSHMEM_SIGNAL_SET, pe);", "unordered-signal", 5),
        ("ep::net_put_nbi(a, b, n, pe);\nep::net_atomic_add_u64_nbi(c, 1, pe);", "unordered-signal", 5),
        (f"while (true) {{\n{PUT}\n{QUIET} }}", "quiet-in-loop", 6),
        (f"for (;;)\nfor (;;) {{\n{PUT}\nif (last) break;\n{QUIET}\n{AMO} }}", "quiet-in-loop", 8),
    ],
)
def test_what_is_wrong_is_found(body: str, rule: str, line: int) -> None:
    assert [(r, n) for r, _, n in found(kernel(body))] == [(rule, line)]


def test_functions_of_the_file_are_followed() -> None:
    helpers = (
        f"__device__ void flush() {{ {QUIET} }}\n__device__ void ring() {{\n{AMO} }}\n"
        "__device__ void again(int n) { if (n) again(n - 1); }\n"
    )
    start = kernel(PUT + "again(3); flush(); ring();")
    assert found(start + helpers) == []
    assert [(r, n) for r, _, n in found(kernel(PUT + "again(3); ring();") + helpers)] == [("unordered-signal", 8)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__global__ void k() { ibgda_get_state(); }", [("no-include", "wrong", 1), ("init-elsewhere", "look", 1)]),
        (
            '#include "mine.cuh"\n__global__ void k() { ibgda_get_state(); }',
            [("no-include", "look", 2), ("init-elsewhere", "look", 2)],
        ),
        (
            "#include <ep/ibgda_shim.cuh>\nvoid f() { init_efa_device_state(16, 1);\nnvshmem_init();\n"
            "ibgda_get_state(); }",
            [("late-init", "wrong", 2)],
        ),
        ('#include "ibgda_device.cuh"', [("old-include", "wrong", 1)]),
        ("__global__ void k(int* p) { *p = 1; }", []),
        ("", []),
        ("__global__ void k() { nvshmemi_ibgda_quiet(", [("no-include", "wrong", 1), ("init-elsewhere", "look", 1)]),
        ("}}} ((( __device__ { if while for ( nvshmemi_ibgda_quiet", [("no-include", "wrong", 1)]),
    ],
)
def test_includes_and_initialisation(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert found(text)[: len(expected)] == expected


def test_the_environment_counts_with_what_the_file_sets() -> None:
    text = kernel(PUT + QUIET + AMO) + 'void env() { setenv("FI_PROVIDER", "efa", 1); }'
    environment = {**READY, "FI_PROVIDER": "tcp", "NVSHMEM_DISABLE_IB": "0", "FI_EFA_USE_DEVICE_RDMA": ""}
    result = migrate.migrate(text, "x.cu", environment)
    assert [f.message.split()[0] for f in result.findings] == ["NVSHMEM_DISABLE_IB", "FI_EFA_USE_DEVICE_RDMA"]
    assert {(f.rule, f.severity, f.line) for f in result.findings} == {("environment", "host", None)}
    assert not result.must_change, "the file is right; the host is another matter"


def test_the_tutorial_is_judged_as_it_says() -> None:
    def rules(name: str) -> dict[str, list[int | None]]:
        path = TUTORIAL / f"{name}.cu"
        lines = path.read_text().splitlines()
        result: dict[str, list[int | None]] = {}
        for f in migrate.migrate_file(path, READY).findings:
            assert f.line is not None and f.source == lines[f.line - 1].strip()
            result.setdefault(f.rule, []).append(f.line)
        return result

    right, broken = rules("03_ibgda_shim"), rules("03_ibgda_shim_broken")
    assert right.keys() == {"init-elsewhere", "quiet-in-loop"}  # rung 1, which rung 2 improves on
    assert len(right["quiet-in-loop"]) == 1
    assert len(broken["unordered-signal"]) == 1


# ---- the scanner -----------------------------------------------------------------------------------------------------
def test_blanking_moves_nothing() -> None:
    text = 'a /* b\n c */ "d\\"e" // f \\\n g\nR"x(h\n)")x" \'"\' i\n#define j \\\n k\nl'
    plain = cuda_source.blank(text)
    assert len(plain) == len(text) and plain.split() == ["a", "i", "l"]
    assert [i for i, c in enumerate(plain) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]


def test_device_functions_are_found() -> None:
    text = (
        "__device__ int table[4];\n__device__ void declared(int);\nvoid host() { f(); }\n"
        "template <typename T>\n__global__ __launch_bounds__(256, 2) void kernel(T (*f)(int)) { f(1); }\n"
        "EP_DEVICE auto helper() -> int { return 1; }\n__device__ int plain() const noexcept { return g(2); }\n"
    )
    functions = cuda_source.functions(text)
    assert [(f.name, f.line, f.is_kernel) for f in functions if f.name != "helper"] == [
        ("kernel", 5, True),
        ("plain", 7, False),
    ]


# ---- the command -----------------------------------------------------------------------------------------------------
def test_the_command_reports_lines_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "old.cu"
    file.write_text(OLD)
    assert cli.main(["migrate", str(file)]) == 1
    said = capsys.readouterr().out
    assert f"wrong  {file}:17: this signal may overtake the data of the put in line 8" in said
    assert f"{file}:2: ibgda_device.cuh" in said and "4 to change in the file." in said


def test_the_command_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in efa_environment.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    file = tmp_path / "new.cu"
    file.write_text(kernel(PUT + QUIET + AMO))
    assert cli.main(["migrate", "--json", str(file)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["must_change"] is False and data["uses_ibgda"] is True
    assert [f["severity"] for f in data["findings"]] == ["host"] * 4
    assert len(data["checklist"]) == 8


def test_a_file_that_has_nothing_to_do_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.cu"
    file.write_text("")
    assert cli.main(["migrate", str(file)]) == 0
    assert "nothing to migrate" in capsys.readouterr().out


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary.cu").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.cu", tmp_path, tmp_path / "binary.cu"):
        assert cli.main(["migrate", str(path)]) == cli.EXIT_ERROR
        heard = capsys.readouterr()
        assert heard.out == "" and "cannot read" in heard.err and str(path) in heard.err.replace("\n  ", "")
