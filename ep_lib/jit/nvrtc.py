"""Compiles kernels for GPUs with NVRTC. No GPU is needed, only the library and CUDA's headers."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ep_lib import processes
from ep_lib.errors import BackendUnavailable, EpError, KernelCompileError
from ep_lib.jit import cache, digest, names, sealed, toolkit
from ep_lib.jit.elf import Elf
from ep_lib.jit.signature import Param, parse_table
from ep_lib.jit.source import KernelSource

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc_process import Answer, Question

Image = TypeVar("Image")

_PROCESS = str(Path(__file__).with_name("nvrtc_process.py"))
_TABLE_SYMBOL = "ep_kernel_params_0"  # ep_lib/device/ep/detail/entry.cuh
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_INSTALL = "pip install 'nvidia-cuda-nvrtc>=13.0,<14', or nvidia-cuda-nvrtc-cu12 beside CuPy for CUDA 12"
_CPU_S, _IDLE_S = 1200.0, 300.0  # a compilation's limits: CPU time, and idle time
_CPP_HEADER = re.compile(r"[a-z_]+")

# NVRTC refuses any host function, and treats a lambda with `auto` as one. nvcc accepts both, as long as no kernel calls
# host functions.
_OF_HOST = re.compile(
    r"^(?P<file>[^\n]+)\((?P<line>\d+)\): error: "
    r"A function (?:without execution space annotations|explicitly marked as a __host__)[^\n]*\n"
    r"(?P<text>[^\n]*)\n(?P<before> *)\^",
    re.MULTILINE,
)
_CONSTANT_STORE = re.compile(
    r"^warning: ([^\n]+\(\d+\)): Warning: Cannot store to pointer that points to constant", re.M
)
_WARNINGS = re.compile(
    r"^(?:[^\n]*: warning |warning: |Remark: )[^\n]*\n?(?:(?![^\n]*: (?:error|warning)|\n)[^\n]*\n)*\n?", re.M
)
# Of a cubin's attributes: a byte for how the value is stored, a byte for what it is, then its size, or the value itself
_SIZED, _STACK = 4, 0x12
_MOST_LOCAL = 512 << 10  # bytes of a thread; CUDA C++ Programming Guide, Compute Capabilities
# Types of glibc that all of nvcc's sources have.
_OF_NVCC = "typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;\n"
_TAKES_ALL = "-default-device"  # a function without a specifier is for the GPU
_WITH_ALL_CALLS = [_TAKES_ALL, "-G", "-rdc=true"]  # no inlining, and externally called functions stay
_NO_HOST = "#undef __host__\n#define __host__\n"
_UNFORCED = "#undef __forceinline__\n#define __forceinline__\n"
_PTX_FILE = re.compile(r'^\s*\.file\s+(\d+) "([^"]*)"', re.MULTILINE)
_PTX_LINE = re.compile(r"^\s*\.loc\s+(\d+) (\d+)", re.MULTILINE)
_PTX_WORDS = re.compile(r'//[^\n]*|"[^"\n]*"')  # comments, and file names, which may contain a function's name
_PTX_BODY = re.compile(r"^(?:\.\w+ )*\.(?:func|entry)[^{;]*?([\w$]+)\([^{;]*\{(.*?)^\}", re.MULTILINE | re.DOTALL)
_PTX_PROTOTYPE = re.compile(r"^(?:\.\w+ )*\.func[^;{]*;", re.MULTILINE)


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
    """Whether NVRTC is installed, so that :func:`compile_cubin` works."""
    return toolkit.find_nvrtc() is not None


def version() -> str:
    """NVRTC's version, with its wheel's version if it comes from one. Raises :class:`BackendUnavailable`."""
    from importlib import metadata  # imported here: it takes a tenth of the time of `import ep_lib`

    found = _found()
    for wheel in _WHEELS:
        try:
            if (release := metadata.version(wheel)).startswith(f"{found.version}."):
                return f"{found.version} ({wheel} {release})"
        except metadata.PackageNotFoundError:
            continue
    return found.version


@functools.cache
def identity() -> str:
    """Which NVRTC answers, and by which rules of ours. Raises :class:`BackendUnavailable`."""
    rules = b"".join(Path(__file__).with_name(name).read_bytes() for name in ("nvrtc.py", "host_code.py"))
    return f"{_found().identity} {hashlib.sha256(rules).hexdigest()[:12]}"


def compile_cubin(kernel: KernelSource, arch: str, transport: Path = toolkit.P2P_TRANSPORT) -> NvrtcImage:
    """Compiles a kernel for ``arch`` ("sm_90"), or finds it in the cache. ``transport``: the folder of its headers.

    Raises :class:`KernelCompileError` with the learner's own file and line, :class:`KernelNotFoundError`, and
    :class:`BackendUnavailable` when NVRTC is missing or does not know ``arch``.
    """
    unit = kernel.translation_unit()
    own, system = include_roots(kernel, transport), toolkit.cuda_include_dirs()
    headers = digest.scan(unit, own, system)
    flags = _flags(kernel, arch, own)
    parts = ["nvrtc", toolkit.library_version(), identity(), kernel.name, *flags, unit]

    def build(folder: Path, _: Path) -> None:
        found = names.check(kernel, headers.outside(system))

        def make(each: KernelSource) -> NvrtcImage:
            try:
                return compile_unit(each.translation_unit(), each, flags, folder)
            except CompilerRefused as refused:
                raise _refusal(each, arch, refused, found) from None

        image = without_the_host(kernel, transport, make)
        store(folder, image)
        (folder / "kernel.cu").write_text(unit, encoding="utf-8")

    return load(cache.entry("cubin", digest.key(headers, parts), "image.json", build))


def store(folder: Path, image: NvrtcImage, **facts: str) -> None:
    """Writes an image, and further facts about it, into a folder of the cache."""
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


def without_the_host(kernel: KernelSource, transport: Path, compiled: Callable[[KernelSource], Image]) -> Image:
    """What ``compiled`` makes of a kernel, or if it refuses, of its source without what only the host has."""
    try:
        return compiled(kernel)
    except KernelCompileError as error:
        log = error.log
        from ep_lib.jit import host_code  # few sources have any

        if (bare := host_code.set_aside(kernel, transport, log)) is None:
            raise
    return compiled(bare)


class CompilerRefused(Exception):
    """A compiler's own words; ``status`` is the name of its error, where it has one."""

    def __init__(self, log: str, status: str = "") -> None:
        super().__init__(log)
        self.log = log
        self.status = status


def compile_unit(unit: str, kernel: KernelSource, flags: Sequence[str], folder: Path) -> NvrtcImage:
    """Compiles a translation unit by NVRTC, for a cache entry in ``folder``. Raises CompilerRefused."""
    roots = [Path(flag.removeprefix("-I")) for flag in flags if flag.startswith("-I")]
    cubin, symbols = _compile(unit, kernel, [kernel.name], roots, flags)
    params = tuple(parse_table(Elf(cubin).symbol_bytes(_TABLE_SYMBOL)))
    return NvrtcImage(cubin, symbols[0], params, folder / "kernel.cubin")


def compile_kernels(
    unit: str, kernel: KernelSource, kernels: Sequence[str], arch: str, found: names.GlobalFunctions
) -> tuple[bytes, list[str]]:
    """The cubin of a translation unit for several kernels, and their symbols in it. Raises as :func:`compile_cubin`."""
    own = include_roots(kernel)
    try:
        return _compile(unit, kernel, kernels, own, _flags(kernel, arch, own))
    except CompilerRefused as refused:
        raise _refusal(kernel, arch, refused, found) from None


def _compile(
    unit: str, kernel: KernelSource, kernels: Sequence[str], roots: Sequence[Path], flags: Sequence[str]
) -> tuple[bytes, list[str]]:
    with sealed.open_includes(unit, roots, kernel.texts) as opened:
        path = opened.place(kernel.source_path)  # NVRTC looks beside it
        answer, cubin = _ask(unit, path, kernels, [*(f"-I{root}" for root in opened.roots(roots)), *flags])
    if answer["status"]:
        raise CompilerRefused(answer["log"], answer["status"])
    return cubin, answer["lowered"]


def _ask(unit: str, path: Path, named: Sequence[str], flags: Sequence[str]) -> tuple[Answer, bytes]:
    """NVRTC's answer for a translation unit, and the cubin. ``named``: the kernels whose symbols are needed."""
    answer, cubin = _ask_once(unit, path, named, flags)
    log = answer["log"]
    if not answer["status"] or not (of_host := list(_OF_HOST.finditer(log))) or len(of_host) < log.count("): error: "):
        return answer, cubin
    functions = {(m["file"], m["line"]) for m in of_host if not m["text"][: len(m["before"])].rstrip().endswith("]")}
    if functions:
        found, ptx = _ask_once(_NO_HOST + _UNFORCED + unit, path, [], [*flags, *_WITH_ALL_CALLS], "PTX")
        if found["status"] or _calls_one_of(functions, ptx.decode(errors="replace")):
            return answer, cubin
    return _ask_once(_NO_HOST + unit, path, named, [*flags, _TAKES_ALL])


def _calls_one_of(functions: Collection[tuple[str, str]], ptx: str) -> bool:
    """Whether other functions call one of the functions at these files and lines, or take its address."""
    files = dict(_PTX_FILE.findall(ptx))
    names = set()

    def others(found: re.Match[str]) -> str:
        begin = _PTX_LINE.search(found[2])
        if begin is None or (files.get(begin[1], ""), begin[2]) not in functions:
            return found[2]
        names.add(found[1])
        return ""

    rest = _PTX_PROTOTYPE.sub("", _PTX_BODY.sub(others, _PTX_WORDS.sub("", ptx)))
    return not names.isdisjoint(re.findall(r"[\w$]+", rest))


def _ask_once(
    unit: str, path: Path, named: Sequence[str], flags: Sequence[str], code: str = "CUBIN"
) -> tuple[Answer, bytes]:
    roots = [Path(flag.removeprefix("-I")) for flag in flags if flag.startswith("-I")]
    with tempfile.TemporaryDirectory(prefix="ep_nvrtc_") as folder:
        file = Path(folder) / "code"
        question: Question = {
            "libraries": list(_found().libraries),
            "source": _OF_NVCC + unit,
            "path": str(path),
            "names": list(named),
            "flags": list(flags),
            "empty": _of_the_host(unit, roots),
            "code": code,
            "file": str(file),
        }
        command = [sys.executable, "-I", "-S", _PROCESS]
        try:
            done = processes.run(command, cpu_s=_CPU_S, idle_s=_IDLE_S, stdin=json.dumps(question))
        except processes.TookTooLong as error:
            raise KernelCompileError(f"{path.name}: NVRTC {error} without coming to an end") from error
        except OSError as error:
            raise BackendUnavailable(f"{command[0]}, which asks NVRTC, cannot be started: {error}") from error
        if done.returncode:
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise BackendUnavailable(f"NVRTC {_found().version} has failed on {path.name}: {said}")
        answer: Answer = json.loads(done.stdout)
        if not answer["status"] and (store := _CONSTANT_STORE.search(answer["log"])):  # the kernel would trap there
            answer |= {
                "status": "NVRTC_ERROR_COMPILATION",
                "log": f"{store[1]}: error: a store to __constant__ memory\n",
            }
        if not answer["status"] and code == "CUBIN" and (too_much := _too_much_local_memory(file.read_bytes())):
            answer |= {"status": "NVRTC_ERROR_COMPILATION", "log": too_much}  # no launch would succeed
        answer["log"] = _WARNINGS.sub("", answer["log"])
        return answer, b"" if answer["status"] else file.read_bytes()


def _too_much_local_memory(cubin: bytes) -> str:
    elf = Elf(cubin)
    for section in elf.sections:
        if section.name == ".nv.info":
            for value in attributes(elf.data[section.offset : section.offset + section.size], _STACK):
                symbol, size = struct.unpack("<II", value)
                if size > _MOST_LOCAL:
                    return (
                        f"error: Entry function '{elf.symbols[symbol].name}' uses too much local memory "
                        f"({size:#x} bytes, {_MOST_LOCAL:#x} max)\n"
                    )
    return ""


def attributes(section: bytes, wanted: int) -> Iterator[bytes]:
    """The values of one kind in a section of a cubin's attributes."""
    at = 0
    while at < len(section):
        form, what, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            if what == wanted:
                yield section[at : at + size]
            at += size


def _of_the_host(unit: str, roots: Sequence[Path]) -> list[str]:
    """Headers of the C and C++ libraries that a learner's own files include and NVRTC does not have. They contain
    nothing for kernels; if a kernel uses a name of theirs, NVRTC reports it as unknown."""
    system = toolkit.cuda_include_dirs()
    headers = digest.scan(unit, [root for root in roots if root not in system], system)
    files = headers.outside([*system, toolkit.PACKAGE]) if headers.others else []
    texts = (unit, *(file.read_text("utf-8", "replace") for file in files))
    included = {name[1:-1] for text in texts for name in digest.includes(text)}.intersection(headers.others)
    return sorted(name for name in included if _CPP_HEADER.fullmatch(name) or toolkit.is_of_the_host(name))


def _flags(kernel: KernelSource, arch: str, own: Sequence[Path]) -> list[str]:
    roots = (*own, *toolkit.cuda_include_dirs())
    return [
        "-std=c++17",
        f"-arch={arch}",
        "-lineinfo",
        "--device-int128",
        *kernel.options,
        *(f"-I{root}" for root in roots),
    ]


def _refusal(kernel: KernelSource, arch: str, refused: CompilerRefused, found: names.GlobalFunctions) -> EpError:
    log = refused.log
    if "--gpu-architecture" in log:
        return BackendUnavailable(f"NVRTC {version()} cannot compile for {arch}: {log}")
    if "nvrtc: error" in log and "builtins" in log:
        return BackendUnavailable(f"NVRTC {version()} is not whole: {log} ({_INSTALL})")
    if "nvrtc: error" in log or "INVALID_OPTION" in refused.status:
        return BackendUnavailable(
            f"NVRTC {version()} refused the options {list(kernel.options)}: {log} ({refused.status})"
        )
    from ep_lib.jit import diagnostics  # imported here: its tables are for errors only

    return diagnostics.compile_error(kernel, log, target=arch, roots=include_roots(kernel), found=found)


def _found() -> toolkit.Nvrtc:
    """The installed NVRTC. Raises BackendUnavailable if there is none."""
    if (found := toolkit.find_nvrtc()) is None:
        raise BackendUnavailable(f"compiling for GPUs needs NVRTC, though no GPU: {_INSTALL}")
    return found
