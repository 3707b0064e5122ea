"""Refuses sources on the emulator that are not CUDA: NVRTC checks them beside g++, which compiles C++.

The cache keeps the answer with the kernel, so each source is checked once. ep_lib's own kernels are not checked unless
they include a learner's file: its tests compile them for GPUs.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from ep_lib import processes
from ep_lib.config import Config
from ep_lib.errors import BackendUnavailable, EpError, KernelCompileError
from ep_lib.jit import names, nvrtc, toolkit
from ep_lib.jit.cache import say
from ep_lib.jit.elf import Elf
from ep_lib.jit.source import NO_FILE, KernelSource

_UNCHECKED = "CUDA's own rules are not checked"

_MAX_THREADS, _REGISTERS = 0x05, 0x2F  # attributes of a cubin
_FILE_REGISTERS, _REGISTER_STEP, _WARP, _WARP_STEP, _MOST_THREADS = 65536, 8, 32, 4, 1024


class Answer:
    """NVRTC's answer for a kernel's source; ``most_threads``: the most threads of a block, for each kernel."""

    def __init__(self) -> None:
        self.refusal: EpError | None = None
        self.takes = False
        self.most_threads: list[int] = []


def identity(kernel: KernelSource, config: Config) -> str:
    """The NVRTC that checks ``kernel``, for the cache key; "" if it is not checked."""
    if not config.cuda_rules or _is_the_librarys(kernel):
        return ""
    return f"{_arch()} {nvrtc.identity() if nvrtc.available() else 'unchecked'}"


def _arch() -> str:
    """The GPU to check for. Not sm_90a, for which NVRTC accepts too much static shared memory."""
    return f"sm_{Config.from_environment().cuda_arch}"


def _is_the_librarys(kernel: KernelSource) -> bool:
    if kernel.include or kernel.path is None or not kernel.path.is_relative_to(toolkit.PACKAGE):
        return False
    return not kernel.pieces(toolkit.P2P_TRANSPORT)


@contextmanager
def asked(
    kernel: KernelSource, kernels: Sequence[str], unit: str, found: names.GlobalFunctions, *, asks: str
) -> Iterator[Answer]:
    """Checks a translation unit with ``kernels`` by NVRTC while the body compiles it. At the end raises
    KernelCompileError for code that no GPU accepts; an error of g++ for code that a GPU accepts says so."""
    answer = Answer()
    if not asks:
        yield answer
        return
    if toolkit.find_nvrtc() is None:
        say_if_unchecked()
        yield answer
        return
    from concurrent.futures import ThreadPoolExecutor  # imported here: cached kernels need none

    refused = threading.Event()

    def ask() -> None:
        try:
            answer.most_threads = _most_threads(*nvrtc.compile_kernels(unit, kernel, kernels, _arch(), found))
            answer.takes = True
        except KernelCompileError as error:
            answer.refusal = error
            if error.remedy:  # a rule of CUDA's that g++ does not know: it can stop
                refused.set()
        except BackendUnavailable as error:
            _say_once(f"{_UNCHECKED}: {error}")

    with ThreadPoolExecutor(1) as pool:
        question = pool.submit(ask)
        try:
            with processes.stopping_by(refused):
                yield answer
        except processes.Stopped:
            if not refused.is_set():
                raise
        except KernelCompileError as error:
            question.result()
            if answer.takes and not NO_FILE.search(str(error)):  # for NVRTC, headers of the host are empty
                from ep_lib.jit import diagnostics  # its tables are for what goes wrong

                raise diagnostics.of_the_emulator(error) from None
            if not refused.is_set():  # C++ is explained better by g++
                raise
        question.result()
        if answer.refusal is not None:
            raise answer.refusal


def say_if_unchecked() -> None:
    """Warns, once per process, that NVRTC is missing, if it is needed."""
    if Config.from_environment().cuda_rules and toolkit.find_nvrtc() is None:
        _say_once(f"{_UNCHECKED}: that takes NVRTC, though no GPU (pip install nvidia-cuda-nvrtc)")


@cache
def _say_once(text: str) -> None:
    say(text)


def _most_threads(cubin: bytes, symbols: Sequence[str]) -> list[int]:
    """The most threads of a block for each kernel, from its ``__launch_bounds__`` and its registers."""
    elf = Elf(cubin)
    sections = {section.name: elf.data[section.offset : section.offset + section.size] for section in elf.sections}
    registers = {
        elf.symbols[symbol].name: count
        for symbol, count in (struct.unpack("<II", v) for v in nvrtc.attributes(sections[".nv.info"], _REGISTERS))
    }
    most = []
    for symbol in symbols:
        step = -(-registers.get(symbol, 0) // _REGISTER_STEP) * _REGISTER_STEP or _REGISTER_STEP
        warps = _FILE_REGISTERS // (step * _WARP) // _WARP_STEP * _WARP_STEP
        of_kernel = sections[f".nv.info.{symbol}"]
        bounds = [struct.unpack("<III", value) for value in nvrtc.attributes(of_kernel, _MAX_THREADS)]
        most.append(min(_MOST_THREADS, warps * _WARP, *(x * y * z for x, y, z in bounds)))
    return most
