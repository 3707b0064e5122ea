"""Code that the checker does not see proves nothing. So a submission's library may call no functions that kernels do
not have (strangers), and memory that changed in a run without a write that was seen is a mistake (unseen_bytes). Words
with which code hides its accesses, or changes the test that includes it, cost no point: an instructor is told of them
(look_through). Refused are two, which no layer beneath would find.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ep_lib.errors import BackendUnavailable, KernelCompileError
from ep_lib.jit.elf import SHN_UNDEF, Elf
from ep_lib.jit.lexer import doubt, without_comments
from ep_lib.jit.toolkit import DEVICE_INCLUDE, EMULATOR_INCLUDE, find_compiler
from ep_lib.workshop.bound import SHARED, without_held
from ep_lib.workshop.declared import Found, code_of, declarations, templates_of
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.reaching import reaches
from ep_lib.workshop.submission import reaches_out, source_text

_IN_PLAIN_CUDA = "write it in plain CUDA C++"
_MATHEMATICS = frozenset(
    f"{name}{suffix}"
    for suffix in ("", "f")
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf"),
        *("erfc", "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot"),
        *("ilogb", "j0", "j1", "jn", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2", "logb"),
        *("lrint", "lround", "nearbyint", "nextafter", "pow", "remainder", "rint", "round", "scalbln", "scalbn"),
        *("sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc", "y0", "y1", "yn"),
        *("frexp", "modf", "remquo", "sincos"),  # these write through a pointer: a change that nobody saw is a mistake
    )
)
# Of the compiler's own functions those that work on values, or whose accesses the sanitizer sees. Many of the others
# become moves after the sanitizer has been told of all accesses.
_BUILTINS_OF_VALUES = "|".join(
    (
        *(r"(?:popcount|parity|clz|ctz|ffs|clrsb)(?:l|ll)?", r"bswap(?:16|32|64|128)", r"(?:l|ll)?abs"),
        *("expect(?:_with_probability)?", "unreachable", "trap", "assume(?:_aligned)?", "prefetch"),
        *("constant_p", "is_constant_evaluated", "offsetof", "addressof", "launder", "bit_cast"),
        *(r"(?:add|sub|mul)_overflow(?:_p)?", r"[su](?:add|sub|mul)(?:l|ll)?_overflow"),
        *(r"(?:inf|nan|huge_val)f?", "is(?:nan|inf|finite|normal)f?", "signbitf?"),
        *sorted(_MATHEMATICS),
    )
)
# What these hide no layer beneath finds: reads that the sanitizer is not told of, and the line of the canary.
_SWITCHES_OFF = (
    (re.compile(r"(?:no_sanitiz|disable_sanitizer|no_address_safety)\w*"), "it switches the checker off: leave it out"),
    (re.compile(r"^[^\S\n]*#\s*(?:line\b|\d)[^\n]*", re.MULTILINE), "reports would name another file: leave it out"),
)
_HIDES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), why)
    for pattern, why in (
        (r"\basm\b|\b__asm(?:__)?\b", f"the emulator cannot watch assembly: {_IN_PLAIN_CUDA}, with <ep/memory.cuh>"),
        (r"\b__declspec\b", "an attribute may hide code from the checker: leave it out"),
        (
            r"^[^\S\n]*#\s*pragma\b(?!\s+(?:GCC\s+|clang\s+loop\s+)?(?:once|unroll|nounroll)\b)[^\n]*|\b_Pragma\b",
            "a pragma may change how the tests are compiled: leave it out",
        ),
        (r"##|# #", "words that are pasted together cannot be read here: write them out"),
        (r"\b(?:__tsan|__ubsan|__asan|epemu|EPEMU)_?\w*|\bep_emulator\b", "it belongs to the emulator: leave it out"),
        (
            r"\b__builtin_(?:frame|return|extract_return|apply|LINE|FILE|FUNCTION|COLUMN|source_location)\w*"
            r"|\bsource_location\b|\bstacktrace\b|\bcontract_violation\b",
            "it looks into the functions that call yours: leave it out",
        ),
        (r"\b__builtin_va_\w+|\bva_(?:list|start|arg|copy|end)\b", "GPUs have no functions of any number of arguments"),
        (
            r"\b__builtin_\w*(?:mem|str|stp|bc|bz|cpy|_chk)\w*"
            r"|\b(?:__)?(?:v?sn?printf|b(?:cmp|copy|zero)|mem(?:cmp|pcpy|ccpy|r?chr)|st[rp]n?(?:case)?(?:cmp|cpy|cat|len|dup|r?chr|c?spn|pbrk|str))(?:_chk)?\b",
            "the checker does not see what it reads and writes: read and write by loads and stores of your own",
        ),
        (
            r"\b__(?:c11_|scoped_|hip_|opencl_)?(?:atomic|sync)_\w+|\bstd\s*::\s*atomic\w*|<atomic>",
            f"GPUs do not have it: {_IN_PLAIN_CUDA}",
        ),
        (r"\b_mm\d*_\w+|\b__builtin_ia32_\w+|\b\w*intrin\.h\b", f"GPUs do not have it: {_IN_PLAIN_CUDA}"),
        (
            rf"\b__builtin_(?!(?:{_BUILTINS_OF_VALUES})\b)\w+",
            f"of the compiler's own functions a piece has those on values, as __builtin_clz: {_IN_PLAIN_CUDA}",
        ),
    )
)
_DEFINES = re.compile(r"^[^\S\n]*#\s*(define|undef)\s+(\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"\b(\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*(?:const\s*)?(?:noexcept\s*)?\{")
_CALL = re.compile(r"\b(\w+)(?:\s*\(|<)")
_NO_FUNCTIONS = frozenset(
    (
        *("if", "for", "while", "switch", "catch", "return", "sizeof", "alignas", "__attribute__", "template"),
        *("include", "static_assert", "decltype"),
    )
)
_LONGEST_LINE = 4000  # characters; some lines are read again for each word in them
_MOST_LOOKS = 20  # of a piece

# What a kernel's library may leave undefined, beside what the emulator gives to kernels. A function of another library
# is not instrumented: it reads and writes memory without a word to the checker. And a GPU has none, but for those that
# return a value for values: of libgcc the arithmetic, of libm what CUDA has by the same name.
_COMPILERS = re.compile(
    r"__tsan_\w+|__ubsan_\w+"  # these the runtime defines, and sees what they are called for
    r"|_ITM_(?:de)?registerTMCloneTable|__cxa_finalize|__gmon_start__|__stack_chk_fail"  # of every shared library
    r"|_ZTH\w+"  # clang++ asks whether an extern __shared__ array has such a function; nothing has
    r"|__assert_fail|_ZSt\d+__throw_\w+"  # the end of the run
)
_ARITHMETIC = re.compile(r"__[a-z]+?(?:[qhsdtxbo][ifc])+[2-4]?@+GCC_.*")  # by GCC's names of types: __udivti3
# What compilers take the addresses of by themselves.
_ADDRESSES = re.compile(r"epemu_\w+|__gmon_start__|__cxa_finalize|_ITM_\w+|_ZTV\w+|_ZTH\w+")
_MOST_NAMED, _MOST_SPELLED = 3, 200  # functions that a sentence names, and letters of each
_HARMLESS = {"epemu_host_only", "epemu_stack_damaged", "epemu_shared_base"}  # what gxx.py links into every kernel
_HARMLESS |= {"abort", "fegetround", "fesetround", "abs", "labs"}


def look_through(exercise: Exercise, mine: Path, tests: Sequence[Path]) -> tuple[str, list[str]]:
    """Why the pieces in ``mine`` are not run, or "", and what of them is worth an instructor's look: it costs no point.
    ``tests``: the files of the hidden tests in C++, which include the piece. Call it by
    :func:`ep_lib.workshop.reading.read`: nobody knows how long it takes."""
    refused, found = "", list(filter(None, [reaches_out(exercise, mine)]))
    for piece in exercise.pieces:
        if piece.endswith(".py"):
            found += [f"{piece}:{each}" for each in reaches((mine / piece).read_bytes())]
            continue
        text = code_of(source_text(mine / piece))
        for pattern, why in _SWITCHES_OFF:
            if switch := pattern.search(text):
                refused = refused or _told(piece, text, switch.start(), switch.group(), why)
        if max(map(len, text.split("\n"))) > _LONGEST_LINE:
            found.append(f"{piece}: a line has more than {_LONGEST_LINE} characters, so its words were not looked at")
        else:
            found += _unusual(exercise, piece, source_text(mine / piece), text, tests)
    return refused, found[:_MOST_LOOKS]


def _unusual(exercise: Exercise, piece: str, source: str, text: str, tests: Sequence[Path]) -> Iterator[str]:
    """ "x.cuh:3: `asm`: ...": where a piece has what may hide it from the checker, or changes the tests."""
    words = _of_the_library() | {word for test in _texts(tests) for word in re.findall(r"\w+", test)}
    for shared in {test.with_name(SHARED) for test in tests}:
        words |= set(re.findall(r"\w+", without_comments(shared.read_text("utf-8"))))
    if doubtful := doubt(source):
        yield _told(piece, source, doubtful[0], doubtful[1], "compilers do not agree where code ends")
    for pattern, why in _HIDES:
        if found := pattern.search(text):
            yield _told(piece, text, found.start(), found.group(), why)
    for found in _DEFINES.finditer(text):
        if found[2] in words:
            yield _told(piece, text, found.start(2), found[2], "the tests have this word as well")
    for each in {each.what: each for each in _declared(exercise, piece, text, tests)}.values():
        yield _told(piece, text, each.at, each.what, each.why)


def _declared(exercise: Exercise, piece: str, text: str, tests: Sequence[Path]) -> Iterator[Found]:
    """What a piece declares that the exercise's own file does not."""
    called = {name for test in _texts(tests) for name in _CALL.findall(test)} - _NO_FUNCTIONS
    own = code_of((exercise.exercise_dir / piece).read_text("utf-8"))
    library, templates = _of_the_library(), _templates()
    given = {each.what for each in declarations(own, called, library, templates)}
    return declarations(text, called - given, library - given, templates - given)


def _texts(tests: Sequence[Path]) -> tuple[str, ...]:
    """What pieces could change of the tests."""
    return tuple(without_held(without_comments(test.read_text("utf-8"), keep_strings=True)) for test in tests)


def unwatched() -> tuple[str, ...]:
    """What of pieces the checker does not see with this machine's compiler, a sentence each."""
    try:
        is_clang = find_compiler().is_clang
    except BackendUnavailable:
        return ()  # nothing is graded then
    line = (
        "a submission can read memory unseen, by structs of more than 16 bytes that a call copies, and write by the "
        "processor's own instructions: clang++ does not say where they are; take g++"
    )
    return (line,) if is_clang else ()


def _told(piece: str, text: str, at: int, what: str, why: str) -> str:
    return f"{piece}:{text.count(chr(10), 0, at) + 1}: `{' '.join(what.split())}`: {why}."


def _functions(text: str) -> set[str]:
    return set(_FUNCTION.findall(without_comments(text)))


@cache
def _of_the_library() -> frozenset[str]:
    """The functions of the headers that kernels include."""
    return frozenset(
        name for file in sorted(DEVICE_INCLUDE.rglob("*.cuh")) for name in _functions(file.read_text("utf-8"))
    )


@cache
def _templates() -> frozenset[str]:
    """The templates of these headers, and of the emulator's."""
    files = [*DEVICE_INCLUDE.rglob("*.cuh"), *(each for each in EMULATOR_INCLUDE.rglob("*") if each.is_file())]
    return frozenset(name for file in files for name in templates_of(code_of(file.read_text("utf-8"))))


@cache
def _for_kernels() -> frozenset[str]:
    """The functions of the emulator that its headers call."""
    texts = (file.read_text("utf-8") for file in (EMULATOR_INCLUDE / "ep_emulator").glob("*.h"))
    return frozenset(name for text in texts for name in re.findall(r"\bepemu_\w+", text))


def is_of_kernels(symbol: str) -> bool:
    """Whether a kernel's library may leave a symbol undefined: ``abort``, ``__popcountdi2@GCC_3.4``."""
    name = symbol.partition("@")[0]
    return (
        name in _for_kernels()
        or name in _HARMLESS
        or name in _MATHEMATICS
        or _COMPILERS.fullmatch(name) is not None
        or _ARITHMETIC.fullmatch(symbol) is not None
    )


def strangers(library: Path) -> list[str]:
    """What a compiled kernel calls although no kernel has it, and what of the checker it defines."""
    image = Elf(library.read_bytes())
    # From the address of a function all others of its library are not far.
    found = [name for name in image.addresses_of_others() if not _ADDRESSES.fullmatch(name)]
    for symbol in image.symbols:
        name = symbol.name.partition("@")[0]
        if symbol.section != SHN_UNDEF:
            if name.startswith(("__tsan_", "__ubsan_")) or name in _for_kernels():
                found.append(name)
        elif name and not is_of_kernels(symbol.name):
            found.append(name)
    return sorted(set(found))


def require_kernels_own(library: Path) -> None:
    """Raises KernelCompileError, as for any code that cannot be run, if there are :func:`strangers`."""
    if names := strangers(library):
        listed = ", ".join(_spelled(name)[:_MOST_SPELLED] for name in names[:_MOST_NAMED])
        listed += f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        raise KernelCompileError(
            f"your code calls, defines or takes the address of {listed}, which kernels do not have", log=""
        )


def _spelled(symbol: str) -> str:
    """A symbol as C++ writes it."""
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_void_p
    if not (text := demangle(symbol.encode(), None, None, None)):
        return f"{symbol}()"
    try:
        return ctypes.string_at(text).decode()
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(text)


def unseen_bytes(writes: NDArray[np.int64], changed: Iterable[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]) -> int:
    """How many bytes changed without a write that was seen. ``writes``: address and number of bytes of each;
    ``changed``: address, bytes before and after, of arrays."""
    begins, sizes = writes.T
    unseen = 0
    for address, before, after in changed:
        depth = np.zeros(before.size + 1, np.int64)
        np.add.at(depth, np.clip(begins - address, 0, before.size), 1)
        np.add.at(depth, np.clip(begins + sizes - address, 0, before.size), -1)
        unseen += int(np.sum((before != after) & (np.cumsum(depth)[:-1] == 0)))
    return unseen
