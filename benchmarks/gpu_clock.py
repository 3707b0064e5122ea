"""Times work on GPUs that all ranks begin together; NOTES.md says how."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ep_lib

SOURCE = Path(__file__).resolve().with_name("gpu_clock.cu")
HOLD_NS = 1_000_000  # Python needs 0.1 ms or more for a launch, most of all after a wait
WARM_UP = 3


class Stopwatch:
    """Times work that all ranks begin together, on this GPU's clock."""

    def __init__(self, rank: ep_lib.Rank) -> None:
        """Collective."""
        self._rank, self._begin_together, self._rounds = rank, ep_lib.Kernel.from_file(SOURCE, "begin_together"), 0
        self._flags = rank.symmetric(rank.world_size, "uint64")
        self._marks: list[tuple[str, Any, Any, bool]] = []
        self.late = 0  # launches that the GPU had to wait for: their times are too long

    def time(self, name: str, launch: Callable[[], Any]) -> None:
        """Collective: a barrier, then times what ``launch`` puts on the current stream; ``microseconds`` reads it."""
        self._rounds += 1
        self._begin_together.launch(self._rank, 1, 64, self._flags, self._rounds, HOLD_NS)
        begin, end = self._rank.xp.cuda.Event(), self._rank.xp.cuda.Event()
        begin.record()
        launch()
        late = begin.done
        end.record()
        self._marks.append((name, begin, end, late))

    @contextlib.contextmanager
    def every_kernel(self) -> Iterator[None]:
        """Times all launches of :class:`ep_lib.Kernel` inside this context."""
        original = ep_lib.Kernel.launch

        def launch(what: ep_lib.Kernel, *args: Any, **options: Any) -> None:
            if what is self._begin_together:
                original(what, *args, **options)
            else:
                self.time(what.name.partition("<")[0], lambda: original(what, *args, **options))

        ep_lib.Kernel.launch = launch
        try:
            yield
        finally:
            ep_lib.Kernel.launch = original

    def microseconds(self, operation: Callable[[], Any], repeats: int) -> list[dict[str, float]]:
        """For each repeat after the warm-up, the microseconds of what ``operation`` timed, by name."""
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
    """Runs once what a Stopwatch would time, so that the same scripts run on the emulator."""

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
