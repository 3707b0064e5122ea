"""A foreign source beside a kernel: compiled to an object of its own, from which the kernel's library uses a few
functions.

The kernel's source never includes the other text, so no macro, overload, specialisation or pragma there can change the
kernel. `ld -r` and `objcopy` keep only the functions that the kernel calls global; all other symbols of the object
become local. Checks then look at its structure: the functions exist, no symbol intercepts the compiler's own calls to
the emulator, it calls only the emulator's functions for kernels, its lines belong to files that it included, and no
code runs when it is loaded.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from ep_lib.errors import KernelCompileError
from ep_lib.jit.elf import Elf, undefined_tls_symbols
from ep_lib.jit.toolkit import EMULATOR_INCLUDE

# Options of ld and objcopy. Code that would run at load was refused before; compilers' own (__tsan_init) does nothing
# here.
MERGE = ("-r", "--force-group-allocation", "-d")
_AT_LOAD = [each for kind in ("init", "fini") for each in (f".{kind}", f".{kind}_array*", f".rela.{kind}_array*")]
_AT_LOAD += [".preinit_array*", ".rela.preinit_array*", ".ctors*", ".dtors*", ".rela.ctors*", ".rela.dtors*"]
_DEPENDENCY = re.compile(r"(?:\\\n|\s)+((?:\\.|[^\s\\])+)")

# Symbols that an object may leave undefined, besides the emulator's for kernels. Functions of other libraries are not
# instrumented: the checker does not see their accesses. A GPU has only pure functions of them: libgcc's arithmetic, and
# those of libm that CUDA has by the same name.
_MATHEMATICS = frozenset(
    f"{name}{suffix}"
    for suffix in ("", "f")
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf"),
        *("erfc", "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot"),
        *("ilogb", "j0", "j1", "jn", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2", "logb"),
        *("lrint", "lround", "nearbyint", "nextafter", "pow", "remainder", "rint", "round", "scalbln", "scalbn"),
        *("sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc", "y0", "y1", "yn"),
        *("frexp", "modf", "remquo", "sincos"),  # these write through a pointer, unseen by the checker
    )
)
_COMPILERS = re.compile(
    r"__tsan_\w+|__ubsan_\w+"  # defined by the runtime, which checks their calls
    # arithmetic of libgcc, by GCC's names of types: __udivti3, __floattidf
    r"|__(?:[a-z]+?(?:[qhsdtxbo][ifc])+[2-4]|(?:fix|float|extend|trunc)[a-z]*(?:[qhsdtxbo][ifc]){2})"
    r"|__stack_chk_fail|__assert_fail|_ZSt\d+__throw_\w+|abort"  # the end of the run
    r"|_ZTH\w+"  # clang++ tests whether an extern __shared__ array has an initialiser; none has
    r"|fe[gs]etround|l?abs|_GLOBAL_OFFSET_TABLE_|__dso_handle"
)
# Symbols whose addresses compilers take by themselves.
_ADDRESSES = re.compile(r"epemu_\w+|__gmon_start__|__cxa_finalize|_ITM_\w+|_ZTV\w+|_ZTH\w+")
_MOST_NAMED, _MOST_SPELLED = 3, 200  # functions that a sentence names, and letters of each


def called_by(kernel: Elf, support: Elf) -> list[str]:
    """The functions that a kernel's object calls and neither the emulator nor the compiler provides: the other object
    must have them."""
    own = support.defined_names() | set(undefined_tls_symbols(kernel))
    return sorted(name for name in kernel.undefined_names() - own if not _is_of_kernels(name))


def closing(names: Iterable[str]) -> list[str]:
    """The options of objcopy that keep these names global."""
    return [*(f"--remove-section={each}" for each in _AT_LOAD), *(f"--keep-global-symbol={name}" for name in names)]


def require_own_names(obj: Elf, runtime: Elf, support: Elf) -> None:
    """Raises KernelCompileError if an object defines, even locally, a function that compilers insert calls of: it would
    intercept the object's accesses. C++ names cannot collide."""
    given = {name for each in (runtime, support) for name in each.defined_names(strong=True)}
    taken = sorted(name for name in given & obj.defined_names(local=True) if not name.startswith("_Z"))
    if taken:
        raise KernelCompileError(f"your code defines {_listed(taken)}, which is the emulator's: name it otherwise")


def require_own_lines(obj: Elf, dependencies: str, others: Collection[Path]) -> None:
    """Raises KernelCompileError if an object's lines name a file that was not included, since the checker would report
    that file. ``dependencies``: the compiler's output of -MD. ``others``: files read under another name: the source,
    and sealed files."""
    read = {Path(name.replace("\\", "")) for name in _DEPENDENCY.findall(dependencies)}.union(others)
    allowed = {str(file.resolve()) for file in read}
    for name in sorted(obj.files_of_lines()):
        if not name.startswith("<") and str(Path(name).resolve()) not in allowed:
            raise KernelCompileError(
                f"lines of your code are said to be of {Path(name).name}, which is not where they "
                "are: leave out `#line`"
            )


def require_calls_of_kernels(obj: Elf, names: Collection[str], support: Elf) -> None:
    """Raises KernelCompileError if a closed object lacks one of ``names``, exports more, or calls functions that
    kernels do not have."""
    if strange := sorted(obj.defined_names() ^ set(names)):
        raise KernelCompileError(f"your code defines {_listed(strange)} otherwise than it should")
    given = set(undefined_tls_symbols(obj)) | support.defined_names()
    _refuse([name for name in obj.undefined_names() - given if not _is_of_kernels(name)])


def require_no_addresses(library: Elf) -> None:
    """Raises KernelCompileError if a library takes the address of a function of another library: others could be
    reached from it."""
    _refuse([name for name in library.addresses_of_others() if not _ADDRESSES.fullmatch(name)])


def _refuse(names: list[str]) -> None:
    if names:
        what = f"your code calls, defines or takes the address of {_listed(sorted(names))}, which kernels do not have"
        raise KernelCompileError(what)


def _is_of_kernels(name: str) -> bool:
    return name in _for_kernels() or name in _MATHEMATICS or _COMPILERS.fullmatch(name) is not None


@cache
def _for_kernels() -> frozenset[str]:
    """The functions of the emulator that its headers call."""
    texts = (file.read_text("utf-8") for file in (EMULATOR_INCLUDE / "ep_emulator").glob("*.h"))
    return frozenset(name for text in texts for name in re.findall(r"\bepemu_\w+", text))


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(_spelled(name)[:_MOST_SPELLED] for name in names[:_MOST_NAMED])
    return f"{listed} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else listed


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
