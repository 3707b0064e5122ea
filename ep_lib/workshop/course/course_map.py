"""The map at the head of each notebook: the finished parts of ep_lib, the piece that the learner adds here, and the
paths through the course with their hours."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape

from ep_lib.errors import ArgumentError, EpError
from ep_lib.require import text
from ep_lib.workshop import exercises
from ep_lib.workshop.course.notes import CODE
from ep_lib.workshop.exercises import workshop_root


@dataclass(frozen=True)
class Stage:
    """A notebook's addition to the library: ``files`` are relative to ep_lib/, ``words`` describe their purpose.

    ``hours`` is an estimate for one person who reads, with the puzzles and one exercise (in 00 both, which are small).
    ``side``: its audience; "" on the main path. ``takes``: predictions, puzzles and exercises that bear another
    notebook's number, so that mine/progress.json stays valid.
    """

    notebook: str
    title: str
    words: str
    files: tuple[str, ...]
    hours: float
    side: str = ""
    takes: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether a prediction, a puzzle ("01.2") or an exercise ("01_board") is this notebook's."""
        if any(name in stage.takes for stage in STAGES):
            return name in self.takes
        return name.startswith((f"{self.notebook}.", f"{self.notebook}_"))

    @property
    def line(self) -> str:
        """The notebook's place in the course: a line of its first cell."""
        if self.side:
            return f"*A side path, for {self.side}; {in_hours(self.hours)}. The main path: {MAIN_PATH}.*"
        number = MAIN.index(self) + 1
        return f"*Stage {number} of {len(MAIN)} on the main path ({MAIN_PATH}); {in_hours(self.hours)}.*"


def in_hours(hours: float) -> str:
    """ "2.5 hours"."""
    return f"{hours:g} hour{'s' if hours != 1 else ''}"


STAGES = (
    Stage("00", "Start here", "peer pointers and signals", ("device/ep/peer.cuh", "device/ep/signal.cuh"), 1),
    Stage("01", "Write and signal", "data, then signal; waits; credits", ("device/ep/write_signal.cuh",), 2),
    Stage(
        "01b",
        "For the curious",
        "weak memory, every schedule, NIXL's names",
        ("device/ep/memory.cuh", "device/ep/nixl_device.cuh"),
        2,
        "those who want to know what a memory model permits",
        ("01.words", "01.nixl", "01.4", "01_all_to_all", "01_board"),
    ),
    Stage(
        "02",
        "Host set-up",
        "registered memory, and who may reach it",
        ("transports/nixl/host.py",),
        2,
        "those who set up transfers between processes",
    ),
    Stage(
        "03",
        "The IBGDA/EFA shim",
        "kernels that post to a network card",
        ("device/ep/ibgda_shim.cuh",),
        2.5,
        "those whose kernels use a network",
    ),
    Stage(
        "04",
        "Ring and proxy",
        "commands for a CPU that posts",
        ("device/ep/proxy_ring.cuh", "transports/proxy"),
        2.5,
        "those whose GPUs cannot drive their network card",
    ),
    Stage(
        "05",
        "PCIe bounce buffers",
        "all of it in bounded memory",
        ("device/ep/ring.cuh", "moe/pcie"),
        2.5,
        "those without NVLink",
    ),
    Stage("06", "Dispatch", "tokens find their experts", ("moe/common/layout.cuh", "moe/direct/dispatch_bulk.cu"), 2),
    Stage("07", "Combine", "and come back as one sum", ("moe/common/sums.cuh", "moe/direct/combine_pull.cu"), 1.5),
    Stage(
        "08",
        "FP8 and low latency",
        "half the bytes, small batches",
        ("device/ep/fp8.cuh", "moe/low_latency"),
        2.5,
        "those who serve models",
    ),
    Stage(
        "09",
        "The MoE layer",
        "a layer that learns and serves",
        ("moe/layer.py", "moe/autograd.py"),
        2,
        "those who train models",
    ),
    Stage(
        "10",
        "Beyond one machine",
        "nodes, and two networks at once",
        ("moe/hierarchical",),
        2,
        "those with several machines",
    ),
)
MAIN = tuple(stage for stage in STAGES if not stage.side)
DEMO_HOURS = 0.5  # the demo on the learner's own code, which ends the main path
MAIN_HOURS = sum(stage.hours for stage in MAIN) + DEMO_HOURS
MAIN_PATH = f"{', '.join(stage.notebook for stage in MAIN)}, then `ep-lib demo --mine`: {in_hours(MAIN_HOURS)}"
ROLES = {  # behind the main path
    "want to know how a kernel communicates": (),
    "serve models": ("08", "09"),
    "train models": ("09", "10"),
    "use InfiniBand or EFA between machines": ("02", "03", "10"),
    "have a network card that a GPU cannot drive": ("03", "04"),
    "have GPUs without NVLink": ("03", "05"),
    "like memory models and proofs": ("01b",),
    "want all of it": tuple(stage.notebook for stage in STAGES if stage.side),
}


def paths() -> str:
    """The paths by role, as a table in Markdown."""
    hours = {stage.notebook: stage.hours for stage in STAGES}
    lines = ["| you ... | after the main path | hours in all |", "| --- | --- | --- |"]
    for role, more in ROLES.items():
        lines.append(f"| {role} | {', '.join(more) or '-'} | {MAIN_HOURS + sum(hours[each] for each in more):g} |")
    return "\n".join(lines)


_BOX = "border:{line}; border-radius:4px; padding:0.3em 0.5em; {ink}"
_LOOKS = {  # name and style: not distinguished by colour alone
    "stands": _BOX.format(line="1px solid #009E73", ink="background:#009E731f"),
    "added here": _BOX.format(line="3px solid #0072B2", ink="background:#0072B226"),
    "comes later": _BOX.format(line="1px dashed #999999", ink="opacity:0.75"),
}


@dataclass(frozen=True)
class CourseMap:
    """The library as a row of parts, seen from one notebook."""

    here: Stage

    def _state(self, stage: Stage) -> str:
        if stage is self.here:
            return "added here"
        return "stands" if STAGES.index(stage) < STAGES.index(self.here) else "comes later"

    @property
    def pieces(self) -> tuple[str, ...]:
        """The learner's exercises at this stage, and whether they are in mine/ already."""
        try:
            root = workshop_root()
            found = [exercises.find(name, root) for name in exercises.names(root)]
        except EpError:  # a library without a workshop
            return ()
        mine = [(each, (root / "mine" / each.name).is_dir()) for each in found if self.here.has(each.name)]
        return tuple(
            f"{each.name}: {each.title}" + (f" (begun, in mine/{each.name})" if is_begun else "")
            for each, is_begun in mine
        )

    def __repr__(self) -> str:
        lines = [f"ep_lib, seen from notebook {self.here.notebook}:"]
        for stage in STAGES:
            mark = {"stands": "#", "added here": ">", "comes later": "."}[self._state(stage)]
            side = "" if stage in MAIN else ", a side path"
            lines.append(f"  {mark} {stage.notebook} {stage.title}{side}: {stage.words} ({', '.join(stage.files)})")
        lines.append("  # stands, > added here, . comes later")
        lines.append(f"  the main path: {MAIN_PATH}")
        return "\n".join([*lines, *(f"  your piece: {piece}" for piece in self.pieces)])

    def _repr_html_(self) -> Markup:
        columns = "repeat(auto-fill, minmax(14em, 1fr))"  # wide enough for the names of files
        grid = Markup('<div style="display:grid; grid-template-columns:{}; gap:0.4em">{}</div>')
        row = grid.format(columns, Markup().join(self._box(stage) for stage in STAGES))
        shown = Markup('<div role="img" aria-label="{}">{}</div>').format(repr(self), row)
        named = (piece.partition(": ") for piece in self.pieces)
        pieces = Markup().join(Markup("<li><code>{}</code>: {}</li>").format(name, title) for name, _, title in named)
        mine = Markup('<div style="margin-top:0.4em">Your pieces here:<ul style="margin:0">{}</ul></div>')
        main = Markup('<div style="margin-top:0.4em">★ The main path: {}</div>').format(MAIN_PATH.replace("`", ""))
        return shown + main + (mine.format(pieces) if pieces else "")

    def _box(self, stage: Stage) -> Markup:
        state = self._state(stage)
        files = Markup("<br>").join(escape(file).replace("/", Markup("/<wbr>")) for file in stage.files)
        return Markup(
            '<div style="{}; font-size:85%"><b>{}{} {}</b><br>{}'
            '<div style="{}font-size:10px; overflow-wrap:anywhere">{}</div><i>{}{}</i></div>'
        ).format(
            _LOOKS[state],
            "★ " if stage in MAIN else "",
            stage.notebook,
            stage.title,
            stage.words,
            CODE,
            files,
            state,
            "" if stage in MAIN else ", a side path",
        )


def course_map(notebook: str) -> CourseMap:
    """The map at the head of a notebook ("01"). Raises ArgumentError for an unknown number."""
    wanted = text("a notebook's number", notebook).strip()
    for stage in STAGES:
        if stage.notebook == wanted:
            return CourseMap(stage)
    raise ArgumentError(f"there is no notebook {wanted!r}; there are: {', '.join(s.notebook for s in STAGES)}")
