"""``check``: run a program under many schedules, watch every access, and report what is wrong."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from ep_lib.bootstrap.base import dumps, loads
from ep_lib.config import Config
from ep_lib.emulator import exploration as runs
from ep_lib.emulator import origins
from ep_lib.emulator.exploration import BUSY_TURNS, Exploration, Status
from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.emulator.findings import DEFAULT_SCHEDULE, Finding, merge_findings, parse, parse_spots, schedule_name
from ep_lib.emulator.host_watch import HostAccess, told_of_copies
from ep_lib.emulator.machine import pct_depth
from ep_lib.emulator.outcomes import from_error
from ep_lib.emulator.recording import Notes, Recording
from ep_lib.emulator.recording import read as read_recording
from ep_lib.errors import (
    ArgumentError,
    BackendUnavailable,
    DeadlockError,
    EpError,
    KernelFault,
    KernelTimeout,
    PeerTimeout,
)
from ep_lib.jit import gxx, pieces
from ep_lib.require import at_least_one, brief, flag, index, one_of, several, text, whole_number
from ep_lib.require import seconds as a_time
from ep_lib.runtime import arguments
from ep_lib.runtime.differences import describe_difference, describe_launches, digest, unequal_numbers
from ep_lib.runtime.emulated import make_machine, run_program
from ep_lib.runtime.exhaustion import RUNS, Estimate, ExplorationFile, Explored, Parts
from ep_lib.runtime.rank_process import RemoteError, encode, rebuilt
from ep_lib.runtime.sources import Sources
from ep_lib.version import __version__

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ep_lib.emulator.machine import Launched

_UNPROVEN = (
    "This proves nothing about other inputs, sizes and numbers of ranks, nor about schedules that were not tried; "
    "of what the host's Python does with arrays while a kernel may run, only what the ranks' own arrays tell is seen."
)

_UNPROVEN_EXHAUSTIVELY = (
    "This proves nothing about other inputs, sizes and numbers of ranks, nor about arrays that the host's Python reads "
    "or writes while a kernel may run, but for what the ranks' own arrays tell"
)
_WEAKER = ', nor about weak memory (memory="ptx")'
_NO_LOAD_BUFFERING = ", nor about load buffering (loads that see what later stores of their own thread lead to)"
# Names in a function's code that make two runs of main differ.
_DIFFERS_BY_ITSELF = re.compile(
    r"^(time|perf_counter|monotonic|now|random|default_rng|urandom|open|read_text|environ)$"
)

_VOLATILE = ("relaxed", "plain")
_MEMORY = ("mixed", "sc", "ptx")
_ONE_IN = 4  # one in so many schedules of "mixed" also runs under weak memory
_WEAK = "weak memory"  # kind of findings: a run read older values, which is no mistake unless the run fails
_LEFT_OPEN = ("shuffle", "activemask")  # kinds of findings: CUDA leaves the value undefined

_FINDINGS = (DeadlockError, KernelFault, KernelTimeout, PeerTimeout, AssertionError)

_MOST_KEPT = 32  # programs with findings, for time_travel
_kept: dict[str, Callable[[int | str], Recording]] = {}  # by the names that findings call them; the oldest goes first
_kept_so_far = itertools.count(1)

# Exceptions in main that wrong data may cause: reported together with the cause of the wrong data, raised if there is
# no finding.
_MAY_FOLLOW = (EpError, ArithmeticError, LookupError, ValueError)


@dataclass(frozen=True)
class Coverage:
    """Which schedules an exhaustive check has run.

    ``schedules``: runs that are not equivalent to each other, as far as the reduction can tell. ``redundant``: runs
    that were abandoned as equivalent to others. ``cut``: those of ``schedules`` that exceeded ``events`` events.
    ``counted``: those in which a counting wait exceeded ``turns`` iterations. ``preemptions``: the most in one run;
    None: any number. ``skipped``: places from which only runs with more preemptions continue. ``calm``: choices that
    were not tried because they are between kernels outside of ``kernels``. ``stopped``: why the check ended early, or
    "". ``share``: the estimated share of all schedules that was covered; 0 if there is no estimate, and 1 only if none
    is left. ``most_events``: the most events in one run. ``clocks``: lines (file:line) at which kernels read a clock;
    only one outcome of each read was explored. ``asked``: calls in main whose result may differ between runs, such as
    "a clock (perf_counter at x.py:12)".
    """

    schedules: int
    redundant: int
    cut: int
    counted: int
    skipped: int
    calm: int
    share: float
    most_events: int
    preemptions: int | None
    events: int
    turns: int
    kernels: tuple[str, ...]
    stopped: str
    clocks: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()

    @property
    def ended_by_finding(self) -> bool:
        """Whether the check stopped at a finding, as requested."""
        return self.stopped == _FIRST_FINDING

    @property
    def complete(self) -> bool:
        """Whether every schedule is equivalent to one that was run."""
        return not (self.stopped or self.cut or self.counted or self.skipped or self.calm or self.clocks or self.asked)

    def __str__(self) -> str:
        if self.stopped:
            text = f"{_count(self.schedules, 'inequivalent schedule')}{self._of_how_many()}; {self.stopped}"
            if not self.ended_by_finding:
                text += (
                    f" (a run has up to {self.most_events:,} events: fewer threads, or a bound on preemptions, make it "
                    "less)"
                )
        elif self.skipped:
            bound = _count(self.preemptions or 0, "preemption")
            text = f"all with at most {bound}: {_count(self.schedules, 'schedule')}"
        else:
            text = f"all {_count(self.schedules, 'inequivalent schedule')}"
        if self.calm:
            text += f"; of {' and '.join(self.kernels)} (a bound): other kernels ran in the calm order among themselves"
        if self.cut:
            text += (
                f"; {self.cut:,} of them {'was' if self.cut == 1 else 'were'} cut off after {self.events:,} events (a "
                "bound), and nothing is known of how they go on"
            )
        if self.counted:
            text += (
                f"; loops that wait, and count or store in each turn, were followed for {self.turns} turns without a "
                f"change ({BUSY_TURNS * self.turns} where they store something in each; a bound), and then taken to go "
                f"on until something changes"
            )
        if self.clocks:
            text += (
                f"; a clock is read at {', '.join(self.clocks)}: time stands still here while anything can happen, so "
                f"what a kernel does by the clock was followed one way only"
            )
        if self.asked:
            text += (
                f"; main asks for {', '.join(self.asked)}, which may be something else in another run: pass what "
                f"changes in args=, or give a generator a seed"
            )
        return text

    def _of_how_many(self) -> str:
        """The estimated total, as a phrase."""
        if not 0 < self.share < 1:
            return ""
        whole = float(f"{self.schedules / self.share:.0e}")  # one digit: it is an estimate
        return f" of perhaps {whole:,.0f}" if whole < 1e9 else f" of perhaps {whole:.0e}"


@dataclass(frozen=True)
class CheckReport:
    """What :func:`check` found. ``str()`` is a readable summary. ``ok``: there are no findings, which is no proof.
    ``proved``: there are none, and an exhaustive check was complete.

    ``findings``: one for each pair of lines, in the order found. ``seeds``: the schedules that were tried:
    ``random_walks`` of them by the tempered random walk, ``pct[d]`` by PCT with depth d. ``values_differ``: whether
    main's results depended on the schedule. ``memory``: the memory model of the runs with findings, or of the last
    runs. ``seeds_again``: of memory="mixed", the schedules that were also run under weak memory. ``seconds``: the
    duration of the check. ``record(seed)`` repeats one of the runs and records it step by step (``ep_lib.viz.findings``
    does that at a click). ``suspicion``: the learner's pieces that the program ran. ``unwatched``: accesses in its
    kernels that the checker cannot see, a line each.
    """

    findings: tuple[Finding, ...]
    seeds: tuple[int, ...]
    values_differ: bool
    ranks: int
    fabric: Fabric
    seconds: float
    random_walks: int
    pct: dict[int, int]
    memory: str = "sc"
    seeds_again: tuple[int, ...] = ()
    record: Callable[[int | str], Recording] | None = field(default=None, repr=False, compare=False)
    coverage: Coverage | None = None
    resume: Callable[..., CheckReport] | None = field(default=None, repr=False, compare=False)
    suspicion: str = field(default_factory=pieces.suspicion, repr=False, compare=False)
    unwatched: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No findings in what was tried."""
        return not self.findings

    @property
    def proved(self) -> bool:
        """Whether there are no findings, all accesses were watched, and an exhaustive check left no schedule out: it
        was neither stopped nor cut, and met no bound."""
        return self.ok and not self.unwatched and self.coverage is not None and self.coverage.complete

    def __str__(self) -> str:
        return "\n\n".join([self._text(), *(f"note: accesses here are not watched: {each}" for each in self.unwatched)])

    def _text(self) -> str:
        if self.coverage is not None:
            return self._of_exhaustion(self.coverage)
        tried = f"{_count(len(self.seeds), 'schedule')} of {_count(self.ranks, 'rank')} on {self.fabric.kind}"
        kinds = [_count(self.random_walks, "random walk")] if self.random_walks else []
        if self.pct:
            depths = " to ".join(map(str, sorted({min(self.pct), max(self.pct)})))
            kinds.append(f"{sum(self.pct.values())} by priorities (PCT, depth {depths})")
        again = f"{len(self.seeds_again)} of them again with weak memory; " if self.seeds_again else ""
        tried += f" ({' and '.join(kinds)}; {again}{self.seconds:.1f} s)"
        if self.ok:
            return f"no findings in {tried}. {_UNPROVEN}"
        return self._told(f"{_count(len(self.findings), 'finding')} in {tried}")

    def _of_exhaustion(self, coverage: Coverage) -> str:
        where = f" ({_count(self.ranks, 'rank')} on {self.fabric.kind}; {self.seconds:.1f} s)"
        if self.ok:
            one = "it is not wrong" if coverage.schedules == 1 else "none of them wrong"
            if coverage.cut:
                one = "and nothing wrong was met up to there"
            weaker = _NO_LOAD_BUFFERING if self.memory == "ptx" else _WEAKER
            is_open = coverage.stopped or coverage.cut or coverage.asked
            head = "NOT PROVED: " if is_open else "" if self.proved else "within bounds: "
            return f"{head}{coverage}, {one}{where}. {_UNPROVEN_EXHAUSTIVELY}{weaker}."
        made = _count(coverage.schedules + coverage.redundant, "run")
        where = f" ({_count(self.ranks, 'rank')} on {self.fabric.kind}; {made}, {self.seconds:.1f} s)"
        return self._told(f"{_count(len(self.findings), 'finding')} in {coverage}{where}")

    def _told(self, head: str) -> str:
        findings = (f"{i}. {f}" for i, f in enumerate(self.findings, 1))
        return "\n\n".join([head, *findings, *filter(None, [self.suspicion])])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = dataclasses.asdict(dataclasses.replace(self, record=None, resume=None))
        del fields["record"], fields["resume"], fields["suspicion"]
        return {**fields, "fabric": self.fabric.to_dict(), "ok": self.ok, "proved": self.proved}


def check(
    main: Callable[..., Any],
    ranks: int,
    fabric: Fabric | str | None = None,
    seeds: int | Iterable[int] = 20,
    args: Sequence[Any] = (),
    *,
    heap_bytes: int | None = None,
    timeout: float | None = None,
    compare_values: bool = True,
    stop_at_first: bool = False,
    stop_at_failure: bool = False,
    resident_blocks: int | None = None,
    volatile: str = "relaxed",
    transport: str | None = None,
    memory: str = "mixed",
    reduce: bool = True,
    exhaustive: bool = False,
    preemptions: int | None = None,
    events: int = 2000,
    turns: int = 3,
    kernels: str | Sequence[str] = (),
    seconds: float | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    resume: str | Path | None = None,
    progress: bool | None = None,
) -> CheckReport:
    """Call ``main(rank, *args)`` on emulated ranks once per seed, and report races, deadlocks and other mistakes.

    ``seeds``: how many schedules to try, or which. Even seeds are random walks, rough or calm: where threads are
    preempted, how long warps stall, how the network delays and reorders. Odd seeds use PCT (Burckhardt et al., ASPLOS
    2010) with depths 1 to 4: the warp or message of the highest random priority runs, and at d - 1 random steps the
    running one drops to the lowest priority. From seed 100 on, the lanes of a warp continue in any order; below 100
    they rotate, which is quicker. The run of seed 0 gives the number of steps and the results that others are compared
    with; if ``seeds`` does not begin with it, it runs first and is not reported. So ``seeds=[s]`` replays the run of
    seed s of any other call with the same arguments.

    ``compare_values``: main's results must not depend on the seed. ``stop_at_first``: the first seed with a finding is
    the last. ``stop_at_failure``: the first seed with which main does not return is the last. ``resident_blocks``: the
    most blocks of a rank that run at a time, since a GPU holds only so many (SMs x blocks an SM; None: all that fit
    into 2,048 threads on each of 132 SMs): a grid barrier of more blocks never ends. ``volatile``: "relaxed" follows
    PTX, in which two volatile accesses are no race; "plain" also reports two unordered volatile accesses to memory that
    no thread polls, since data behind a lock must not rely on volatile. ``fabric``, ``transport``, ``heap_bytes`` and
    ``timeout`` as for :func:`ep_lib.spawn`; a run that reaches the time limit ends the search.

    ``memory``: "sc" is sequential consistency: each load returns the last value stored. Under "ptx" loads may return
    older values and stores come late, as far as the memory model of PTX allows it (a relaxed flag may come before its
    data); seed 0 runs under "sc" first, and results are compared with that run. "mixed" is "sc"; if that finds nothing,
    every fourth schedule runs again under "ptx", up to the first finding. ``reduce``: for each finding, search for a
    run with few switches between threads that shows it too (in at most as many runs as were tried), then shorten that
    run. It becomes the finding's ``schedule``, whose replay is easier to follow than the seed's.
    ``exhaustive``: run every schedule of a small program instead of seeds, except those that differ only in the order
    of independent steps (dynamic partial-order reduction; runtime/exploration.hpp); with ``memory="ptx"`` also every
    store that each load may read. The report's ``coverage`` gives what was covered. Bounds: ``preemptions`` of a run,
    ``events`` of a run, ``turns`` of a wait that counts its iterations, and ``seconds`` for the whole check.
    ``kernels`` names the kernels to explore (without template arguments) in a program that launches several: the
    others' steps are reordered with theirs but not among themselves, so costs add instead of multiply. Without a bound
    on preemptions, runs with at most two come first, since most mistakes need no more; if they find one, the check
    ends. Ctrl-C and ``seconds`` keep what was covered, and ``report.resume()`` continues from there; ``report.proved``
    is True if nothing was found and nothing left out. The runs are made by ``jobs`` processes of this machine, or by
    the workers of an ``executor`` (of ``concurrent.futures``, mpi4py or Dask), which need ep_lib and the modules that
    main imports; the report does not depend on their number. ``resume``: a file to which the check saves its progress.
    If the file exists, the check continues from it, for example after an interrupt or a kill. ``progress``: whether to
    show a bar (None: on a terminal).

    Deadlocks, faults of kernels, time limits and failed assertions in main are findings. Exceptions that wrong data may
    have caused are findings in runs that have another finding. Other exceptions, such as a compiler's error, are
    raised.
    """
    program = _program(main, ranks, fabric, args, heap_bytes, timeout, resident_blocks, volatile, transport, memory)
    if flag("exhaustive", exhaustive):
        bounds = _bounds(preemptions, events, turns, kernels)
        search = _Search(program, flag("compare_values", compare_values))
        first = flag("stop_at_first", stop_at_first) or flag("stop_at_failure", stop_at_failure)
        file = None if resume is None else ExplorationFile(Path(resume), program.described(bounds))
        return _Exhaustion(program, search, bounds, first, file).go_on(
            seconds=seconds, progress=progress, jobs=jobs, executor=executor
        )
    if preemptions is not None or seconds is not None or kernels:
        raise ArgumentError("preemptions, seconds and kernels are bounds of an exhaustive check: add exhaustive=True")
    if jobs != 1 or executor is not None or resume is not None:
        raise ArgumentError("jobs, executor and resume are for an exhaustive check: add exhaustive=True")
    chosen = _seeds(seeds)
    compare_values, stop_at_first = flag("compare_values", compare_values), flag("stop_at_first", stop_at_first)
    stop_at_failure = flag("stop_at_failure", stop_at_failure)
    search = _Search(program, compare_values)
    begin = time.perf_counter()
    if program.weak_memory or (chosen[0] != 0 and (compare_values or any(pct_depth(seed) > 1 for seed in chosen))):
        search.measure()
    ran_out = False
    for seed in chosen:
        ran_out = search.try_schedule(seed)
        if ran_out or (stop_at_first and search.told) or (stop_at_failure and search.failed):
            break
    depths = Counter(map(pct_depth, search.tried))
    again = chosen[_ONE_IN - 1 :: _ONE_IN] if program.memory == "mixed" and not search.told else ()
    seeds_tried = tuple(search.tried)
    if again:
        program = search.program = dataclasses.replace(program, memory="ptx")
        for seed in again:
            ran_out = search.try_schedule(seed)
            if ran_out or search.told:
                break
    found = merge_findings(search.told)
    if flag("reduce", reduce) and not ran_out:  # each run may take as long
        found = _with_few_switches(program, found, len(search.tried))
    found = _explained(program, found)
    replay = _line_of(program, found)
    return CheckReport(
        findings=tuple(dataclasses.replace(finding, replay=replay(finding.run)) for finding in found),
        seeds=seeds_tried,
        seeds_again=tuple(search.tried[len(seeds_tried) :]),
        memory="ptx" if program.weak_memory else "sc",
        values_differ=search.values_differ,
        ranks=program.ranks,
        fabric=program.network,
        seconds=time.perf_counter() - begin,
        random_walks=depths.pop(0, 0),
        pct=dict(sorted(depths.items())),
        record=functools.partial(_record, program),
        unwatched=search.unwatched,
    )


def record(
    main: Callable[..., Any],
    ranks: int = 2,
    fabric: Fabric | str | None = None,
    seed: int = 0,
    args: Sequence[Any] = (),
    *,
    schedule: str | None = None,
    heap_bytes: int | None = None,
    timeout: float | None = None,
    resident_blocks: int | None = None,
    volatile: str = "relaxed",
    transport: str | None = None,
    memory: str = "sc",
) -> Recording:
    """Records the run that :func:`check` makes with this seed and the same arguments: its events and its findings.

    ``schedule``: a finding's schedule, instead of a seed.

    Raises what ``check`` raises. ``ep_lib.viz.time_travel`` shows it.
    """
    program = _program(main, ranks, fabric, args, heap_bytes, timeout, resident_blocks, volatile, transport, memory)
    return _record(program, arguments.a_seed(seed) if schedule is None else a_schedule(schedule))


def record_kept(name: str, run: int | str) -> Recording:
    """Records a run (by seed or schedule) of a program in which :func:`check` found a mistake. The finding gives the
    program's name.

    Raises ArgumentError if this process does not keep a program of that name (any longer).
    """
    if name not in _kept:
        known = f"the last ones are {', '.join(map(repr, [*_kept][-5:]))}" if _kept else "nothing has been found yet"
        raise ArgumentError(
            f"{name!r} is the name of no finding in this process ({known}; {_MOST_KEPT} are kept): run the "
            "check again, and take the line that it prints"
        )
    return _kept[name](a_schedule(run) if isinstance(run, str) else arguments.a_seed(run))


def _is_interactive() -> bool:
    """Whether the user can paste a line into this process: a notebook, or Python's prompt."""
    return hasattr(sys, "ps1") or ("IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None)


def _keep(program: _Program) -> str:
    """Keeps a program for :func:`record_kept`; returns its name, "dispatch #2"."""
    name = f"{program.name} #{next(_kept_so_far)}"
    _kept[name] = functools.partial(_record, program)
    while len(_kept) > _MOST_KEPT:
        del _kept[next(iter(_kept))]
    return name


def _line_of(program: _Program, found: Sequence[Finding]) -> Callable[[int | str], str]:
    """A function that writes the line of Python that replays a run: one that works where the user pastes it."""
    if found and (_is_interactive() or not program.can_be_said):
        return _by_name(_keep(program))
    return program.replay


def _by_name(name: str) -> Callable[[int | str], str]:
    return lambda run: f'from ep_lib import viz; viz.time_travel("{name}", {_in_words(run)})'


def _in_words(run: int | str) -> str:
    return f"seed={run}" if isinstance(run, int) else f'schedule="{schedule_name(run)}"'


def _record(program: _Program, run: int | str) -> Recording:
    search = _Search(program, compare_values=True)
    if isinstance(run, str):
        seed = 0
        search.try_next(_follower(""))
        search.forget()
        exploration = _follower(run)
        search.try_next(exploration, recorded=True)
        _require_fit(run, exploration)
    else:
        seed = run
        if seed != 0 or program.weak_memory:
            search.measure()
        search.try_schedule(seed, recorded=True)
    assert search.recorded is not None
    events, info, notes, numbered = search.recorded
    told = {finding.key: finding for finding in merge_findings(search.told)}
    known = {finding.key for _, finding in numbered}
    return read_recording(
        events,
        info,
        notes,
        program=program.name,
        seed=seed,
        schedule=run if isinstance(run, str) else None,
        ranks=program.ranks,
        fabric=program.network.kind,
        numbered=[
            (number, finding)
            for key, finding in told.items()
            # the compiler numbers the accesses of one line: the reported one comes first
            for number, one in sorted(numbered, key=lambda each: not _same_sides(each[1], finding))
            if one.key == key
        ],
        ends=[finding for key, finding in told.items() if key not in known],
    )


def _program(
    main: Callable[..., Any],
    ranks: int,
    fabric: Fabric | str | None,
    args: Sequence[Any],
    heap_bytes: int | None,
    timeout: float | None,
    resident_blocks: int | None,
    volatile: str,
    transport: str | None,
    memory: str,
) -> _Program:
    """The program and options that the arguments of :func:`check` describe. Raises ArgumentError."""
    ranks, args = arguments.program(main, ranks, args)
    config = Config.from_environment()
    heap_bytes, timeout = arguments.limits(
        config.heap_bytes if heap_bytes is None else heap_bytes, config.timeout_s if timeout is None else timeout
    )
    if resident_blocks is not None:
        resident_blocks = at_least_one("resident_blocks", resident_blocks)
    plain = one_of("volatile", volatile, _VOLATILE) == "plain"
    transport = arguments.emulator_transport(transport)
    network = make_fabric(fabric, ranks)
    memory = one_of("memory", memory, _MEMORY)
    return _Program(main, ranks, network, args, heap_bytes, timeout, resident_blocks, plain, transport, memory)


def _seeds(seeds: int | Iterable[int]) -> Sequence[int]:
    """The schedules to try, from a number of them or a list; validated before anything runs."""
    if (number := index(seeds)) is not None:
        return range(whole_number("seeds", number, 1, 2**63 - 1))
    if isinstance(seeds, range) and seeds:  # kept as a range: it may be longer than a list can be
        for end in (seeds[0], seeds[-1]):
            arguments.a_seed(end, "a seed")
        return seeds
    chosen = [arguments.a_seed(seed, "a seed") for seed in several("seeds", seeds, "a number of schedules, or a list")]
    if not chosen:
        raise ArgumentError(f"seeds is {brief(seeds)}; at least one schedule must be tried")
    return chosen


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


@dataclass(frozen=True)
class _Program:
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

    def described(self, bounds: dict[str, Any]) -> dict[str, Any]:
        """What must be equal for a check to resume, for JSON."""
        code = getattr(self.main, "digest", None) or getattr(self.main, "__code__", None)
        return {
            "main": self.name,
            "code": digest(_all_of(code) if isinstance(code, CodeType) else code),
            "arguments": digest(list(self.args)),
            "ranks": self.ranks,
            "fabric": self.network.to_dict(),
            "heap_bytes": self.heap_bytes,
            "resident_blocks": self.resident_blocks,
            "volatile": "plain" if self.plain_volatile else "relaxed",
            "transport": self.transport,
            "memory": "ptx" if self.weak_memory else "sc",
            "ep_lib": __version__,
            **bounds,
        }

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
        words.append(_in_words(run))
        words += [f"args={tuple(self.args)!r}"] if self.args else []
        words += [f"heap_bytes={self.heap_bytes}"] if self.heap_bytes else []
        words += [f'transport="{self.transport}"'] if self.transport != "emulated" else []
        words += [f"resident_blocks={self.resident_blocks}"] if self.resident_blocks else []
        words += ['volatile="plain"'] if self.plain_volatile else []
        words += ['memory="ptx"'] if self.weak_memory else []
        return f"import ep_lib.viz; ep_lib.viz.time_travel({', '.join(words)})"


def _all_of(code: CodeType) -> list[Any]:
    """The code of a function and of the functions nested in it, without positions in the file."""
    constants = [
        _all_of(one)
        if isinstance(one, CodeType)
        else sorted(map(repr, one))
        if isinstance(one, frozenset)
        else repr(one)
        for one in code.co_consts
    ]
    return [code.co_code, list(code.co_names), constants]


class _Run(NamedTuple):
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


class _Calm(NamedTuple):
    """The first finished run of an exhaustive check; the results of others are compared with it."""

    schedule: str
    digest: str


@dataclass(frozen=True)
class _PartAnswer:
    """The outcome of some runs of a part: schedules covered, and the findings of a :class:`_Search`. ``stopped``: why
    the check is to end there."""

    explored: Explored
    findings: tuple[Finding, ...]
    calm: _Calm | None
    values_differ: bool
    failed: bool
    has_values: bool
    polled: frozenset[str]
    kernels: frozenset[str]
    clocks: frozenset[str]
    asked: frozenset[str]
    stopped: str


class _Search:
    """The findings and statistics so far."""

    def __init__(self, program: _Program, compare_values: bool) -> None:
        self.findings: dict[tuple[str, ...], Finding] = {}
        self.tried: list[int] = []
        self.values_differ = False
        self.program = program
        self.compares_values = compare_values
        self._first: tuple[int, Any, str] | None = None  # seed, result and digest of the first run
        self.calm: _Calm | None = None  # the same for exhaustive checks
        self._steps = 0  # of the run of seed 0
        self._polled: set[str] = set()  # lines that poll
        self._kernels: set[str] = set()  # that were launched, as in Machine.kernels
        self.clocks: set[str] = set()  # lines that read one
        self.sources = Sources()  # nondeterministic calls of main
        self.failed = self._has_values = False
        self.recorded: tuple[Any, dict[str, Any], Notes, list[tuple[int, Finding]]] | None = None

    @property
    def unwatched(self) -> tuple[str, ...]:
        """Accesses, in the kernels that were launched, that the checker cannot see; a line each."""
        return gxx.unwatched(self._kernels)

    @property
    def told(self) -> list[Finding]:
        """The findings, without those that other runs have refuted.

        Use of a value that CUDA leaves undefined is a mistake only if results depend on it; volatile accesses to polled
        memory are not.
        """
        harmless = self.compares_values and self._has_values and not (self.values_differ or self.failed)
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
        return any(side and side.location in self._polled for side in (finding.first, finding.second))

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

    def try_next(self, exploration: Exploration, recorded: bool = False) -> tuple[_Run, bool]:
        """Runs main with the next schedule. Returns the run, and whether more are left."""
        number = len(self.tried)
        self.sources.begin()
        run = self._run(number, recorded, self.program.weak_memory, exploration)
        more = exploration.next()
        self.sources.take()
        if exploration.status.outcome != runs.REDUNDANT:
            self._take(run, number, exploration.schedule)
        return run, more

    def _take(self, run: _Run, seed: int, schedule: str | None = None) -> None:
        def named(found: Finding) -> Finding:
            return dataclasses.replace(found, schedule=schedule)

        if run.end is not None:
            self.failed = True
            self.add([named(run.end)])
        self.add(named(finding) for finding in run.found if finding.kind != _WEAK)
        is_compared = run.end is None and run.is_whole and self.compares_values
        differs = is_compared and self.compare(run.result, seed, schedule)
        if differs or run.end is not None:
            weak = [finding for finding in run.found if finding.kind == _WEAK]
            self.add(named(f) for f in weak if f.certainty == max(w.certainty for w in weak))
        self.tried.append(seed)

    def take_over(self, part: _PartAnswer) -> None:
        """Adds a worker's answer. Its runs come after those already known."""
        if self.calm is None:
            self.calm = part.calm
        begin = len(self.tried)
        for finding in part.findings:
            seeds = tuple(seed + begin for seed in finding.seeds or (finding.seed,))
            self.add([dataclasses.replace(finding, seed=finding.seed + begin, seeds=seeds)])
        self.tried += range(begin, begin + part.explored.runs)
        self.values_differ |= part.values_differ
        self.failed |= part.failed
        self._has_values |= part.has_values
        self._polled |= part.polled
        self._kernels |= part.kernels
        self.clocks |= part.clocks
        self.sources.asked |= part.asked

    def to_dict(self) -> dict[str, Any]:
        """For JSON: each finding as the run that shows it."""
        return {
            "findings": [[f.schedule, f.kind, f.seed, f.count, f.seeds, f.ranks] for f in self.findings.values()],
            "calm": self.calm,
            "runs": len(self.tried),
            "flags": [self.values_differ, self.failed, self._has_values],
            "polled": sorted(self._polled),
            "kernels": sorted(self._kernels),
            "clocks": sorted(self.clocks),
            "asked": sorted(self.sources.asked),
            "seeded": None if self.sources.seeded is None else sorted(self.sources.seeded),
        }

    def load(self, known: dict[str, Any]) -> None:
        """The inverse of :meth:`to_dict`: repeats the runs that have findings, and one other, which tells whether the
        kernels are unchanged."""
        if not known["runs"]:
            return  # interrupted before its first run
        self._kernels = set(known["kernels"])
        again = _Search(self.program, compare_values=True)
        again.try_next(_follower(known["calm"][0] if known["calm"] else ""))
        if not again._kernels <= self._kernels:
            raise ArgumentError(_OTHER_KERNELS)
        if known["calm"] is not None:
            self.calm = _Calm(*known["calm"])
            if again.calm != self.calm:
                raise ArgumentError(_OTHER_PROGRAM)
        shown: dict[str, list[Finding]] = {}
        for schedule, kind, seed, count, seeds, ranks in known["findings"]:
            if schedule not in shown:
                again = _Search(self.program, self.compares_values)
                again.calm = self.calm
                again.try_next(_follower(schedule))
                shown[schedule] = list(again.findings.values())
            found = next((f for f in shown[schedule] if f.kind == kind), None)
            if found is None:
                raise ArgumentError(_OTHER_PROGRAM)
            shown[schedule].remove(found)
            found = dataclasses.replace(
                found, seed=seed, count=count, seeds=tuple(seeds), ranks=tuple(ranks), schedule=schedule
            )
            self.add([found])
        self.tried = list(range(known["runs"]))
        self.values_differ, self.failed, self._has_values = known["flags"]
        self._polled = set(known["polled"])
        self.clocks = set(known["clocks"])
        self.sources.asked = set(known["asked"])
        self.sources.seeded = None if known["seeded"] is None else frozenset(known["seeded"])

    def answer(self, explored: Explored, stopped: str) -> _PartAnswer:
        """The answer for :meth:`take_over`."""
        return _PartAnswer(
            explored,
            tuple(self.findings.values()),
            self.calm,
            self.values_differ,
            self.failed,
            self._has_values,
            frozenset(self._polled),
            frozenset(self._kernels),
            frozenset(self.clocks),
            frozenset(self.sources.asked),
            stopped,
        )

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
    ) -> _Run:
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
            except (*_FINDINGS, *_MAY_FOLLOW) as caught:
                error = caught
            finally:
                self._kernels |= machine.kernels
                if exploration is not None:
                    self.clocks |= {spot.partition(" (in ")[0] for spot in parse_spots(machine.clocks)}
                if program.plain_volatile:
                    self._polled |= parse_spots(machine.polls)
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
            self._has_values |= result is not None and any(value is not None for value in result)
            end = None if error is None or not is_whole else from_error(error, seed, machine.quiescence)
            return _Run(result, found, end, isinstance(error, KernelTimeout), is_whole, machine.launches or [])
        finally:
            del error  # it and this frame refer to each other, and both to the machine

    def add(self, found: Iterable[Finding]) -> None:
        for finding in found:
            key = next((k for k, known in self.findings.items() if _same_place(known, finding)), finding.key)
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
                self.calm = _Calm(schedule, found_digest)
            if found_digest == self.calm.digest:
                return False
            other = "schedule than with the calm one"
            if self._first is None:
                run = self._run(0, weak_memory=self.program.weak_memory, exploration=_follower(self.calm.schedule))
                if digest(run.result) != self.calm.digest:
                    raise ArgumentError(_strays(self.program, _TWO_RESULTS, self.sources.asked))
                self._first = (0, run.result, self.calm.digest)
        elif self._first is None:
            self._first = (seed, result, found_digest)
            return False
        elif found_digest == self._first[2]:
            return False
        else:
            other = f"seed than with seed {self._first[0]}"
        self.values_differ = True
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


def _require_fit(schedule: str, exploration: Exploration) -> None:
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


def _follower(schedule: str, events: int | None = None) -> Exploration:
    exploration = Exploration(events=_MOST_EVENTS if events is None else events, turns=_MOST_EVENTS)
    exploration.follow(schedule)
    return exploration


_MOST_EVENTS = 1_000_000
_FEW = 2  # preemptions
_EVENTS_OF_STORY, _TURNS_OF_STORY = 2000, 3  # bounds of runs with few switches
_CALM_RUNS, _CALM_SECONDS = 6, 1.0  # of an exhaustive check, to see whether main is deterministic; at least two
_ALONE_SECONDS = 0.5  # of an exhaustive check, before the first random runs
_DRAWN_SHARE = 0.1  # of its time, for random runs
_MOST_SHARE = 0.95  # of all schedules: the largest share reported before the end
_EVENTS_OF_CALM = 500_000  # for the calm run of a program too large for others: some seconds
_PAIRS = 256  # of numbers that differ, to find where they come from
_LOST = 4  # repeated runs per new one; beyond that, runs with few preemptions no longer come first
_FIRST_FINDING = "stopped at the first finding"
_INTERRUPT = "stopped by an interrupt"
_TWO_RESULTS = "the calm schedule, run twice, gave two results"
_OTHER_PROGRAM = (
    "the program does not do what it did when the file of resume= was written: has it, a kernel or an input changed? "
    "Begin again, with a new file"
)
_OTHER_KERNELS = (
    "a kernel, or what compiles it, has changed since the file of resume= was written: begin again, with a new file"
)


def _bounds(preemptions: Any, events: Any, turns: Any, kernels: Any) -> dict[str, Any]:
    if preemptions is not None:
        preemptions = whole_number("preemptions", preemptions, 0, 1000)
    names = [kernels] if isinstance(kernels, str) else several("kernels", kernels, "a list of names of kernels")
    return {
        "preemptions": preemptions,
        "events": whole_number("events", events, 10, _MOST_EVENTS),
        "turns": whole_number("turns", turns, 1, 255),
        "kernels": tuple(text("kernels", name) for name in names),
    }


@dataclass(frozen=True)
class _PartJob:
    """What a worker needs to explore a part. ``ends_s``: seconds of its own after which it begins no run."""

    program: _Program
    compare_values: bool
    stop_at_first: bool
    bounds: dict[str, Any]
    calm: _Calm | None
    seeded: frozenset[str] | None
    part: str
    ends_s: float | None


def _explore(job: _PartJob) -> _PartAnswer:
    """Makes some runs of a part. Raises main's exceptions that are not findings, and ArgumentError if main is not
    deterministic."""
    begin, stopped, more, made = time.perf_counter(), "", True, 0
    search = _Search(job.program, job.compare_values)
    search.calm, search.sources.seeded = job.calm, job.seeded
    exploration = _exploration(job.bounds)
    exploration.load(job.part)
    try:
        while more and not stopped and made < RUNS:
            run, more = search.try_next(exploration)
            made += 1
            if exploration.status.outcome == runs.STRAYED:
                raise ArgumentError(_strays(job.program, exploration.strayed, search.sources.asked))
            if run.is_whole:
                _require_launched(job.bounds["kernels"], exploration.launched)
            if run.out_of_time and run.is_whole:
                stopped = "stopped by a run that met its time limit (timeout=)"
            elif job.stop_at_first and search.told:
                stopped = _FIRST_FINDING
            elif job.ends_s is not None and time.perf_counter() - begin > job.ends_s:
                break
    except KeyboardInterrupt:
        stopped = _INTERRUPT
    status = exploration.status
    explored = Explored(
        text=exploration.save(),
        is_done=not more,
        runs=made,
        redundant=status.redundant,
        cut=status.cut,
        counted=status.counted,
        skipped=status.skipped,
        calm=status.calm,
        most_events=status.most_events,
    )
    return search.answer(explored, stopped)


def _require_launched(kernels: Sequence[str], launched: Sequence[str]) -> None:
    missing = [name for name in kernels if name not in launched]
    if missing:
        raise ArgumentError(
            f"kernels names {', '.join(missing)}, which main has not launched; it has launched "
            f"{', '.join(sorted(launched)) or 'none'}"
        )


def _explore_elsewhere(job: bytes) -> bytes:
    try:
        return dumps(_explore(loads(job)))
    except Exception as error:  # noqa: BLE001 - any exception of main goes to the process that sent the job
        return dumps(encode(error))


def _exploration(bounds: dict[str, Any]) -> Exploration:
    return Exploration(**bounds, reduction=runs.SLEEPING if bounds["preemptions"] is None else runs.WITHIN_BOUND)


class _Exhaustion:
    """Rounds of parts, until all runs have been made or a bound is met."""

    def __init__(
        self,
        program: _Program,
        search: _Search,
        bounds: dict[str, Any],
        stop_at_first: bool,
        file: ExplorationFile | None,
    ) -> None:
        self._file = file
        self._program = program
        self._search = search
        self._bounds = bounds
        self._stop_at_first = stop_at_first
        few = {**bounds, "preemptions": _FEW}
        self._stages = [few, bounds] if bounds["preemptions"] is None else [bounds]
        self._parts = Parts(self._stages[0]["preemptions"])
        self._seconds = 0.0
        self._estimate = Estimate()
        self._drawn: list[Finding] = []  # the findings of the first wrong one among its random runs
        if file is not None and (known := file.read()) is not None:
            self._load(known)

    def _load(self, known: dict[str, Any]) -> None:
        """Continues from a file. Repeating the runs that have findings recovers these."""
        search = self._search
        del self._stages[: -known["stages"]]
        self._parts = Parts.from_dict(known["parts"], self._stages[0]["preemptions"])
        self._seconds, self._estimate = known["seconds"], Estimate(**known["estimate"])
        search.load(known["search"])

    def _save(self) -> None:
        if self._file is not None:
            parts, search = self._parts.to_dict(), self._search.to_dict()
            state = {"parts": parts, "search": search, "estimate": dataclasses.asdict(self._estimate)}
            self._file.write({"stages": len(self._stages), "seconds": self._seconds, **state})

    def go_on(
        self,
        *,
        seconds: float | None = None,
        progress: bool | None = None,
        jobs: int = 1,
        executor: Executor | None = None,
    ) -> CheckReport:
        """Continues until all schedules have been run, ``seconds`` have passed, or Ctrl-C; returns the report. The runs
        are made by ``jobs`` processes or by ``executor``."""
        limit = None if seconds is None else a_time("seconds", seconds)
        jobs = at_least_one("jobs", jobs)
        begin, before, stopped = time.perf_counter(), self._seconds, ""
        if not self._parts.totals.runs and len(self._search.tried) == 0:
            stopped = self._look_at_calm_runs()
        shown = progress if progress is not None else sys.stderr.isatty()
        from tqdm import tqdm  # imported late: it would slow every start of ep_lib

        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(tqdm(desc="schedules", unit="", disable=not shown, delay=1, leave=False))
            try:
                while not stopped:
                    self._goes_on_without_bound()  # the last call may have ended just before
                    if self._parts.is_done:
                        break
                    left = None if limit is None else limit - (time.perf_counter() - begin)
                    if executor is None and jobs > 1 and len(self._parts.round()) > 1:
                        from ep_lib.runtime.worker_processes import workers

                        executor = stack.enter_context(workers(jobs))
                    for number, answer in self._answers(left, executor):
                        self._parts.take(number, answer.explored)
                        self._search.take_over(answer)
                        bar.update(answer.explored.runs)
                        share = self._share()
                        bar.set_postfix_str(f"about {share:.1%}" if share else "", refresh=False)
                        stopped = answer.stopped
                        if not stopped and limit is not None and time.perf_counter() - begin > limit:
                            stopped = f"stopped after {limit:g} s"
                        if self._goes_on_without_bound() or stopped:
                            break
                    self._seconds = before + time.perf_counter() - begin
                    self._estimate_whole()
                    self._save()
            except KeyboardInterrupt:
                stopped = _INTERRUPT
        self._seconds = before + time.perf_counter() - begin
        self._save()
        return self._report("" if self._parts.is_done and stopped != _FIRST_FINDING else stopped)

    def _look_at_calm_runs(self) -> str:
        """Makes the calm run several times, since main must be deterministic. Returns why the check ends there, or
        ""."""
        program, bounds = self._program, self._bounds
        made: list[tuple[_Run, Status, str, Sources]] = []
        begin, sources = time.perf_counter(), self._search.sources
        try:
            while len(made) < _CALM_RUNS and (len(made) < 2 or time.perf_counter() - begin < _CALM_SECONDS):
                search, exploration = _Search(program, self._search.compares_values), _follower("", bounds["events"])
                run, _ = search.try_next(exploration)
                if search.told or run.out_of_time:
                    return ""  # the search reports it
                made.append((run, exploration.status, digest(run.result), search.sources))
                sources.learn([each[3] for each in made])
                first, now = made[0], made[-1]
                how = ""
                if first[1].inputs != now[1].inputs or first[1].decisions != now[1].decisions:
                    how = describe_launches(first[0].launches, run.launches) or "its kernels read other values"
                    how = f"in two runs of the calm schedule {how}"
                elif search.compares_values and first[2] != now[2]:
                    how = _TWO_RESULTS
                if how:
                    raise ArgumentError(_strays(program, how, sources.asked))
        except KeyboardInterrupt:
            return _INTERRUPT
        return ""

    def _estimate_whole(self) -> None:
        """Estimates the number of runs from random ones, in a small share of the time so far. Not under weak memory,
        whose classes do not include the store that a load has read, nor where a bound leaves runs out."""
        program, bounds, estimate = self._program, self._bounds, self._estimate
        has_bound = bounds["preemptions"] is not None or bounds["kernels"]
        if has_bound or program.weak_memory or self._seconds < _ALONE_SECONDS:
            return
        while not (estimate.is_hopeless or estimate.is_good) and estimate.seconds < _DRAWN_SHARE * self._seconds:
            begin = time.perf_counter()
            exploration = Exploration(events=bounds["events"], turns=bounds["turns"])
            exploration.draw(estimate.runs)
            search = _Search(program, self._search.compares_values)
            search.calm, search.sources.seeded = self._search.calm, self._search.sources.seeded
            search.try_next(exploration)
            self._search.sources.asked |= search.sources.asked
            self._drawn = self._drawn or search.told
            estimate.add(exploration.status.whole)
            estimate.seconds += time.perf_counter() - begin

    def _share(self) -> float:
        """The explored share of all schedules; 0: not known."""
        if self._parts.is_done:
            return 1.0
        whole = self._estimate.whole
        return 0.0 if not whole else min(self._parts.explored / whole, _MOST_SHARE)

    def _answers(self, seconds: float | None, executor: Executor | None) -> Iterator[tuple[int, _PartAnswer]]:
        """The workers' answers for the parts of this round, in order."""
        numbers = self._parts.round()
        program, search = self._program, self._search
        asked = [
            _PartJob(
                program,
                search.compares_values,
                self._stop_at_first,
                self._stages[0],
                search.calm,
                search.sources.seeded,
                self._parts.text(number),
                seconds,
            )
            for number in numbers
        ]
        if executor is None:
            yield from zip(numbers, map(_explore, asked), strict=True)
            return
        futures = [executor.submit(_explore_elsewhere, dumps(job)) for job in asked]
        try:
            for number, future in zip(numbers, futures, strict=True):
                answer = loads(future.result())
                if isinstance(answer, RemoteError):
                    raise rebuilt(answer) or EpError(f"main raised {answer.type_name}: {answer.message}")
                yield number, answer
        finally:
            for future in futures:
                future.cancel()

    def _goes_on_without_bound(self) -> bool:
        """Whether the runs with few preemptions found nothing, so that the others begin."""
        if len(self._stages) < 2 or self._search.told:
            return False
        parts = self._parts
        in_vain = parts.totals.redundant > _LOST * (parts.explored + _LOST)
        if not in_vain and not (parts.is_done and parts.totals.skipped):
            return False
        del self._stages[0]
        self._parts = Parts(self._stages[0]["preemptions"])
        return True

    def _report(self, stopped: str) -> CheckReport:
        totals, program, bounds = self._parts.totals, self._program, self._stages[0]
        told = self._search.told or (self._drawn if stopped else [])  # the search would find these as well
        found = _explained(program, [reduce_schedule(program, finding) for finding in merge_findings(told)])
        replay = _line_of(program, found)
        return CheckReport(
            findings=tuple(dataclasses.replace(one, replay=replay(one.schedule or "")) for one in found),
            seeds=(),
            values_differ=self._search.values_differ or any(finding.kind == "values differ" for finding in told),
            ranks=program.ranks,
            fabric=program.network,
            seconds=self._seconds,
            random_walks=0,
            pct={},
            memory="ptx" if program.weak_memory else "sc",
            record=functools.partial(_record, program),
            unwatched=self._search.unwatched,
            coverage=Coverage(
                schedules=self._parts.explored,
                redundant=totals.redundant,
                cut=totals.cut,
                counted=totals.counted,
                skipped=totals.skipped,
                calm=totals.calm,
                share=self._share(),
                most_events=totals.most_events,
                stopped=stopped,
                clocks=tuple(sorted(self._search.clocks)),
                asked=tuple(sorted(self._search.sources.asked)),
                **bounds,
            ),
            resume=self.go_on,
        )


def _strays(program: _Program, how: str, asked: Iterable[str]) -> str:
    code = getattr(program.main, "__code__", None)
    names = sorted(asked) or sorted(filter(_DIFFERS_BY_ITSELF.match, code.co_names if code else ()))
    said = f"Main asks for {', '.join(names)}: pass" if names else "Is there a clock, a random number or a file? Pass"
    return (
        f"main does not do the same in every run, so its schedules cannot be counted ({how}). {said} what changes in "
        "args=, or leave exhaustive out"
    )


def _with_few_switches(program: _Program, findings: Sequence[Finding], most: int) -> list[Finding]:
    """The findings, each with a schedule of few switches if one of ``most`` runs shows it: the calm run first, then
    runs with one or two preemptions. For programs too large for that, only the calm run is tried."""
    told = list(findings)
    if not told:
        return told
    search = _Search(program, compare_values=any(finding.kind == "values differ" for finding in told))
    exploration, is_calm = _follower("", _EVENTS_OF_CALM), True
    try:
        for _ in range(most):
            search.forget()
            run, more = search.try_next(exploration)
            status = exploration.status
            if status.outcome in (runs.CUT, runs.STRAYED) or run.out_of_time:
                break
            for place, finding in enumerate(told):
                shown = next((one for one in search.told if _is_the_same(finding, one)), None)
                if finding.schedule is None and shown is not None:
                    text = shown.message if finding.kind == "values differ" else finding.message
                    told[place] = reduce_schedule(
                        program, dataclasses.replace(finding, message=text, schedule=shown.schedule), most
                    )
            if all(finding.schedule is not None for finding in told):
                break
            if is_calm and status.most_events <= _EVENTS_OF_STORY:
                bounds = {"preemptions": _FEW, "events": _EVENTS_OF_STORY, "turns": _TURNS_OF_STORY}
                exploration, is_calm = _exploration(bounds), False
            elif not more:
                break
    except (*_MAY_FOLLOW, KeyboardInterrupt):
        pass  # an exception in another run is no reason to lose the findings
    return told


def _explained(program: _Program, found: Sequence[Finding]) -> list[Finding]:
    told = [_with_origin(program, finding) for finding in found]
    sides = {side.location.partition(" (in ")[0] for f in told for side in (f.first, f.second) if side is not None}
    for i, finding in enumerate(told):
        if finding.kind == "values differ" and sides & {*finding.lines}:
            told[i] = dataclasses.replace(finding, place="")  # another finding says what to do there
    if any(finding.remedy == origins.TORN for finding in told):  # what any memory may show
        told = [finding for finding in told if finding.kind != _WEAK]
    return told


def _with_origin(program: _Program, finding: Finding) -> Finding:
    """The finding; of one that says only that a run goes wrong, with the lines that its values come from, or by which
    they belong to two rounds. Makes the run again, and the one that it is compared with."""
    differs = finding.kind == "values differ"
    if not differs and (finding.remedy or finding.kind not in ("assertion", "fault")):
        return finding
    search = _Search(program, compare_values=False)
    try:
        search.measure()
        if finding.schedule is None:
            other = search.trace(finding.seed, None, program.weak_memory)
        else:
            other = search.trace(0, _follower(finding.schedule), program.weak_memory)
        if (torn := origins.torn(other.trace)) is not None:
            return dataclasses.replace(
                finding, detail=torn.detail, remedy=origins.TORN, place=torn.place, lines=torn.lines
            )
        if not differs:
            return finding
        if finding.schedule is None:
            name, one = "seed 0", search.trace(0)
        else:
            name, one = "the calm schedule", search.trace(0, _follower(""), program.weak_memory)
    except (*_MAY_FOLLOW, KeyboardInterrupt):
        return finding  # an exception in another run is no reason to lose it
    if digest(one.result) == digest(other.result):
        return dataclasses.replace(finding, detail="made again, both runs gave the same: main keeps what differs")
    pairs = list(itertools.islice(unequal_numbers(one.result, other.result), _PAIRS))
    origin = origins.find(one.trace, other.trace, pairs)
    if origin is None:
        return dataclasses.replace(finding, detail="kernels left the same in memory: main itself makes the difference")
    return dataclasses.replace(finding, detail=origin.told(name), place=origin.place, lines=origin.lines)


def _is_the_same(finding: Finding, other: Finding) -> bool:
    return _same_place(finding, other) or finding.kind == other.kind == "values differ"


def reduce_schedule(program: _Program, finding: Finding, most: int | None = None) -> Finding:
    """Shortens a finding's schedule to the fewest switches by delta debugging (Zeller, Hildebrandt, 2002), in at
    most ``most`` runs, and two more for each halving of the schedule; None: no limit."""
    words = (finding.schedule or "").split()
    compares = finding.kind == "values differ"
    calm = _Search(program, compare_values=compares)
    if compares and words:
        calm.try_next(_follower(""))

    def shows(kept: list[str]) -> Finding | None:
        search = calm if compares else _Search(program, compare_values=False)  # it keeps what results are compared with
        search.forget()
        search.try_next(_follower(" ".join(kept)))
        return next((found for found in search.told if _is_the_same(finding, found)), None)

    size = len(words)
    left = None if most is None else most + 2 * size.bit_length()
    while words and size:
        for begin in range(0, len(words), size):
            if left is not None:
                if left == 0:
                    return finding
                left -= 1
            found = shows(words[:begin] + words[begin + size :])
            if found is not None:
                words = (found.schedule or "").split()  # the rest that still applies
                finding = dataclasses.replace(finding, schedule=found.schedule)
                size = min(size, len(words))
                break
        else:
            size //= 2
    return finding


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


def _same_sides(one: Finding, other: Finding) -> bool:
    return (one.first, one.second, one.where) == (other.first, other.second, other.where)


def _same_place(known: Finding, finding: Finding) -> bool:
    """Whether two deadlocks are the same. One run may hold more threads than another: a common line is enough."""
    if known.kind == finding.kind and known.kind in ("deadlock", "livelock", "timeout"):
        return bool(set(known.lines) & set(finding.lines)) or known.lines == finding.lines
    return known.key == finding.key
