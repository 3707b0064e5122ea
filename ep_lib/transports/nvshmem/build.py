"""Kernels compiled against NVSHMEM's device library, by three build routes. None needs a GPU.

=========  ==========================================================================  ============================
route      how                                                                         how peers are reached
=========  ==========================================================================  ============================
``whole``  NVRTC alone, NVSHMEM's device code inlined from its headers: needs least    P2P; NICs by a thread of the CPU
``link``   the same, its state from ``libnvshmem_device.a``: needs nvJitLink as well   P2P; NICs by a thread of the CPU
``nvcc``   nvcc, and its linker with ``libnvshmem_device.a``: needs a CUDA toolkit     also NICs by the GPU (IBGDA)
=========  ==========================================================================  ============================

NVRTC's 64-bit integers are ``long long`` where ``libnvshmem_device.a`` has ``long``, so code compiled by NVRTC cannot
call it and uses the headers' code, which has IBGDA for nvcc only.

Only kernels that include ``<ep/net.cuh>`` change; for those the compiler finds NVSHMEM's ``<ep/transport.cuh>`` first.
A loaded module must be registered with the running NVSHMEM before its first launch (``nvshmemx_cumodule_init``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.jit import cache, digest, names, nvcc, nvrtc, toolkit
from ep_lib.jit.elf import Elf
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.jit.source import KernelSource
from ep_lib.transports.nvshmem import nvjitlink

ROUTES = ("whole", "link", "nvcc")
STATE_SYMBOL = "nvshmemi_device_state_d"  # in every module that uses NVSHMEM
OLDEST, TOO_NEW = (3, 4, 5), (4,)
TRANSPORT_INCLUDE = Path(__file__).parent

_WHEELS = {"nvidia-nvshmem-cu13": 13, "nvidia-nvshmem-cu12": 12}
_VERSION = re.compile(r"#define\s+NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION\s+(\d+)")
# NVSHMEM's names for "all code inline", which leaves IBGDA out, and for "the state in this module, too".
_INLINE = "-DNVSHMEM_HOSTLIB_ONLY"
_OWN_STATE = "-D__NVSHMEM_NUMBA_SUPPORT__"


@dataclass(frozen=True)
class Installation:
    """NVSHMEM on this machine. ``cuda_major``: the CUDA version of its wheel, None if it is no wheel."""

    home: Path
    version: tuple[int, int, int]
    cuda_major: int | None

    @property
    def include(self) -> Path:
        return self.home / "include"

    @property
    def host_library(self) -> Path:
        return self.home / "lib" / "libnvshmem_host.so.3"

    @property
    def device_library(self) -> Path:
        return self.home / "lib" / "libnvshmem_device.a"

    def __str__(self) -> str:
        return f"NVSHMEM {version_text(self.version)} in {self.home}"


def find() -> Installation:
    """NVSHMEM of ``$NVSHMEM_HOME``, else of pip's wheel. Raises BackendUnavailable with the found and the needed
    version."""
    need = f"ep_lib needs {version_text(OLDEST)} or later, below {TOO_NEW[0]}"
    chosen = os.environ.get("NVSHMEM_HOME")
    homes = [Path(chosen)] if chosen else [site / "nvshmem" for site in toolkit.nvidia_sites()]
    home = next((home for home in homes if (home / "include" / "device" / "nvshmem_defines.h").exists()), None)
    if home is None:
        where = f"$NVSHMEM_HOME ({chosen}) has no NVSHMEM" if chosen else "NVSHMEM is not installed"
        raise BackendUnavailable(
            f"{where}; {need}: pip install 'nvidia-nvshmem-cu13>=3.4.5,<4' (or -cu12, as your driver's CUDA), or set "
            "NVSHMEM_HOME to the folder with its include and lib"
        )
    text = (home / "include" / "non_abi" / "nvshmem_version.h").read_text(encoding="utf-8")
    numbers = {name: int(value) for name, value in _VERSION.findall(text)}
    found = Installation(home, (numbers["MAJOR"], numbers["MINOR"], numbers["PATCH"]), None if chosen else _flavour())
    if not OLDEST <= found.version < TOO_NEW:
        raise BackendUnavailable(f"found {found}; {need}: pip install 'nvidia-nvshmem-cu13>=3.4.5,<4' (or -cu12)")
    missing = [path.name for path in (found.host_library, found.device_library) if not path.exists()]
    if missing:
        raise BackendUnavailable(f"{found} lacks lib/{' and lib/'.join(missing)}; install it again")
    return found


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def uses_ibgda(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the user has enabled IBGDA: NICs driven by the GPU itself."""
    env = os.environ if environment is None else environment
    return env.get("NVSHMEM_IB_ENABLE_IBGDA", "").strip().lower() in {"1", "true", "yes", "on", "y", "t"}


def choose_route(wanted: str | None, environment: Mapping[str, str] | None = None) -> str:
    """The build route: ``wanted``, else the one with the fewest requirements. Raises ArgumentError if it cannot serve.

    That is ``whole``, unless NVSHMEM_IB_ENABLE_IBGDA needs ``nvcc``.
    """
    if wanted is None:
        return "nvcc" if uses_ibgda(environment) else "whole"
    if wanted not in ROUTES:
        raise ArgumentError(f"the build route is {wanted!r}; it must be one of {', '.join(ROUTES)}")
    if wanted != "nvcc" and uses_ibgda(environment):
        raise ArgumentError(
            f"the build route {wanted!r} leaves NVSHMEM's IBGDA code out, and NVSHMEM_IB_ENABLE_IBGDA asks for it; "
            "take 'nvcc', or unset the variable"
        )
    return wanted


def unusable_reason(route: str) -> str | None:
    """None if kernels can be compiled by ``route`` here; else a sentence that names the missing part."""
    try:
        find()
    except BackendUnavailable as error:
        return str(error)
    if not nvrtc.available():
        return "NVRTC or CuPy is not installed"
    if route == "link" and not nvjitlink.available():
        return "nvJitLink is not installed (pip install nvidia-nvjitlink)"
    if route == "nvcc" and toolkit.find_nvcc() is None:
        return "nvcc is not on the PATH, nor in $CUDA_HOME"
    return None


def compile_cubin(kernel: KernelSource, arch: str, route: str) -> NvrtcImage:
    """Compiles a kernel for ``arch`` ("sm_90") with NVSHMEM behind ``ep::net_*``, or finds it in the cache.

    A kernel that never includes ``<ep/net.cuh>`` is the same as without NVSHMEM. Raises the errors of
    :func:`ep_lib.jit.nvrtc.compile_cubin`, and BackendUnavailable if a requirement of the route is missing.
    """
    found = find()
    unit = kernel.translation_unit()
    own = nvrtc.include_roots(kernel, TRANSPORT_INCLUDE)
    system = (found.include, *toolkit.cuda_include_dirs())
    headers = digest.scan(unit, own, system)
    if not any(Path(file).is_relative_to(TRANSPORT_INCLUDE) for file in headers.files):
        return nvrtc.compile_cubin(kernel, arch)
    build = _Build(kernel, arch, route, found, unit)
    parts = ["nvshmem", toolkit.library_version(), arch, kernel.name, *build.identity(), *map(str, system), unit]

    def make(folder: Path, _: Path) -> None:
        image = build.run(folder, own, system, names.check(kernel, headers.outside(system)))
        symbols = [symbol.name for symbol in Elf(image.cubin).symbols]
        for wanted in (image.lowered_name, STATE_SYMBOL):
            if not any(name.endswith(wanted) for name in symbols):
                raise BackendUnavailable(f"the build route {route!r} of {found} made a module without {wanted}")
        nvrtc.store(folder, image, route=route, nvshmem=str(found))

    return nvrtc.load(cache.entry("nvshmem", digest.key(headers, parts), "image.json", make))


@dataclass(frozen=True)
class _Build:
    """One compilation by one route."""

    kernel: KernelSource
    arch: str
    route: str
    found: Installation
    unit: str

    def identity(self) -> list[str]:
        """The versions of tools that can change the result."""
        tools = [self.route, str(self.found), *self.kernel.options]
        if self.route == "nvcc":
            tools.append(self._nvcc().identity)
        else:
            tools.append(nvrtc.version())
        if self.route == "link":
            tools.append(str(nvjitlink.find_library()))
        return tools

    def run(
        self, folder: Path, own: list[Path], system: tuple[Path, ...], functions: names.GlobalFunctions
    ) -> NvrtcImage:
        try:
            if self.route == "nvcc":
                roots = (*own, self.found.include)
                return nvcc.compile_unit(
                    self.unit,
                    self.kernel,
                    self.arch,
                    folder,
                    roots,
                    compiler=self._nvcc(),
                    library=self.found.device_library,
                )
            flags = ["-std=c++17", f"-arch={self.arch}", "-lineinfo", "-w", "--device-as-default-execution-space"]
            flags += [_INLINE, _OWN_STATE if self.route == "whole" else "-rdc=true", *self.kernel.options]
            flags += [f"-I{root}" for root in (*own, *system)]
            image = nvrtc.compile_unit(self.unit, self.kernel, flags, folder)
        except nvrtc.CompilerRefused as refused:
            log, target = refused.log, self.arch
            from ep_lib.jit import diagnostics  # imported here: its tables are for errors only

            raise diagnostics.compile_error(self.kernel, log, target=target, roots=own, found=functions) from None
        if self.route == "whole":
            return image
        return replace(image, cubin=nvjitlink.link(image.cubin, self.found.device_library, self.arch))

    def _nvcc(self) -> toolkit.Compiler:
        return nvcc.require("the build route 'nvcc' (the route 'whole' needs NVRTC alone)")


def _flavour() -> int | None:
    """The CUDA major version of the installed wheel."""
    from importlib import metadata  # imported here: it takes a tenth of the time of `import ep_lib`

    for wheel, major in _WHEELS.items():
        try:
            metadata.version(wheel)
        except metadata.PackageNotFoundError:
            continue
        return major
    return None
