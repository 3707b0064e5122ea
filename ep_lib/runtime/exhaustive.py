"""A check of every schedule (up to equivalence): parts of the tree, which workers explore, and its report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ep_lib.bootstrap.base import dumps, loads
from ep_lib.emulator import exploration as runs
from ep_lib.emulator.exploration import Exploration
from ep_lib.emulator.findings import Finding, merge_findings
from ep_lib.emulator.library import ExplorationStatus
from ep_lib.errors import ArgumentError, EpError
from ep_lib.require import at_least_one, several, text, whole_number
from ep_lib.require import seconds as a_time
from ep_lib.runtime.differences import describe_launches, digest
from ep_lib.runtime.exhaustion import RUNS, Estimate, Explored, Parts
from ep_lib.runtime.rank_process import RemoteError, encode, rebuilt
from ep_lib.runtime.reduce import FEW, explained, exploration_within, reduce_schedule
from ep_lib.runtime.report import CheckReport, Coverage, line_of, record_run
from ep_lib.runtime.search import (
    FIRST_FINDING,
    MOST_EVENTS,
    TWO_RESULTS,
    Calm,
    PartAnswer,
    Program,
    Run,
    Search,
    follower,
    strays,
)
from ep_lib.runtime.sources import Sources

if TYPE_CHECKING:
    from concurrent.futures import Executor


_CALM_RUNS, _CALM_SECONDS = 6, 1.0  # of an exhaustive check, to see whether main is deterministic; at least two
_ALONE_SECONDS = 0.5  # of an exhaustive check, before the first random runs
_DRAWN_SHARE = 0.1  # of its time, for random runs
_MOST_SHARE = 0.95  # of all schedules: the largest share reported before the end
_LOST = 4  # repeated runs per new one; beyond that, runs with few preemptions no longer come first
_LATE, _LEAST_LATE_S = 0.05, 1.0  # how much later than `seconds` an answer of a worker may come: a share, or this
_INTERRUPT = "stopped by an interrupt"


def make_bounds(preemptions: Any, events: Any, turns: Any, kernels: Any) -> dict[str, Any]:
    if preemptions is not None:
        preemptions = whole_number("preemptions", preemptions, 0, 1000)
    names = [kernels] if isinstance(kernels, str) else several("kernels", kernels, "a list of names of kernels")
    return {
        "preemptions": preemptions,
        "events": whole_number("events", events, 10, MOST_EVENTS),
        "turns": whole_number("turns", turns, 1, 255),
        "kernels": tuple(text("kernels", name) for name in names),
    }


@dataclass(frozen=True)
class _PartJob:
    """What a worker needs to explore a part. ``ends_at``: when it begins no more runs, by ``time.time()``,
    since parts wait for free workers."""

    program: Program
    compare_values: bool
    stop_at_first: bool
    bounds: dict[str, Any]
    calm: Calm | None
    seeded: frozenset[str] | None
    part: str
    ends_at: float | None


def _explore(job: _PartJob) -> PartAnswer:
    """Makes some runs of a part. Raises main's exceptions that are not findings, and ArgumentError if main is not
    deterministic."""
    stopped, more, made = "", True, 0
    search = Search(job.program, job.compare_values)
    search.calm, search.sources.seeded = job.calm, job.seeded
    exploration = exploration_within(job.bounds)
    exploration.load(job.part)
    try:
        while more and not stopped and made < RUNS:
            run, more = search.try_next(exploration)
            made += 1
            if exploration.status.outcome == runs.STRAYED:
                raise ArgumentError(strays(job.program, exploration.strayed, search.sources.asked))
            if run.is_whole:
                _require_launched(job.bounds["kernels"], exploration.launched)
            if run.out_of_time and run.is_whole:
                stopped = "stopped by a run that met its time limit (timeout=)"
            elif job.stop_at_first and search.told:
                stopped = FIRST_FINDING
            elif job.ends_at is not None and time.time() > job.ends_at:
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


def _unanswered(parts: int, executor: Executor | None) -> str:
    """Which schedules are missing, and why, if known."""
    if not parts:
        return ""
    from ep_lib.runtime.worker_processes import Workers

    stopped = executor.stopped() if isinstance(executor, Workers) else []
    why = "".join(f"; process {pid} is stopped (SIGSTOP, or a debugger)" for pid in stopped)
    each = f"each of {parts} parts" if parts > 1 else "a part"
    return f"; up to {RUNS} schedules of {each} are missing, as no worker has answered{why}: resume() makes them"


class Exhaustion:
    """Rounds of parts, until all runs have been made or a bound is met."""

    def __init__(
        self,
        program: Program,
        search: Search,
        bounds: dict[str, Any],
        stop_at_first: bool,
    ) -> None:
        self._program = program
        self._search = search
        self._bounds = bounds
        self._stop_at_first = stop_at_first
        few = {**bounds, "preemptions": FEW}
        self._stages = [few, bounds] if bounds["preemptions"] is None else [bounds]
        self._parts = Parts(self._stages[0]["preemptions"])
        self._seconds = 0.0
        self._estimate = Estimate()
        self._drawn: list[Finding] = []  # the findings of the first wrong one among its random runs

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
                    late = 0
                    left = None if limit is None else limit - (time.perf_counter() - begin)
                    if executor is None and jobs > 1 and len(self._parts.round()) > 1:
                        from ep_lib.runtime.worker_processes import workers

                        executor = stack.enter_context(workers(jobs))
                    for number, answer in self._answers(left, executor):
                        if answer is None:
                            late += 1
                            continue
                        self._parts.take(number, answer.explored)
                        self._search.take_over(answer)
                        bar.update(answer.explored.runs)
                        share = self._share()
                        bar.set_postfix_str(f"about {share:.1%}" if share else "", refresh=False)
                        stopped = answer.stopped
                        is_over = limit is not None and time.perf_counter() - begin > limit
                        if self._goes_on_without_bound() or stopped or (is_over and executor is None):
                            break
                    if not stopped and limit is not None and time.perf_counter() - begin > limit:
                        stopped = f"stopped after {limit:g} s{_unanswered(late, executor)}"
                    self._seconds = before + time.perf_counter() - begin
                    self._estimate_whole()
            except KeyboardInterrupt:
                stopped = _INTERRUPT
        self._seconds = before + time.perf_counter() - begin
        return self._report("" if self._parts.is_done and stopped != FIRST_FINDING else stopped)

    def _look_at_calm_runs(self) -> str:
        """Makes the calm run several times, since main must be deterministic. Returns why the check ends there, or
        ""."""
        program, bounds = self._program, self._bounds
        made: list[tuple[Run, ExplorationStatus, str, Sources]] = []
        begin, sources = time.perf_counter(), self._search.sources
        try:
            while len(made) < _CALM_RUNS and (len(made) < 2 or time.perf_counter() - begin < _CALM_SECONDS):
                search, exploration = Search(program, self._search.compares_values), follower("", bounds["events"])
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
                    how = TWO_RESULTS
                if how:
                    raise ArgumentError(strays(program, how, sources.asked))
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
            search = Search(program, self._search.compares_values)
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

    def _answers(self, seconds: float | None, executor: Executor | None) -> Iterator[tuple[int, PartAnswer | None]]:
        """The workers' answers for the parts of this round, in order; None where one does not come in time."""
        numbers, ends = self._parts.round(), None if seconds is None else time.time() + seconds
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
                ends,
            )
            for number in numbers
        ]
        if executor is None:
            yield from zip(numbers, map(_explore, asked), strict=True)
            return
        futures = [executor.submit(_explore_elsewhere, dumps(job)) for job in asked]
        try:
            for number, future in zip(numbers, futures, strict=True):
                late = max(_LEAST_LATE_S, _LATE * (seconds or 0))
                try:
                    told = future.result(None if ends is None else max(0.0, ends + late - time.time()))
                except TimeoutError:
                    yield number, None
                    continue
                answer = loads(told)
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
        found = explained(program, [reduce_schedule(program, finding) for finding in merge_findings(told)])
        replay = line_of(program, found)
        return CheckReport(
            findings=tuple(dataclasses.replace(one, replay=replay(one.schedule or "")) for one in found),
            seeds=(),
            values_differ=self._search.seen.values_differ or any(finding.kind == "values differ" for finding in told),
            ranks=program.ranks,
            fabric=program.network,
            seconds=self._seconds,
            random_walks=0,
            pct={},
            memory="ptx" if program.weak_memory else "sc",
            record=functools.partial(record_run, program),
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
                clocks=tuple(sorted(self._search.seen.clocks)),
                choices=tuple(sorted(self._search.seen.choices)),
                asked=tuple(sorted(self._search.sources.asked)),
                **bounds,
            ),
            resume=self.go_on,
        )
