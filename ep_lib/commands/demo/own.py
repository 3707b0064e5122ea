"""``ep-lib demo --mine``: the trained model on the learner's own pieces, and which of them is at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ep_lib.commands.demo.model import ByteMoE, Bytes
from ep_lib.commands.demo.report import Listener, SpreadRun
from ep_lib.commands.demo.spread import WAYS, run_spread
from ep_lib.errors import EpError
from ep_lib.workshop.mine import Mine, Piece

_LOW_LATENCY_WINDOWS = 8  # per rank: 1,024 tokens, the most that low-latency mode takes


def run_ways(
    model: ByteMoE,
    data: Bytes,
    found: Sequence[Piece],
    listener: Listener,
    *,
    ranks: int,
    backend: str,
    seed: int,
    loss_local: float,
) -> tuple[list[SpreadRun], list[str]]:
    """Run ``data`` once in each of WAYS with the pieces that are the learner's, and tell what went through them.

    Returns the runs, and a sentence or more for each that went wrong. Float32 is compared with ``loss_local``. Low-
    latency mode carries bfloat16, so there the measure is the same run with the library's pieces.
    """
    runs: list[SpreadRun] = []
    problems: list[str] = []
    for way in WAYS:
        trial = _Way(model, data, ranks, backend, seed, way, loss_local)
        if trial.is_small:
            trial = replace(trial, expected=trial.run(()).loss)
        try:
            done = trial.run(found)
        except EpError as error:
            problems.append(_blame(trial, str(error), found))
            continue
        runs.append(done)
        listener.spread(done)
        if not done.equal:
            problems.append(_blame(trial, done.explain_difference(), found))
    return runs, problems


@dataclass(frozen=True)
class _Way:
    """One of WAYS, to be run with these pieces and those."""

    model: ByteMoE
    data: Bytes
    ranks: int
    backend: str
    seed: int
    way: str
    expected: float  # loss

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
            )
            carried = [each for each in mine.carried() if each.amount]
        return replace(done, carried=tuple((str(each), each.to_json()) for each in carried))

    def is_right(self, pieces: Sequence[Piece]) -> bool:
        try:
            return self.run(pieces).equal
        except EpError:
            return False


def _blame(trial: _Way, wrong: str, found: Sequence[Piece]) -> str:
    """What went wrong, and whose code it is: the library's pieces are tried, then each of the learner's alone."""
    wrong = f"{trial.way}: {wrong}"
    if not trial.is_right(()):
        return f"{wrong}\nWith the library's pieces alone it is wrong as well: this is not your mistake"
    guilty = [piece for piece in found if piece.is_mine and not trial.is_right((piece,))]
    if not guilty:
        return f"{wrong}\nEach of your pieces works beside the library's; it is wrong only with all of them"
    files = ", ".join(str(file) for piece in guilty for file in piece.files)
    tests = ", ".join(f"`ep-lib grade {piece.exercise.short_name}`" for piece in guilty)
    return f"{wrong}\nWith the library's pieces it is right. The mistake is in {files}; {tests} says more"
