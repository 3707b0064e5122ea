"""Kernels compiled against NIXL's device API, which is UCX's: by nvcc, with the headers of the libucx wheels.

NVRTC cannot read those headers (they use GNU's extensions of C++). Only kernels that include ``<ep/net.cuh>`` change;
for those the compiler finds NIXL's ``<ep/transport.cuh>`` first. No GPU is needed.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ep_lib.errors import BackendUnavailable
from ep_lib.jit import cache, digest, names, nvcc, nvrtc, toolkit
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.jit.source import KernelSource

STATE_SYMBOL = "ep_nixl_state"  # in every module that uses NIXL
TRANSPORT_INCLUDE = Path(__file__).parent
OLDEST_NIXL, TOO_NEW_NIXL = (1, 5), (2,)  # memory views; versions after 1 may differ
OLDEST_UCX, TOO_NEW_UCX = (1, 21), (2,)  # the first wheels with device headers

CUDA_MAJORS = (13, 12)
_DEVICE_HEADER = Path("ucp", "api", "device", "ucp_device_impl.h")
_TYPES_HEADER = Path("ucp", "api", "device", "ucp_device_types.h")
_LIST_VERSION = re.compile(r"#define\s+UCP_DEVICE_MEM_LIST_VERSION_V1\s+(\d+)")
_UCX_VERSION = re.compile(r"#define\s+UCP_API_(MAJOR|MINOR)\s+(\d+)")


@dataclass(frozen=True)
class Wheel:
    """NIXL on this machine: the module of its wheel ("nixl_cu13"), its version, and its CUDA version."""

    package: str
    version: str
    cuda_major: int

    def __str__(self) -> str:
        return f"NIXL {self.version} ({self.package})"


@dataclass(frozen=True)
class Installation(Wheel):
    """NIXL and UCX's device headers on this machine.

    ``include``: the folder of UCX's headers, with their ``ucx_version``, the version of memory views that they read
    (``list_version``), and whether they can drive NICs (``has_nics``).
    """

    include: Path
    ucx_version: str
    list_version: int
    has_nics: bool

    def __str__(self) -> str:
        return f"{super().__str__()} with UCX {self.ucx_version} in {self.include}"


def find_wheel(cuda_major: int | None = None) -> Wheel:
    """NIXL's wheel for this CUDA (None: any). Without a GPU it works as well: it needs no CUDA library to move host
    memory. Raises BackendUnavailable with the found and needed versions and a pip command. Imports nothing."""
    wanted = CUDA_MAJORS if cuda_major is None else (cuda_major,)
    pip = pip_line(wanted[0])
    nixls = {major: version for major in CUDA_MAJORS if (version := _version(f"nixl-cu{major}"))}
    major = next((major for major in wanted if major in nixls), None)
    if major is None:
        if nixls:
            other, version = next(iter(nixls.items()))
            raise BackendUnavailable(
                f"found NIXL {version} for CUDA {other}, but CuPy is for CUDA {cuda_major} and needs the same: {pip}"
            )
        raise BackendUnavailable(f"NIXL is not installed; ep_lib needs {_range(OLDEST_NIXL, TOO_NEW_NIXL)}: {pip}")
    if not OLDEST_NIXL <= _numbers(nixls[major]) < TOO_NEW_NIXL:
        needed = _range(OLDEST_NIXL, TOO_NEW_NIXL)
        raise BackendUnavailable(
            f"found NIXL {nixls[major]} (nixl-cu{major}); ep_lib needs {needed}: {pip_line(major)}"
        )
    return Wheel(f"nixl_cu{major}", nixls[major], major)


def find(cuda_major: int | None = None) -> Installation:
    """NIXL's wheel for this CUDA (None: any) and UCX's device headers, of ``$UCX_HOME``, else of libucx's wheel.

    Raises BackendUnavailable with the found and needed versions and a pip command. Imports neither.
    """
    wheel = find_wheel(cuda_major)
    pip = pip_line(wheel.cuda_major)
    include = _ucx_include(pip)
    text = (include / "ucp" / "api" / "ucp_version.h").read_text(encoding="utf-8")
    ucx = {name: int(number) for name, number in _UCX_VERSION.findall(text)}
    if not OLDEST_UCX <= (ucx["MAJOR"], ucx["MINOR"]) < TOO_NEW_UCX:
        needed = _range(OLDEST_UCX, TOO_NEW_UCX)
        raise BackendUnavailable(f"found UCX {ucx['MAJOR']}.{ucx['MINOR']} in {include}; ep_lib needs {needed}: {pip}")
    match = _LIST_VERSION.search((include / _TYPES_HEADER).read_text(encoding="utf-8"))
    return Installation(
        **vars(wheel),
        include=include,
        ucx_version=f"{ucx['MAJOR']}.{ucx['MINOR']}",
        list_version=int(match[1]) if match else 0,
        has_nics=(include / "uct" / "ib" / "mlx5" / "gdaki" / "gdaki.cuh").exists(),
    )


def pip_line(cuda_major: int) -> str:
    """The pip command for everything. --no-deps: the package depends on torch, whose newest release may be for another
    CUDA version."""
    return f"pip install --no-deps 'nixl-cu{cuda_major}>=1.5,<2' 'libucx-cu{cuda_major}>=1.21,<2'"


def missing(cuda_major: int | None = None) -> str | None:
    """None if NIXL, UCX's headers and nvcc are installed; else a sentence that names the missing one. Loads no
    library."""
    try:
        find(cuda_major)
        nvcc.require("compiling kernels with UCX's device headers")
    except BackendUnavailable as error:
        return str(error)
    return None


def unusable_reason(cuda_major: int | None = None) -> str | None:
    """None if kernels can be compiled for NIXL here; else a sentence that names the missing part. Imports CuPy."""
    reason = missing(cuda_major)
    if reason is None and not nvrtc.available():
        return "NVRTC or CuPy is not installed"
    return reason


def compile_cubin(kernel: KernelSource, arch: str) -> NvrtcImage:
    """Compiles a kernel for ``arch`` ("sm_90") with NIXL behind ``ep::net_*``, or finds it in the cache.

    A kernel that never includes ``<ep/net.cuh>`` is the same as without NIXL. Raises the errors of
    :func:`ep_lib.jit.nvrtc.compile_cubin`, and BackendUnavailable if NIXL, UCX or nvcc is missing.
    """
    found = find()
    unit = kernel.translation_unit()
    own = nvrtc.include_roots(kernel, TRANSPORT_INCLUDE)
    system = (found.include, *toolkit.cuda_include_dirs())
    headers = digest.scan(unit, own, system)
    if not any(Path(file).is_relative_to(TRANSPORT_INCLUDE) for file in headers.files):
        return nvrtc.compile_cubin(kernel, arch)
    compiler = nvcc.require("compiling kernels with UCX's device headers")
    parts = ["nixl", toolkit.library_version(), arch, kernel.name, *kernel.options]
    parts += [str(found.include), compiler.identity, *map(str, system), unit]

    def make(folder: Path, _: Path) -> None:
        functions = names.check(kernel, headers.outside(system))
        try:
            image = nvcc.compile_unit(unit, kernel, arch, folder, (*own, found.include), compiler=compiler)
        except nvrtc.CompilerRefused as refused:
            log = refused.log
            from ep_lib.jit import diagnostics  # imported here: its tables are for errors only

            raise diagnostics.compile_error(kernel, log, target=arch, roots=own, found=functions) from None
        nvrtc.store(folder, image, nixl=str(found))

    return nvrtc.load(cache.entry("nixl", digest.key(headers, parts), "image.json", make))


def mapped_addresses_cubin(arch: str) -> bytes:
    """The kernel ``mapped_addresses`` of transports/nixl/mapped_addresses.cu, for ``arch``."""
    found, compiler = find(), nvcc.require("compiling kernels with UCX's device headers")
    source = TRANSPORT_INCLUDE / "mapped_addresses.cu"
    text = source.read_text(encoding="utf-8")
    headers = digest.scan(text, [], (found.include, *toolkit.cuda_include_dirs()))
    parts = ["nixl", toolkit.library_version(), arch, str(found.include), compiler.identity, text]

    def make(folder: Path, _: Path) -> None:
        command = [compiler.path, "-std=c++17", f"-arch={arch}", "-w", "-cubin", f"-I{found.include}", str(source)]
        try:
            nvcc.run([*command, "-o", str(folder / "kernel.cubin")])
        except nvrtc.CompilerRefused as refused:
            raise BackendUnavailable(f"nvcc cannot compile {found}'s device headers: {refused.log}") from None

    return (cache.entry("nixl", digest.key(headers, parts), "kernel.cubin", make) / "kernel.cubin").read_bytes()


def _ucx_include(pip: str) -> Path:
    chosen = os.environ.get("UCX_HOME")
    folders = [Path(chosen, "include")] if chosen else list(_wheel_includes())
    found = next((folder for folder in folders if (folder / _DEVICE_HEADER).exists()), None)
    if found is not None:
        return found
    where = f"$UCX_HOME ({chosen}) has" if chosen else "found" if folders else "libucx is not installed: found"
    raise BackendUnavailable(
        f"{where} no device headers of UCX (ucp/api/device/); ep_lib needs UCX {_range(OLDEST_UCX, TOO_NEW_UCX)} with "
        f"its device API: {pip}, or set UCX_HOME to the folder with its include"
    )


def _wheel_includes() -> Iterator[Path]:
    spec = importlib.util.find_spec("libucx")  # looked up, not imported
    for site in spec.submodule_search_locations or [] if spec else []:
        yield Path(site, "include")


def _version(distribution: str) -> str | None:
    from importlib import metadata  # imported here: it takes a tenth of the time of `import ep_lib`

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _range(oldest: tuple[int, ...], too_new: tuple[int, ...]) -> str:
    return f"{'.'.join(map(str, oldest))} or later, below {too_new[0]}"
