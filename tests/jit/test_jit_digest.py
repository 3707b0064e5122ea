"""The cache key of a kernel changes with everything that a compiler would see, and with nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ep_lib.jit import cache, digest, gxx, runtime_library, toolkit
from ep_lib.jit.kernel import Kernel

SOURCE = '#include <mine.cuh>\n#include "beside.cuh"\n__global__ void k(int* p) { *p = MINE + BESIDE; }\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("src", "first", "second"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src/k.cu").write_text(SOURCE)
    (tmp_path / "src/beside.cuh").write_text("#define BESIDE 1\n")
    (tmp_path / "second/mine.cuh").write_text("#include <deep.cuh>\n#define MINE DEEP\n")
    (tmp_path / "second/deep.cuh").write_text("#define DEEP 1\n")
    return tmp_path


def key(project: Path, name: str = "k", **options: object) -> str:
    arguments = {"include": [project / "first", project / "second"], **options}
    return gxx.cache_key(Kernel.from_file(project / "src/k.cu", name, **arguments))  # type: ignore[arg-type]


def test_the_same_kernel_has_the_same_key(project: Path) -> None:
    before = key(project, defines={"A": 1})
    later = time.time_ns() + 10**9
    os.utime(project / "src/k.cu", ns=(later, later))
    os.utime(project / "second/deep.cuh", ns=(later, later))
    assert key(project, defines={"A": 1}) == before


def _edit(path: str, text: str) -> Callable[[Path], None]:
    def change(project: Path) -> None:
        (project / path).write_text(text)

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_edit("src/k.cu", SOURCE + " "), id="the source"),
        pytest.param(_edit("src/beside.cuh", "#define BESIDE 2\n"), id="a header next to the source, same size"),
        pytest.param(_edit("second/mine.cuh", "#include <deep.cuh>\n#define MINE 0\n"), id="a header of the learner"),
        pytest.param(_edit("second/deep.cuh", "#define DEEP 2\n"), id="a header that a header includes"),
        pytest.param(_edit("first/mine.cuh", "#define MINE 3\n"), id="a header that appears in an earlier root"),
        pytest.param(_edit("first/deep.cuh", "#define DEEP 1\n"), id="the same, deeper, with the same content"),
        pytest.param(_edit("first/cuda_fp16.h", ""), id="a header that shadows one of ep_lib or CUDA"),
    ],
)
def test_changed_files_change_the_key(project: Path, change: Callable[[Path], None]) -> None:
    (project / "src/beside.cuh").write_text("#define BESIDE 1\n#include <cuda_fp16.h>\n")
    before = key(project)
    change(project)
    assert key(project) != before


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"name": "k<int>"}, id="the kernel's name"),
        pytest.param({"defines": {"A": 2}}, id="the value of a define"),
        pytest.param({"defines": {"A": 1, "B": None}}, id="one more define"),
        pytest.param({"options": ["-DB"]}, id="a define among the options"),
    ],
)
def test_changed_arguments_change_the_key(project: Path, options: dict[str, object]) -> None:
    assert key(project, **{"defines": {"A": 1}, **options}) != key(project, defines={"A": 1})  # type: ignore[arg-type]


def test_the_order_of_include_roots_counts(project: Path) -> None:
    assert key(project) != key(project, include=[project / "second", project / "first"])


def test_compiler_and_library_version_count(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(project)
    compiler = toolkit.find_compiler()
    other = toolkit.Compiler(compiler.path, compiler.identity + " patched", compiler.is_clang)
    monkeypatch.setattr(toolkit, "find_compiler", lambda: other)
    monkeypatch.setattr(runtime_library, "build_runtime", lambda: Path("runtime.so"))  # do not build another one
    patched = key(project)
    monkeypatch.setattr(toolkit, "library_version", lambda: "0.0.0+test")
    assert len({before, patched, key(project)}) == 3


def test_headers_that_change_within_one_tick_are_read_again(tmp_path: Path) -> None:
    header = tmp_path / "fast.cuh"
    digests = set()
    for version in range(5):
        header.write_text(f"#define V {version}\n")
        digests.add(digest.scan("#include <fast.cuh>\n", [tmp_path]).digest)
    assert len(digests) == 5


def test_includes_through_macros_and_conditions_count(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("")
    (tmp_path / "b.cuh").write_text("#  include <c.cuh> // comment\n#pragma once\n")
    (tmp_path / "c.cuh").write_text('#include "b.cuh"\n')  # a cycle
    text = "#define WHICH <a.cuh>\n#include WHICH\n#if __has_include(<b.cuh>)\n#endif\n"
    headers = digest.scan(text, [tmp_path])
    assert [Path(file).name for file in headers.files] == ["a.cuh", "b.cuh", "c.cuh"]


def test_a_macro_may_be_a_text_that_no_file_is_called_by(tmp_path: Path) -> None:
    (tmp_path / "long.h").write_text(f'#define BUILT_WITH "{"a/" + "OPTION=OFF " * 500}/b"\n')  # as nvshmem_version.h
    assert digest.scan('#include "long.h"\n', [tmp_path]).files == (str(tmp_path / "long.h"),)


def test_settled_roots_are_remembered_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "cuda"
    root.mkdir()
    header = root / "big.h"
    header.write_text("#define BIG 1\n")
    past = time.time_ns() - 10**10
    os.utime(header, ns=(past, past))
    time.sleep(0.06)  # until the time of the change, which utime cannot set, counts as past
    first = digest.scan("#include <big.h>\n", [], [root])
    stored = list((cache.cache_dir() / "headers").glob("*.json"))
    assert len(stored) == 1 and "big.h" in stored[0].read_text()
    header.write_text("#define BIG 2\n")
    monkeypatch.setattr(digest, "_walks", digest.Recent(8))  # as in a new process
    assert digest.scan("#include <big.h>\n", [], [root]).digest != first.digest
    stored[0].write_text("{ not json")  # what is broken is read anew
    monkeypatch.setattr(digest._Store, "_loaded", {})
    monkeypatch.setattr(digest, "_walks", digest.Recent(8))
    assert digest.scan("#include <big.h>\n", [], [root]).files == (str(header),)


def test_a_walk_is_made_again_when_an_earlier_root_gets_the_header(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "ep").mkdir(parents=True)
    header = second / "ep" / "a.cuh"
    header.write_text("#define A 2\n")
    time.sleep(0.06)  # so that it is remembered
    before = digest.scan("#include <ep/a.cuh>\n", [first, second])
    assert digest.scan("#include <ep/a.cuh>\n", [first, second]) == before
    (first / "ep" / "a.cuh").write_text("#define A 1\n")
    assert digest.scan("#include <ep/a.cuh>\n", [first, second]).files == (str(first / "ep" / "a.cuh"),)


def test_a_process_remembers_what_it_used_last() -> None:
    recent: digest.Recent[str, int] = digest.Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (1, None, 3, 2)
