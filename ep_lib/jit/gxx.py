"""Compiles kernels for the emulator, and the emulator's runtime itself, with g++ or clang++."""

from __future__ import annotations

import functools
import json
import platform
import re
import resource
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ep_lib.config import Config
from ep_lib.errors import BackendUnavailable, KernelCompileError
from ep_lib.jit import cache, cuda_rules, digest, names, nvrtc, runtime_library, sealed, toolkit, tools, unseen
from ep_lib.jit.closed import (
    MERGE,
    called_by,
    closing,
    require_calls_of_kernels,
    require_no_addresses,
    require_own_lines,
    require_own_names,
)
from ep_lib.jit.elf import (
    Elf,
    defined_tls_symbols,
    functions_at_load,
    has_writable_globals,
    names_of_the_linker,
    undefined_tls_symbols,
    variable_sizes,
    virtual_thunks,
)
from ep_lib.jit.signature import Param, parse_table
from ep_lib.jit.source import ENTRY_FILE, UNIT_FILE, KernelSource
from ep_lib.jit.toolkit import Compiler

if TYPE_CHECKING:
    pass

HALF = "half"  # kind of cache entries: a kernel's own object, see closed.py
_NO_KERNELS = names.GlobalFunctions((), frozenset(), True)
_UNWATCHED = "unwatched.json"  # beside an object: accesses that the race checker does not see, a line each
_OBJECT, _LIBRARY = "kernel.o", "kernel.so"
_ENTRY_SYMBOL = "epemu_entry_{}"
_TABLE_SYMBOL = "ep_kernel_params_{}"  # both with a kernel's number: ep_lib/device/ep/detail/entry.cuh
_LIMITS = "gpu.json"  # the most threads of a block of each kernel on a GPU, if known
MAX_THREADS = 1024  # of any block
_SHARED_ALIGN = 1024  # of dynamic shared memory, as on GPUs
_TOO_LARGE = "File size limit exceeded"  # message of a program that SIGXFSZ has ended

# -fsanitize=thread makes every memory access call the runtime's own __tsan_ functions; libtsan is never linked.
_KERNEL_FLAGS = [
    "-std=c++17",
    "-O1",
    *runtime_library.LINES,
    "-gdwarf-4",  # binutils' addr2line reports file 0 of DWARF 5, the unit, for files that it does not find
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",  # as on GPUs; virtual tables then do not refer to the C++ library
    "-fno-optimize-sibling-calls",
    "-fno-strict-aliasing",
    "-fwrapv",  # integers wrap around, as on a GPU
    "-fsanitize=thread",
    "-fstack-protector-strong",  # finds writes past a local array, when the function returns
    "-fsanitize=alignment",  # a GPU faults on misaligned accesses, such as an int4 at an odd address
    # Operations that a GPU defines and C++ does not, and division by 0, undefined on both.
    "-fsanitize=shift-exponent,float-cast-overflow,integer-divide-by-zero",
    "-fvisibility=hidden",
    "-DEP_EMULATOR=1",
    "-U_FORTIFY_SOURCE",  # Ubuntu defines it: its longjmp refuses to change fibers, its memcpy escapes the checks
    # As in ep_emulator/prelude.h: the runtime sees these as calls.
    *("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset"),
    "-w",
    "-fdiagnostics-color=never",
]
# Optimisations after the sanitizer's pass, switched off. They do not change what the emulator sees; kernels spend their
# time in the runtime, and a compilation takes a quarter less without them.
_GCC_LATE = (
    *("tree-loop-optimize", "forward-propagate", "dse", "if-conversion", "if-conversion2", "move-loop-invariants"),
    *("cprop-registers", "shrink-wrap", "reorder-blocks", "split-wide-types"),
)
_GCC_FLAGS = [
    # Find an index past a local array or a constant, which the sanitizer does not see: also at a struct's end, and by
    # the variable's size if the type has no bound.
    *("-fsanitize=bounds-strict", "-fsanitize=object-size"),
    *("--param", "tsan-distinguish-volatile=1", "-fno-extern-tls-init", "-fmax-errors=20", "-pipe"),
    *(f"-fno-{step}" for step in _GCC_LATE),
    # g++ turns a cast of these into lfloor or lceil, before the sanitizer checks casts.
    *(f"-fno-builtin-{name}" for name in ("floor", "floorf", "ceil", "ceilf")),
    # g++ replaces reads of a __shared__ struct that no kernel writes by its initial values; GPUs have none.
    "-fno-ipa-reference-addressable",
    # Constructors then copy a struct passed by value, in loads that the sanitizer sees; otherwise the call copies it
    # unseen.
    "-fno-elide-constructors",
]
_READ = "read.d"  # the files that were read, in make's format
# g++ refuses recursive functions that must be inlined; GPUs and clang++ accept them. Such a source is compiled again
# with inlining left to g++.
_CANNOT_INLINE = "inlining failed in call to 'always_inline'"
_UNFORCED = "#undef __forceinline__\n#define __forceinline__ inline\n"
_CLANG_FLAGS = [
    *("-fsanitize=bounds", "-mllvm", "-tsan-distinguish-volatile=1", "-ferror-limit=20", "-Wno-everything"),
    # The functions below replace the processor's instructions, which treat 0 as equal to -0.
    *(f"-fno-builtin-{name}" for name in ("fmin", "fminf", "fmax", "fmaxf")),
]
# -z defs: a function that neither the kernel nor the runtime has is reported here rather than by the loader.
# -z relro, -z now: the addresses of the runtime's functions are read-only from the start.
_KERNEL_LINK_FLAGS = ["-shared", "-Wl,-z,defs,-z,relro,-z,now,--as-needed"]
# Headers that the prelude always includes. Another header of the C++ library, or a name of it, adds the rest.
# fmt: off
_ALWAYS_INCLUDED = frozenset((
    "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring", "limits", "new",
    "type_traits", "utility",
))
# fmt: on
_CPP_HEADER = re.compile(r"[a-z]\w+|bits/stdc\+\+\.h")
_CPP_NAME = re.compile(r"\bstd\b")
# Functions of the C library that would end or change the process. A GPU has none of them.
# fmt: off
_ENDS = (
    "exit", "_exit", "_Exit", "quick_exit", "raise", "kill", "killpg", "tgkill", "sigqueue", "pthread_exit",
    "pthread_kill",
)
_HOST_ONLY = (
    "fork", "vfork", "clone", "system", "popen", "execl", "execlp", "execle", "execv", "execvp", "execve",
    "execvpe", "posix_spawn", "posix_spawnp", "wait", "waitpid", "pthread_create", "pthread_join", "pthread_detach",
    "pthread_cancel", "pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_unlock",
    "pthread_rwlock_rdlock", "pthread_rwlock_wrlock", "pthread_rwlock_unlock", "pthread_spin_lock",
    "pthread_spin_unlock", "pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_signal",
    "pthread_cond_broadcast", "pthread_barrier_wait", "pthread_once", "pthread_sigmask", "signal", "sigaction",
    "sigprocmask", "sigaltstack", "sigsuspend", "sigwait", "pause", "alarm", "setitimer", "longjmp", "_longjmp",
    "siglongjmp", "syscall", "mmap", "munmap", "mprotect", "mremap", "brk", "sbrk", "dlopen", "dlclose",
    "setrlimit", "prctl", "ptrace", "close", "dup2", "std::thread",
)
# fmt: on
_MANGLED = {"std::thread": "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"}

# Linked into every kernel. `__shared__` is thread_local, so compilers get its addresses from __tls_get_addr: this one
# returns the running block's area. Also sent to the runtime: compilers' plain copies of large structs, `new` and
# `delete` (under their mangled names), functions that would end or change the process, and a function's report of a
# damaged stack. The C library's fmin and fmax may treat -0 as 0, and propagate a signaling NaN; a GPU's do not.
_SUPPORT_SOURCE = """
#include <stddef.h>
extern "C" {
extern char* epemu_shared_base;
void* __tsan_memcpy(void*, const void*, size_t);
void* __tsan_memmove(void*, const void*, size_t);
void* __tsan_memset(void*, int, size_t);
int epemu_memcmp(const void*, const void*, size_t);
void epemu_stack_damaged(void);
void* epemu_malloc(size_t);
void epemu_free(void*);
void epemu_host_only(const char*, int);
void epemu_trap(const char*);
#define HIDDEN __attribute__((visibility("hidden")))
#define OF_HOST __attribute__((visibility("hidden"), weak))  // a kernel may have a function of that name
HIDDEN void* __tls_get_addr(size_t* module_and_offset) { return epemu_shared_base + module_and_offset[1]; }
HIDDEN void* memcpy(void* to, const void* from, size_t n) { return __tsan_memcpy(to, from, n); }
HIDDEN void* memmove(void* to, const void* from, size_t n) { return __tsan_memmove(to, from, n); }
OF_HOST int memcmp(const void* a, const void* b, size_t n) { return epemu_memcmp(a, b, n); }
HIDDEN void* _Znwm(size_t n) { return epemu_malloc(n); }
HIDDEN void* _Znam(size_t n) { return epemu_malloc(n); }
HIDDEN void _ZdlPv(void* p) { epemu_free(p); }
HIDDEN void _ZdaPv(void* p) { epemu_free(p); }
HIDDEN void _ZdlPvm(void* p, size_t) { epemu_free(p); }
HIDDEN void _ZdaPvm(void* p, size_t) { epemu_free(p); }
HIDDEN void __stack_chk_fail(void) { epemu_stack_damaged(); }
HIDDEN void __cxa_pure_virtual(void) { epemu_trap("virtual function of an object that is not made yet"); }
HIDDEN void* memset(void* to, int value, size_t n) { return __tsan_memset(to, value, n); }
#define MIN_AND_MAX(T, min, max)                                                                                  \\
    HIDDEN T min(T a, T b) { return a == b ? (__builtin_signbit(a) ? a : b) : b != b || a < b ? a : b; } \\
    HIDDEN T max(T a, T b) { return a == b ? (__builtin_signbit(a) ? b : a) : b != b || a > b ? a : b; }
MIN_AND_MAX(float, fminf, fmaxf)
MIN_AND_MAX(double, fmin, fmax)
"""
# -foptimize-sibling-calls: the copies jump, so that the runtime sees the kernel's own line as the caller
_SUPPORT_FLAGS = ["-x", "c++", "-O2", "-fPIC", "-fno-builtin", "-foptimize-sibling-calls", "-fomit-frame-pointer"]


@dataclass(frozen=True)
class EmulatorImage:
    """A kernel compiled for the emulator.

    ``path``: the shared library (linked against :mod:`ep_lib.jit.runtime_library`'s), which several kernels of one
    source share.
    ``entry_symbol``: its function ``void(void** args)`` that calls the kernel. ``writable_globals``: the kernel has
    variables of its own (``__device__`` and the like), so each kernel of each rank needs its own copy of the library.
    ``static_shared_bytes`` is the size of ``__shared__`` variables, and the offset at which ``extern __shared__``
    memory begins. ``unwatched``: the accesses that the race checker does not see, a line each. ``most_threads``: of a
    block, if NVRTC was asked.
    """

    path: Path
    entry_symbol: str
    params: tuple[Param, ...]
    writable_globals: bool
    static_shared_bytes: int
    most_threads: int
    unwatched: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """The inputs of a kernel's compilation, and their cache key."""

    compiler: Compiler
    prelude: Path
    runtime: Path
    kernels: tuple[str, ...]
    unit: str
    headers: digest.Headers
    roots: list[Path]
    system_roots: tuple[Path, ...]
    uses_cpp_library: bool
    cuda_arch: int
    asks: str  # cuda_rules.identity

    @property
    def flags(self) -> list[str]:
        """The compiler's flags. CUB uses a name before it redefines it, which g++ accepts only with -fpermissive."""
        cub = not self.compiler.is_clang and any("/cub/" in file for file in self.headers.files)
        return [*_kernel_flags(self.compiler, self.uses_cpp_library), *(["-fpermissive"] if cub else [])]

    @property
    def own_headers(self) -> list[Path]:
        """The headers, without CUDA's and the emulator's."""
        return self.headers.outside([*self.system_roots, toolkit.EMULATOR_INCLUDE])

    @property
    def looked_through(self) -> list[str]:
        """Options for finding unseen accesses. clang++'s sanitizer silently omits reads of structs of more than 16
        bytes that a call copies."""
        return [] if self.compiler.is_clang else [unseen.DUMP, unseen.CLASSES]

    @property
    def key(self) -> str:
        return self._key("emulator", *_KERNEL_LINK_FLAGS, _SUPPORT_SOURCE, str(self.prelude), str(self.runtime))

    def object_key(self, *more: str) -> str:
        """The key of the object alone, which does not depend on the cache's place."""
        return self._key("object", self.prelude.name, self.runtime.name, *more)

    def _key(self, *more: str) -> str:
        parts = [
            _UNWATCHED,
            str(self.cuda_arch),
            toolkit.library_version(),
            self.compiler.path,
            self.compiler.identity,
            self.asks,
            *self.flags,
        ]
        parts += [*self.looked_through, *more, *map(str, self.roots), *map(str, self.system_roots)]
        return digest.key(self.headers, [*parts, self.unit])


def _plan(kernel: KernelSource, kernels: tuple[str, ...], transport: Path, *, is_half: bool = False) -> _Plan:
    compiler, unit = toolkit.find_compiler(), kernel.translation_unit(kernels)
    roots, system = kernel.include_roots(transport), toolkit.cuda_include_dirs()
    headers = digest.scan(unit, roots, [toolkit.EMULATOR_INCLUDE, *system])
    roots = [*roots, toolkit.EMULATOR_INCLUDE]
    library = _uses_cpp_library(unit, headers, system)
    prelude, config = _prelude(compiler, library), Config.from_environment()
    runtime, arch, asks = (
        runtime_library.build_runtime(),
        config.cuda_arch,
        "" if is_half else cuda_rules.identity(kernel, config),
    )
    return _Plan(compiler, prelude, runtime, kernels, unit, headers, roots, system, library, arch, asks)


@functools.lru_cache(256)  # the headers' digest stands for their content
def _uses_cpp_library(unit: str, headers: digest.Headers, system: tuple[Path, ...]) -> bool:
    """Whether a kernel may need more of the C++ library than :data:`_ALWAYS_INCLUDED`: a false yes does no harm."""
    if any(_CPP_HEADER.fullmatch(name) and name not in _ALWAYS_INCLUDED for name in headers.others):
        return True
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in headers.outside([*system, toolkit.PACKAGE]))
    return any(_CPP_NAME.search(text) for text in (unit, *texts))


def cache_key(kernel: KernelSource) -> str:
    """The key of a kernel's cache entry: it changes with every input of the compiler."""
    return _plan(kernel, names.compiled_together(kernel), toolkit.EMULATED_TRANSPORT).key


def build_emulator_kernel(kernel: KernelSource, transport: Path = toolkit.EMULATED_TRANSPORT) -> EmulatorImage:
    """Compiles a kernel to a shared library, or finds it in the cache. ``transport``: the folder of its headers.

    Raises :class:`KernelCompileError` with the learner's own file and line, :class:`KernelNotFoundError`, and
    :class:`BackendUnavailable` if there is no compiler.
    """
    together = names.compiled_together(kernel)
    try:
        return _build(kernel, together, transport)
    except KernelCompileError as error:
        if len(together) == 1 or ENTRY_FILE not in error.log:
            raise
        return _build(kernel, (kernel.name,), transport)  # another kernel differs from what its text suggests


def _build(kernel: KernelSource, kernels: tuple[str, ...], transport: Path) -> EmulatorImage:
    plan = _plan(kernel, kernels, transport, is_half=kernel.closed is not None)
    if kernel.closed is not None:
        return _build_of_two(kernel, kernel.closed, plan, transport)

    def build(folder: Path, _: Path) -> None:
        found = names.check(kernel, plan.own_headers)

        def make(each: KernelSource) -> None:
            of_it = plan if each is kernel else replace(plan, unit=each.translation_unit(kernels))
            _compile_object(each, of_it, folder, found)
            _link(each, of_it, folder, [folder / _OBJECT], found)

        nvrtc.without_the_host(kernel, transport, make)

    return _load_image(cache.entry("emulator", plan.key, "image.json", build), kernels.index(kernel.name))


# ---- a kernel linked with foreign code: ep_lib/jit/closed.py ----
def compile_half(kernel: KernelSource, transport: Path = toolkit.EMULATED_TRANSPORT) -> Path:
    """The object of a kernel's own source, which does not depend on ``kernel.closed``; compiled or from the cache."""
    return _half(kernel, _plan(kernel, names.compiled_together(kernel), transport, is_half=True))


def _half(kernel: KernelSource, plan: _Plan) -> Path:
    def build(folder: Path, _: Path) -> None:
        _compile_object(kernel, plan, folder, names.check(kernel, plan.own_headers))

    return cache.entry(HALF, plan.object_key(), _OBJECT, build) / _OBJECT


def _build_of_two(kernel: KernelSource, closed: KernelSource, plan: _Plan, transport: Path) -> EmulatorImage:
    half = _half(kernel, plan)
    exported = called_by(Elf(half.read_bytes()), Elf(_support(plan.compiler).read_bytes()))
    other = _plan(closed, (), transport)

    def close(folder: Path, _: Path) -> None:
        _close(closed, other, folder, exported)

    def link(folder: Path, _: Path) -> None:
        _link(kernel, plan, folder, [half, objects], _NO_KERNELS)
        require_no_addresses(Elf((folder / _LIBRARY).read_bytes()))

    objects = cache.entry("closed", other.object_key(*exported), _OBJECT, close) / _OBJECT
    key = digest.key(digest.Headers("", ()), [plan.key, objects.parent.name])
    return _load_image(cache.entry("emulator", key, "image.json", link), plan.kernels.index(kernel.name))


def _close(source: KernelSource, plan: _Plan, folder: Path, exported: Sequence[str]) -> None:
    """Compiles ``source`` to an object that exports only ``exported``."""
    whole, read = folder / _OBJECT, folder / _READ
    # g++ makes static members of templates unique in the process, in spite of objcopy
    own_names = [] if plan.compiler.is_clang else ["-fno-gnu-unique"]
    parts = _compile_object(source, plan, folder, _NO_KERNELS, ["-MD", "-MF", str(read), "-gz=none", *own_names])
    runtime, support = (Elf(file.read_bytes()) for file in (plan.runtime, _support(plan.compiler)))
    require_own_names(parts, runtime, support)
    dependencies = "".join(file.read_text("utf-8", "replace") for file in (read, plan.prelude / _READ))
    require_own_lines(parts, dependencies, [source.source_path, *sealed.among(plan.headers.files)])
    merged, closed = folder / "merged.o", folder / "closed.o"
    for name, *options in (("ld", *MERGE, whole, "-o", merged), ("objcopy", *closing(exported), merged, closed)):
        command = [_beside(plan.compiler, name), *map(str, options)]
        status, log = tools.run(command)
        if status == 0:
            tools.require_output(Path(command[-1]), command)
        elif re.search(r"unknown|unrecogni[sz]ed|not recognized", log):
            raise BackendUnavailable(
                f"{command[0]} does not know an option of GNU binutils: {log.strip()}; {tools.ANOTHER}"
            )
        elif tools.says_the_machine(log):
            raise tools.failed(command, f"the object of {source.filename}", log)
        else:
            raise KernelCompileError(f"what your code defines cannot be linked: {log.strip()}", log=log)
    require_calls_of_kernels(Elf(closed.read_bytes()), exported, support)
    closed.replace(whole)
    for leftover in (merged, read, folder / UNIT_FILE):
        leftover.unlink(missing_ok=True)


@functools.cache
def _beside(compiler: Compiler, name: str) -> str:
    """A tool of the compiler's own binutils."""
    status, said = tools.run([compiler.path, f"-print-prog-name={name}"])
    return said.strip() if status == 0 and said.strip() else name


@functools.cache
def _contraction(is_clang: bool) -> tuple[str, ...]:
    """Options that fuse a product and a sum into one operation with one rounding, nvcc's and NVRTC's default; none if
    the processor has no such instruction."""
    is_x86 = platform.machine() in ("x86_64", "AMD64", "i686")
    if is_x86 and " fma " not in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"):
        return ("-ffp-contract=off",)
    # g++ runs the pass that fuses them only behind its loop passes.
    expensive = () if is_clang else ("-fexpensive-optimizations",)
    return ("-ffp-contract=fast", *expensive, *(["-mfma"] if is_x86 else []))


def _kernel_flags(compiler: Compiler, cpp_library: bool) -> list[str]:
    # The classic way to reach thread-local variables, a call of __tls_get_addr, has two names
    dialect = "gnu" if platform.machine() in ("x86_64", "AMD64", "i686") else "trad"
    library = ["-DEP_EMULATOR_CPP_LIBRARY"] if cpp_library else []
    if compiler.is_clang:  # its default on x86; older versions do not know the option
        return [*_KERNEL_FLAGS, *_contraction(True), *library, *_CLANG_FLAGS]
    return [*_KERNEL_FLAGS, *_contraction(False), *library, *_GCC_FLAGS, f"-mtls-dialect={dialect}"]


def _prelude_flags(compiler: Compiler, cpp_library: bool) -> list[str]:
    includes = [f"-I{toolkit.EMULATOR_INCLUDE}"]
    for folder in toolkit.cuda_include_dirs():
        includes += ["-isystem", str(folder)]
    return [*_kernel_flags(compiler, cpp_library), *includes]


def _prelude(compiler: Compiler, cpp_library: bool) -> Path:
    """The cache folder of the precompiled prelude; its name is a digest of the prelude's content. It is part of a
    kernel's key: if the shared cache has it, all its users have the same keys."""
    flags = _prelude_flags(compiler, cpp_library)
    text = "#include <ep_emulator/prelude.h>\n"
    headers = digest.scan(text, [toolkit.EMULATOR_INCLUDE], toolkit.cuda_include_dirs())
    key = digest.key(headers, ["prelude", _READ, toolkit.library_version(), compiler.path, compiler.identity, *flags])
    folders = [place / "prelude" / key for place in cache.places()]
    return next((folder for folder in folders if folder.is_dir()), folders[-1])


def _precompiled(compiler: Compiler, prelude: Path, cpp_library: bool) -> list[str]:
    """Compiles the prelude if it is not in the cache; returns the options that include it."""
    source = toolkit.EMULATOR_INCLUDE / "ep_emulator" / "prelude.h"
    name = "prelude.h.pch" if compiler.is_clang else "prelude.h.gch"
    # gcc looks for <file>.gch next to the file that -include names; clang gets the file itself, and must ignore the
    # header's time, since the key covers its content.
    extra = ["-Xclang", "-fno-pch-timestamp"] if compiler.is_clang else []

    def build(folder: Path, _: Path) -> None:
        header = folder / "prelude.h"
        header.write_text(f'#include "{source}"\n', encoding="utf-8")
        start = source if compiler.is_clang else header
        command = [compiler.path, *_prelude_flags(compiler, cpp_library), "-MD", "-MF", str(folder / _READ)]
        command += [*extra, "-x", "c++-header", str(start)]
        tools.build([*command, "-o", str(folder / name)], "the emulator's headers", folder / name)

    folder = cache.entry("prelude", prelude.name, name, build)
    return ["-include-pch", str(folder / name)] if compiler.is_clang else ["-include", str(folder / "prelude.h")]


def _support(compiler: Compiler) -> Path:
    """The object file with the few functions that every kernel library contains."""
    of_host = (
        f'OF_HOST void {_MANGLED.get(name, name)}(void) {{ epemu_host_only("{name}", {int(name in _ENDS)}); }}\n'
        for name in _ENDS + _HOST_ONLY
    )
    text = "".join([_SUPPORT_SOURCE, *of_host, "}\n"])
    parts = ["support", compiler.path, compiler.identity, text, *_SUPPORT_FLAGS]

    def build(folder: Path, _: Path) -> None:
        source = folder / "support.cpp"
        source.write_text(text, encoding="utf-8")
        command = [compiler.path, *_SUPPORT_FLAGS, "-c", str(source), "-o", str(folder / "support.o")]
        tools.build(command, "the emulator", folder / "support.o")

    key = digest.key(digest.Headers("", ()), parts)
    return cache.entry("support", key, "support.o", build) / "support.o"


def _compile_object(
    kernel: KernelSource, plan: _Plan, folder: Path, found: names.GlobalFunctions, more: Sequence[str] = ()
) -> Elf:
    """Compiles a source, in which these kernels were ``found``, to an object, with ``more`` options."""
    with cuda_rules.asked(kernel, plan.kernels, plan.unit, found, asks=plan.asks) as gpu:
        parts = _compile_by_gxx(kernel, plan, folder, found, more)
    (folder / _LIMITS).write_text(json.dumps(gpu.most_threads), encoding="utf-8")
    return parts


def _compile_by_gxx(
    kernel: KernelSource, plan: _Plan, folder: Path, found: names.GlobalFunctions, more: Sequence[str]
) -> Elf:
    compiler = plan.compiler
    unit, obj = folder / UNIT_FILE, folder / _OBJECT
    unit.write_text(plan.unit, encoding="utf-8")
    views = folder / "views"
    includes = [f"-I{root}" for root in (views, *plan.roots)]
    for root in plan.system_roots:
        includes += ["-isystem", str(root)]
    options = [*plan.flags, *more, *_precompiled(compiler, plan.prelude, plan.uses_cpp_library)]
    options += ["-include", str(_write_views(plan, views))]
    with sealed.open_includes(plan.unit, plan.roots, kernel.texts) as opened:
        first = [f"-I{root}" for root in opened.roots(plan.roots)]
        command = [compiler.path, *options, *first, *includes, "-c", str(unit), "-o", str(obj)]
        dump, classes = folder / "kernel.tsan", folder / "kernel.class"
        looked_through = [f"{unseen.DUMP}={dump}", f"{unseen.CLASSES}={classes}"] if plan.looked_through else []
        try:
            _step(kernel, plan, [*command, *looked_through], obj, found)
        except KernelCompileError as error:
            if _CANNOT_INLINE not in error.log:
                raise
            unforced = folder / "unforced.h"
            unforced.write_text(_UNFORCED, encoding="utf-8")
            command += ["-include", str(unforced)]
            _step(kernel, plan, [*command, *looked_through], obj, found)
            unforced.unlink()
        parts, notes = Elf(obj.read_bytes()), []
        if plan.looked_through and (silent := _unseen(dump, classes, parts)):
            from ep_lib.jit import diagnostics

            _step(kernel, plan, [*command, f"{unseen.DUMP}-lineno={dump}", f"{unseen.CLASSES}={classes}"], obj, found)
            notes.append(diagnostics.unseen_note(kernel, silent, _unseen(dump, classes, parts), roots=plan.roots))
            if found is _NO_KERNELS and silent[0].kind == unseen.MACHINE:  # GPUs do not have such instructions
                raise KernelCompileError(notes[0])
    if thunks := virtual_thunks(parts):
        function = "::".join(unseen.names_in(thunks[0]))
        notes.append(f"{kernel.filename}: {function} is a virtual function of a virtual base: what is read to find it")
    if initialisers := functions_at_load(parts):
        from ep_lib.jit import diagnostics

        raise diagnostics.initialiser_error(kernel, obj, initialisers)
    (folder / _UNWATCHED).write_text(json.dumps(notes), encoding="utf-8")
    shutil.rmtree(views)
    return parts


def _link(
    kernel: KernelSource, plan: _Plan, folder: Path, objects: Sequence[Path], found: names.GlobalFunctions
) -> None:
    """Links the kernel's own object (the first) and others to the library; writes ``image.json``."""
    compiler, library = plan.compiler, folder / _LIBRARY
    parts = [Elf(file.read_bytes()) for file in objects]
    dynamic = sorted({name for each in parts for name in undefined_tls_symbols(each)})
    inputs = [*map(str, objects), str(_support(compiler)), *_dynamic_shared(compiler, folder, dynamic)]
    # Of a foreign object, the library keeps only the names that the kernel calls.
    flags = [*_KERNEL_LINK_FLAGS, *(["-Wl,--discard-all"] if kernel.closed is not None else [])]
    command = [compiler.path, *inputs, str(plan.runtime), *flags, "-o", str(library)]
    _step(kernel, plan, command, library, found)
    image = Elf(library.read_bytes())
    if of_linker := names_of_the_linker(parts[0], [Elf(Path(file).read_bytes()) for file in inputs[1:]], image):
        raise KernelCompileError(
            f"{kernel.filename}: error: nothing defines {', '.join(of_linker)}, and the linker has places of its own "
            "by such names: define what you declare, or name it otherwise"
        )
    facts = {
        "params": [
            [list(param) for param in parse_table(image.symbol_bytes(_TABLE_SYMBOL.format(number)))]
            for number in range(len(plan.kernels))
        ],
        "writable_globals": any(map(has_writable_globals, parts)),
        "static_shared_bytes": image.tls_bytes(),
        "most_threads": json.loads(objects[0].with_name(_LIMITS).read_text("utf-8")),
        "unwatched": [note for file in objects for note in json.loads((file.with_name(_UNWATCHED)).read_text("utf-8"))],
    }
    for leftover in (*folder.glob("*.o"), *folder.glob("*.h")):
        leftover.unlink()
    (folder / "image.json").write_text(json.dumps(facts), encoding="utf-8")


_OF_CUDA = """#ifdef __CUDACC__
#include <ep_emulator/host_view.h>
#include_next <{name}>
#include <ep_emulator/device_view.h>
#else
#include_next <{name}>
#endif
"""


def _write_views(plan: _Plan, folder: Path) -> Path:
    """Writes headers that switch macros: a kernel's own code sees those of a GPU compiler, CUDA's and the emulator's
    headers those of a host compiler. They are wrappers of these headers, searched before all include folders, and a
    first file, whose path is returned."""
    for name in plan.headers.settled:
        target = (folder / name).resolve()
        if target.is_relative_to(folder):  # not through ..
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_OF_CUDA.format(name=name), encoding="utf-8")
    begin = folder / "ep_emulator" / "begin.h"
    begin.parent.mkdir(parents=True, exist_ok=True)
    arch = plan.cuda_arch * 10
    begin.write_text(f"#define EPEMU_CUDA_ARCH {arch}\n#include <ep_emulator/device_view.h>\n", encoding="utf-8")
    return begin


def _step(kernel: KernelSource, plan: _Plan, command: list[str], target: Path, found: names.GlobalFunctions) -> None:
    status, log = tools.run(command)
    if status == 0:
        tools.require_output(target, command)
    elif _TOO_LARGE in log and (most := resource.getrlimit(resource.RLIMIT_FSIZE)[0]) != resource.RLIM_INFINITY:
        raise KernelCompileError(
            f"{kernel.filename}: error: compiled, it is larger than the {most >> 20} MiB that a file may have "
            "here: is there a large array with initial values?"
        )
    elif tools.says_the_machine(log):
        raise tools.failed(command, f"the kernel '{kernel.name}'", log)
    else:
        from ep_lib.jit import diagnostics  # imported here: its tables are for errors only

        raise diagnostics.compile_error(kernel, log, target="emulator", roots=plan.roots, found=found)


def _unseen(dump: Path, classes: Path, obj: Elf) -> list[unseen.Unseen]:
    """Accesses that the sanitizer does not see, from the compiler's dumps, which are then deleted. None if g++ has
    written no dump."""
    if not (dump.is_file() and classes.is_file()):
        return []
    text, sizes = (file.read_text(encoding="utf-8", errors="replace") for file in (dump, classes))
    dump.unlink()
    classes.unlink()
    symbols = unseen.Symbols([*defined_tls_symbols(obj), *undefined_tls_symbols(obj)], variable_sizes(obj))
    return [*unseen.instructions(text), *unseen.accesses(text, sizes, symbols)]


def _dynamic_shared(compiler: Compiler, folder: Path, names: Sequence[str]) -> list[str]:
    """An object that defines ``extern __shared__`` arrays, all at one address, after the static shared memory."""
    if not names:
        return []
    labels = "".join(f".globl {name}\n.hidden {name}\n.type {name}, %tls_object\n{name}:\n" for name in names)
    source = folder / "dynamic_shared.s"
    source.write_text(
        f'.section .tbss,"awT",%nobits\n.balign {_SHARED_ALIGN}\n{labels}.section .note.GNU-stack,"",%progbits\n',
        encoding="utf-8",
    )
    target = folder / "dynamic_shared.o"
    tools.build([compiler.path, "-c", str(source), "-o", str(target)], "dynamic shared memory", target)
    return [str(target)]


def _load_image(folder: Path, number: int) -> EmulatorImage:
    facts = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    return EmulatorImage(
        path=folder / _LIBRARY,
        entry_symbol=_ENTRY_SYMBOL.format(number),
        params=tuple(Param(*row) for row in facts["params"][number]),
        writable_globals=facts["writable_globals"],
        static_shared_bytes=facts["static_shared_bytes"],
        most_threads=facts["most_threads"][number] if facts["most_threads"] else MAX_THREADS,
        unwatched=tuple(facts["unwatched"]),
    )


def unwatched(libraries: Iterable[str]) -> tuple[str, ...]:
    """The accesses of kernels that the race checker does not see, a line each. ``libraries``: the keys of their cache
    entries."""
    files = (place / "emulator" / key / "image.json" for key in libraries for place in cache.places())
    found = (json.loads(file.read_text(encoding="utf-8"))["unwatched"] for file in files if file.is_file())
    return tuple(sorted({note for notes in found for note in notes}))
