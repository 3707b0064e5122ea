"""Kernels compiled by nvcc, for device code of other libraries that only nvcc compiles. No GPU is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ep_lib import processes
from ep_lib.errors import BackendUnavailable
from ep_lib.jit import nvrtc, sealed, toolkit
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.jit.source import KernelSource


def require(what: str) -> toolkit.Compiler:
    """The path of nvcc. Raises BackendUnavailable, which says that ``what`` needs it."""
    found = toolkit.find_nvcc()
    if found is None:
        raise BackendUnavailable(f"{what} needs nvcc, which is neither on the PATH nor in $CUDA_HOME")
    return found


def compile_unit(
    unit: str,
    kernel: KernelSource,
    arch: str,
    folder: Path,
    roots: Sequence[Path],
    *,
    compiler: toolkit.Compiler,
    library: Path | None = None,
) -> NvrtcImage:
    """Compiles a translation unit for ``arch`` ("sm_90") in ``folder``, linked with ``library`` (a .a file).

    nvcc has its own C++ library and CUDA headers; taking the kernel's address instantiates a template. Only NVRTC gives
    the instance's symbol in the module, and its parameters: it compiles with the P2P transport. Raises
    :class:`ep_lib.jit.nvrtc.CompilerRefused`.
    """
    plain = nvrtc.compile_cubin(kernel, arch)
    source, cubin = folder / "unit.cu", folder / "kernel.cubin"
    instance = f"static void* const ep_kernel_address = reinterpret_cast<void*>(&{kernel.name});\n"
    source.write_text(unit + instance, encoding="utf-8")
    for_nvrtc = toolkit.nvrtc_include()
    own = [root for root in roots if root != for_nvrtc]
    relocatable = cubin if library is None else folder / "unit.cubin"
    with sealed.open_includes(unit, own, kernel.texts) as opened:
        include = [f"-I{root}" for root in (*opened.roots(own), *own)]
        command = [compiler.path, "-std=c++17", f"-arch={arch}", "-lineinfo", "-w", "-cubin", *kernel.options, *include]
        run([*command, *(["-rdc=true"] if library else []), str(source), "-o", str(relocatable)])
    if library is not None:
        named = [f"-L{library.parent}", f"-l{library.stem.removeprefix('lib')}"]
        run([compiler.path, f"-arch={arch}", "-dlink", "-cubin", str(relocatable), *named, "-o", str(cubin)])
        relocatable.unlink()
    return replace(plain, cubin=cubin.read_bytes())


def run(command: list[str]) -> None:
    """Run nvcc; raises :class:`ep_lib.jit.nvrtc.CompilerRefused` with its messages."""
    try:
        done = processes.run(command, cpu_s=3600.0, idle_s=600.0)
    except (OSError, processes.TookTooLong) as error:
        raise BackendUnavailable(f"{command[0]} failed: it {error}") from error
    if done.returncode:
        raise nvrtc.CompilerRefused(done.stderr or done.stdout)
