"""What :func:`ep_lib.check` returns, and the line that replays a finding."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ep_lib.emulator.exploration import BUSY_TURNS
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.findings import Finding, merge_findings
from ep_lib.emulator.recording import Recording
from ep_lib.emulator.recording import read as read_recording
from ep_lib.errors import ArgumentError
from ep_lib.jit import pieces
from ep_lib.runtime import arguments
from ep_lib.runtime.search import (
    FIRST_FINDING,
    Program,
    Search,
    a_schedule,
    follower,
    in_words,
    require_fit,
    same_sides,
)

_UNPROVEN = (
    "This proves nothing about other inputs, sizes and numbers of ranks, nor about schedules that were not tried; "
    "of what the host's Python does with arrays while a kernel may run, only what the ranks' own arrays tell is seen."
)
_UNPROVEN_EXHAUSTIVELY = (
    "This proves nothing about {}, nor about other inputs, sizes and numbers of ranks, nor about what the host's "
    "Python does while a kernel may run, except through the ranks' own arrays."
)
_WEAKER = 'weak memory (for that, memory="ptx")'
_NO_LOAD_BUFFERING = "load buffering (loads that see what later stores of their own thread lead to)"
_MOST_KEPT = 32  # programs with findings, for time_travel
_kept: dict[str, Callable[[int | str], Recording]] = {}  # by the names that findings call them; the oldest goes first
_kept_so_far = itertools.count(1)


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
    only one outcome of each read was explored. ``choices``: barriers by number (file:line) to which more warps come
    than they take; only one choice of warps was explored. ``asked``: calls in main whose result may differ between
    runs, such as "a clock (perf_counter at x.py:12)".
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
    choices: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()

    @property
    def ended_by_finding(self) -> bool:
        """Whether the check stopped at a finding, as requested."""
        return self.stopped == FIRST_FINDING

    @property
    def complete(self) -> bool:
        """Whether every schedule is equivalent to one that was run."""
        bounds = (self.cut, self.counted, self.skipped, self.calm, self.clocks, self.choices)
        return not (self.stopped or self.asked or any(bounds))

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
        if self.choices:
            text += (
                f"; more warps come to the barrier by number at {', '.join(self.choices)} than it takes, and which of "
                f"them meet was followed one way only: seeds of check() try others"
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
            return f"{head}{coverage}, {one}{where}. {_UNPROVEN_EXHAUSTIVELY.format(weaker)}"
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


def _keep(program: Program) -> str:
    """Keeps a program for :func:`record_kept`; returns its name, "dispatch #2"."""
    name = f"{program.name} #{next(_kept_so_far)}"
    _kept[name] = functools.partial(record_run, program)
    while len(_kept) > _MOST_KEPT:
        del _kept[next(iter(_kept))]
    return name


def line_of(program: Program, found: Sequence[Finding]) -> Callable[[int | str], str]:
    """A function that writes the line of Python that replays a run: one that works where the user pastes it."""
    if found and (_is_interactive() or not program.can_be_said):
        name = _keep(program)
        return lambda run: f'from ep_lib import viz; viz.time_travel("{name}", {in_words(run)})'
    return program.replay


def record_run(program: Program, run: int | str) -> Recording:
    search = Search(program, compare_values=True)
    if isinstance(run, str):
        seed = 0
        search.try_next(follower(""))
        search.forget()
        exploration = follower(run)
        search.try_next(exploration, recorded=True)
        require_fit(run, exploration)
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
            for number, one in sorted(numbered, key=lambda each: not same_sides(each[1], finding))
            if one.key == key
        ],
        ends=[finding for key, finding in told.items() if key not in known],
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"
