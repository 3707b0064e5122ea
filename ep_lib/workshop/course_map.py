"""The map at the head of each notebook: which part of ep_lib stands by now, and which piece the learner adds here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from ep_lib.errors import ArgumentError, EpError
from ep_lib.require import text
from ep_lib.workshop import exercises
from ep_lib.workshop.exercises import workshop_root
from ep_lib.workshop.notes import CODE


@dataclass(frozen=True)
class Stage:
    """What a notebook adds to the library: ``files`` are relative to ep_lib/, ``words`` say what they are for."""

    notebook: str
    title: str
    words: str
    files: tuple[str, ...]


STAGES = (
    Stage("00", "Start here", "peer pointers and signals", ("device/ep/peer.cuh", "device/ep/signal.cuh")),
    Stage("01", "Write and signal", "data, then signal; waits; credits", ("device/ep/write_signal.cuh",)),
    Stage("02", "Host set-up", "registered memory, and who may reach it", ("transports/nixl/host.py",)),
    Stage("03", "The IBGDA/EFA shim", "kernels that post to a network card", ("device/ep/ibgda_shim.cuh",)),
    Stage("04", "Ring and proxy", "commands for a CPU that posts", ("device/ep/proxy_ring.cuh", "transports/proxy")),
    Stage("05", "PCIe bounce buffers", "all of it in bounded memory", ("device/ep/ring.cuh", "moe/pcie")),
    Stage("06", "Dispatch", "tokens find their experts", ("moe/common/layout.cuh", "moe/direct/dispatch_bulk.cu")),
    Stage("07", "Combine", "and come back as one sum", ("moe/common/sums.cuh", "moe/direct/combine_pull.cu")),
    Stage("08", "FP8 and low latency", "half the bytes, small batches", ("device/ep/fp8.cuh", "moe/low_latency")),
    Stage("09", "The MoE layer", "a layer that learns and serves", ("moe/layer.py", "moe/autograd.py")),
    Stage("10", "Beyond one machine", "nodes, and two networks at once", ("moe/hierarchical",)),
)

_BOX = "border:{line}; border-radius:4px; padding:0.3em 0.5em; {ink}"
_LOOKS = {  # what it is called, and how it looks: not by its colour alone
    "stands": _BOX.format(line="1px solid #009E73", ink="background:#eef7f4; color:#222222"),
    "added here": _BOX.format(line="3px solid #0072B2", ink="background:#e6f1f8; color:#222222"),
    "comes later": _BOX.format(line="1px dashed #999999", ink="background:#fafafa; color:#666666"),
}


@dataclass(frozen=True)
class CourseMap:
    """The library as a row of parts, seen from one notebook."""

    here: Stage

    def _state(self, stage: Stage) -> str:
        if stage is self.here:
            return "added here"
        return "stands" if stage.notebook < self.here.notebook else "comes later"

    @property
    def pieces(self) -> tuple[str, ...]:
        """What the learner writes at this stage: the exercises, and whether they are in mine/ already."""
        try:
            root = workshop_root()
            found = [exercises.find(name, root) for name in exercises.names(root)]
        except EpError:  # a library without a workshop
            return ()
        mine = [each for each in found if each.name.startswith(f"{self.here.notebook}_")]
        return tuple(
            f"{each.name}: {each.title}" + (f" (begun, in mine/{each.name})" if _begun(root, each.name) else "")
            for each in mine
        )

    def __repr__(self) -> str:
        lines = [f"ep_lib, seen from notebook {self.here.notebook}:"]
        for stage in STAGES:
            mark = {"stands": "#", "added here": ">", "comes later": "."}[self._state(stage)]
            lines.append(f"  {mark} {stage.notebook} {stage.title}: {stage.words} ({', '.join(stage.files)})")
        lines.append("  # stands, > added here, . comes later")
        return "\n".join([*lines, *(f"  your piece: {piece}" for piece in self.pieces)])

    def _repr_html_(self) -> Markup:
        columns = "repeat(auto-fill, minmax(14em, 1fr))"  # wide enough for the names of files
        grid = Markup('<div style="display:grid; grid-template-columns:{}; gap:0.4em">{}</div>')
        row = grid.format(columns, Markup().join(self._box(stage) for stage in STAGES))
        shown = Markup('<div role="img" aria-label="{}">{}</div>').format(repr(self), row)
        named = (piece.partition(": ") for piece in self.pieces)
        pieces = Markup().join(Markup("<li><code>{}</code>: {}</li>").format(name, title) for name, _, title in named)
        mine = Markup('<div style="margin-top:0.4em">Your pieces here:<ul style="margin:0">{}</ul></div>')
        return shown + mine.format(pieces) if pieces else shown

    def _box(self, stage: Stage) -> Markup:
        state = self._state(stage)
        files = Markup("<br>").join(escape(file).replace("/", Markup("/<wbr>")) for file in stage.files)
        return Markup(
            '<div style="{}; font-size:85%"><b>{} {}</b><br>{}'
            '<div style="{}font-size:10px; overflow-wrap:anywhere">{}</div><i>{}</i></div>'
        ).format(_LOOKS[state], stage.notebook, stage.title, stage.words, CODE, files, state)


def _begun(root: Path, exercise: str) -> bool:
    return (root / "mine" / exercise).is_dir()


def course_map(notebook: str) -> CourseMap:
    """The map as it is at the head of a notebook ("01"). Raises ArgumentError for a number that none has."""
    wanted = text("a notebook's number", notebook).strip()
    for stage in STAGES:
        if stage.notebook == wanted:
            return CourseMap(stage)
    raise ArgumentError(f"there is no notebook {wanted!r}; there are: {', '.join(s.notebook for s in STAGES)}")
