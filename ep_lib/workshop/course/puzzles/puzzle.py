"""The definition of a puzzle, and the judging of answers."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import linecache
import re
import sys
import textwrap
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, GeneratorType
from typing import Any

import numpy as np

import ep_lib
from ep_lib.emulator.accesses import Accesses, MemoryAccess
from ep_lib.emulator.findings import Finding
from ep_lib.errors import ArgumentError, EpError
from ep_lib.jit.lexer import without_comments
from ep_lib.jit.names import find_global_functions
from ep_lib.require import show
from ep_lib.runtime.accesses import accesses_of
from ep_lib.runtime.check import record
from ep_lib.viz.accesses import NamedArray

CUDA_LINES, PYTHON_LINES = "// YOUR LINES", "# YOUR LINES"
KERNEL = FUNCTION = "puzzle"
_SEEDS = 8
_NOT_AS_ASKED = "The values are right, but this is not what the task asks for"
_OF_ANOTHER_FORM = (TypeError, ValueError, LookupError, AttributeError)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b", re.MULTILINE)
_ASSERTION = "assertion"  # a failed assertion in main: attempt.reasons has its text
_TIMEOUT_S = 0.5  # of CPU for a schedule; right answers take 0.01. Endless loops are reported soon
_LOOK_S = 0.2  # of the picture's run, which may end early
_MOST_SHOWN = 16  # numbers of an array in a message
# The part of a finding about the library's internals: the loop of a wait, the fault record at the start of the heap,
# and a time limit that the learner cannot set.
_INSIDE = re.compile(
    r" \(in <[^>]+>:\d+\)|, rank \d+ heap\+0x0 \(sees 0\)| \(spawn's timeout=\)|, or less work, or a higher timeout="
)
_READER = re.compile(  # the checker's words of a race in which the reader, the template's, lacks something
    r"note: another thread of the block has acquired.*\n\s*remedy: .*|remedy: wait for the writer's signal .*"
)
_SIGNALS = re.compile(r"\b(?:signal_(?:add|set)|st_release|red_add_release|atom_add_release)\w*\s*\(")
_BARRIER = re.compile(r"\b__sync(?:warp|threads)\w*\s*\(")
_ON_LINE = re.compile(r"on line (\d+)")  # in the text of a SyntaxError
_NO_CREDIT = "its writer does not wait for a credit"  # part of the checker's text about a reused slot
_WAIT = re.compile(r"\b(?:wait_until|ld_(?:acquire|relaxed)|atomic)\w*\s*\(")
_PASSED = re.compile(
    r"  (?P<who>[^\n]*) waits in (?P<at>line \d+ of the template)(?: for one value|, and sees \d+): it was "
    r"(?P<was>\d+) until (?P<by>line \d+ of the template) made it (?P<is>\d+), before [^\n]*\n  remedy: [^\n]*"
)
_IN_HEAP = re.compile(r"(?:rank (\d+) )?heap\+0x([0-9a-f]+)")
Kernels = Callable[[str], ep_lib.Kernel]  # by name
# The allowed types in a Python answer's result; no subclasses.
_TAKEN_AS_THEY_ARE = frozenset((type(None), bool, int, float, str, bytes, bytearray, *np.sctypeDict.values())) - {
    np.object_,
    np.void,
}
_ROWS = frozenset((list, range, deque, map, zip, filter, enumerate, GeneratorType, type({}.items())))
_MOST_RETURNED = 1 << 13


class Bench:
    """The argument of a puzzle's ``main``, one per rank: named arrays, which the picture shows, and the learner's code.

    ``rank`` is the :class:`ep_lib.Rank`; a puzzle with ``ranks=0`` has none, and cannot make arrays or launch.
    """

    def __init__(self, attempt: _Attempt, rank: ep_lib.Rank | None) -> None:
        self._attempt = attempt
        self._rank = rank
        self._arrays: dict[str, Any] = {}
        self._named: list[tuple[NamedArray, Any]] = []  # with their contents

    @property
    def rank(self) -> ep_lib.Rank:
        if self._rank is None:
            raise ArgumentError("this puzzle has ranks=0: its main gets no rank")
        return self._rank

    @property
    def me(self) -> int:
        """The rank's number."""
        return self.rank.rank

    def symmetric(self, name: str, shape: int | tuple[int, ...], dtype: Any = np.int32, fill: float = 0) -> Any:
        """A symmetric array; collective."""
        array = self._keep(name, self.rank.symmetric(shape, dtype, fill))
        self._attempt.symmetric[self.rank.offset_of(array)] = self._named[-1][0]
        return array

    def array(self, name: str, values: Any) -> Any:
        """Memory of this rank alone, with the content ``values``, a NumPy array."""
        return self._keep(name, self.rank.to_device(np.array(values)))

    def _keep(self, name: str, array: Any) -> Any:
        self._arrays[name] = array
        view = np.asarray(array)
        address = int(view.__array_interface__["data"][0])
        self._named.append((NamedArray(name, self.me, address, view.size, view.itemsize), view))
        return array

    def arrays(self) -> list[NamedArray]:
        """The arrays with their current contents."""
        return [dataclasses.replace(array, values=tuple(held.reshape(-1).tolist())) for array, held in self._named]

    def launch(
        self, grid: int | Sequence[int], block: int | Sequence[int], *args: object, kernel: str = KERNEL, **more: Any
    ) -> None:
        """Starts a kernel of the template on this rank: ``puzzle``, unless ``kernel`` names another."""
        self._attempt.kernel(kernel).launch(self.rank, grid, block, *args, **more)

    def call(self, *args: object, function: str = FUNCTION) -> Any:
        """Calls a function of a Python template: ``puzzle``, unless ``function`` names another.

        It gets copies of lists and arrays, and its result is converted to plain values (:func:`_plain`). An exception
        in the learner's lines ends the attempt, and names the line.
        """
        given = [copy.deepcopy(each) if isinstance(each, (list, np.ndarray)) else each for each in args]
        try:
            with _ended_in_time(self._attempt.puzzle.filename):
                returned = self._attempt.functions[function](*given)
                self._attempt.returned = _plain(returned, function)
                return self._attempt.returned
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - the learner's lines may raise any error, which is shown
            self.wrong(self._attempt.puzzle.raised(error))

    def expect(self, name: str, values: Any, why: str = "") -> None:
        """Waits for this rank's kernels; the array ``name`` must then hold ``values``. ``why``: a sentence if not."""
        got = self.rank.to_host(self._arrays[name])
        wanted = np.broadcast_to(np.asarray(values, got.dtype), got.shape)
        if not np.array_equal(got, wanted):
            # The run continues: the checker may still find the reason.
            self._attempt.reasons.append(f"{name} of rank {self.me} {_difference(got, wanted)}. {why}".strip())

    @contextlib.contextmanager
    def ends(self, otherwise: str) -> Iterator[None]:
        """Requires that kernels launched inside end. ``otherwise``: the sentence if not."""
        try:
            yield
            self.rank.synchronize()
        except EpError:
            self._attempt.reasons.append(otherwise)
            raise

    def require(self, condition: object, otherwise: str) -> None:
        """Ends the attempt as wrong, with the reason ``otherwise``, unless ``condition`` is true."""
        if not condition:
            self.wrong(otherwise)

    def wrong(self, reason: str) -> None:
        """Ends the attempt as wrong."""
        self._attempt.reasons.append(reason.strip())
        raise AssertionError(reason)


def _plain(value: Any, function: str) -> Any:
    """``value`` in lists, tuples and values of Python's and NumPy's own types: an object of another class may claim to
    equal anything. Raises TypeError for those, ValueError for too many values.
    """
    kind = type(value)
    if kind in _TAKEN_AS_THEY_ARE or (kind is np.ndarray and not value.dtype.hasobject):
        return value
    if kind is tuple:
        return tuple(_plain(each, function) for each in value)
    if kind is np.ndarray:
        return _plain(value.tolist(), function)
    if kind in _ROWS:
        found = [_plain(each, function) for each in itertools.islice(value, _MOST_RETURNED + 1)]
        if len(found) > _MOST_RETURNED:
            raise ValueError(f"{function}() gives more than {_MOST_RETURNED} values: do they end?")
        return found
    raise TypeError(
        f"{function}() gives an object of the class {kind.__name__}: give plain values, which are numbers, text, None, "
        f"NumPy arrays, and lists or tuples of these"
    )


@contextlib.contextmanager
def _ended_in_time(filename: str) -> Iterator[None]:
    """Ends Python lines of ``filename`` that run longer than ``_TIMEOUT_S``, by a TimeoutError in one of them."""
    deadline = time.thread_time() + _TIMEOUT_S

    def look(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != filename:
            return None
        frame.f_trace_opcodes = True  # `while True: pass` never reaches another line
        if time.thread_time() > deadline:
            raise TimeoutError(f"a loop that does not end? Your lines still ran after {_TIMEOUT_S:g} s")
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


def _difference(got: Any, wanted: Any) -> str:
    """The actual and the expected numbers, from the first different one if there are many."""
    got, wanted = got.reshape(-1), wanted.reshape(-1)
    if got.size <= _MOST_SHOWN:
        return f"holds {_numbers(got)}, and should hold {_numbers(wanted)}"
    first, number = int(np.argmax(got != wanted)), int((got != wanted).sum())
    part = slice(first, first + _MOST_SHOWN // 2)
    return (
        f"is wrong in {number} of {got.size} words: from word {first} on it holds {_numbers(got[part])}, and should "
        f"hold {_numbers(wanted[part])}"
    )


def _numbers(array: Any) -> str:
    return f"[{', '.join(map(str, array))}]"


@dataclass(frozen=True)
class Flow:
    """Accesses that the run of a right answer must make, so that an answer cannot compute values that should arrive
    from elsewhere.

    The named ``array`` of at least one rank (``everywhere``: of each) is accessed by ``threads`` different threads of
    one rank: ``"another"`` one or its ``"own"``. ``does`` is ``"reads"`` or ``"writes"`` (an atomic does both; a NIC is
    one thread of the rank that posts). ``begins_within``: each thread's first access is within this number of bytes of
    the array's start. ``in_pairs``: each such access is one of 16 bytes (ep::st_relaxed_sys_u64x2).
    """

    array: str
    does: str
    by: str
    otherwise: str  # the message for an answer without it
    threads: int = 1
    begins_within: int = 0
    everywhere: bool = False
    in_pairs: bool = False

    def is_seen(self, accesses: Sequence[MemoryAccess], arrays: Sequence[NamedArray]) -> bool:
        seen = (self._is_seen_of(array, accesses) for array in arrays if array.name == self.array)
        return all(seen) if self.everywhere else any(seen)

    def _is_seen_of(self, array: NamedArray, accesses: Sequence[MemoryAccess]) -> bool:
        end = array.address + array.words * array.word_bytes
        first: dict[tuple[int, int, int], int] = {}  # by thread
        for access in accesses:
            did = access.writes if self.does == "writes" else access.reads
            if not did or (access.rank == array.rank) is not (self.by == "own"):
                continue
            if access.address < end and access.address + access.bytes > array.address:
                if self.in_pairs and not access.of_pair:
                    return False
                first.setdefault((access.rank, access.block, access.thread), access.address - array.address)
        is_near = not self.begins_within or all(offset < self.begins_within for offset in first.values())
        by_rank = Counter(rank for rank, _, _ in first)
        return is_near and max(by_rank.values(), default=0) >= self.threads


# For puzzles in which `got` is read from the `inbox` that the other rank has written.
SENT_TO_INBOX = (
    Flow("inbox", "writes", "another", "In this run nothing came from the other rank: send to its `inbox`."),
    Flow("inbox", "reads", "own", "`got` must be what is read from `inbox`; the template does it."),
)


@dataclass(frozen=True)
class Verdict:
    """The result of an attempt. ``kind``: "to do", "right" or "wrong". The picture shows ``accesses``, of a run of
    ``main`` with ``seed``. ``tell`` rewrites a message about that run with the cell's lines and the arrays' names;
    ``line_names``: the names of the compiled file's lines."""

    kind: str
    headline: str
    text: str = ""
    accesses: Sequence[MemoryAccess] = ()
    arrays: Sequence[NamedArray] = ()
    main: Callable[[ep_lib.Rank], None] | None = None
    seed: int = 0
    tell: Callable[[str], str] = str
    line_names: Sequence[str] = ()


@dataclass(frozen=True)
class Score:
    """The cost of an answer: the least over its schedules, since the number of polls is random.

    ``accesses``: of the busiest thread, to the arrays. ``messages``: accesses of threads to arrays of other ranks, and
    operations of NICs. ``steps``: synchronising operations, and events of the network.
    """

    accesses: int
    messages: int
    steps: int


def _score_of_run(run: Accesses, arrays: Sequence[NamedArray], posted: int) -> Score:
    by_thread: Counter[tuple[int, int, int]] = Counter()
    across = 0
    for access in run:
        for array in arrays:
            if access.thread >= 0 and 0 <= access.address - array.address < array.words * array.word_bytes:
                by_thread[access.rank, access.block, access.thread] += 1
                across += access.rank != array.rank
    return Score(max(by_thread.values(), default=0), across + posted, run.steps)


@dataclass(frozen=True)
class Puzzle:
    """A task of one to five lines.

    ``template``: CUDA C++ with a kernel ``extern "C" __global__ void puzzle(...)`` (or several, which ``main`` names)
    and a line ``// YOUR LINES``, or
    Python with a function ``puzzle`` and a line ``# YOUR LINES``: the learner's lines replace that line, with its
    indentation. ``main(bench)`` runs on each of ``ranks`` emulated ranks (0: once, without a rank), under the checker,
    with ``seeds`` schedules on ``fabric``; it calls ``bench.launch`` or ``bench.call``, and gives the expected values
    with ``bench.expect`` (compare with NumPy). ``task``, ``hints`` and ``discussion`` are prose, in which `code`,
    **strong** and *emphasis* count and an empty line begins a paragraph.

    ``hints``: three: where to look, what to think of, nearly the code. ``picture``: the names of the arrays to show, by
    default all.

    A right answer needs more than right values: ``flows`` are required accesses. For requirements that a run cannot
    show, ``requires`` and ``forbids`` are regular expressions for the lines, with messages. ``frees``: the array that
    counts items that readers have released, if the learner writes the wait for it; ``gives``: if the learner releases.
    """

    number: str
    title: str
    task: str
    template: str
    main: Callable[[Bench], None]
    hints: tuple[str, str, str]
    solution: str
    discussion: str
    ranks: int = 2
    fabric: str | None = None
    seeds: int = _SEEDS
    picture: tuple[str, ...] = ()
    flows: tuple[Flow, ...] = ()
    requires: Mapping[str, str] = field(default_factory=dict)
    forbids: Mapping[str, str] = field(default_factory=dict)
    frees: str = ""
    gives: str = ""

    @property
    def is_python(self) -> bool:
        return PYTHON_LINES in self.template

    @property
    def filename(self) -> str:
        """The template's name in errors."""
        return f"puzzle {self.number}"

    @functools.cached_property
    def _before(self) -> tuple[str, str, str]:
        """The template before the learner's lines, the indentation of these, and the rest."""
        mark = PYTHON_LINES if self.is_python else CUDA_LINES
        before, _, after = self.template.strip("\n").partition(mark)
        lines, _, indentation = before.rpartition("\n")
        return lines + "\n", indentation, after.removeprefix("\n")

    def source(self, lines: str) -> str:
        """The template with the learner's lines in it."""
        before, indentation, after = self._before
        written = textwrap.indent(textwrap.dedent(lines.strip("\n")), indentation)
        return f"{before}{written}\n{after}"

    def attempt(self, lines: str) -> Verdict:
        """Runs an answer, and judges it."""
        if not self._code(lines).strip():
            return Verdict("to do", f"Puzzle {self.number} is yours to solve", self._what_to_do())
        if self.is_python:
            return self._judge(lines, _Attempt(self, None))
        code = without_comments(lines, keep_strings=True)
        if self._before[1] and (found := _INCLUDE.search(code)):
            # It would cause a page of errors, all of them in the header
            number = code.count("\n", 0, found.start()) + 2  # the cell's first line is %%puzzle
            text = "your lines are inside a function, where no header can be included; the template has what they need."
            return Verdict("wrong", "This does not compile", f"line {number} of your cell: {text}")
        try:
            kernel = self._compiled(lines)
        except EpError as error:
            text = self._in_cell(str(error), lines)
            return Verdict("wrong", "This does not compile", f"{text}\n{_braces(self._code(lines))}".strip())
        return self._judge(lines, _Attempt(self, kernel))

    def _compiled(self, lines: str) -> Kernels:
        """The kernels of an answer in CUDA. Raises the compiler's errors."""
        source = self.source(lines)

        @functools.cache
        def kernel(name: str) -> ep_lib.Kernel:
            return ep_lib.Kernel.from_source(source, name, filename=self.filename)

        kernel(find_global_functions([source]).names[0]).compile()
        return kernel

    def score(self, lines: str) -> Score | None:
        """The cost of a right answer; None in a puzzle without ranks."""
        if not self.ranks:
            return None
        attempt = _Attempt(self, None if self.is_python else self._compiled(lines))
        if self.is_python:
            attempt.functions = self._functions(lines)
        posted = len(record(attempt.main, self.ranks, self.fabric).messages) if self.fabric else 0
        runs = []
        for seed in range(self.seeds):
            accesses = attempt.accesses(seed, _TIMEOUT_S)
            runs.append(_score_of_run(accesses, attempt.arrays, posted))
        return Score(*map(min, zip(*map(dataclasses.astuple, runs), strict=True)))

    def _code(self, lines: str) -> str:
        """The learner's lines without comments."""
        return re.sub(r"#.*", "", lines) if self.is_python else without_comments(lines)

    def _beside_the_task(self, lines: str, attempt: _Attempt) -> tuple[str, Sequence[MemoryAccess]]:
        """The unmet requirement of an answer with right values, or ""; and the accesses of a run."""
        accesses = attempt.accesses(0) if self.ranks else ()
        code = self._code(lines)
        said = [
            *(text for pattern, text in self.requires.items() if not re.search(pattern, code)),
            *(text for pattern, text in self.forbids.items() if re.search(pattern, code)),
            *self._unseen(attempt, accesses),
        ]
        return said[0] if said else "", accesses

    def _unseen(self, attempt: _Attempt, accesses: Sequence[MemoryAccess]) -> list[str]:
        """What the accesses of a run lack."""
        return [flow.otherwise for flow in self.flows if not flow.is_seen(accesses, attempt.arrays)]

    def judge(self, lines: str, kernel: Kernels) -> Verdict:
        """As :meth:`attempt`, with given kernels for these lines."""
        return self._judge(lines, _Attempt(self, kernel))

    def _what_to_do(self) -> str:
        language = "Python" if self.is_python else "CUDA C++"
        return f"Write your lines of {language} into this cell, below %%puzzle {self.number}, and run it again."

    def _judge(self, lines: str, attempt: _Attempt) -> Verdict:
        try:
            if self.is_python:
                attempt.functions = self._functions(lines)
            if not self.ranks:
                self.main(Bench(attempt, None))
                missing, _ = self._beside_the_task(lines, attempt)
                return Verdict("wrong", _NOT_AS_ASKED, missing) if missing else Verdict("right", "Right")
        except AssertionError as error:
            return Verdict("wrong", "Not right yet", attempt.reasons[-1] if attempt.reasons else str(error))
        except SyntaxError as error:
            message = _ON_LINE.sub(lambda found: f"in {self._line(int(found[1]), lines)}", error.msg)
            return Verdict("wrong", "This is no Python", f"{self._line(error.lineno or 0, lines)}: {message}")
        except EpError as error:
            return Verdict("wrong", f"Not right yet: {type(error).__name__}", self._in_cell(str(error), lines))
        except _OF_ANOTHER_FORM as error:  # main's errors for None, or for a number in place of a list
            said = f"The function's value is {show(attempt.returned)}, and the task asks for another kind of value"
            return Verdict("wrong", "Not right yet", f"{said} ({error}).")
        told: list[str] = []
        tell = functools.partial(self._told, attempt=attempt, lines=lines)
        verdict = functools.partial(Verdict, main=attempt.main, tell=tell, line_names=self._line_names(lines))
        wrong_at: int | None = None
        reasons: list[str] = []  # of the run that is shown
        for seed in range(self.seeds):  # also after wrong values, until the checker knows a reason
            attempt.reasons.clear()
            try:
                report = ep_lib.check(
                    attempt.main,
                    self.ranks,
                    self.fabric,
                    seeds=[seed],
                    timeout=_TIMEOUT_S,
                    compare_values=False,
                    reduce=False,
                )
            except EpError as error:
                return Verdict("wrong", f"Not right yet: {type(error).__name__}", self._in_cell(str(error), lines))
            told = [tell(_short(found)) for found in report.findings if found.kind != _ASSERTION]
            if report.findings or (attempt.reasons and wrong_at is None):
                wrong_at = seed
                reasons = attempt.reasons[:1] or reasons
            if report.findings:
                break
        if wrong_at is None:
            tried = f"{self.seeds} schedules, and the checker finds nothing to complain about."
            missing, accesses = self._beside_the_task(lines, attempt)
            kind, headline, text = ("wrong", _NOT_AS_ASKED, missing) if missing else ("right", "Right", tried)
            return verdict(kind, headline, text, accesses, self._shown(attempt))
        accesses = attempt.accesses(wrong_at)
        found = (self._behind(self._reused(each, lines, attempt, accesses), lines) for each in told[:1])
        # A race ends no run, so what it lacks is the learner's; a deadlock cuts it off.
        lacks = self._unseen(attempt, accesses) if not told or told[0].startswith("race: ") else []
        lacks += self._astray(attempt, accesses)
        text = "\n".join([*reasons, *found, *lacks[:1]])
        headline = f"Not right yet (seen with seed {wrong_at})"
        return verdict("wrong", headline, text, accesses, self._shown(attempt), seed=wrong_at)

    def _astray(self, attempt: _Attempt, accesses: Sequence[MemoryAccess]) -> list[str]:
        """The arrays that a rank should have written at another, and wrote at itself."""

        def written(array: str, by: str) -> bool:
            return Flow(array, "writes", by, "").is_seen(accesses, attempt.arrays)

        asked = [flow.array for flow in self.flows if (flow.does, flow.by) == ("writes", "another")]
        lost = [array for array in asked if written(array, "own") and not written(array, "another")]
        return [f"`{array}` was written by its own rank, and by no other." for array in lost]

    def _reused(self, told: str, lines: str, attempt: _Attempt, accesses: Sequence[MemoryAccess]) -> str:
        """A finding about a slot that is written too early, with the answer's wait and its line."""
        if any(re.search(words, "wait") for words in self.forbids):
            return told.replace("credit before reuse", "credit before reuse, or, as here, a second place, used in turn")
        code = self._code(lines).split("\n")
        waits = [n for n, line in enumerate(code, start=2) if _WAIT.search(line)]
        why = _NO_CREDIT
        given = [n for n, line in enumerate(code, start=2) if self.gives and self.gives in line]
        if given:
            early = f"line {given[0]} of your cell gives its credit too early, or more than one"
            when = "one credit, by one lane, when all lanes have read"
            return told.replace(_NO_CREDIT, early).replace("remedy: credit before reuse", f"remedy: {when}")
        if self.frees and waits:
            looks = Flow(self.frees, "reads", "own", "").is_seen(accesses, attempt.arrays)
            what = (
                f"too little of `{self.frees}`, or not every time" if looks else f"something else than `{self.frees}`"
            )
            why = f"line {waits[0]} of your cell waits for {what}"
            if told.startswith("race: ") and "of your cell" not in told:  # within a rank there is a plainer message
                return re.sub(r"  remedy: .*", f"  reason: {why}\n  remedy: credit before reuse", told)
        passed = (
            rf"  slot reused: \g<who> waits in \g<at> for \g<was>, which was there until \g<by> made it \g<is>: "
            rf"{why}\n  remedy: credit before reuse"
        )
        return _PASSED.sub(passed, told).replace(_NO_CREDIT, why) if self.frees else told

    def _behind(self, told: str, lines: str) -> str:
        """A race whose barrier comes behind the signal: it lacks nothing at the reader, which the template has."""
        code = self._code(lines)
        signal, barrier = _SIGNALS.search(code), _BARRIER.search(code)
        if not signal or not barrier or signal.start() > barrier.start():
            return told
        number = code.count("\n", 0, barrier.start()) + 2
        return _READER.sub(f"remedy: the barrier of line {number} of your cell before the signal, not behind it", told)

    def _shown(self, attempt: _Attempt) -> Sequence[NamedArray]:
        """The arrays of the picture."""
        shown = [array for array in attempt.arrays if not self.picture or array.name in self.picture]
        return sorted(shown, key=lambda array: (array.name, array.rank))

    def _functions(self, lines: str) -> dict[str, Any]:
        source, namespace = self.source(lines), {"np": np}
        linecache.cache[self.filename] = (len(source), None, source.splitlines(keepends=True), self.filename)
        exec(compile(source, self.filename, "exec"), namespace)
        return namespace

    def raised(self, error: Exception) -> str:
        """A message for an exception in the learner's lines, with its line."""
        at, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.filename:
                at = trace.tb_lineno
            trace = trace.tb_next
        text = linecache.getline(self.filename, at).strip()
        before, _, after = self._before
        last = len(linecache.getlines(self.filename)) - len(after.splitlines())  # of the learner's lines
        whose = "your line" if before.count("\n") < at <= last else "a line of the template"
        return f"{type(error).__name__}: {error}" + (f"\n  in {whose}: {text}" if text else "")

    def _in_cell(self, text: str, lines: str) -> str:
        """Places in the template as lines of the cell, whose first line is %%puzzle."""
        name = re.escape(self.filename)
        # "in line 7 of puzzle 00.3, and waited for in line 11": of the same file
        places = rf"{name}:(\d+)|\bline (\d+)\b(?: of {name}|(?! of ))"
        return re.sub(places, lambda m: self._line(int(m[1] or m[2]), lines), text)

    def _told(self, text: str, attempt: _Attempt, lines: str) -> str:
        """A message about a run, in the learner's terms."""
        return self._in_cell(attempt.named(_INSIDE.sub("", text)), lines)

    def _line_names(self, lines: str) -> list[str]:
        """The displayed names of the source's lines: "cell 2", "template 9"."""
        names = (self._line(number, lines) for number in range(1, self.source(lines).count("\n") + 2))
        return [re.sub(r"line (\d+) of (?:your|the) (\w+)", r"\2 \1", name) for name in names]

    def _line(self, number: int, lines: str) -> str:
        before = self._before[0].count("\n")
        ours = lines.rstrip("\n")
        dropped = len(ours) - len(ours.lstrip("\n"))  # empty lines at the cell's top
        height = ours.strip("\n").count("\n") + 1
        if before < number <= before + height:
            return f"line {number - before + dropped + 1} of your cell"
        # The template is shown with its own numbers: there, one line represents all of the learner's.
        return f"line {number if number <= before else number - height + 1} of the template"


def _braces(code: str) -> str:
    """A message about a missing or stray brace, which compilers report far from its place."""
    opened, closed = code.count("{"), code.count("}")
    if opened == closed:
        return ""
    return f"Your lines open {opened} brace{'s' * (opened != 1)} {{ and close {closed} }}: one is missing, or too many."


def _short(finding: Finding) -> str:
    """A finding without the parts that only a long program needs."""
    lines = [f"{finding.kind}: {finding.message}"]
    for side in dict.fromkeys(each for each in (finding.first, finding.second) if each is not None):
        by = " (by the NIC)" if side.operation else ""
        lines.append(f"  {side.thread} {side.what}{by}, at {side.location}: {side.source}")
    if finding.detail:
        lines.append(f"  note: {finding.detail}")
    if finding.remedy:
        lines.append(f"  remedy: {finding.remedy}")
    return "\n".join(lines)


@dataclass
class _Attempt:
    """A running answer: its code, and observations of its ranks' benches."""

    puzzle: Puzzle
    kernels: Kernels | None
    functions: dict[str, Any] = field(default_factory=dict)
    arrays: list[NamedArray] = field(default_factory=list)
    symmetric: dict[int, NamedArray] = field(default_factory=dict)  # by their offsets in the heap
    reasons: list[str] = field(default_factory=list)
    returned: object = None  # the last result of the learner's function

    def kernel(self, name: str) -> ep_lib.Kernel:
        if self.kernels is None:
            raise ArgumentError(f"{self.puzzle.filename} is in Python: it has no kernel {name!r}")
        return self.kernels(name)

    def accesses(self, seed: int, timeout: float = _LOOK_S) -> Accesses:
        """The accesses of a run, whose arrays are then in ``arrays``."""
        self.arrays.clear()
        return accesses_of(self.main, self.puzzle.ranks, self.puzzle.fabric, seed=seed, timeout=timeout)

    def named(self, text: str) -> str:
        """Replaces addresses in symmetric heaps by words of the arrays there."""

        def name(match: re.Match[str]) -> str:
            offset = int(match[2], 16)
            of = f" of rank {match[1]}" if match[1] else ""
            for begin, array in self.symmetric.items():
                if 0 <= offset - begin < 2 * array.words * array.word_bytes:  # no other array is so close behind it
                    return f"{array.name}[{(offset - begin) // array.word_bytes}]{of}"
            return match[0]

        return _IN_HEAP.sub(name, text)

    def main(self, rank: ep_lib.Rank) -> None:
        bench = Bench(self, rank)
        try:
            self.puzzle.main(bench)
            rank.barrier()  # until all ranks' kernels are done with this one's arrays
        finally:
            self.arrays += bench.arrays()
