"""Time travel: a page that shows a run step by step, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ep_lib.emulator import recording as rec
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.findings import schedule_name
from ep_lib.emulator.recording import Recording
from ep_lib.emulator.symbols import Place
from ep_lib.errors import ArgumentError
from ep_lib.jit import sealed
from ep_lib.require import whole_number
from ep_lib.runtime.check import record
from ep_lib.runtime.report import record_kept
from ep_lib.viz.page import Page, make_page
from ep_lib.viz.steps import Steps, make_steps

_MOST_STEPS = 20_000
_HEIGHT = 640
_MOST_LINES = 3000  # of a source file
NO_NAMES: Mapping[str, Sequence[str]] = MappingProxyType({})  # lines are named by their numbers


def time_travel(
    main: Callable[..., Any] | str,
    ranks: int = 2,
    *,
    seed: int = 0,
    schedule: str | None = None,
    fabric: Fabric | str | None = None,
    args: Sequence[Any] = (),
    steps: int = _MOST_STEPS,
    heap_bytes: int | None = None,
    timeout: float | None = None,
    resident_blocks: int | None = None,
    volatile: str = "relaxed",
    transport: str | None = None,
    memory: str = "sc",
) -> Page:
    """The run that ``ep_lib.check`` makes of ``seed``, as a page to go through step by step.

    ``schedule``: a finding's schedule, instead of a seed.

    It shows the running thread, waiting threads and their places, messages in flight, the memory of every rank coloured
    by writer (striped while no reader is ordered after the write), and the lines of a race. ``steps``: the most steps
    kept; if there are more, those around the first finding. The other arguments are those of ``ep_lib.check``, whose
    errors it raises.

    In a notebook, ``main`` may be the name that a printed finding gives its program: ``time_travel("ring #3", seed=7)``
    is the run of that finding, with the arguments of its check. Raises ArgumentError for an unknown name.
    """
    steps = whole_number("steps", steps, 1, 1_000_000)
    if isinstance(main, str):
        return page_of(record_kept(main, seed if schedule is None else schedule), steps)
    recording = record(
        main,
        ranks,
        fabric,
        seed,
        args,
        schedule=schedule,
        heap_bytes=heap_bytes,
        timeout=timeout,
        resident_blocks=resident_blocks,
        volatile=volatile,
        transport=transport,
        memory=memory,
    )
    return page_of(recording, steps)


def page_of(
    recording: Recording,
    limit: int = _MOST_STEPS,
    tell: Callable[[str], str] = str,
    line_names: Mapping[str, Sequence[str]] = NO_NAMES,
) -> Page:
    """The page of a recorded run, of at most ``limit`` steps.

    ``tell`` rewrites the texts of findings, steps and places; a rewritten place is not shown in its source, except in
    files whose lines have names: ``line_names``, by file name.
    """
    which = (
        f"seed {recording.seed}" if recording.schedule is None else f'schedule "{schedule_name(recording.schedule)}"'
    )
    return page_from(f"{recording.program}, {which}", data_of(recording, limit, tell, line_names))


def page_from(title: str, data: Mapping[str, Any]) -> Page:
    """The page for the data of :func:`data_of`, perhaps from another process."""
    return make_page("time_travel", title, data, _HEIGHT)


def data_of(
    recording: Recording,
    limit: int = _MOST_STEPS,
    tell: Callable[[str], str] = str,
    line_names: Mapping[str, Sequence[str]] = NO_NAMES,
) -> dict[str, Any]:
    """The data of a recorded run's page; arguments as for :func:`page_of`."""
    steps = make_steps(recording, limit)
    if not len(steps):
        raise ArgumentError(f"nothing happened in this run of {recording.program}: it launched no kernel")
    return _data(recording, steps, tell, line_names)


def _data(
    recording: Recording, steps: Steps, tell: Callable[[str], str], line_names: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    kept = f", of which {len(steps):,} are kept" if len(steps) < steps.total else ""
    lost = f"; {recording.dropped:,} events had no room" if recording.dropped else ""
    places = _Places(recording, steps, tell, line_names)
    return {
        "about": f"{recording.ranks} ranks on {recording.fabric}, {steps.total:,} steps{kept}{lost}",
        "nothing": "The checker found nothing in this run.",
        "kinds": rec.KINDS,
        "ranks": steps.ranks,
        "begin": steps.begin,
        "total": steps.total,
        "lanes": [lane._asdict() for lane in steps.lanes],
        "groups": [group._asdict() for group in steps.groups],
        "arrays": [array._asdict() for array in steps.arrays],
        "omitted": steps.omitted,
        "message_slot": steps.message_slot,
        "messages": [
            {
                "text": f"{m.kind} {m.number}: rank {m.source}"
                + ("" if m.kind.startswith("bulk") else f" to {m.target}, queue pair {m.queue_pair}")
                + (f", {m.bytes} bytes" if m.bytes else ""),
                "source": m.source,
                "target": m.target,
                "bytes": m.bytes,
            }
            for m in recording.messages
        ],
        "waits": [[kind, tell(text)] for kind, text in steps.waits],
        "whos": steps.whos,
        "whats": list(map(tell, steps.whats)),
        "marks": [
            {
                **mark._asdict(),
                "text": tell(mark.text),
                "places": [places.of_step[s] for s in (mark.first, mark.step) if s >= 0],
            }
            for mark in steps.marks
        ],
        "places": places.table,
        "files": places.files,
        "base": steps.base,
        "offsets": steps.offsets,
        "slots": [slot for slot, _ in steps.changes],
        "values": [value for _, value in steps.changes],
        "steps": {
            "kind": steps.kind,
            "lane": steps.lane,
            "who": steps.who,
            "what": steps.what,
            "place": places.of_step,
            "message": steps.message,
            "touched": steps.touched,
            "write": steps.write,
            "atomic": steps.atomic,
            "threads": steps.threads,
        },
    }


class _Places:
    """The source lines of steps, and their files."""

    def __init__(
        self, recording: Recording, steps: Steps, tell: Callable[[str], str], line_names: Mapping[str, Sequence[str]]
    ) -> None:
        self._names = line_names
        self.files: list[dict[str, Any]] = []
        self.table: list[tuple[int, int, str]] = []  # file (-1: its text is not there), line, location
        self._numbers: dict[str, int] = {}
        by_place: dict[Place, int] = {}
        self.of_step = []
        for pc in steps.place:
            place = recording.places.get(pc)
            if not place:
                self.of_step.append(-1)
                continue
            if place not in by_place:
                by_place[place] = len(self.table)
                said = tell(place.location)
                is_shown = said == place.location or place.name in line_names
                self.table.append((self._file(place) if is_shown else -1, place.line, said))
            self.of_step.append(by_place[place])

    def _file(self, place: Place) -> int:
        key = str(place.file)
        if key not in self._numbers:
            try:
                lines = sealed.shown(place.file.read_text(encoding="utf-8", errors="replace")).split("\n")
            except OSError:
                self._numbers[key] = -1
                return -1
            self._numbers[key] = len(self.files)
            names = list(self._names.get(place.name, ()))
            self.files.append({"name": place.name, "first": 1, "lines": lines[:_MOST_LINES], "names": names})
        return self._numbers[key]
