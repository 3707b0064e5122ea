"""``check``: run a program under many schedules, watch every access, and report what is wrong."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ep_lib.emulator.fabric import Fabric, make_fabric
from ep_lib.emulator.findings import merge_findings
from ep_lib.emulator.machine import pct_depth, stacks_kept
from ep_lib.emulator.recording import Recording
from ep_lib.errors import ArgumentError
from ep_lib.require import at_least_one, brief, flag, index, one_of, several, whole_number
from ep_lib.runtime import arguments
from ep_lib.runtime.exhaustive import Exhaustion, make_bounds
from ep_lib.runtime.reduce import explained, with_few_switches
from ep_lib.runtime.report import CheckReport, line_of, record_run
from ep_lib.runtime.search import Program, Search, a_schedule

if TYPE_CHECKING:
    from concurrent.futures import Executor

_VOLATILE = ("relaxed", "plain")
_MEMORY = ("mixed", "sc", "ptx")
_ONE_IN = 4  # one in so many schedules of "mixed" also runs under weak memory


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
    main imports; the report does not depend on their number. ``progress``: whether to show a bar (None: on a terminal).

    Deadlocks, faults of kernels, time limits and failed assertions in main are findings. Exceptions that wrong data may
    have caused are findings in runs that have another finding. Other exceptions, such as a compiler's error, are
    raised.
    """
    program = _program(main, ranks, fabric, args, heap_bytes, timeout, resident_blocks, volatile, transport, memory)
    if flag("exhaustive", exhaustive):
        bounds = make_bounds(preemptions, events, turns, kernels)
        search = Search(program, flag("compare_values", compare_values))
        first = flag("stop_at_first", stop_at_first) or flag("stop_at_failure", stop_at_failure)
        return Exhaustion(program, search, bounds, first).go_on(
            seconds=seconds, progress=progress, jobs=jobs, executor=executor
        )
    if preemptions is not None or seconds is not None or kernels:
        raise ArgumentError("preemptions, seconds and kernels are bounds of an exhaustive check: add exhaustive=True")
    if jobs != 1 or executor is not None:
        raise ArgumentError("jobs and executor are for an exhaustive check: add exhaustive=True")
    chosen = _seeds(seeds)
    return _try(
        program,
        chosen,
        compare_values=flag("compare_values", compare_values),
        stop_at_first=flag("stop_at_first", stop_at_first),
        stop_at_failure=flag("stop_at_failure", stop_at_failure),
        reduce=flag("reduce", reduce),
    )


@stacks_kept()
def _try(
    program: Program,
    chosen: Sequence[int],
    *,
    compare_values: bool,
    stop_at_first: bool,
    stop_at_failure: bool,
    reduce: bool,
) -> CheckReport:
    """The report of one run for each seed."""
    search = Search(program, compare_values)
    begin = time.perf_counter()
    if program.weak_memory or (chosen[0] != 0 and (compare_values or any(pct_depth(seed) > 1 for seed in chosen))):
        search.measure()
    ran_out = False
    for seed in chosen:
        ran_out = search.try_schedule(seed)
        if ran_out or (stop_at_first and search.told) or (stop_at_failure and search.seen.failed):
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
    if reduce and not ran_out:  # each run may take as long
        found = with_few_switches(program, found, len(search.tried))
    found = explained(program, found)
    replay = line_of(program, found)
    return CheckReport(
        findings=tuple(dataclasses.replace(finding, replay=replay(finding.run)) for finding in found),
        seeds=seeds_tried,
        seeds_again=tuple(search.tried[len(seeds_tried) :]),
        memory="ptx" if program.weak_memory else "sc",
        values_differ=search.seen.values_differ,
        ranks=program.ranks,
        fabric=program.network,
        seconds=time.perf_counter() - begin,
        random_walks=depths.pop(0, 0),
        pct=dict(sorted(depths.items())),
        record=functools.partial(record_run, program),
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
    return record_run(program, arguments.a_seed(seed) if schedule is None else a_schedule(schedule))


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
) -> Program:
    """The program and options that the arguments of :func:`check` describe. Raises ArgumentError."""
    ranks, args = arguments.program(main, ranks, args)
    heap_bytes, timeout = arguments.limits(heap_bytes, timeout)
    if resident_blocks is not None:
        resident_blocks = at_least_one("resident_blocks", resident_blocks)
    plain = one_of("volatile", volatile, _VOLATILE) == "plain"
    transport = arguments.emulator_transport(transport)
    network = make_fabric(fabric, ranks)
    memory = one_of("memory", memory, _MEMORY)
    return Program(main, ranks, network, args, heap_bytes, timeout, resident_blocks, plain, transport, memory)


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
