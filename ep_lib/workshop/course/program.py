"""The learner's program so far (``workshop.my_program()``): tokens go to their experts and back on the learner's
pieces, and a picture shows the learner's pieces on the main path and their use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from ep_lib import reference
from ep_lib.moe.buffer import Buffer
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn
from ep_lib.workshop.course.course_map import MAIN, STAGES, Stage
from ep_lib.workshop.course.mine import Carried, Held, Mine, Piece, find_pieces, names_aside
from ep_lib.workshop.exercises import ON_GPUS

RANKS, TOKENS = 4, 32  # on each rank
_EXPERTS, _TOP_K, _HIDDEN = 8, 2, 32
_YOURS = "border:3px solid #009E73; background:#009E731f"
_LIBRARYS = "border:1px dashed #999999; opacity:0.8"


def _stage_of(piece: Piece) -> Stage:
    return next(stage for stage in STAGES if stage.has(piece.exercise.name))


def _batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [RANKS, TOKENS, hidden], expert ids and weights [RANKS, TOKENS, top_k]."""
    rng = np.random.default_rng(1)
    ids = np.argsort(rng.random((RANKS, TOKENS, _EXPERTS)), axis=2)[:, :, :_TOP_K]
    x = rng.standard_normal((RANKS, TOKENS, _HIDDEN)).astype(np.float32)
    return x, ids, rng.random((RANKS, TOKENS, _TOP_K)).astype(np.float32)


def _there_and_back(rank: Rank) -> np.ndarray:
    x, ids, weights = (rank.to_device(each[rank.rank]) for each in _batch())
    with Buffer(rank, num_experts=_EXPERTS, top_k=_TOP_K, hidden=_HIDDEN, max_tokens=TOKENS, dtype="float32") as buffer:
        recv = buffer.dispatch(x, ids, weights)
        back: np.ndarray = rank.to_host(buffer.combine(recv.x, recv.handle, weights))
        return back


def _is_right() -> bool:
    x, ids, weights = (list(each) for each in _batch())
    received = reference.dispatch(x, ids, weights, num_experts=_EXPERTS)
    wanted = reference.combine([each.x for each in received], ids, weights, num_experts=_EXPERTS)
    found = spawn(_there_and_back, RANKS, "emulator")
    return all(np.array_equal(got, want) for got, want in zip(found, wanted, strict=True))


@dataclass(frozen=True)
class Program:
    """A run of the program: ``pieces`` of the main path, their use (``carried``), whether the result was ``right``, and
    the learner's pieces ``aside`` of the path. Displays itself in a notebook."""

    pieces: tuple[Piece, ...]
    carried: tuple[Carried, ...]
    right: Held
    aside: tuple[str, ...]

    @property
    def head(self) -> str:
        """The number of the learner's pieces, in words."""
        yours = sum(piece.is_mine for piece in self.pieces)
        return f"Your program so far: {yours} of the {len(self.pieces)} pieces of the main path are yours"

    def words(self, piece: Piece) -> str:
        """The use of a piece, or why it is the library's."""
        for each in self.carried:
            if each.piece == piece:
                return str(each)
        return f"the library's ({piece.stands_in})"

    @property
    def ends(self) -> list[str]:
        """The outcome, and the pieces beside the path."""
        run = f"{RANKS * TOKENS} tokens went to their experts on {RANKS} ranks and came back"
        lines = [f"{run}: {'every bit is right' if self.right else f'wrong. {self.right.why}'}"]
        lines += [f"yours as well, and not on this path: {', '.join(self.aside)}"] if self.aside else []
        return [*lines, f"A language model runs on them: ep-lib demo --mine (on two GPUs: {ON_GPUS})"]

    def __repr__(self) -> str:
        lines = [self.head]
        for piece in self.pieces:
            mark = "#" if piece.is_mine else "."
            lines.append(f"  {mark} {_stage_of(piece).notebook} {piece.words.piece}: {self.words(piece)}")
        return "\n".join([*lines, *self.ends])

    def _repr_html_(self) -> Markup:
        box = Markup(
            '<div style="{}; border-radius:4px; padding:0.3em 0.5em; font-size:85%; overflow-wrap:anywhere">'
            "{} <b>{}</b><br>{}</div>"
        )
        boxes = Markup().join(
            box.format(
                _YOURS if piece.is_mine else _LIBRARYS, _stage_of(piece).notebook, piece.words.piece, self.words(piece)
            )
            for piece in self.pieces
        )
        columns = "display:grid; grid-template-columns:repeat(auto-fit, minmax(9.5em, 1fr)); gap:0.4em; margin:0.4em 0"
        row = Markup('<div role="img" aria-label="{}" style="{}">{}</div>').format(repr(self), columns, boxes)
        ends = Markup("<br>").join(self.ends)
        return Markup("<div><b>{}</b>{}{}</div>").format(self.head, row, ends)


def my_program(mine: Path | str | None = None) -> Program:
    """See :func:`ep_lib.workshop.my_program`."""
    with Mine(find_pieces(mine)) as own:
        right = own.holds(_is_right)
        on_path = tuple(piece for piece in own.pieces if _stage_of(piece) in MAIN)
        return Program(on_path, own.carried(), right, names_aside(own.pieces, on_path))
