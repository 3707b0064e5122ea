"""A run of a language model with its experts spread over ranks, as plain data; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LOSS_TOLERANCE = 1e-4  # nats per byte; float32 sums in another order differ by about 1e-7


@dataclass(frozen=True)
class Traffic:
    """Bytes of one direction (dispatch or combine), all MoE layers together.

    ``matrix[source][destination]`` counts the payload: rows, and for dispatch their expert numbers and weights.
    """

    matrix: tuple[tuple[int, ...], ...]

    @property
    def logical_bytes(self) -> int:
        """Bytes received, including those from the rank itself, as in most published bandwidths."""
        return sum(map(sum, self.matrix))

    @property
    def wire_bytes(self) -> int:
        """Bytes that crossed from one rank to another."""
        return self.logical_bytes - sum(row[rank] for rank, row in enumerate(self.matrix))

    def to_json(self) -> dict[str, Any]:
        return {
            "logical_bytes": self.logical_bytes,
            "wire_bytes": self.wire_bytes,
            "matrix": [list(row) for row in self.matrix],
        }


@dataclass(frozen=True)
class SpreadRun:
    """Held-out text through the model with its experts on ``ranks`` ranks.

    ``loss`` is the mean next-byte cross-entropy in nats, ``load`` the tokens of ``[layer][expert]``, ``misplaced`` the
    number of surplus and missing rows and choices, over all ranks, experts and layers. ``moe_seconds`` is the time in
    dispatch, experts and combine, ``seconds`` that of the whole run, the start of the ranks included.
    """

    ranks: int
    backend: str
    dtype: str
    tokens: int
    loss_local: float
    loss: float
    load: tuple[tuple[int, ...], ...]
    misplaced: int
    dispatch: Traffic
    combine: Traffic
    moe_seconds: float
    seconds: float
    tolerance: float = LOSS_TOLERANCE
    way: str = "direct"  # one of spread.WAYS
    carried: tuple[tuple[str, dict[str, Any]], ...] = ()  # use of the learner's pieces: as text, and for programs

    @property
    def difference(self) -> float:
        return abs(self.loss - self.loss_local)

    @property
    def equal(self) -> bool:
        """The loss is equal within the tolerance, and no token is lost or doubled. NaN is not equal."""
        return self.difference <= self.tolerance and self.misplaced == 0

    def explain_difference(self) -> str:
        """Why the run does not count as equal, and where to look; empty if it is equal."""
        if self.equal:
            return ""
        where = f"{self.ranks} ranks on backend {self.backend}"
        if self.misplaced:
            found = f"dispatch lost, doubled or misplaced tokens: rows and choices are off by {self.misplaced}"
        elif not math.isfinite(self.loss):
            found = "the experts received or returned values that are not finite numbers"
        else:
            found = "every expert got as many tokens as it should, so look for wrong rows or weights, or at combine"
        return (
            f"spread over {where}, the loss is {self.loss:.6f}; with all experts in one place it is "
            f"{self.loss_local:.6f}: they differ by {self.difference:.2g}, allowed is {self.tolerance:g} ({found}). "
            "The same model, weights and text must give the same loss. Run `python -m pytest tests -k 'dispatch or "
            "combine'` to see which kernel is at fault, or another --seed to see whether it depends on timing"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "ranks": self.ranks,
            "backend": self.backend,
            "dtype": self.dtype,
            "way": self.way,
            "carried": [data for _, data in self.carried],
            "tokens": self.tokens,
            "loss_local": finite(self.loss_local),
            "loss_spread": finite(self.loss),
            "difference": finite(self.difference),
            "tolerance": self.tolerance,
            "equal": self.equal,
            "misplaced": self.misplaced,
            "load_per_expert": [list(layer) for layer in self.load],
            "dispatch": self.dispatch.to_json(),
            "combine": self.combine.to_json(),
            "moe_seconds": self.moe_seconds,
            "seconds": self.seconds,
        }


def problems_of(runs: Sequence[SpreadRun]) -> tuple[str, ...]:
    """One explanation for every run that is not equal."""
    return tuple(run.explain_difference() for run in runs if not run.equal)


def finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON lacks."""
    return value if math.isfinite(value) else None
