"""Compiles the emulator's runtime, and other libraries of this process, with g++ or clang++."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ep_lib import processes
from ep_lib.jit import cache, digest, toolkit, tools
from ep_lib.jit.toolkit import Compiler

if TYPE_CHECKING:
    from concurrent.futures import Future

# Lines and inlined functions, but no places of variables: those would take almost half of a compilation.
LINES = ["-g1", "-fno-var-tracking"]
_FLAGS = [
    "-std=c++17",
    "-O2",
    "-U_FORTIFY_SOURCE",
    *LINES,
    "-fPIC",
    "-fno-strict-aliasing",
    "-pthread",
    "-w",
    "-fdiagnostics-color=never",
]
_LINK_FLAGS = ["-shared", "-pthread"]
_HEADERS = "precompiled.hpp"
_HEADERS_PAY = 8  # files to compile; parsing the headers costs as much as six files save
_ROOTS = [toolkit.RUNTIME_SOURCES, toolkit.EMULATOR_INCLUDE, toolkit.DEVICE_INCLUDE]


def build_runtime() -> Path:
    """The emulator's C++ runtime as a shared library, compiled at first use and cached.

    The first build takes most of a minute of CPU time; checkouts of the same source share it. Each file is cached by
    itself: a build continues after an interruption, and a changed file is compiled alone.
    """
    compiler = toolkit.find_compiler()
    sources = sorted(name for name in os.listdir(toolkit.RUNTIME_SOURCES) if name.endswith(".cpp"))  # noqa: PTH208
    key = _key(compiler, sources)
    name = f"libepemu-{key[:12]}.so"

    def build(folder: Path, _: Path) -> None:
        # Imported here: most processes find the runtime in the cache.
        from concurrent.futures import FIRST_COMPLETED, wait

        from tqdm import tqdm

        with (
            processes.temporary_folder(".headers-", folder) as place,
            processes.stoppable_threads(os.cpu_count() or 2) as pool,
        ):
            headers = pool.submit(_headers, compiler, place) if _headers_pay(compiler, sources) else None
            # The longest first: they start while the headers are compiled, and gain least from them.
            by_length = sorted(sources, key=lambda source: -(toolkit.RUNTIME_SOURCES / source).stat().st_size)
            running = {source: pool.submit(_object, compiler, source, headers) for source in by_length}
            what, stream = "compiling the emulator, once for this version", _watched_stream()
            waiting = {*running.values(), *([headers] if headers is not None else [])}
            if stream is None:
                cache.say(f"{what} (about a minute)")
            with tqdm(desc=what, total=len(waiting), unit="file", file=stream, disable=stream is None) as bar:
                while waiting:
                    done, waiting = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    bar.update(len(done))
                    bar.refresh()  # updates the time while no file is finished
        objects = [str(running[source].result()) for source in sources]
        command = [compiler.path, *_LINK_FLAGS, *tools.sanitizer(), *objects, "-ldl", "-o", str(folder / name)]
        tools.build(command, "the emulator", folder / name)

    return cache.entry("runtime", key, name, build) / name


def build_host_library(
    name: str, folder: Path, *, includes: Sequence[Path] = (), libraries: Sequence[str] = ()
) -> Path:
    """All C++ files of ``folder`` as one shared library of this process, compiled at first use and cached. They may
    include the structs that host and kernels share, as ``<ep/...>``, and headers in ``includes``."""
    compiler, sources = toolkit.find_compiler(), sorted(folder.glob("*.cpp"))
    roots = [folder, toolkit.DEVICE_INCLUDE, *includes]
    headers = digest.scan("".join(f"#include <{s.name}>\n" for s in sources), roots, home=toolkit.PACKAGE)
    flags = [*_FLAGS, *_LINK_FLAGS, *tools.sanitizer()]
    linked = [f"-l{library}" for library in ("dl", *libraries)]
    key = digest.key(headers, [name, *linked, toolkit.library_version(), compiler.path, compiler.identity, *flags])
    library = f"lib{name}-{key[:12]}.so"

    def build(place: Path, _: Path) -> None:
        options = [*flags, *(f"-I{root}" for root in roots)]
        command = [compiler.path, *options, *map(str, sources), *linked, "-o", str(place / library)]
        tools.build(command, f"the library {name}", place / library)

    return cache.entry("host", key, library, build) / library


def _key(compiler: Compiler, sources: Sequence[str]) -> str:
    text = "".join(f"#include <{name}>\n" for name in (_HEADERS, *sources))
    headers = digest.scan(text, _ROOTS, home=toolkit.PACKAGE)
    flags = [*_FLAGS, *_LINK_FLAGS, *tools.sanitizer()]
    return digest.key(headers, ["runtime", toolkit.library_version(), compiler.path, compiler.identity, *flags])


def _headers_pay(compiler: Compiler, sources: Sequence[str]) -> bool:
    """Whether enough files need compiling to parse their headers first. Never with clang++."""
    places = cache.places()
    keys = (_key(compiler, [source]) for source in sources)
    missing = sum(not any((place / "object" / key).is_dir() for place in places) for key in keys)
    return not compiler.is_clang and missing >= _HEADERS_PAY


def _headers(compiler: Compiler, place: Path) -> Path:
    """Precompiles the headers of most runtime files; returns the header for -include."""
    header = place / _HEADERS
    # For a g++ that rejects the precompiled header because of other options, as in benchmarks/covered.py.
    header.write_text(f"#include <{_HEADERS}>\n", encoding="utf-8")
    target = place / f"{_HEADERS}.gch"
    source = toolkit.RUNTIME_SOURCES / _HEADERS
    tools.build([*_command(compiler), "-x", "c++-header", str(source), "-o", str(target)], "the emulator", target)
    return header


def _command(compiler: Compiler) -> list[str]:
    """The command for the runtime. Its output does not contain the sources' folder, so that checkouts can share it."""
    same_everywhere = f"-ffile-prefix-map={toolkit.PACKAGE}=ep_lib"
    includes = (f"-I{root}" for root in _ROOTS)
    return [compiler.path, *_FLAGS, *tools.sanitizer(), same_everywhere, *includes]


def _object(compiler: Compiler, source: str, headers: Future[Path] | None = None) -> Path:
    """One file of the runtime, compiled: quicker with precompiled ``headers``, to the same code."""

    def build(folder: Path, _: Path) -> None:
        target = folder / "runtime.o"
        parsed = ["-include", str(headers.result())] if headers is not None and headers.done() else []
        what = ["-c", str(toolkit.RUNTIME_SOURCES / source), "-o", str(target)]
        tools.build([*_command(compiler), *parsed, *what], "the emulator", target)

    return cache.entry("object", _key(compiler, [source]), "runtime.o", build) / "runtime.o"


def _watched_stream() -> TextIO | None:
    """The stream for a progress bar: a terminal, or a notebook's stdout (its stderr has a red background)."""
    if sys.stderr is not None and sys.stderr.isatty():
        return sys.stderr
    return sys.stdout if type(sys.stdout).__module__.startswith("ipykernel.") else None
