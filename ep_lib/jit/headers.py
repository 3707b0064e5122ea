"""Finds the header of a name that a kernel uses but did not include."""

from __future__ import annotations

import difflib
import functools
import re

from ep_lib.jit import toolkit
from ep_lib.jit.lexer import without_comments
from ep_lib.jit.source import NO_FILE

_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_QUALIFIED = re.compile(r"\b((?:[A-Za-z_]\w*::)+)([A-Za-z_]\w*)")
_QUOTED = re.compile(r"['\"‘]([A-Za-z_][\w:]*)['\"’]")
UNKNOWN = re.compile(
    r"declared|undefined|no member|not a member|undeclared|name followed by|does not name a type|not a class|incomplete"
)
_MISSING_FILE = re.compile(
    r"((?:ep|moe)/[\w./]+)['\"]?(?:: No such file| file not found)|cannot open .*?\"((?:ep|moe)/[\w./]+)\""
)

UNDEFINED = re.compile(
    r"identifier \"(\w+)\" is undefined|namespace \"std\" has no member \"(?:class )?(\w+)\""
    r"|'(\w+)' is not a member of 'std'$|no member named '(\w+)' in namespace 'std'$"
)

# Definitions in the headers of ep_lib/device/ep: functions, structs and enumerations, constants.
_DEFINITION = re.compile(
    r"^(?:template <[^\n]*>\s*)?(?:\[\[[^\n]*\]\] )?(?:EP_DEVICE|EP_HOST_DEVICE) [\w:<>*& ]*?\b(\w+)\(|"
    r"^(?:struct|class|enum class|enum) (\w+)[^;\n]*\{|^constexpr [\w:]+ (\w+)\b",
    re.MULTILINE,
)
_MEMORY = re.compile(r"(?:ld|st|red_add|atom_add|atom_exch|atom_cas)_[a-z_]+_u(?:32|64)(?:x2)?|(?:ld|st)_(?:nc|na)_v4")

# Names that kernels cannot use: a sentence, and the replacement
_OUT = (
    (
        re.compile(r"\bnvshmemx?\.h\b|nvshmem/"),
        "nvshmem.h belongs to NVSHMEM's own build; kernels here use <ep/net.cuh>, which runs over NVSHMEM too",
    ),
    (
        re.compile(r"\b(?:nccl|mpi|nvshmem_host)\w*\.h\b"),
        "that is a header for the host; kernels here use <ep/net.cuh> and <ep/signal.cuh>",
    ),
    (
        re.compile(r"\bcurand\w*\.h\b"),
        "that is cuRAND's, which ep_lib does not install: draw the numbers in Python and pass an array, or compute "
        "them by a hash of a seed and the thread's number",
    ),
)
_LAUNCH = re.compile(r"<<<[^;]*>>>|\bcudaLaunch\w+\s*\(")

# Headers of CUDA, by namespace and by the beginning of a name.
_CUDA_NAMES = (
    (re.compile(r"(?:cooperative_groups|cg)::(?:memcpy_async|wait|wait_prior)\b"), "cooperative_groups/memcpy_async.h"),
    (re.compile(r"(?:cooperative_groups|cg)::(?:inclusive_scan|exclusive_scan)"), "cooperative_groups/scan.h"),
    (re.compile(r"(?:cooperative_groups|cg)::reduce\b"), "cooperative_groups/reduce.h"),
    (re.compile(r"cooperative_groups|\bcg::"), "cooperative_groups.h"),
    (re.compile(r"cuda::(?:std::)?(?:atomic|memory_order|thread_scope)"), "cuda/atomic"),
    (re.compile(r"cuda::(?:std::)?barrier"), "cuda/barrier"),
    (re.compile(r"cuda::(?:std::)?latch"), "cuda/latch"),
    (re.compile(r"cuda::(?:std::)?(?:counting|binary)_semaphore"), "cuda/semaphore"),
    (re.compile(r"cuda::(?:pipeline|make_pipeline)"), "cuda/pipeline"),
    (re.compile(r"cuda::ptx\b"), "cuda/ptx"),
    (re.compile(r"cub::BlockReduce"), "cub/block/block_reduce.cuh"),
    (re.compile(r"cub::BlockScan"), "cub/block/block_scan.cuh"),
    (re.compile(r"cub::BlockLoad"), "cub/block/block_load.cuh"),
    (re.compile(r"cub::BlockStore"), "cub/block/block_store.cuh"),
    (re.compile(r"cub::BlockRadixSort"), "cub/block/block_radix_sort.cuh"),
    (re.compile(r"cub::WarpReduce"), "cub/warp/warp_reduce.cuh"),
    (re.compile(r"cub::WarpScan"), "cub/warp/warp_scan.cuh"),
    (re.compile(r"\b(?:__nv_bfloat16|nv_bfloat16|__nv_bfloat162|__float2bfloat16|__bfloat162float)\b"), "cuda_bf16.h"),
    (re.compile(r"\b(?:__half|half|half2|__half2|__float2half|__half2float)\b"), "cuda_fp16.h"),
    (re.compile(r"\b__nv_fp8\w*"), "cuda_fp8.h"),
    # of C, which g++ always has
    (re.compile(r"u?int\w*_t\b|U?INT(?:8|16|32|64|PTR)_(?:MAX|MIN)\b|SIZE_MAX\b"), "stdint.h"),
    (re.compile(r"(?:U?(?:CHAR|SHRT|INT|LONG|LLONG)|SCHAR)_(?:MAX|MIN)\b|CHAR_BIT\b"), "limits.h"),
    (re.compile(r"(?:FLT|DBL)_[A-Z]\w*"), "float.h"),
    (re.compile(r"M_[A-Z]\w*|INFINITY\b|NAN\b|HUGE_VAL\w*"), "math.h"),
)


def missing_include(source: str, error: str, line: str) -> str:
    """What to include, for a compiler's sentence about an unknown name in ``line`` of ``source``; empty if unclear."""
    if NO_FILE.search(error):
        for pattern, sentence in _OUT:
            if pattern.search(error):
                return sentence
    if _LAUNCH.search(without_comments(line)):
        return (
            "kernels are launched from Python, by Kernel.launch: leave out a function of the host that launches one, "
            "and what a kernel launches itself (dynamic parallelism)"
        )
    if file := _MISSING_FILE.search(error):
        return _nearest(file[1] or file[2])
    if NO_FILE.search(error):
        return (
            "it is neither CUDA's nor in a folder of `include`: leave it out if only the host needs it, or pass "
            "include=[its folder] to Kernel"
        )
    if not UNKNOWN.search(error):
        return ""
    included = set(_INCLUDED.findall(without_comments(source, keep_strings=True)))
    error, _, meant = error.partition("did you mean")
    known = set(_QUOTED.findall(meant))  # the compiler has already seen names that it proposes
    for header, name in _candidates(error, without_comments(line)):
        if header not in included and name not in known:
            return f"{name} is in <{header}>: add #include <{header}>"
        if name.startswith("ep::") and f"{name}" not in line:
            return f"it is in the namespace ep: write {name}"
    if unknown := UNDEFINED.search(error):  # a name that g++ has and a GPU does not
        return f"kernels have no {unknown[unknown.lastindex or 0]}: is it the host's, or is an #include missing?"
    return ""


def _candidates(error: str, line: str) -> list[tuple[str, str]]:
    """(header, qualified name) of candidates: first names in the message, then names in the line."""
    named = _QUOTED.findall(error)
    found = []
    qualified = [(space + name, space, name) for space, name in _QUALIFIED.findall(line)]
    said = [words for words in qualified if any(words[2] == n or words[1].rstrip(":") == n for n in named)]
    if "followed by" in error:  # NVRTC: name followed by "::" must be a class or namespace name
        said = qualified
    for whole, space, name in [*said, *((n, "", n) for n in named if "::" not in n)]:
        if header := next((header for pattern, header in _CUDA_NAMES if pattern.match(whole)), ""):
            found.append((header, whole))
        elif space in ("", "ep::") and (header := _of_ep(name)):
            found.append((header, f"ep::{name}"))
    return found


def _of_ep(name: str) -> str:
    return "ep/memory.cuh" if _MEMORY.fullmatch(name) else _definitions().get(name, "")


@functools.cache
def _definitions() -> dict[str, str]:
    """The names that the headers of <ep/...> define, each with its header."""
    found: dict[str, str] = {}
    for file in sorted((toolkit.DEVICE_INCLUDE / "ep").glob("*.cuh")):
        try:
            text = file.read_text(encoding="utf-8")
        except PermissionError:
            continue  # behind the grader's walls: the library's own copy of the learner's file
        for words in _DEFINITION.findall(text):
            found.setdefault(next(filter(None, words)), f"ep/{file.name}")
        for name in re.findall(r"^// +(tma_\w+)", text, re.MULTILINE):
            found.setdefault(name, f"ep/{file.name}")
    return found


def _nearest(missing: str) -> str:
    files = [(toolkit.DEVICE_INCLUDE, p) for p in (toolkit.DEVICE_INCLUDE / "ep").glob("*.cuh")]
    files += [(toolkit.PACKAGE, p) for p in (toolkit.PACKAGE / "moe").rglob("*.cuh")]
    close = difflib.get_close_matches(missing, [file.relative_to(root).as_posix() for root, file in files], 1)
    known = f"did you mean <{close[0]}>?" if close else "<ep/platform.cuh> lists what there is"
    return f"there is no <{missing}>; {known}"
