"""Ladders: the rungs of a tutorial file, each run, checked and timed (``ep-lib ladder 06``, ``workshop.ladder("06")``).

A file of tutorial_kernels/ has one idea per rung, and a table of its rungs at its head. The module of the same number
defines how each rung is run and checked (:class:`Rung`); the kernels are compiled from the file as it is now, so a rung
that you have changed is judged like any other. The style is karpathy/llm.c's, dev/cuda: a reference, the simplest
kernel, then better ones, and every one of them is checked before its time counts.

On the emulator the time is virtual (:func:`ep_lib.simulate`): from the first kernel's first instruction to the end of
the last. On GPUs it is measured between two events, the best of several rounds, on the slowest rank. Begin with
ladder01.py, the shortest.
"""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ep_lib.config import BACKENDS
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import find_hardware
from ep_lib.errors import ArgumentError, BackendUnavailable, EpError
from ep_lib.require import brief, one_of
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.simulate import simulate
from ep_lib.runtime.spawn import spawn
from ep_lib.workshop.exercises import workshop_root

NUMBERS = ("01", "03", "04", "05", "06", "07", "08", "10")
_NO_LADDER = {
    "00": "its kernels are examples, none of which is better than another",
    "02": "it is about the host, and its kernels only show what the host has set up",
    "09": "its kernel is the exercise 09_own_dispatch, whose tests check and time yours",
}
USUAL_HARDWARE = {"p2p": "h100-cx7", "rc": "h100-cx7", "srd": "p5-efa"}  # by the kind of fabric

_WIDTH = 100  # letters, of what stands under a table
_GPU_ROUNDS = 6  # the first one warms up
_IDEA = re.compile(r"^// (\d+) {2,}\S.*? {2,}(\S.*)$", re.MULTILINE)  # a line of the table at a file's head
_GREEN, _RED = "#009E73", "#D55E00"


class Memory:
    """The arrays of a rung on one rank. :meth:`reset` restores their initial content, for the next round."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._first: list[tuple[Any, Any]] = []

    def symmetric(self, first: Any) -> Any:
        """A symmetric array with this content; of one shape on all ranks."""
        return self._keep(self.rank.symmetric(first.shape, first.dtype), first)

    def own(self, first: Any) -> Any:
        """An array of this rank alone with this content."""
        return self._keep(self.rank.to_device(first), first)

    @property
    def arrays(self) -> list[Any]:
        """All arrays: those that a struct of addresses may point to (``uses`` of a launch)."""
        return [array for array, _ in self._first]

    def reset(self) -> None:
        self.rank.barrier()
        for array, first in self._first:
            array[...] = first
        self.rank.streams.settle()
        self.rank.barrier()

    def _keep(self, array: Any, first: Any) -> Any:
        self._first.append((array, self.rank.xp.asarray(first)))
        array[...] = self._first[-1][1]
        return array


@dataclass(frozen=True)
class Prepared:
    """A rung that is ready to run on one rank: ``launch`` starts its kernels once, and ``result`` is their output."""

    launch: Callable[[], None]
    result: Callable[[], Any]


@dataclass(frozen=True)
class Rung:
    """A rung: its ``number`` in the file's table, its kernel, and how it is run.

    ``program(memory, file, kernel)`` prepares it; its kernels are compiled from ``file``. ``wrong(results)`` describes
    the mistake in the results of all ranks, "" if there is none. Rungs with the same ``work`` do the same, so that
    their times are comparable.
    """

    number: int
    kernel: str
    program: Callable[[Memory, Path, str], Prepared]
    wrong: Callable[[Sequence[Any]], str]
    work: str = ""


@dataclass(frozen=True)
class Ladder:
    """A tutorial file and its rungs. ``fabric`` and ``ranks_per_node``: the emulator's network for them."""

    file: str
    what: str  # the task of every rung: a line above the table
    ranks: int
    rungs: tuple[Rung, ...]
    fabric: str = "p2p"
    ranks_per_node: int = 1
    clock: str = ""  # explanation of the virtual clock's times: a sentence under the emulator's table

    def ideas(self) -> dict[int, str]:
        """The new idea of each rung, from the table at the head of the file."""
        return {int(number): idea for number, idea in _IDEA.findall(self.path.read_text("utf-8"))}

    @property
    def path(self) -> Path:
        return workshop_root("tutorial_kernels", ArgumentError) / "tutorial_kernels" / self.file


@dataclass(frozen=True)
class Row:
    """One rung of a table. ``microseconds`` is None if it did not run; ``problem`` says what was wrong."""

    number: int
    kernel: str
    idea: str
    microseconds: float | None
    times_faster: float | None  # than the first rung that does the same work
    problem: str = ""

    @property
    def right(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class Table:
    """The results of :func:`run`; true if every rung is right."""

    file: str
    what: str
    place: str
    rows: tuple[Row, ...]
    clock: str = ""

    def __bool__(self) -> bool:
        return all(row.right for row in self.rows)

    def cells(self) -> list[tuple[str, ...]]:
        """The table's lines as texts, the headings first."""
        lines: list[tuple[str, ...]] = [("rung", "kernel", "right?", "time", "times as fast", "what is new")]
        for row in self.rows:
            time = "-" if row.microseconds is None else f"{row.microseconds:,.2f} us"
            times = "-" if row.times_faster is None else f"{row.times_faster:.2f}"
            lines.append((str(row.number), row.kernel, "yes" if row.right else "NO", time, times, row.idea))
        return lines

    def problems(self) -> list[str]:
        return [f"{row.kernel}: {row.problem}" for row in self.rows if row.problem]

    def __repr__(self) -> str:
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right_aligned = {0, 3, 4}
        lines = [
            "  ".join(
                text.rjust(width) if at in right_aligned else text.ljust(width)
                for at, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        under = textwrap.wrap(self.clock, _WIDTH)
        return "\n".join([f"{self.file} on {self.place}", self.what, *lines, *under, *self.problems()])

    def _repr_html_(self) -> Markup:
        cell = "text-align:left; padding:0.15em 0.35em"

        def line(texts: Sequence[str], tag: str) -> Markup:
            one = Markup(f'<{tag} style="{{}}">{{}}</{tag}>')
            looks = [cell + _colour(text) for text in texts]
            looks[-1] += "; min-width:8em"  # else a narrow page has a column of single words
            return Markup("<tr>{}</tr>").format(Markup().join(map(one.format, looks, texts)))

        head, *rows = self.cells()
        body = line(head, "th") + Markup().join(line(row, "td") for row in rows)
        under = Markup("<div>{}</div>").format(self.clock) if self.clock else Markup()
        for problem in self.problems():
            under += Markup('<div style="color:{}">{}</div>').format(_RED, problem)
        caption = Markup("<div><b>{}</b> on {}. {}</div>").format(self.file, self.place, self.what)
        return Markup("{}<table>{}</table>{}").format(caption, body, under)


def _colour(text: str) -> str:
    return {"yes": f"; color:{_GREEN}", "NO": f"; color:{_RED}; font-weight:bold"}.get(text, "")


def load(number: str | int) -> Ladder:
    """The ladder of notebook ``number`` (6, "06" or "06_dispatch"). Raises ArgumentError if there is none."""
    wanted = f"{number:02d}" if isinstance(number, int) and not isinstance(number, bool) else number
    wanted = wanted.partition("_")[0].zfill(2) if isinstance(wanted, str) else ""
    if wanted not in NUMBERS:
        why = f". Notebook {wanted} has none: {_NO_LADDER[wanted]}" if wanted in _NO_LADDER else ""
        raise ArgumentError(f"there is no ladder {brief(number)}; there are: {', '.join(NUMBERS)}{why}")
    ladder: Ladder = importlib.import_module(f"{__name__}.ladder{wanted}").LADDER
    return ladder


def run(
    number: str | int,
    *,
    backend: str = "emulator",
    fabric: str | None = None,
    hardware: str | None = None,
    rungs: Sequence[int] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Table:
    """Runs the rungs of a ladder one after another, all of them or only ``rungs``, and checks each.

    ``fabric`` ("p2p", "rc" or "srd"; the ladder has a usual one) and ``hardware`` (a name in ep_lib.HARDWARE) are for
    the emulator. ``progress`` gets a line before each rung. A rung that does not compile, hangs or gives a wrong result
    has a row that says so. Raises ArgumentError for invalid arguments.
    """
    ladder = load(number)
    ideas = ladder.ideas()
    network = one_of("fabric", fabric or ladder.fabric, USUAL_HARDWARE)
    one_of("backend", backend, BACKENDS)
    if backend == "cuda" and (fabric or hardware):
        raise ArgumentError("fabric and hardware are what the emulator models; leave them out with backend='cuda'")
    model = find_hardware(hardware or USUAL_HARDWARE[network])
    known = {rung.number for rung in ladder.rungs}
    unknown = set(rungs or ()) - known
    if unknown:
        raise ArgumentError(f"{ladder.file} has no rung {sorted(unknown)}; it has {sorted(known)}")
    place = f"the emulator, fabric {network}, modelled {model.name}" if backend == "emulator" else "GPUs"
    first: dict[str, float] = {}
    rows = []
    for index, rung in enumerate(ladder.rungs):
        if rungs is not None and rung.number not in rungs:
            continue
        progress(f"rung {rung.number}: {rung.kernel}")
        microseconds, problem = None, ""
        try:
            if backend == "emulator":
                results, microseconds = _simulated(ladder, index, network, model)
            else:
                results, microseconds = _measured(ladder, index)
            problem = rung.wrong(results)
        except BackendUnavailable:  # not a rung's fault
            raise
        except EpError as error:
            problem = f"{type(error).__name__}: {error}"
        times = None
        if microseconds is not None and not problem and sum(other.work == rung.work for other in ladder.rungs) > 1:
            times = first.setdefault(rung.work, microseconds) / microseconds
        rows.append(Row(rung.number, rung.kernel, ideas.get(rung.number, ""), microseconds, times, problem))
    clock = ladder.clock if backend == "emulator" else ""
    return Table(ladder.file, ladder.what, f"{place}, {ladder.ranks} ranks", tuple(rows), clock)


def _simulated(ladder: Ladder, index: int, network: str, hardware: Any) -> tuple[list[Any], float]:
    fabric = Fabric(network, ranks_per_node=ladder.ranks_per_node)
    timeline = simulate(main, ladder.ranks, fabric, hardware, args=(ladder.file[:2], index))
    return [result for result, _ in timeline.results], timeline.kernel_us


def _measured(ladder: Ladder, index: int) -> tuple[list[Any], float]:
    said = spawn(main, ladder.ranks, "cuda", args=(ladder.file[:2], index, _GPU_ROUNDS))
    rounds = zip(*(times for _, times in said), strict=True)
    return [result for result, _ in said], min(max(times) for times in list(rounds)[1:])


def main(rank: Rank, number: str, index: int, rounds: int = 1) -> tuple[Any, list[float]]:
    """One rung of a ladder on one rank: its result, and the microseconds of each round (on GPUs)."""
    ladder = load(number)
    memory = Memory(rank)
    rung = ladder.rungs[index]
    prepared = rung.program(memory, ladder.path, rung.kernel)
    times = []
    for _ in range(rounds):
        memory.reset()
        times.append(_timed(rank, prepared.launch))
    rank.barrier()
    return prepared.result(), times


def _timed(rank: Rank, launch: Callable[[], None]) -> float:
    """Microseconds between two events around the kernels; 0 on the emulator, which has the timeline."""
    if rank.backend == "emulator":
        launch()
        rank.synchronize()
        return 0.0
    cuda = rank.xp.cuda
    begin, end = cuda.Event(), cuda.Event()
    begin.record()
    launch()
    end.record()
    rank.synchronize()
    end.synchronize()
    return float(cuda.get_elapsed_time(begin, end)) * 1e3


# ---- what several ladders share --------------------------------------------------------------------------------------
def random_bytes(rank: int, size: int) -> Any:
    """The data that rank ``rank`` sends."""
    return np.random.default_rng(rank).integers(0, 256, size, np.uint8)


def differing(results: Sequence[Any], expected: Sequence[Any], what: str = "bytes") -> str:
    """The mistake in results that must equal ``expected``, rank by rank, bit for bit."""
    for rank, (got, want) in enumerate(zip(results, expected, strict=True)):
        if got.shape != want.shape:
            return f"rank {rank} has {got.shape[0]} rows and not {want.shape[0]}"
        wrong = np.flatnonzero(got.reshape(-1).view(np.uint8) != want.reshape(-1).view(np.uint8))
        if wrong.size:
            return f"{wrong.size} of {want.nbytes} {what} on rank {rank} are wrong, the first at {int(wrong[0])}"
    return ""


def equal_to(expected: Callable[[int], Any]) -> Callable[[Sequence[Any]], str]:
    """The mistake in results that must equal ``expected(rank)`` on each rank, bit for bit."""
    return lambda results: differing(results, list(map(expected, range(len(results)))))
