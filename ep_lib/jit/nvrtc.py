"""Compiles kernels for GPUs with NVRTC. No GPU is needed, only the library (through CuPy) and CUDA's headers."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ep_lib.errors import BackendUnavailable
from ep_lib.jit import cache, digest, names, sealed, toolkit
from ep_lib.jit.elf import Elf
from ep_lib.jit.signature import Param, parse_table
from ep_lib.jit.source import KernelSource

_TABLE_SYMBOL = "ep_kernel_params"  # ep_lib/device/ep/detail/entry.cuh
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


@dataclass(frozen=True)
class NvrtcImage:
    """A kernel compiled for one GPU architecture.

    ``cubin`` is the module, also to be found in the file ``path``; ``lowered_name`` is the kernel's symbol in it.
    """

    cubin: bytes
    lowered_name: str
    params: tuple[Param, ...]
    path: Path


def available() -> bool:
    """Whether :func:`compile_cubin` can work here: CuPy and NVRTC are installed. Imports CuPy."""
    try:
        _nvrtc()
    except BackendUnavailable:
        return False
    return True


def version() -> str:
    """NVRTC's version, with that of its wheel where it comes from one. Raises :class:`BackendUnavailable`."""
    from importlib import metadata  # here: it takes a tenth of the time of `import ep_lib`

    major, minor = _nvrtc().getVersion()
    for wheel in _WHEELS:
        try:
            return f"{major}.{minor} ({wheel} {metadata.version(wheel)})"
        except metadata.PackageNotFoundError:
            continue
    return f"{major}.{minor}"


def compile_cubin(kernel: KernelSource, arch: str, transport: Path = toolkit.P2P_TRANSPORT) -> NvrtcImage:
    """Compiles a kernel for ``arch`` ("sm_90"), or finds it in the cache. ``transport``: whose folder to search.

    Raises :class:`KernelCompileError` with the learner's own file and line, :class:`KernelNotFoundError`, and
    :class:`BackendUnavailable` when NVRTC is missing or does not know ``arch``.
    """
    unit = kernel.translation_unit()
    own, system = include_roots(kernel, transport), toolkit.cuda_include_dirs()
    headers = digest.scan(unit, own, system)
    flags = ["-std=c++17", f"-arch={arch}", "-lineinfo", "-w", *kernel.options]
    flags += [f"-I{root}" for root in (*own, *system)]
    parts = ["nvrtc", toolkit.library_version(), _identity(), kernel.name, *flags, unit]

    def build(folder: Path, _: Path) -> None:
        found = names.check(kernel, headers.outside(system))
        _compile(kernel, arch, folder, unit, flags, found)

    return load(cache.entry("cubin", digest.key(headers, parts), "image.json", build))


def store(folder: Path, image: NvrtcImage, **facts: str) -> None:
    """Writes an image, and what else should be known of it, into a folder of the cache."""
    (folder / "kernel.cubin").write_bytes(image.cubin)
    described = {"lowered_name": image.lowered_name, "params": [list(param) for param in image.params], **facts}
    (folder / "image.json").write_text(json.dumps(described), encoding="utf-8")


def load(folder: Path) -> NvrtcImage:
    """The image that :func:`store` has written."""
    facts = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    path = folder / "kernel.cubin"
    return NvrtcImage(path.read_bytes(), facts["lowered_name"], tuple(Param(*row) for row in facts["params"]), path)


def include_roots(kernel: KernelSource, transport: Path = toolkit.P2P_TRANSPORT) -> list[Path]:
    """The kernel's include roots, and the C headers that NVRTC lacks."""
    return [*kernel.include_roots(transport), toolkit.nvrtc_include()]


class CompilerRefused(Exception):
    """A compiler's own words; ``status`` is the name of its error, where it has one."""

    def __init__(self, log: str, status: str = "") -> None:
        super().__init__(log)
        self.log = log
        self.status = status


def compile_unit(unit: str, kernel: KernelSource, flags: Sequence[str], folder: Path) -> NvrtcImage:
    """What NVRTC makes of a translation unit, for an entry of the cache in ``folder``. Raises CompilerRefused."""
    roots = [Path(flag.removeprefix("-I")) for flag in flags if flag.startswith("-I")]
    with sealed.open_includes(unit, roots) as first:
        path = first[0] / kernel.source_path.name if first else kernel.source_path  # NVRTC looks beside it
        return _compile_unit(unit, path, kernel, [*(f"-I{root}" for root in first), *flags], folder)


def _compile_unit(unit: str, path: Path, kernel: KernelSource, flags: Sequence[str], folder: Path) -> NvrtcImage:
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(unit, str(path), (), ())
    try:
        nvrtc.addNameExpression(program, kernel.name)
        try:
            nvrtc.compileProgram(program, tuple(flags))
        except nvrtc.NVRTCError as error:
            raise CompilerRefused(nvrtc.getProgramLog(program).strip("\0\n "), str(error)) from None
        # CuPy cuts the last byte off, as if the cubin were text; nvJitLink looks at it. One too many does no harm.
        cubin: bytes = nvrtc.getCUBIN(program) + b"\0"
        lowered: str = nvrtc.getLoweredName(program, kernel.name)
    finally:
        nvrtc.destroyProgram(program)
    params = tuple(parse_table(Elf(cubin).symbol_bytes(_TABLE_SYMBOL)))
    return NvrtcImage(cubin, lowered, params, folder / "kernel.cubin")


def _compile(
    kernel: KernelSource, arch: str, folder: Path, unit: str, flags: list[str], found: names.GlobalFunctions
) -> None:
    try:
        image = compile_unit(unit, kernel, flags, folder)
    except CompilerRefused as refused:
        if "--gpu-architecture" in refused.log:
            raise BackendUnavailable(f"NVRTC {version()} cannot compile for {arch}: {refused.log.strip()}") from None
        if "nvrtc: error" in refused.log or "INVALID_OPTION" in refused.status:
            raise BackendUnavailable(
                f"NVRTC {version()} refused the options {list(kernel.options)}: {refused.log.strip()} "
                f"({refused.status})"
            ) from None
        roots = include_roots(kernel)
        from ep_lib.jit import diagnostics  # its tables are for what goes wrong

        raise diagnostics.compile_error(kernel, refused.log, target=arch, roots=roots, found=found) from None
    store(folder, image)
    (folder / "kernel.cu").write_text(unit, encoding="utf-8")


@functools.lru_cache(maxsize=1)
def _identity() -> str:
    return version()


@functools.lru_cache(maxsize=1)
def _nvrtc() -> Any:
    """CuPy's binding of NVRTC."""
    if importlib.util.find_spec("cupy") is None:
        raise BackendUnavailable(
            "compiling for GPUs needs CuPy and NVRTC, though no GPU: pip install cupy-cuda13x nvidia-cuda-nvrtc"
        )
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:
        raise BackendUnavailable(
            f"NVRTC cannot be loaded ({error}): pip install nvidia-cuda-nvrtc of the same CUDA version as CuPy"
        ) from error
    return nvrtc
