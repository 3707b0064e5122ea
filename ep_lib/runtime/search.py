"""The runs of a program that is checked: each with a schedule, and the findings of all of them."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ep_lib.emulator import exploration as runs
from ep_lib.emulator import origins
from ep_lib.emulator.exploration import Exploration
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.findings import DEFAULT_SCHEDULE, Finding, parse, parse_spots, schedule_name
from ep_lib.emulator.host_watch import HostAccess, told_of_copies
from ep_lib.emulator.outcomes import from_error
from ep_lib.emulator.recording import Notes
from ep_lib.errors import (
    ArgumentError,
    BackendUnavailable,
    DeadlockError,
    EpError,
    KernelFault,
    KernelTimeout,
    PeerTimeout,
)
from ep_lib.jit import gxx
from ep_lib.require import brief
from ep_lib.runtime.differences import describe_difference, digest
from ep_lib.runtime.emulated import make_machine, run_program
from ep_lib.runtime.exhaustion import Explored
from ep_lib.runtime.sources import Sources

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Launched

# Names in a function's code that make two runs of main differ.
_DIFFERS_BY_ITSELF = re.compile(
    r"^(time|perf_counter|monotonic|now|random|default_rng|urandom|open|read_text|environ)$"
)
WEAK = "weak memory"  # kind of findings: a run read older values, which is no mistake unless the run fails
_LEFT_OPEN = ("shuffle", "activemask")  # kinds of findings: CUDA leaves the value undefined
_FINDINGS = (DeadlockError, KernelFault, KernelTimeout, PeerTimeout, AssertionError)
# Exceptions in main that wrong data may cause: reported together with the cause of the wrong data, raised if there is
# no finding.
MAY_FOLLOW = (EpError, ArithmeticError, LookupError, ValueError)


def in_words(run: int | str) -> str:
    return f"seed={run}" if isinstance(run, int) else f'schedule="{schedule_name(run)}"'


@dataclass(frozen=True)
class Program:
    """The program and the options that all schedules share."""

    main: Callable[..., Any]
    ranks: int
    network: Fabric
    args: Sequence[Any]
    heap_bytes: int | None
    timeout: float | None
    resident_blocks: int | None
    plain_volatile: bool
    transport: str
    memory: str

    @property
    def weak_memory(self) -> bool:
        return self.memory == "ptx"

    @property
    def name(self) -> str:
        """The name of main; "main" for a lambda."""
        name = getattr(self.main, "__name__", type(self.main).__name__)
        return name if name != "<lambda>" else "main"

    @property
    def can_be_said(self) -> bool:
        """Whether one line of Python can repeat the check wherever main is defined."""
        if getattr(self.main, "__name__", "<lambda>") == "<lambda>" or self.network != Fabric(self.network.kind):
            return False
        try:
            return bool(ast.literal_eval(repr(tuple(self.args))) == tuple(self.args))
        except (ValueError, SyntaxError):
            return False

    def replay(self, run: int | str) -> str:
        """The call that replays a seed or a schedule, for the user's script. Only if :meth:`can_be_said`."""
        words = [self.name, f"ranks={self.ranks}"]
        words += [f'fabric="{self.network.kind}"'] if self.network != Fabric() else []
        words.append(in_words(run))
        words += [f"args={tuple(self.args)!r}"] if self.args else []
        words += [f"heap_bytes={self.heap_bytes}"] if self.heap_bytes else []
        words += [f'transport="{self.transport}"'] if self.transport != "emulated" else []
        words += [f"resident_blocks={self.resident_blocks}"] if self.resident_blocks else []
        words += ['volatile="plain"'] if self.plain_volatile else []
        words += ['memory="ptx"'] if self.weak_memory else []
        return f"import ep_lib.viz; ep_lib.viz.time_travel({', '.join(words)})"


class Run(NamedTuple):
    """``end``: what ended main, if it did not return ``result``."""

    result: Any
    found: list[Finding]
    end: Finding | None
    out_of_time: bool
    is_whole: bool = True  # the run was not abandoned early
    launches: Sequence[Launched] = ()  # of exhaustive checks


class _Traced(NamedTuple):
    trace: origins.Trace
    result: Any


class Calm(NamedTuple):
    """The first finished run of an exhaustive check; the results of others are compared with it."""

    schedule: str
    digest: str


@dataclass
class Seen:
    """What runs have shown, besides findings."""

    values_differ: bool = False
    failed: bool = False
    has_values: bool = False  # whether a main returned one
    polled: set[str] = field(default_factory=set)  # lines that poll
    kernels: set[str] = field(default_factory=set)  # that were launched, as in Machine.kernels
    clocks: set[str] = field(default_factory=set)  # lines that read one
    choices: set[str] = field(default_factory=set)  # barriers to which more warps come than they take

    def add(self, other: Seen) -> None:
        """Adds what other runs have shown."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) | value)


@dataclass(frozen=True)
class PartAnswer:
    """The outcome of some runs of a part: schedules covered, and the findings of a :class:`Search`. ``stopped``: why
    the check is to end there."""

    explored: Explored
    findings: tuple[Finding, ...]
    calm: Calm | None
    seen: Seen
    asked: frozenset[str]
    stopped: str


class Search:
    """The findings and statistics so far."""

    def __init__(self, program: Program, compare_values: bool) -> None:
        self.findings: dict[tuple[str, ...], Finding] = {}
        self.tried: list[int] = []
        self.seen = Seen()
        self.program = program
        self.compares_values = compare_values
        self._first: tuple[int, Any, str] | None = None  # seed, result and digest of the first run
        self.calm: Calm | None = None  # the same for exhaustive checks
        self._steps = 0  # of the run of seed 0
        self.sources = Sources()  # nondeterministic calls of main
        self.recorded: tuple[Any, dict[str, Any], Notes, list[tuple[int, Finding]]] | None = None

    @property
    def unwatched(self) -> tuple[str, ...]:
        """Accesses, in the kernels that were launched, that the checker cannot see; a line each."""
        return gxx.unwatched(self.seen.kernels)

    @property
    def told(self) -> list[Finding]:
        """The findings, without those that other runs have refuted.

        Use of a value that CUDA leaves undefined is a mistake only if results depend on it; volatile accesses to polled
        memory are not.
        """
        harmless = self.compares_values and self.seen.has_values and not (self.seen.values_differ or self.seen.failed)
        differs = self.findings.get(("values differ",))
        told = []
        for finding in self.findings.values():
            if finding.kind in _LEFT_OPEN:
                if harmless:
                    continue
                if differs is not None:  # the seed that shows it
                    finding = dataclasses.replace(finding, seed=differs.seed)
            elif finding.kind == "volatile" and self._polls(finding):
                continue
            told.append(finding)
        return told

    def _polls(self, finding: Finding) -> bool:
        return any(side and side.location in self.seen.polled for side in (finding.first, finding.second))

    def measure(self) -> None:
        """Runs seed 0 under "sc", for what only the first run of a program gives."""
        run = self._run(0, weak_memory=False)
        if run.end is None and self.compares_values:
            self._first = (0, run.result, digest(run.result))

    def try_schedule(self, seed: int, recorded: bool = False) -> bool:
        """Runs main once. Returns whether it reached the time limit."""
        run = self._run(seed, recorded, self.program.weak_memory)
        self._take(run, seed)
        return run.out_of_time

    def try_next(self, exploration: Exploration, recorded: bool = False) -> tuple[Run, bool]:
        """Runs main with the next schedule. Returns the run, and whether more are left."""
        number = len(self.tried)
        self.sources.begin()
        run = self._run(number, recorded, self.program.weak_memory, exploration)
        more = exploration.next()
        self.sources.take()
        if exploration.status.outcome != runs.REDUNDANT:
            self._take(run, number, exploration.schedule)
        return run, more

    def _take(self, run: Run, seed: int, schedule: str | None = None) -> None:
        def named(found: Finding) -> Finding:
            return dataclasses.replace(found, schedule=schedule)

        if run.end is not None:
            self.seen.failed = True
            self.add([named(run.end)])
        self.add(named(finding) for finding in run.found if finding.kind != WEAK)
        is_compared = run.end is None and run.is_whole and self.compares_values
        differs = is_compared and self.compare(run.result, seed, schedule)
        if differs or run.end is not None:
            weak = [finding for finding in run.found if finding.kind == WEAK]
            self.add(named(f) for f in weak if f.certainty == max(w.certainty for w in weak))
        self.tried.append(seed)

    def take_over(self, part: PartAnswer) -> None:
        """Adds a worker's answer. Its runs come after those already known."""
        if self.calm is None:
            self.calm = part.calm
        begin = len(self.tried)
        for finding in part.findings:
            seeds = tuple(seed + begin for seed in finding.seeds or (finding.seed,))
            self.add([dataclasses.replace(finding, seed=finding.seed + begin, seeds=seeds)])
        self.tried += range(begin, begin + part.explored.runs)
        self.seen.add(part.seen)
        self.sources.asked |= part.asked

    def answer(self, explored: Explored, stopped: str) -> PartAnswer:
        """The answer for :meth:`take_over`."""
        findings, asked = tuple(self.findings.values()), frozenset(self.sources.asked)
        return PartAnswer(explored, findings, self.calm, self.seen, asked, stopped)

    def forget(self) -> None:
        """Drops the findings, but keeps the results that others are compared with."""
        self.findings.clear()

    def trace(self, seed: int, exploration: Exploration | None = None, weak_memory: bool = False) -> _Traced:
        """Runs main once, and records each access."""
        run = self._run(seed, True, weak_memory, exploration, whole=True)
        assert self.recorded is not None
        events, info, notes, _ = self.recorded
        return _Traced(origins.Trace(events, info, notes, self.program.ranks), run.result)

    def _run(
        self,
        seed: int,
        recorded: bool = False,
        weak_memory: bool = False,
        exploration: Exploration | None = None,
        whole: bool = False,
    ) -> Run:
        program = self.program
        machine = make_machine(
            program.ranks,
            seed=seed if exploration is None else 0,
            heap_bytes=program.heap_bytes,
            fabric=program.network,
            resident_blocks=program.resident_blocks,
            program_steps=self._steps,
        )
        machine.begin_checks(program.plain_volatile, weak_memory)
        if exploration is not None:
            exploration.begin(machine)
            machine.launches = []
        if recorded:
            machine.begin_recording(whole)
        error: Exception | None = None
        result = None
        try:
            try:
                around = contextlib.nullcontext if exploration is None else self.sources.watched
                with told_of_copies():
                    result = run_program(
                        program.main, machine, program.args, program.timeout, program.transport, around
                    )
                machine.drain_network()  # messages still in flight may arrive too late
            except BackendUnavailable:  # this machine lacks something, such as memory: not a fault of main
                raise
            except (*_FINDINGS, *MAY_FOLLOW) as caught:
                error = caught
            finally:
                self.seen.kernels |= machine.kernels
                if exploration is not None:
                    for seen, spots in ((self.seen.clocks, machine.clocks), (self.seen.choices, machine.choices)):
                        seen |= {spot.partition(" (in ")[0] for spot in parse_spots(spots)}
                if program.plain_volatile:
                    self.seen.polled |= parse_spots(machine.polls)
                kept = (*machine.recorded(), machine.notes) if machine.notes is not None else None
                report = machine.end_checks()
            numbered = parse(report, seed)
            if kept is not None:
                self.recorded = (*kept, numbered)
            found = [
                *(finding for _, finding in numbered),
                *(_of_host(access, seed) for access in machine.host_accesses),
            ]
            is_whole = exploration is None or exploration.is_whole
            if error is not None and is_whole and not found and not isinstance(error, _FINDINGS):
                raise error
            if seed == 0 and not self._steps:
                self._steps = machine.steps
            self.seen.has_values |= result is not None and any(value is not None for value in result)
            end = None
            if error is not None and is_whole:
                idle = set(range(program.ranks)) - machine.has_launched
                end = from_error(error, seed, machine.quiescence, idle)
            return Run(result, found, end, isinstance(error, KernelTimeout), is_whole, machine.launches or [])
        finally:
            del error  # it and this frame refer to each other, and both to the machine

    def add(self, found: Iterable[Finding]) -> None:
        for finding in found:
            key = next((k for k, known in self.findings.items() if same_place(known, finding)), finding.key)
            known = self.findings.get(key)
            if known is None:
                self.findings[key] = finding
                continue
            more = finding.seeds or (finding.seed,)
            seeds = (*known.seeds, *(seed for seed in more if seed not in known.seeds))
            best = max(known, finding, key=_how_exact)  # the first, if they are equal
            ranks = tuple(sorted({*known.ranks, *finding.ranks}))
            self.findings[key] = dataclasses.replace(best, count=known.count + finding.count, seeds=seeds, ranks=ranks)

    def compare(self, result: Any, seed: int, schedule: str | None = None) -> bool:
        """Whether main's results differ from those of the first run."""
        found_digest = digest(result)
        if schedule is not None:
            if self.calm is None:
                self.calm = Calm(schedule, found_digest)
            if found_digest == self.calm.digest:
                return False
            other = "schedule than with the calm one"
            if self._first is None:
                run = self._run(0, weak_memory=self.program.weak_memory, exploration=follower(self.calm.schedule))
                if digest(run.result) != self.calm.digest:
                    raise ArgumentError(strays(self.program, TWO_RESULTS, self.sources.asked))
                self._first = (0, run.result, self.calm.digest)
        elif self._first is None:
            self._first = (seed, result, found_digest)
            return False
        elif found_digest == self._first[2]:
            return False
        else:
            other = f"seed than with seed {self._first[0]}"
        self.seen.values_differ = True
        difference = describe_difference(self._first[1], result)
        text = f"main returns other values with this {other}{difference.where}"
        found = Finding("values differ", text, seed, difference.remedy, seeds=(seed,), schedule=schedule)
        key = ("values differ",)
        known = self.findings.get(key)
        if known is not None:
            found = dataclasses.replace(known, count=known.count + 1, seeds=(*known.seeds, seed))
        self.findings[key] = found
        return True


_SCHEDULE = re.compile(r"(t\d+ ?)?(\d+:\d+( \d+:\d+)*)?")  # "t": iterations of waits, if not 3


def a_schedule(schedule: Any) -> str:
    """The line by which a finding of an exhaustive check is replayed. Raises ArgumentError."""
    line = schedule.strip() if isinstance(schedule, str) else None
    if line == DEFAULT_SCHEDULE:
        return ""
    if line is None or not _SCHEDULE.fullmatch(line):
        raise ArgumentError(
            f"schedule is {brief(schedule)}; take the line that a finding of an exhaustive check says: numbers like "
            f'"12:1 30:2", or "{DEFAULT_SCHEDULE}" for the calm run'
        )
    return line


def require_fit(schedule: str, exploration: Exploration) -> None:
    """Raises ArgumentError if the last run could not follow each decision of the line."""
    made, decisions = exploration.schedule.split(), exploration.status.decisions
    for word in schedule.split():
        if ":" in word and word not in made and not word.endswith(":0"):
            number, option = map(int, word.split(":"))
            why = (
                f"decision {number} does not exist: this run has {decisions}, numbered from 0"
                if number >= decisions
                else f"decision {number} has no option {option}"
            )
            raise ArgumentError(f'schedule is "{schedule}", and {why}. Take the line of a finding, and its arguments')


def follower(schedule: str, events: int | None = None) -> Exploration:
    exploration = Exploration(events=MOST_EVENTS if events is None else events, turns=MOST_EVENTS)
    exploration.follow(schedule)
    return exploration


MOST_EVENTS = 1_000_000
FIRST_FINDING = "stopped at the first finding"
TWO_RESULTS = "the calm schedule, run twice, gave two results"


def strays(program: Program, how: str, asked: Iterable[str]) -> str:
    code = getattr(program.main, "__code__", None)
    names = sorted(asked) or sorted(filter(_DIFFERS_BY_ITSELF.match, code.co_names if code else ()))
    said = f"Main asks for {', '.join(names)}: pass" if names else "Is there a clock, a random number or a file? Pass"
    return (
        f"main does not do the same in every run, so its schedules cannot be counted ({how}). {said} what changes in "
        "args=, or leave exhaustive out"
    )


def _of_host(access: HostAccess, seed: int) -> Finding:
    text = (
        f"the host of rank {access.rank} writes an array of {access.array} (bytes {access.first} to "
        f"{access.first + access.nbytes}) that the kernel '{access.kernel}' may be using: after its launch at "
        f"{access.launched}, before {access.seen}"
    )
    remedy = "wait first: rank.synchronize() between the launch and the host's write"
    lines = (access.launched, access.seen)
    return Finding("race", text, seed, remedy, seeds=(seed,), lines=lines, ranks=(access.rank,))


def _how_exact(finding: Finding) -> tuple[int, bool]:
    """How exact a finding is. Several pairs of threads can conflict at one pair of lines, in both orders; the best
    report names the repair."""
    return finding.certainty, bool(finding.place)


def same_sides(one: Finding, other: Finding) -> bool:
    return (one.first, one.second, one.where) == (other.first, other.second, other.where)


def same_place(known: Finding, finding: Finding) -> bool:
    """Whether two deadlocks are the same. One run may hold more threads than another: a common line is enough."""
    if known.kind == finding.kind and known.kind in ("deadlock", "livelock", "timeout"):
        return bool(set(known.lines) & set(finding.lines)) or known.lines == finding.lines
    return known.key == finding.key
