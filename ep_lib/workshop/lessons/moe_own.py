"""The trained language model on the learner's own pieces, and the search for a faulty one (``ep-lib demo --mine``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ep_lib.errors import EpError
from ep_lib.moe import routing as library_router
from ep_lib.moe.routing import Router, Routing
from ep_lib.workshop.course.mine import Mine, Piece, find_pieces, whose_mistake
from ep_lib.workshop.exercises import ROUTER
from ep_lib.workshop.lessons.moe_model import ByteMoE, Bytes
from ep_lib.workshop.lessons.moe_runs import SpreadRun
from ep_lib.workshop.lessons.moe_spread import WAYS, OnPart, run_spread

_LOW_LATENCY_WINDOWS = 8  # per rank: 1,024 tokens, the most for low-latency mode


def pieces_of_a_model(mine: Path | str | None = None) -> tuple[Piece, ...]:
    """The pieces that a model needs: its router, and pieces on the path of its tokens."""
    return tuple(piece for piece in find_pieces(mine) if piece.exercise.is_of_a_model)


class CountedRouter:
    """A router that counts its tokens."""

    def __init__(self, router: Router) -> None:
        self._router, self.tokens = router, 0

    def route(self, logits: Tensor, top_k: int) -> Routing:
        self.tokens += len(logits)
        return self._router.route(logits, top_k)

    def load_balancing_loss(self, routing: Routing) -> Tensor:
        return self._router.load_balancing_loss(routing)


def router_of(found: Sequence[Piece]) -> CountedRouter:
    """The learner's router if it is complete, else the library's. Raises GradingError if theirs cannot be imported."""
    with Mine(tuple(found)) as mine:
        return CountedRouter(mine.module(ROUTER, library_router))


def run_ways(
    model: ByteMoE,
    data: Bytes,
    found: Sequence[Piece],
    on_run: Callable[[SpreadRun], None] = lambda run: None,
    *,
    on_part: OnPart | None = None,
    ranks: int,
    backend: str,
    seed: int,
    loss_local: float,
) -> tuple[list[SpreadRun], list[str]]:
    """Run ``data`` once in each of WAYS with the learner's pieces, and count their use.

    Returns the runs, and at least one sentence for each failed one. Float32 is compared with ``loss_local``. Low-
    latency mode carries bfloat16, so its reference is the same run with the library's pieces.
    """
    runs: list[SpreadRun] = []
    problems: list[str] = []
    for way in WAYS:
        trial = _Way(model, data, ranks, backend, seed, way, loss_local, on_part)
        if trial.is_small:
            trial = replace(trial, expected=trial.run(()).loss)
        try:
            done = trial.run(found)
        except EpError as error:
            problems.append(_blame(trial, str(error), found))
            continue
        runs.append(done)
        on_run(done)
        if not done.equal:
            problems.append(_blame(trial, done.explain_difference(), found))
    return runs, problems


def ways_in_words(runs: Sequence[SpreadRun], pieces: Sequence[Piece]) -> list[str]:
    """Lines: the loss of each run with what the learner's pieces carried, and the pieces that are the library's."""
    indented = "\n" + 14 * " "
    losses = [f"{run.way:12} loss {run.loss:.6f}, should be {run.loss_local:.6f}" for run in runs]
    told = [indented.join([loss, *(line for line, _ in run.carried)]) for loss, run in zip(losses, runs, strict=True)]
    return told + [f"the library's {each.words.piece}: {each.stands_in}" for each in pieces if not each.is_mine]


@dataclass(frozen=True)
class _Way:
    """One of WAYS, to run with different sets of pieces."""

    model: ByteMoE
    data: Bytes
    ranks: int
    backend: str
    seed: int
    way: str
    expected: float  # loss
    on_part: OnPart | None

    @property
    def is_small(self) -> bool:
        return self.way == "low latency"

    def run(self, pieces: Sequence[Piece]) -> SpreadRun:
        with Mine(tuple(pieces)) as mine:
            done = run_spread(
                self.model,
                self.data[: _LOW_LATENCY_WINDOWS * self.ranks] if self.is_small else self.data,
                ranks=self.ranks,
                backend=self.backend,
                seed=self.seed,
                loss_local=self.expected,
                dtype_name="bfloat16" if self.is_small else "float32",
                way=self.way,
                on_part=self.on_part,
            )
            carried = [each for each in mine.carried() if each.amount]
        return replace(done, carried=tuple((str(each), each.to_json()) for each in carried))

    def is_right(self, pieces: Sequence[Piece]) -> bool:
        try:
            return self.run(pieces).equal
        except EpError:
            return False


def _blame(trial: _Way, wrong: str, found: Sequence[Piece]) -> str:
    """Describes the failure, and whose code caused it."""
    return f"{trial.way}: {wrong}\n{whose_mistake(found, trial.is_right)}"
