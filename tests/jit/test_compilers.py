"""Compilers that are too old, lie, hang or fail: one sentence says what to install, and blames no kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import ROOT

from ep_lib.commands import doctor
from ep_lib.emulator import library
from ep_lib.errors import BackendUnavailable
from ep_lib.jit import runtime_library, toolkit
from ep_lib.jit.kernel import Kernel

LEAST = f"g++ {toolkit.OLDEST_GCC} or clang++ {toolkit.OLDEST_CLANG}, or a newer one"
SAYS_IT_IS_GCC_13 = 'case "$*" in --version) echo "g++ (GCC) 13.2.0";; *-E*) {answer};; *) {work};; esac'


def program(tmp_path: Path, script: str) -> str:
    path = tmp_path / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """chosen(script): EP_LIB_CXX names a program that runs it."""

    def choose(script: str) -> str:
        path = program(tmp_path, script)
        monkeypatch.setenv("EP_LIB_CXX", path)
        return path

    monkeypatch.setattr(toolkit, "_QUESTION_IDLE_S", 0.3)
    yield choose
    toolkit._identify.cache_clear()


ANSWERS = {
    "g++ 9": ("echo ep_lib_compiler gpp 9 4", "is g++ 9.4, which is too old"),
    "g++ 10": ("echo ep_lib_compiler gpp 10 2", "is g++ 10.2, which is too old"),
    "clang++ 13": ("echo ep_lib_compiler clangpp 13 0", "is clang++ 13.0, which is too old"),
    "silent": ("true", "is no C++ compiler that the emulator knows"),
    "babbling": ("echo hello world", "is no C++ compiler that the emulator knows"),
    "binary": ("printf '\\377\\376ep_lib_compiler gpp 13'", "is no C++ compiler that the emulator knows"),
    "failing": ("echo no such option >&2; exit 4", "(no such option)"),
    "killed": ("kill -9 $$", "is no C++ compiler that the emulator knows (exit code -9)"),
    "hanging": ("sleep 1000", "does not say what it is: it did nothing for 0.3 s"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_compiler_that_cannot_work_is_one_sentence(name: str, chosen) -> None:  # type: ignore[no-untyped-def]
    answer, says = ANSWERS[name]
    path = chosen(SAYS_IT_IS_GCC_13.format(answer=answer, work="exit 1"))
    with pytest.raises(BackendUnavailable) as caught:
        Kernel.from_source("__global__ void k() {}", "k").compile()
    text = str(caught.value)
    assert path in text and says in text and "\n" not in text
    assert name == "hanging" or LEAST in text.replace("it needs ", "") or LEAST in text
    finding = doctor._compiler()
    assert finding.status == "missing" and finding.detail == text


WORK = {
    "writes nothing": ("exit 0", "written nothing"),
    "writes text": ('while [ "$1" != -o ]; do shift; done; echo hello > "$2"', "no machine code"),
    "runs out of memory": (
        "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1",
        "Killed signal",
    ),
    "is killed": ("kill -9 $$", "killed signal"),
    "has no room": ("echo 'fatal error: error writing to /tmp/x.s: No space left on device'; exit 1", "No space left"),
    "breaks": ("echo 'internal compiler error: Segmentation fault'; exit 1", "internal compiler error"),
}


@pytest.mark.parametrize("name", WORK)
def test_a_compiler_that_fails_is_not_the_kernels_fault(name: str, chosen) -> None:  # type: ignore[no-untyped-def]
    work, says = WORK[name]
    path = chosen(SAYS_IT_IS_GCC_13.format(answer="echo ep_lib_compiler gpp 13 2", work=work))
    with pytest.raises(BackendUnavailable, match=re.escape(says)) as caught:
        Kernel.from_source("__global__ void k() {}", "k").compile()
    assert path in str(caught.value)


def test_a_wrong_kernel_is_still_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    source = '__global__ void k() { "out of memory" + error; }'
    with pytest.raises(Exception, match="error") as caught:
        Kernel.from_source(source, "k").compile()
    assert type(caught.value).__name__ == "KernelCompileError"


def test_the_second_compiler_serves_where_the_first_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EP_LIB_CXX", raising=False)
    old = program(tmp_path, "echo ep_lib_compiler gpp 8 1")
    new = tmp_path / "clang++"
    new.write_text("#!/bin/sh\necho ep_lib_compiler clangpp 17 0\n")
    new.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: {"g++": old, "clang++": str(new)}[name])
    assert toolkit.find_compiler().path == str(new) and toolkit.find_compiler().is_clang


def test_an_emulator_that_cannot_be_loaded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcc in place of g++ links no C++ library, and says nothing."""
    (tmp_path / "libepemu.so").write_bytes(b"\x7fELF of another machine")
    monkeypatch.setattr(runtime_library, "build_runtime", lambda: tmp_path / "libepemu.so")
    with pytest.raises(BackendUnavailable, match=r"cannot be loaded .* is that a C"):
        library.load.__wrapped__()
    monkeypatch.setattr(runtime_library, "build_runtime", lambda: Path("libm.so.6"))
    with pytest.raises(BackendUnavailable, match=r"cannot be loaded .*epemu_"):
        library.load.__wrapped__()


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("ep_lib gnu 10", False),
        ("ep_lib gnu 11", True),
        ("ep_lib clang 13", False),
        ("ep_lib clang 14", True),
        ("nonsense", False),
    ],
)
def test_preflight_asks_for_the_same_versions(answer: str, passes: bool, tmp_path: Path) -> None:
    compiler = program(tmp_path, f"echo {answer}")
    done = subprocess.run(
        ["sh", str(ROOT / ".ci/preflight.sh"), "python3"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "EP_LIB_CXX": compiler},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == passes, done.stderr
    assert passes or f"the emulator needs {LEAST}" in done.stderr


def test_readme_and_conda_name_the_same_versions() -> None:
    assert f"g++ {toolkit.OLDEST_GCC} or clang++ {toolkit.OLDEST_CLANG}, or newer" in (ROOT / "README.md").read_text()
    (gxx_of_conda,) = re.findall(r"gxx>=(\d+)", (ROOT / "environment.yml").read_text())
    assert int(gxx_of_conda) >= toolkit.OLDEST_GCC
