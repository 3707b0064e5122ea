"""Turns compiler messages into errors that point at the learner's own line.

Reads the messages of g++, clang++, their assembler and linker, and NVRTC.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ep_lib.errors import EpError, KernelCompileError
from ep_lib.jit import digest, headers, names, pieces, toolkit, unseen
from ep_lib.jit.cuda_source import matching
from ep_lib.jit.elf import AtLoad
from ep_lib.jit.lexer import without_comments
from ep_lib.jit.source import ENTRY_FILE, NO_FILE, UNIT_FILE, KernelSource
from ep_lib.jit.unseen import Unseen

_ERRORS = (
    # k.cu:3:5: error: ... (g++, clang++)
    re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.+)$", re.MULTILINE),
    # k.cu(3): error: ..., k.cu(3): error #20: ... (NVRTC)
    re.compile(
        r"^(?P<file>[^\n]+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.+)$", re.MULTILINE
    ),
    # {standard input}:77: Error: ... (the assembler, whose line number is useless)
    re.compile(r"^[^\n:]+:\d+: Error: (?P<text>.+)$", re.MULTILINE),
    # k.cu:3: undefined reference to ... (the linker; binutils 2.44 says "k.cu:3:(.text+0x19): ...")
    re.compile(
        r"^(?:[^\n]*?: )?(?P<file>/[^\n:]+):(?P<line>\d+):(?:\([^\n)]*\):)? (?P<text>undefined reference to .+)$",
        re.MULTILINE,
    ),
    re.compile(r"^[^\n]*?(?P<text>(?:undefined reference|[Ee]rror\b|unresolved).*)$", re.MULTILINE),
)
# The way to an error, from the inside out: template instantiations and macros first, then includes.
_INSTANTIATION = re.compile(
    r"^(?P<file>[^\n:]+):(?P<line>\d+):\d+:(?:   (?:recursively )?required |"
    r" note: (?:in instantiation|in expansion|expanded from|in evaluation|while substituting))",
    re.MULTILINE,
)
_NVRTC_INSTANTIATION = re.compile(r" at line (?P<line>\d+)(?: of (?P<file>[^\n]+))?$", re.MULTILINE)
_INCLUSION = re.compile(r"^(?:In file included| {10,})\s*from (?P<file>[^\n:]+):(?P<line>\d+)", re.MULTILINE)
_AMBIGUOUS = re.compile(r"overloaded|which instance of")
_UNDECLARED = re.compile(r"declared|undefined|no member|not a member|identifier|name followed by")
_SYNTAX = re.compile(r"expected|unterminated|not allowed|cannot appear")
_NAMES_LINES = re.compile(r"^[ \t]*#[ \t]*line\b", re.MULTILINE)  # then line numbers are another file's
_BRANCHES = re.compile(r"^[ \t]*#[ \t]*el(?:se|if)", re.MULTILINE)  # their braces need not be balanced
_ASM_PROBLEM = re.compile(r"\basm\b|asm operand|constraint|no such instruction|mnemonic|junk|Assembler|bad register")
_INSTRUCTION = re.compile(r"no such instruction: `([\w.]+)")
_ASM = re.compile(r"\b(?:asm|__asm__)\b(?:\s+(?:volatile|__volatile__))?\s*\(")
_INCLUDE_LINE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*", re.MULTILINE)

_PTX_HINT = (
    "it runs on the CPU: use the names of <ep/memory.cuh> (such as ep::fence_sys, "
    "ep::ld_acquire_sys_u64), which are the same instruction on a GPU, or keep it for GPUs by `#ifndef EP_EMULATOR`"
)


# NVRTC's messages about rules that C++ does not have: the beginning or a part of its sentence; the remedy; and our
# wording, if it is not its own.
_RULES = (
    (
        r"\n\s*#\s*include\s*[<\"](?:thrust|cub/device)/",
        "leave it out; a block of a kernel has <cub/block/...>, and Python NumPy or CuPy",
        "the host calls this header's functions, which launch kernels",
    ),
    (
        r"A function without execution space annotations",
        "write __device__ before it if a kernel calls it; what only the host runs does not belong into a kernel's "
        "source",
        "a function without __device__ is one for the host",
    ),
    (
        r"A function explicitly marked as a __host__ function|calling a __host__ function",
        "write __device__ in place of __host__, or both of them",
    ),
    (
        r"A namespace scope variable without memory space annotations|class static data member",
        "write __device__ before it, or __constant__ for what kernels only read; constexpr for a plain number",
        "a variable without __device__ or __constant__ is one of the host",
    ),
    (
        r"initializer not allowed for __shared__",
        "declare it without a value; one thread stores the value, and __syncthreads() comes before others read it",
    ),
    (
        r"expression must have a constant value",
        "write a number that is known at compile time, which warpSize, blockDim and arguments are not; shared memory "
        "of any size is `extern __shared__ int s[];` and shared_bytes of the launch",
    ),
    (
        r"uses too much shared data",
        "static __shared__ memory is 48 KiB at most: declare `extern __shared__` memory, and pass shared_bytes to the "
        "launch",
    ),
    (
        r"uses too much local memory",
        "the arrays of a thread have 512 KiB at most, and are slow long before: pass one in global memory",
    ),
    (r"too much global constant data", "__constant__ memory is 64 KiB at most: write __device__"),
    (
        r"expression must be a modifiable lvalue|a store to __constant__ memory",
        "to store through a pointer, write `*` before it or `[i]` behind it; kernels only read __constant__ variables, "
        "threadIdx and its kin, and what is const",
    ),
    (r"dynamic initialization is not supported", "give it a constant value, or set it in a kernel"),
    (r'an automatic "__\w+__" variable declaration is not allowed', "declare it outside of the function"),
    (r'attribute "__\w+__" does not apply here', "leave it out here"),
    (
        r"does not support exception handling",
        "GPUs have no exceptions: store a code that the host looks at, or end the kernel by __trap()",
    ),
    (r"annotation on lambda", "leave it out: a lambda in a kernel is for the GPU"),
    (r"cannot take address of builtin variable", "copy it to a variable first"),
    (r"#error directive", "do as the header says"),
    (r"a __global__ function|A __global__ function", "a kernel is a function of its own, returns void"),
    (r"illegal combination of memory qualifiers", "a kernel is __global__ and nothing else"),
    (
        r"without '\.sync' is not supported|\"__shfl\w*\" is undefined",
        "use the form whose name ends with _sync, with a mask: __shfl_down_sync(0xffffffff, x, 16)",
    ),
    (
        r"identifier \"cuda(?!Grid|Trigger)[A-Z]\w*\" is undefined",
        "kernels call nothing of CUDA's runtime: do this in Python, before the launch or behind it",
    ),
)
# Its messages about C++ that nvcc accepts, mostly g++ extensions, and the remedy.
_NVCC_TAKES = (
    (r"\"auto\" is not allowed here", "write a template, or a lambda"),
    (r"\"(?:__)?typeof(?:__)?\" is undefined", "write decltype(x), or auto"),
    (r"\"register\" storage class", "leave `register` out: the compiler chooses"),
    (r"\"__builtin_\w+\" is undefined", "CUDA has __clz, __ffs, __popc, __brev, __byte_perm and memcpy"),
    (
        r"incomplete type \"[^\"]+\[\]\" is not allowed\n(?!.*__shared__)",
        "give the array a size; what lies behind a struct is reached by a pointer, as (int*)(p + 1)",
    ),
    (r"\"strlen\" is undefined\n.*\bstrlen\s*\(\s*\"", 'write sizeof("...") - 1'),
    (r"\"__(?:real|imag)__\" is undefined|\b_Complex\b", "<cuda/std/complex> and <cuComplex.h> have them"),
    (
        r"\"CUDART_\w+_B?FP16\" is undefined",
        "write __float2half(x) or __float2bfloat16(x), or the bits: __ushort_as_half(0x7c00)",
    ),
    (
        "device-side kernel launch",
        "kernels are launched from Python, by Kernel.launch: there is no dynamic parallelism, neither here nor on GPUs",
    ),
    (
        r"\"cuda(?:GridDependencySynchronize|TriggerProgrammaticLaunchCompletion)\" is undefined",
        "leave it out: a kernel begins when those that were launched before it have ended",
    ),
)
_STATEMENTS = re.compile(r"\(\s*\{[^{}]*;[^{}]*\}\s*\)")  # as an expression
_OF_PTXAS = re.compile(r"^error\s*:\s*")
_NAMES_ENTRY = re.compile(r"Entry function '(\w+)'")

_OWN_WORDS = re.compile(r"^static.assert.*?(?=the emulator has no )")

_MORE_ERRORS = 3  # beside the first one, in a message
_MOST_OFFSETS = 4096  # of a function whose lines are searched
_LONGEST_TEXT = 400  # of a compiler's sentence: some spell out hundreds of template arguments


class _Place(NamedTuple):
    file: str
    line: int


def compile_error(
    kernel: KernelSource, log: str, *, target: str, roots: Sequence[Path], found: names.GlobalFunctions
) -> EpError:
    """The error for a compiler's messages ``log``; ``roots`` are the include roots without CUDA's.

    Usually a :class:`KernelCompileError`; a :class:`KernelNotFoundError` when the kernel's name was the problem.
    """
    report = _Report(kernel, log, roots)
    text, is_gpu = _OWN_WORDS.sub("", report.text), target != "emulator"
    if unfinished := report.unfinished():
        where, what = unfinished
        message = f"{report.show(where)}: error: {what}\n    {report.source_line(where)}"
        if report.error and report.is_own(report.error.file):
            message += f"\n  (the compiler stopped at {report.show(report.error)}: {text})"
        return KernelCompileError(message, file=report.display(where.file), line=where.line, log=report.log)
    if report.is_in_our_lines:
        if names.base_name(kernel.name) not in found.names and _UNDECLARED.search(text):
            return names.not_found(kernel, found)
        if _AMBIGUOUS.search(log):
            return KernelCompileError(_ambiguous(kernel, found), file=kernel.filename, line=None, log=report.log)
        if not _SYNTAX.search(text):
            if "reference type" in text:
                text = "it takes a reference, which the emulator does not have: pass that by value, or by a pointer"
            message = f"the kernel name {kernel.name!r} does not fit {kernel.filename}: {text}"
            return KernelCompileError(message, file=kernel.filename, line=None, log=report.log)
    asm = None if is_gpu else report.inline_asm()
    place, via = report.locate()
    if asm and _ASM_PROBLEM.search(text):
        place, via, text = asm, None, "inline PTX"
    if is_gpu and place is None:
        place = report.of_the_kernel()
    source = report.source_line(place) if place else ""
    said, remedy = _refused_for_gpus(f"{text}\n{source}", kernel) if is_gpu else (text, "")
    lines = [f"{report.show(place)}: error: {said}" if place else f"{kernel.filename}: error: {said}"]
    if source:
        lines.append(f"    {source}")
    if via and text == report.text:
        lines.append(f"  (the compiler stopped at {report.show(via)}: {report.source_line(via)})")
    if asm:
        lines.append(f"  hint: the emulator has no inline PTX ({report.show(asm)}), for {_PTX_HINT}")
    if remedy:
        lines.append(f"  remedy: {remedy}")
    elif hint := headers.missing_include(kernel.source, text, source):
        lines.append(f"  hint: {hint}")
    if kernel.left_out and headers.UNKNOWN.search(text):
        left_out = ", ".join(kernel.left_out)
        lines.append(f"  hint: not here, and left out: {left_out}; pass include=[the folder] if a kernel needs it")
    lines += report.more_errors()
    file = report.display(place.file) if place else None
    line = place.line if place else None
    return KernelCompileError("\n".join(lines), file=file, line=line, log=report.log, remedy=remedy)


def _refused_for_gpus(text: str, kernel: KernelSource) -> tuple[str, str]:
    """The message for NVRTC's sentence and the line below it, and a remedy, or ""."""
    told = text.partition("\n")[0]
    for pattern, remedy in _NVCC_TAKES:
        if re.search(pattern, text):
            return f"NVRTC does not take this, though nvcc does: {told}", remedy
    if "expected an expression" in told and _STATEMENTS.search(without_comments(kernel.source)):
        return (
            f"NVRTC does not take this, though nvcc does: {told}",
            "write a lambda that is called at once, or a __device__ function, in place of ({ ... })",
        )
    for pattern, remedy, *words in _RULES:
        if re.search(pattern, text):
            return f"no GPU takes this: {words[0] if words else told}", remedy
    return f"no GPU takes this: {told}", ""


def of_the_emulator(error: KernelCompileError) -> KernelCompileError:
    """The error of a source that NVRTC accepts, reported as a limit of the emulator, without the errors that
    followed."""
    text = str(error)
    if "error: the emulator has no " not in text:
        text = text.replace("error: ", "error: the emulator does not have this, which a GPU takes: ", 1)
    lines = [line for line in text.splitlines() if not line.startswith(("  then ", "  and "))]
    return KernelCompileError("\n".join(lines), file=error.file, line=error.line, log=error.log)


def initialiser_error(kernel: KernelSource, obj: Path, functions: Sequence[AtLoad]) -> KernelCompileError:
    """The error for code that would run when the kernel is loaded: GPUs do not run such code, and on the emulator a
    fault in it would end the process."""
    report = _Report(kernel, "", ())
    place = next((p for function in functions for p in _lines(obj, function) if report.is_own(p.file)), None)
    message = (
        f"{report.show(place) if place else kernel.filename}: error: this runs when the kernel is loaded, which is not "
        "so on GPUs: give the variable a constant value, or set it in a kernel"
    )
    if place:
        message += f"\n    {report.source_line(place)}"
    file = report.display(place.file) if place else kernel.filename
    return KernelCompileError(message, file=file, line=place.line if place else None)


def unseen_note(
    kernel: KernelSource, silent: Sequence[Unseen], with_lines: Sequence[Unseen], *, roots: Sequence[Path]
) -> str:
    """The message about accesses that the race checker does not see: ``silent``, with the lines that the same
    compilation ``with_lines`` gives. (There, paths with brackets can look like accesses.)"""
    report, first = _Report(kernel, "", roots), silent[0]
    same = [each for each in with_lines if each[2:] == first[2:]]
    places = [_Place(each.file, each.line) for each in same if each.file and each.line]
    headers = [Path(each.file).name for each in places if first.kind == unseen.MACHINE and not report.is_own(each.file)]
    place = next((each for each in places if Path(each.file).name not in headers), None)
    called = f"`{first.name}`" if first.name else "the function called"
    if first.kind == unseen.MACHINE:
        of_header = f" of <{headers[0]}>" if headers else ""
        what = (
            f"{called}{of_header} is an instruction of this machine's processor: GPUs do not have it, and the race "
            "checker does not see what it reads and writes: write it in plain CUDA C++"
        )
    elif first.kind == unseen.INDEX:
        of = f" of `{first.name}`" if first.name else ""
        what = (
            f"the race checker does not see this {'write' if first.is_write else 'read'}{of}, and nothing says that it "
            "stays within the variable: declare arrays with their sizes, index them as what they are declared, and "
            "reach other memory through a pointer to it"
        )
    elif first.kind == unseen.CONSTANT:
        what = (
            f"{called} is constant and in shared memory, and the race checker does not see its reads: leave const out "
            "(and have no constant of that name elsewhere)"
        )
    elif first.is_write:
        what = (
            f"{called} returns a struct here straight into memory, a write that the race checker does not see: put the "
            "result in a variable first, and copy that"
        )
    else:
        what = (
            f"{called} is passed a struct here straight from memory, a read that the race checker does not see: copy "
            "it to a variable first, and pass that"
        )
    where = report.show(place) if place else kernel.filename
    return f"{where}: {what}" if place or headers else f"{where}, in `{first.function}`: {what}"


def _lines(obj: Path, function: AtLoad) -> list[_Place]:
    """The lines of a function of an object file, lines with calls first; none without binutils."""
    offsets = [hex(offset) for offset in range(function.begin, min(function.end, function.begin + _MOST_OFFSETS))]
    try:
        command = ["addr2line", "-i", "-j", function.section, "-e", str(obj), *offsets]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = [line.partition(" (discriminator")[0].rpartition(":") for line in text.splitlines()]
    return [_Place(file, int(number)) for file, _, number in found if number.isdigit() and number != "0"]


def _ambiguous(kernel: KernelSource, found: names.GlobalFunctions) -> str:
    name = names.base_name(kernel.name)
    if name in found.templates and "<" not in kernel.name:
        return f"{name!r} in {kernel.filename} is a template: name one instance of it, such as '{name}<float>'"
    if name in found.templates:
        return f"{kernel.name!r} is not one instance of the template {name!r} in {kernel.filename}: check its arguments"
    return (
        f"the kernel name {kernel.name!r} is overloaded in {kernel.filename}: "
        "give the function that is meant a name of its own"
    )


class _Report:
    """A compiler's messages, and the facts that we need from them."""

    def __init__(self, kernel: KernelSource, log: str, roots: Sequence[Path]) -> None:
        self.kernel = kernel
        self.roots = roots
        self.source_path = str(kernel.source_path)
        self.raw = log
        self.log = log if kernel.path is not None else log.replace(self.source_path, kernel.filename)
        self.own_roots = [folder.resolve() for folder in (*kernel.include, *pieces.active())]
        if kernel.path is not None:
            self.own_roots.append(kernel.path.parent.resolve())
        self.not_own = [*toolkit.DEVICE_ROOTS, toolkit.EMULATOR_INCLUDE, *toolkit.cuda_include_dirs()]
        self.error: _Place | None = None
        self.following: list[tuple[_Place | None, str]] = []
        self.text, self.begin, self.end, self.count = log.strip()[:2000] or "the compiler failed silently", 0, 0, 1
        self._find_first_error()

    def _find_first_error(self) -> None:
        for pattern in _ERRORS:
            if found := list(pattern.finditer(self.raw)):
                told = [self._place_and_text(match) for match in found]
                # An unknown type turns a function's head into a variable's; NVRTC reports other errors of it before it
                # names the type.
                place, text = told[0]
                named = [i for i, (at, says) in enumerate(told) if at == place and headers.UNDEFINED.search(says)]
                first = named[0] if named and not headers.UNKNOWN.search(text) else 0
                self.error, self.text = told.pop(first)
                self.begin = found[first].start()
                self.end = found[first + 1].start() if first + 1 < len(found) else len(self.raw)
                self.count, self.following = len(found), told
                return

    def _place_and_text(self, match: re.Match[str]) -> tuple[_Place | None, str]:
        groups = match.groupdict()
        text = self._readable(_OF_PTXAS.sub("", groups["text"]))
        if not groups.get("line"):
            return None, text
        file = groups["file"].strip()
        if Path(file).name == UNIT_FILE:  # the linker names the unit instead of the source; the line is right
            file = self.source_path
        return _Place(file, int(groups["line"])), text

    def more_errors(self) -> list[str]:
        """The later errors, a line each; the first one often causes them."""
        if self.count < 2:
            return []
        more = self.following[:_MORE_ERRORS]
        lines = [f"  then {self.show(place)}: {text}" if place else f"  then {text}" for place, text in more]
        if self.count - 1 > len(more):
            rest = self.count - 1 - len(more)
            lines.append(f"  and {rest} more error{'s' if rest > 1 else ''} (the exception's attribute `log` has them)")
        return lines

    @property
    def is_in_our_lines(self) -> bool:
        """Whether the compiler stopped in ep_lib's own lines about the kernel, without a user's line that led there."""
        if self.error is None or self._own_frame():
            return False
        return self.error.file == ENTRY_FILE or self.error.file.endswith("ep/detail/entry.cuh")

    def unfinished(self) -> tuple[_Place, str] | None:
        """An unclosed brace in a learner's file, or the unfinished last line of a header, as a possible cause:
        compilers report it lines later, or in the next file."""
        error = self.error
        may_be = _SYNTAX.search(self.text) or NO_FILE.search(self.text)  # where a brace lacks, no header is left out
        if error is not None and self.is_own(error.file) and not may_be:
            return None
        for file in (self.source_path, *self._own_headers()):
            text = self._text_of(file)
            if not _BRANCHES.search(text) and (line := names.unclosed_brace(text)):
                return _Place(file, line), "this '{' is never closed: add the '}' that ends it"
        if error is not None and _SYNTAX.search(self.text):
            for file in self._own_headers():
                if file != error.file and (line := names.unfinished_end(self._text_of(file))):
                    what = f"does a ';' or a ')' lack at the end? The next file's error is {self.text!r}"
                    return _Place(file, line), what
        return None

    def _own_headers(self) -> Iterator[str]:
        found = digest.scan(self.kernel.source, self.roots, toolkit.cuda_include_dirs()).files
        return (file for file in found if file != self.source_path and self.is_own(file))

    def locate(self) -> tuple[_Place | None, _Place | None]:
        """The learner's line, and the line in a header where the compiler stopped, if that is another one."""
        error = self.error
        if error is None:
            return self.inline_asm(), None
        if self.is_own(error.file):
            return error, None
        if self.is_in_our_lines:  # a parenthesis that is never closed is reported after the end of the source
            return _Place(self.source_path, max(1, len(self.kernel.source.splitlines()))), None
        frame = self._own_frame() or self._including_line(error.file)
        return (frame, error) if frame else (error, None)

    def _own_frame(self) -> _Place | None:
        # g++ prints the way to an error before it, clang++ and NVRTC after it
        around = self.raw[: self.end]
        frames = [_Place(m["file"].strip(), int(m["line"])) for m in _INSTANTIATION.finditer(around)]
        error_file = self.error.file if self.error else ""
        for match in _NVRTC_INSTANTIATION.finditer(self.raw, self.begin, self.end):
            frames.append(_Place((match["file"] or error_file).strip(), int(match["line"])))
        frames += [_Place(m["file"].strip(), int(m["line"])) for m in _INCLUSION.finditer(around)]
        return next((frame for frame in frames if self.is_own(frame.file)), None)

    def _including_line(self, header: str) -> _Place | None:
        """The learner's #include that leads to a header, for NVRTC, which does not report it."""
        for match in _INCLUDE_LINE.finditer(self.kernel.source):
            files = digest.scan(match.group() + "\n", self.roots, toolkit.cuda_include_dirs()).files
            if header in files:
                return _Place(self.source_path, self.kernel.source.count("\n", 0, match.start()) + 1)
        return None

    def is_own(self, file: str) -> bool:
        """Whether a file is the learner's: the source, or a header in their folders."""
        if file == self.source_path:
            return True
        if file.startswith("<"):
            return False
        path = Path(file).resolve()
        if any(path.is_relative_to(folder) for folder in self.kernel.include):
            return True
        return any(map(path.is_relative_to, self.own_roots)) and not any(map(path.is_relative_to, self.not_own))

    def inline_asm(self) -> _Place | None:
        """The learner's inline assembly that the messages are about, if any."""
        if not _ASM_PROBLEM.search(self.raw):
            return None
        unknown = _INSTRUCTION.search(self.raw)
        for file in (self.source_path, *self._own_headers()):
            text = self._text_of(file)
            code = without_comments(text)
            for match in _ASM.finditer(code):
                if not unknown or unknown[1] in text[match.end() : matching(code, match.end() - 1)]:
                    return _Place(file, code.count("\n", 0, match.start()) + 1)
        return None

    def of_the_kernel(self) -> _Place | None:
        """The line of the kernel that a message without a line names, in the learner's source."""
        name = names.base_name(self.kernel.name)
        if (named := _NAMES_ENTRY.search(self.raw)) and name not in named[1]:
            name = next(iter(unseen.names_in(named[1])), named[1])
        code = without_comments(self.kernel.source)
        match = re.search(rf"\b{re.escape(name)}\s*\(", code)
        return _Place(self.source_path, code.count("\n", 0, match.start()) + 1) if match else None

    def display(self, file: str) -> str:
        """The source by the name that its owner gave it; other files by their path."""
        return self.kernel.filename if file == self.source_path else file

    def show(self, place: _Place) -> str:
        path = Path(place.file)
        for root in toolkit.DEVICE_ROOTS:
            if path.is_relative_to(root):
                return f"<{path.relative_to(root)}>:{place.line}"
        return f"{self.display(place.file)}:{place.line}"

    def source_line(self, place: _Place) -> str:
        lines = self._text_of(place.file).splitlines()
        return lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""

    def _text_of(self, file: str) -> str:
        if file == self.source_path and not _NAMES_LINES.search(self.kernel.source):
            return self.kernel.source
        try:
            return Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _readable(self, text: str) -> str:
        text = text.strip().replace(self.source_path, self.kernel.filename)
        return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " ..."
