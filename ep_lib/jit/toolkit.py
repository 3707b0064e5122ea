"""Finds the tools that compile kernels on this machine: the C++ compiler, CUDA's headers and NVRTC."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ep_lib import processes
from ep_lib.config import Config
from ep_lib.errors import BackendUnavailable
from ep_lib.jit import cache
from ep_lib.version import __version__

PACKAGE = Path(__file__).resolve().parent.parent
DEVICE_INCLUDE = PACKAGE / "device"
DEVICE_ROOTS = (DEVICE_INCLUDE, PACKAGE)  # <ep/...>, and <moe/...> of dispatch and combine
COUNTING_INCLUDE = DEVICE_INCLUDE / "counting"  # before DEVICE_INCLUDE where a learner's pieces count
# The default <ep/transport.cuh>: of GPUs, and of the emulator
P2P_TRANSPORT, EMULATED_TRANSPORT = PACKAGE / "transports" / "p2p", PACKAGE / "transports" / "emulated"
EMULATOR_INCLUDE = PACKAGE / "emulator" / "include"
RUNTIME_SOURCES = PACKAGE / "emulator" / "runtime"


def library_version() -> str:
    """ep_lib's version, a part of every cache key."""
    return __version__


# The oldest versions that compile the emulator; also named in README.md, .ci/preflight.sh and environment.yml.
OLDEST_GCC, OLDEST_CLANG = 11, 14
_QUESTION_CPU_S, _QUESTION_IDLE_S = 30.0, 30.0  # a compiler's limits for identifying itself


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler. ``identity``: its version text and the values of its macros, part of every cache key."""

    path: str
    identity: str
    is_clang: bool


def find_compiler() -> Compiler:
    """The C++ compiler: ``$EP_LIB_CXX`` (a name or a path), else g++, else clang++, whichever is new enough.

    Raises :class:`BackendUnavailable` with the package to install.
    """
    chosen = Config.from_environment().cxx
    refused: BackendUnavailable | None = None
    for name in [chosen] if chosen else ["g++", "clang++"]:
        if path := shutil.which(name):
            try:
                return _checked(path)
            except BackendUnavailable as error:
                refused = refused or error
    if refused is not None:
        raise refused
    if chosen:
        raise BackendUnavailable(
            f"EP_LIB_CXX names the compiler {chosen!r}, which is not on the PATH: install it or unset EP_LIB_CXX"
        )
    raise BackendUnavailable(
        "the emulator needs a C++ compiler, and neither g++ nor clang++ is on the PATH: install one "
        "(Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`; conda: `conda install gxx`)"
    )


def _checked(path: str) -> Compiler:
    """A C++ compiler that is new enough by its macros: the name of its command may mislead."""
    status = Path(path).stat()
    found = _identify(path, status.st_mtime_ns, status.st_size, is_cpp=True)
    macros = _macros(found.identity)
    if macros is None:
        raise BackendUnavailable(
            f"{path} is no C++ compiler that the emulator knows: it needs g++ {OLDEST_GCC} or clang++ {OLDEST_CLANG}, "
            f"or a newer one; EP_LIB_CXX names it"
        )
    name, major, version = macros
    if major < (OLDEST_CLANG if name == "clang++" else OLDEST_GCC):
        raise BackendUnavailable(
            f"{path} is {name} {version}, which is too old: the emulator needs g++ {OLDEST_GCC} or clang++ "
            f"{OLDEST_CLANG}, or a newer one; install it, and name it by EP_LIB_CXX if it is not the first on the PATH"
        )
    return found


def _macros(identity: str) -> tuple[str, int, str] | None:
    """Name, major and full version, from the answer to :data:`_QUESTION` at an identity's end."""
    found = re.search(rf"^{_ANSWER} (clang|g)pp (\d+) (\d+)$", identity, re.MULTILINE)
    if found is None:
        return None
    name, major, minor = found.groups()
    return f"{name}++", int(major), f"{major}.{minor}"


@functools.cache
def is_of_the_host(header: str) -> bool:
    """Whether there is a C++ compiler with such a header of its own."""
    try:
        path = find_compiler().path
        done = processes.run(
            [path, "-x", "c++", "-E", "-"],
            cpu_s=_QUESTION_CPU_S,
            idle_s=_QUESTION_IDLE_S,
            stdin=f"#include <{header}>\n",
        )
    except (BackendUnavailable, OSError, processes.TookTooLong):
        return False
    return done.returncode == 0


_ANSWER = "ep_lib_compiler"
_QUESTION = f"""#ifndef __cplusplus
#error this compiles C
#endif
#if defined(__NVCC__) || defined(__INTEL_COMPILER)
#error neither g++ nor clang++
#elif defined(__clang__)
{_ANSWER} clangpp __clang_major__ __clang_minor__
#else
{_ANSWER} gpp __GNUC__ __GNUC_MINOR__
#endif
"""


def find_nvcc() -> Compiler | None:
    """nvcc on the PATH, else that of ``$CUDA_HOME``, else that of /usr/local/cuda; None where there is none."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    for path in (shutil.which("nvcc"), *(shutil.which("nvcc", path=f"{home}/bin") for home in homes if home)):
        if path:
            status = Path(path).stat()
            return _identify(path, status.st_mtime_ns, status.st_size, is_cpp=False)
    return None


@functools.lru_cache(maxsize=8)
def _identify(path: str, mtime_ns: int, size: int, *, is_cpp: bool) -> Compiler:
    """Identifies a compiler; the cache directory keeps the answer, since starting a compiler takes milliseconds."""
    real = str(Path(path).resolve())
    known_as = hashlib.sha256(f"{path}\n{real}\n{mtime_ns}\n{size}\n{is_cpp}\n{_QUESTION}".encode()).hexdigest()[:32]
    note = cache.cache_dir() / "compilers" / known_as
    known = cache.read_note(note)
    if known is None:
        identity = _answer([path, "--version"])
        if is_cpp:
            identity += "\n" + _answer([path, "-std=c++17", "-E", "-P", "-x", "c++", "-"], _QUESTION)
        cache.write_note(note, identity.encode())
    else:
        identity = known.decode()
    macros = _macros(identity)
    return Compiler(path, identity, is_clang=macros is not None and macros[0] == "clang++")


def _answer(command: list[str], stdin: str | None = None) -> str:
    """A compiler's output. Raises BackendUnavailable if there is none."""
    try:
        done = processes.run(command, cpu_s=_QUESTION_CPU_S, idle_s=_QUESTION_IDLE_S, stdin=stdin)
    except (OSError, processes.TookTooLong) as error:
        raise BackendUnavailable(f"the compiler {command[0]} does not say what it is: it {error}") from error
    if done.returncode != 0:
        why = next((line for line in done.stderr.splitlines() if line.strip()), f"exit code {done.returncode}")
        raise BackendUnavailable(
            f"{command[0]} is no C++ compiler that the emulator knows ({why[:200]}): it needs g++ {OLDEST_GCC} or "
            f"clang++ {OLDEST_CLANG}, or a newer one; EP_LIB_CXX names it"
        )
    return done.stdout.strip()


@dataclass(frozen=True)
class Nvrtc:
    """An NVRTC: the libraries to load, in order, and its version, "13.0". ``identity`` goes into cache keys."""

    libraries: tuple[str, ...]
    version: str
    identity: str


_NVRTC = re.compile(r"libnvrtc\.so\.(\d+)(?!\S)")
_BUILTINS = re.compile(r"libnvrtc-builtins\.so\.(\d+\.\d+)(?!\S)")


@functools.lru_cache(maxsize=1)
def find_nvrtc() -> Nvrtc | None:
    """NVRTC of a wheel (nvidia-cuda-nvrtc, or its -cu12 form), else of a CUDA toolkit; None if there is none. Does not
    load it. Of two wheels, the one of CuPy's CUDA version, since CuPy will load the kernels."""
    wheels = [site / lib for site in nvidia_sites() for lib in ("cu13/lib", "cuda_nvrtc/lib")]
    found = [nvrtc for folder in wheels if (nvrtc := _nvrtc_in(folder))]
    if len(found) > 1:
        from importlib import metadata  # imported here: it takes a tenth of the time of `import ep_lib`

        if any(metadata.distributions(name="cupy-cuda12x")):
            found.reverse()
    if not found:
        homes = [include.parent for include in toolkit_include_dirs()]
        found = [nvrtc for home in homes for lib in ("lib64", "lib") if (nvrtc := _nvrtc_in(home / lib))]
    return found[0] if found else None


def _nvrtc_in(folder: Path) -> Nvrtc | None:
    text = " ".join(sorted(_top_level(folder)))
    if (name := _NVRTC.search(text)) is None:
        return None
    builtins = _BUILTINS.search(text)  # NVRTC itself uses the loader's search path
    version = builtins[1] if builtins else name[1]
    libraries = [str(folder / found[0]) for found in (builtins, name) if found]
    return Nvrtc(tuple(libraries), version, f"NVRTC {version} {(folder / name[0]).stat().st_size}")


def _top_level(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - every process that compiles calls this
    except OSError:
        return []


def nvrtc_include() -> Path:
    """A folder with <stdint.h> and the like, which NVRTC lacks: the parts of device/nvrtc_headers.cuh, a file each."""
    text = (DEVICE_INCLUDE / "nvrtc_headers.cuh").read_text(encoding="utf-8")

    def build(folder: Path, _: Path) -> None:
        for part in text.split("// ==== ")[1:]:
            name, content = part.split("\n", 1)
            (folder / name).write_text(f"#pragma once\n{content}", encoding="utf-8")

    return cache.entry("nvrtc-headers", hashlib.sha256(b"2" + text.encode()).hexdigest()[:32], "stdint.h", build)


@functools.lru_cache(maxsize=1)
def cuda_include_dirs() -> tuple[Path, ...]:
    """Folders with CUDA's headers and libcu++ (CCCL), in order; empty when there are none.

    Looks at the pip wheels (nvidia-cuda-runtime, -crt, -cccl; then their -cu12 forms), then ``$CUDA_HOME`` or
    ``$CUDA_PATH``, then where nvcc is on the PATH, then /usr/local/cuda.
    """
    found = _wheel_include_dirs()
    homes = toolkit_include_dirs()
    if not _have(found, "cuda_fp16.h"):
        found = next(([home, home / "cccl"] for home in homes if _have([home], "cuda_fp16.h")), [])
    if found and not _have(found, "crt/host_config.h"):  # <cuda_runtime.h> needs it: nvidia-cuda-crt, or a toolkit's
        found += [home for home in homes if _have([home], "crt/host_config.h")][:1]
    if found and not _have(found, "cuda/std/cstddef"):
        # torch installs nvidia-cuda-runtime without nvidia-cuda-cccl: use a toolkit's CCCL, else CuPy's own copy.
        others = [folder for home in homes for folder in (home, home / "cccl")] + _cupy_cccl_dirs()
        found += [folder for folder in others if _have([folder], "cuda/std/cstddef")][:1]
    return tuple(folder for folder in found if folder.is_dir())


def _have(folders: list[Path], header: str) -> bool:
    return any((folder / header).exists() for folder in folders)


def toolkit_include_dirs() -> list[Path]:
    """The include folders of CUDA toolkits: ``$CUDA_HOME``, ``$CUDA_PATH``, nvcc's, /usr/local/cuda."""
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    homes += [str(Path(nvcc).resolve().parent.parent) if nvcc else None, "/usr/local/cuda"]
    return [Path(home, "include") for home in homes if home]


def _cupy_cccl_dirs() -> list[Path]:
    spec = importlib.util.find_spec("cupy")
    sites = spec.submodule_search_locations or [] if spec else []
    return [Path(site, "_core", "include", "cupy", "_cccl", "libcudacxx") for site in sites]


@functools.cache
def nvidia_sites() -> list[Path]:
    """The folders that pip's wheels of NVIDIA share."""
    spec = importlib.util.find_spec("nvidia")  # a namespace package: nothing is executed
    return [Path(site) for site in spec.submodule_search_locations or []] if spec else []


def _wheel_include_dirs() -> list[Path]:
    for root in nvidia_sites():
        include = root / "cu13" / "include"
        if (include / "cuda_fp16.h").exists():
            return [include, include / "cccl"]
        include = root / "cuda_runtime" / "include"
        if (include / "cuda_fp16.h").exists():
            cccl = root / "cuda_cccl" / "include"
            return [include, cccl, cccl / "cccl"]
    return []
