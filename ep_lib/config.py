"""Every environment variable that ep_lib reads, in one place.

===================  ===============================================================  =======================
variable             meaning                                                          when it is not set
===================  ===============================================================  =======================
EP_LIB_ADDRESS       this host's address on the network between hosts, where     ``127.0.0.1``
                     emulated ranks of other hosts reach its ranks
EP_LIB_BACKEND       what ``spawn`` and ``init`` use: ``emulator`` or ``cuda``        ``emulator``; ``init``:
                                                                                      ``cuda`` where it works
EP_LIB_CACHE_DIR     where compiled kernels are kept                                  ``ep_lib`` in ``~/.cache``
EP_LIB_CUDA_ARCH     the GPU whose number kernels on the emulator see in                ``sm_90``
                     ``__CUDA_ARCH__``
EP_LIB_CUDA_RULES    ``0`` leaves CUDA's own rules unchecked where NVRTC could be      ``1``
                     asked about an emulated kernel
EP_LIB_CXX           the C++ compiler of the emulator: a name or a path               g++, then clang++
EP_LIB_DEBUG         ``1`` shows tracebacks where ``ep-lib`` would print a sentence   ``0``
EP_LIB_GPUS          so many GPUs are shared by all ranks of ``spawn`` and ``init``   a GPU per rank
                     (cuda only; 1 GPU is enough for 8 ranks)
EP_LIB_HEAP_BYTES    size of a rank's symmetric heap: ``268435456``, ``256M``, ``2G`` the backend's own choice
EP_LIB_HOST          this host's name among those of a run; ranks on the          its host name and boot id
                     emulator share memory with those of the same name
EP_LIB_MINE          folders with a learner's own headers, which come before the        the library's own
                     library's (``ep-lib demo --mine`` and the notebooks set it)
EP_LIB_MINE_COUNTS   the file to which ranks add what went through those headers       nothing is written
EP_LIB_SANITIZE      ``1`` compiles the emulator with AddressSanitizer and UBSan        ``0``
                     (``make sanitize`` sets it: their libraries must be loaded first)
EP_LIB_SECRET        what the processes of a run must know to talk over TCP or files  one of this user's own on
                     (:class:`ep_lib.nixl.DeviceHost`); at least 8 characters         this machine
EP_LIB_SEED          seed of the emulator's scheduler: a whole number from 0          ``0``
EP_LIB_SHARE_GPUS    ``1`` lets several ranks take turns on one GPU, where MPS does   ``0``
                     not work (slow: milliseconds for a signal)
EP_LIB_SHARED_CACHE  a second cache directory, which is only read: what an administrator  none
                     has compiled for all users of a machine (docs/containers.md)
EP_LIB_STACK_BYTES   stack of an emulated CUDA thread, ``8K`` to ``8M``               ``16K``
EP_LIB_TIMEOUT_S     seconds until a wait or a kernel that does not end is an error   the backend's own choice
EP_LIB_TRANSPORT     how ranks on GPUs reach each other: ``auto``, ``p2p``, ``nvshmem``   ``auto``: P2P where it works
                     (or ``nvshmem:ROUTE``; routes: ``whole``, ``link``, ``nvcc``), ``nixl``, ``proxy``, ``nccl``
EP_LIB_WORKSHOP      the checkout with notebooks/, exercises/ and solutions/          found from ep_lib itself
===================  ===============================================================  =======================

An argument in code (``spawn(..., seed=3)``) always wins over the variable. A variable that is set to the empty string
counts as not set. A bad value is an :class:`~ep_lib.errors.ArgumentError` that names the variable and the value.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.errors import ArgumentError
from ep_lib.transports import registry

BACKENDS = ("emulator", "cuda")

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Config:
    """The settings of this process; make one with :meth:`from_environment`.

    ``heap_bytes`` and ``stack_bytes`` are in bytes, ``timeout_s`` is in seconds; None means that the code that uses
    the setting chooses.
    """

    backend: str = "emulator"
    cache_dir: Path | None = None
    cuda_arch: int = 90
    cuda_rules: bool = True
    cxx: str | None = None
    debug: bool = False
    gpus: int | None = None
    heap_bytes: int | None = None
    mine: tuple[Path, ...] = ()
    mine_counts: Path | None = None
    sanitize: bool = False
    secret: str | None = None
    address: str | None = None
    host: str | None = None
    seed: int = 0
    share_gpus: bool = False
    shared_cache: Path | None = None
    stack_bytes: int | None = None
    timeout_s: float | None = None
    transport: str = "auto"
    workshop: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """Read ``environment`` (``os.environ`` by default). Raises ArgumentError for a value that cannot work."""
        env = os.environ if environment is None else environment
        values = {}
        for name, read in _READ.items():
            if text := env.get(name, "").strip():
                values[name.removeprefix("EP_LIB_").lower()] = read(name, text)
        return cls(**values)


def parse_size(text: str) -> int:
    """Bytes in ``text``: ``1024``, ``512M``, ``1.5 GiB``; K, M, G, T are powers of 1024. Raises ArgumentError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"{text!r} is not a size; write bytes (268435456) or a number with K, M or G (256M)")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _refuse(name: str, value: str, wanted: str) -> ArgumentError:
    return ArgumentError(f"the environment variable {name} is {value!r}; it must be {wanted}")


def _text(name: str, text: str) -> str:
    return text


def _path(name: str, text: str) -> Path:
    try:
        text.encode()  # compilers and their messages get it as UTF-8
        return Path(text).expanduser().absolute()
    except (RuntimeError, UnicodeEncodeError) as error:  # ~ of a user without a home; bytes that are no text
        raise _refuse(name, text, f"a path: {error}") from error


def _cache_dir(name: str, text: str) -> Path:
    path = _path(name, text)
    if path.exists() and not path.is_dir():
        raise _refuse(name, text, "a directory, or a path where one can be made; this is a file")
    return path


def _workshop(name: str, text: str) -> Path:
    path = _path(name, text)
    if not path.is_dir():
        raise _refuse(name, text, "the directory of a checkout; there is no such directory")
    return path


def _folders(name: str, text: str) -> tuple[Path, ...]:
    folders = tuple(_path(name, part) for part in text.split(os.pathsep) if part)
    for folder in folders:
        if not folder.is_dir():
            raise _refuse(name, text, f"folders of a learner's headers, and there is no {folder}")
    return folders


def _backend(name: str, text: str) -> str:
    if text not in BACKENDS:
        raise _refuse(name, text, "'emulator' (any Linux machine) or 'cuda' (NVIDIA GPUs)")
    return text


def _transport(name: str, text: str) -> str:
    known = registry.names()
    if text not in known:
        wanted = f"one of {', '.join(known)}"
        if text in registry.names("emulator"):
            wanted += f"; {text!r} is the emulator's: pass transport={text!r} to ep_lib.spawn or init, and unset this"
        raise _refuse(name, text, wanted)
    return text


def _cuda_arch(name: str, text: str) -> int:
    found = re.fullmatch(r"sm_([1-9]\d{1,2})", text, re.ASCII)
    if found is None:
        raise _refuse(name, text, "a GPU's architecture, such as sm_80 or sm_90")
    return int(found[1])


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise _refuse(name, text, "1 or 0")
    return text.lower() in _TRUE


def _size(name: str, text: str) -> int:
    try:
        size = parse_size(text)
    except ArgumentError:
        size = 0
    if size <= 0:
        raise _refuse(name, text, "a size above zero: bytes (268435456) or a number with K, M or G (256M)")
    return size


def _stack(name: str, text: str) -> int:
    size = _size(name, text)
    if not 8 << 10 <= size <= 8 << 20:
        raise _refuse(name, text, "from 8K to 8M (8192 to 8388608)")
    return size


def _gpus(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1000):
        raise _refuse(name, text, "a number of GPUs, from 1")
    return int(text)


def _seed(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise _refuse(name, text, "a whole number from 0 to 2**63 - 1")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise _refuse(name, text, "a number of seconds above zero, such as 10 or 0.5")
    return seconds


_READ: dict[str, Callable[[str, str], Any]] = {
    "EP_LIB_ADDRESS": _text,
    "EP_LIB_BACKEND": _backend,
    "EP_LIB_CACHE_DIR": _cache_dir,
    "EP_LIB_CUDA_ARCH": _cuda_arch,
    "EP_LIB_CUDA_RULES": _flag,
    "EP_LIB_CXX": _text,
    "EP_LIB_DEBUG": _flag,
    "EP_LIB_GPUS": _gpus,
    "EP_LIB_HEAP_BYTES": _size,
    "EP_LIB_HOST": _text,
    "EP_LIB_MINE": _folders,
    "EP_LIB_MINE_COUNTS": _path,
    "EP_LIB_SANITIZE": _flag,
    "EP_LIB_SECRET": _text,
    "EP_LIB_SEED": _seed,
    "EP_LIB_SHARE_GPUS": _flag,
    "EP_LIB_SHARED_CACHE": _cache_dir,
    "EP_LIB_STACK_BYTES": _stack,
    "EP_LIB_TIMEOUT_S": _seconds,
    "EP_LIB_TRANSPORT": _transport,
    "EP_LIB_WORKSHOP": _workshop,
}  # each gets the variable's name, for a message, and its text, which is not empty
