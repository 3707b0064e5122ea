"""Time on GPUs of work that all ranks begin together; how it is taken is told in NOTES.md."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ep_lib

SOURCE = Path(__file__).resolve().with_name("gpu_clock.cu")
HOLD_NS = 1_000_000  # Python needs 0.1 ms and more for a launch, most of all when it has just slept
WARM_UP = 3


class Stopwatch:
    """Times on this GPU's clock, of work that all ranks begin together."""

    def __init__(self, rank: ep_lib.Rank) -> None:
        """Collective."""
        self._rank, self._meet, self._meetings = rank, ep_lib.Kernel.from_file(SOURCE, "meet"), 0
        self._flags = rank.symmetric(rank.world_size, "uint64")
        self._marks: list[tuple[str, Any, Any, bool]] = []
        self.late = 0  # launches that the GPU had to wait for, so that their times are too long

    def time(self, name: str, launch: Callable[[], Any]) -> None:
        """Collective: meet, then time what ``launch`` puts on the current stream; ``microseconds`` reads it."""
        self._meetings += 1
        self._meet.launch(self._rank, 1, 64, self._flags, self._meetings, HOLD_NS)
        begin, end = self._rank.xp.cuda.Event(), self._rank.xp.cuda.Event()
        begin.record()
        launch()
        late = begin.done
        end.record()
        self._marks.append((name, begin, end, late))

    @contextlib.contextmanager
    def every_kernel(self) -> Iterator[None]:
        """Time all launches of :class:`ep_lib.Kernel`, whoever makes them."""
        original = ep_lib.Kernel.launch

        def launch(what: ep_lib.Kernel, *args: Any, **options: Any) -> None:
            if what is self._meet:
                original(what, *args, **options)
            else:
                self.time(what.name.partition("<")[0], lambda: original(what, *args, **options))

        ep_lib.Kernel.launch = launch
        try:
            yield
        finally:
            ep_lib.Kernel.launch = original

    def microseconds(self, operation: Callable[[], Any], repeats: int) -> list[dict[str, float]]:
        """For each repeat: microseconds by name of what ``operation`` timed, after a warm-up."""
        found = []
        for repeat in range(repeats + WARM_UP):
            self._rank.barrier()
            operation()
            self._rank.synchronize()
            elapsed = self._rank.xp.cuda.get_elapsed_time
            times: dict[str, float] = {}
            for name, begin, end, late in self._marks:
                times[name] = times.get(name, 0.0) + 1e3 * elapsed(begin, end)
                self.late += late and repeat >= WARM_UP
            found.append(times)
            self._marks.clear()
        return found[WARM_UP:]


class DryWatch:
    """Runs what a Stopwatch would time, once: the same scripts run on the emulator."""

    late = 0

    def time(self, name: str, launch: Callable[[], Any]) -> None:
        launch()

    @contextlib.contextmanager
    def every_kernel(self) -> Iterator[None]:
        yield

    def microseconds(self, operation: Callable[[], Any], repeats: int) -> list[dict[str, float]]:
        operation()
        return [{"dry": 1.0}] * repeats


def watch_of(rank: ep_lib.Rank) -> Stopwatch | DryWatch:
    """Collective: a Stopwatch on GPUs, a DryWatch on the emulator."""
    return Stopwatch(rank) if rank.backend == "cuda" else DryWatch()


def slowest(ranks: Sequence[Sequence[dict[str, float]]]) -> dict[str, float]:
    """``ranks[r][repeat][name]``: the median over repeats of the slowest rank, by name; "sum" is that of the sums."""
    repeats = [[times | {"sum": sum(times.values())} for times in repeat] for repeat in zip(*ranks, strict=True)]
    names = repeats[0][0]
    return {name: round(statistics.median(max(t[name] for t in repeat) for repeat in repeats), 2) for name in names}


def spread(ranks: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """``ranks[r][repeat]``: median, 10th and 90th percentile over the repeats of the slowest rank."""
    worst = sorted(max(repeat) for repeat in zip(*ranks, strict=True))
    last = len(worst) - 1
    return statistics.median(worst), worst[round(0.1 * last)], worst[round(0.9 * last)]
