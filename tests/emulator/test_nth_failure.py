"""Every write, compile, allocation and thread made to fail at its n-th call, for all n: told, and all is well after."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import TESTS

import ep_lib
from ep_lib.errors import BackendUnavailable, EpError
from ep_lib.jit import cache, gxx, runtime_library, toolkit, tools
from ep_lib.jit.kernel import Kernel

pytestmark = pytest.mark.slow

SOURCE = 'extern "C" __global__ void first(int* x) { *x = 1; }\n'
WRITES = [
    (os, "fsync"),
    (os, "fdopen"),
    (Path, "mkdir"),
    (Path, "open"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "write_text"),
    (Path, "write_bytes"),
    (subprocess, "Popen"),
]


class Nth:
    """Counts calls of several functions, and makes the one with a certain number fail."""

    def __init__(self, number: int | None, error: Callable[[], BaseException]) -> None:
        self.number, self.error, self.calls = number, error, 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if function.__name__ == "open" and "r" in str(options.get("mode", args[1:] or "r")):
                return function(*args, **options)
            self.calls += 1
            if self.calls == self.number:
                raise self.error()
            return function(*args, **options)

        return counted


def _no_space() -> OSError:
    return OSError(28, "No space left on device")


def _written(command: Sequence[str]) -> list[Path]:
    """The files that the compiler writes: what it makes, and what it says of its own work."""
    dumps = [word.partition("=")[2] for word in command if word.startswith("-fdump-")]
    return [Path(command[command.index("-o") + 1]), *map(Path, dumps)]


@pytest.fixture(scope="module")
def recorded() -> dict[str, bytes]:
    """What the compiler made of the kernel, by the name of the file: it need not run a hundred times."""
    made: dict[str, bytes] = {}
    real = tools.run

    def record(command: Sequence[str]) -> tuple[int, str]:
        outcome = real(command)
        for target in _written(command):
            made[target.name] = target.read_bytes()
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "run", record)
        Kernel.from_source(SOURCE + f"// {uuid.uuid4()}\n", "first").compile()
    return made


@pytest.fixture
def fresh(tmp_path: Path, recorded: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """fresh(): an empty cache, but for the emulator; the compiler gives what was recorded."""
    sources = [path for kind in ("runtime", "prelude") for path in (cache.cache_dir() / kind).glob("[!.]*")]
    current = {runtime_library.build_runtime().parent.name, gxx._prelude(toolkit.find_compiler(), False).name}
    support = gxx._support(toolkit.find_compiler()).read_bytes()
    number = iter(range(10_000))

    def replay(command: Sequence[str]) -> tuple[int, str]:
        for target in _written(command):
            target.write_bytes(support if target.name == "support.o" else recorded[target.name])
        return 0, ""

    def make() -> Path:
        folder = tmp_path / f"cache{next(number)}"
        for path in sources:
            if path.name in current:
                shutil.copytree(path, folder / path.parent.name / path.name, copy_function=os.link)
        monkeypatch.setenv("EP_LIB_CACHE_DIR", str(folder))
        monkeypatch.setattr(cache, "_sound", {})
        return folder

    monkeypatch.setattr(tools, "run", replay)
    return make


@contextlib.contextmanager
def failing(number: int | None, error: Callable[[], BaseException], places: Sequence[tuple[Any, str]]) -> Iterator[Nth]:
    nth = Nth(number, error)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, nth.wrap(getattr(owner, name)))
        yield nth


def compile_kernel() -> bytes:
    return Kernel.from_source(SOURCE, "first").compile().path.read_bytes()


def half_made(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/.*") if path.is_dir()]


def test_every_write_that_fails_is_told_and_leaves_no_damage(fresh: Callable[[], Path]) -> None:
    fresh()
    with failing(None, _no_space, WRITES) as all_of_them:
        right = compile_kernel()
    assert all_of_them.calls > 10
    told = 0
    for number in range(1, all_of_them.calls + 1):
        folder = fresh()
        with failing(number, _no_space, WRITES) as nth:
            try:
                assert compile_kernel() == right  # what only saves time may fail
            except BackendUnavailable as error:
                assert "No space left" in str(error)
                told += 1
        assert nth.calls >= number
        assert not half_made(folder)
        assert compile_kernel() == right
    assert told > 5


@pytest.mark.parametrize(
    "said",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "as: out of memory allocating 4072 bytes",
        "collect2: fatal error: cannot find 'ld'",
    ],
)
def test_every_compile_that_fails_is_told_and_works_again(said: str, fresh: Callable[[], Path]) -> None:
    fresh()
    with failing(None, _no_space, [(tools, "run")]) as all_of_them:
        right = compile_kernel()
    for number in range(1, all_of_them.calls + 1):
        folder = fresh()
        real, calls = tools.run, iter(range(1, 100))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tools, "run", lambda command: (1, said) if next(calls) == number else real(command))  # noqa: B023
            with pytest.raises(EpError):
                compile_kernel()
        assert not half_made(folder)
        assert compile_kernel() == right


def test_an_interrupt_at_any_write_leaves_no_damage(fresh: Callable[[], Path]) -> None:
    fresh()
    with failing(None, KeyboardInterrupt, WRITES) as all_of_them:
        right = compile_kernel()
    for number in range(1, all_of_them.calls + 1, 3):
        folder = fresh()
        with failing(number, KeyboardInterrupt, WRITES), contextlib.suppress(KeyboardInterrupt):
            compile_kernel()
        assert not half_made(folder)
        assert compile_kernel() == right


# ---- memory, threads, copies of libraries ----------------------------------------------------------------------------
@pytest.mark.extended
@pytest.mark.skipif(bool(os.environ.get("LD_PRELOAD")), reason="something else is preloaded: the sanitizers")
def test_every_allocation_of_the_emulator_that_fails_is_told(tmp_path: Path, rounds: int) -> None:
    preloaded = tmp_path / "no_memory.so"
    source = TESTS / "support" / "no_memory.cpp"
    subprocess.run(["g++", "-O1", "-fPIC", "-shared", "-o", preloaded, source, "-ldl"], check=True)
    program = TESTS / "programs" / "no_memory.py"
    every = 1 if rounds > 10 else 8  # of the many allocations under the checker
    done = subprocess.run(
        [sys.executable, "-P", program, preloaded, str(every)],
        env={**os.environ, "LD_PRELOAD": str(preloaded)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for found in json.loads(done.stdout.splitlines()[-1]):
        assert found["calls"] > 100
        assert found["told"] == found["tried"]
        assert not found["wrong"]


def _no_thread() -> RuntimeError:
    return RuntimeError("can't start new thread")


def test_every_thread_that_does_not_start_is_told() -> None:
    def spawn() -> list[int]:
        return ep_lib.spawn(lambda rank: rank.rank, 4, "emulator")

    with failing(None, _no_thread, [(threading.Thread, "start")]) as all_of_them:
        assert spawn() == [0, 1, 2, 3]
    before = threading.active_count()
    for number in range(1, all_of_them.calls + 1):
        with (
            failing(number, _no_thread, [(threading.Thread, "start")]),
            pytest.raises(BackendUnavailable, match=r"another thread.*ulimit -u"),
        ):
            spawn()
        assert spawn() == [0, 1, 2, 3]
    assert threading.active_count() == before


def test_a_kernel_with_variables_that_cannot_be_copied_is_told() -> None:
    kernel = Kernel.from_source(
        '__device__ int calls; extern "C" __global__ void count(int* x) { *x = ++calls; }', "count"
    )

    def main(rank: ep_lib.Rank) -> int:
        array = rank.symmetric(1, np.int32)
        kernel.launch(rank, 1, 1, array)
        return int(rank.to_host(array)[0])

    assert ep_lib.spawn(main, 2, "emulator") == [1, 1]
    for place in ((os, "memfd_create"), (os, "fdopen")):
        for number in (1, 2):
            with (
                failing(number, _no_space, [place]),
                pytest.raises(BackendUnavailable, match="cannot be copied in memory"),
            ):
                ep_lib.spawn(main, 2, "emulator")
    assert ep_lib.spawn(main, 2, "emulator") == [1, 1]
