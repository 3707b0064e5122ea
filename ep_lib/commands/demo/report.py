"""What the demo was asked to do and what it found: plain data, importable without torch and matplotlib."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOSS_TOLERANCE = 1e-4  # nats a byte; float32 sums in another order differ by about 1e-7
SCHEMA = 1  # of the JSON object; grows when a field changes its meaning or goes


@dataclass(frozen=True)
class Traffic:
    """Bytes of one direction (dispatch or combine), all MoE layers together.

    ``matrix[source][destination]`` counts the payload: rows, and for dispatch their expert numbers and weights.
    """

    matrix: tuple[tuple[int, ...], ...]

    @property
    def logical_bytes(self) -> int:
        """Bytes received, those from the rank itself included: what most published bandwidths count."""
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

    ``loss`` is the mean next-byte cross-entropy in nats; ``load`` the tokens of ``[layer][expert]``; ``misplaced`` by
    how much the rows and choices that arrived differ from those the router chose, over all ranks, experts and layers.
    ``moe_seconds`` is the time in dispatch, experts and combine; ``seconds`` the whole run with the ranks' start.
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

    @property
    def difference(self) -> float:
        return abs(self.loss - self.loss_local)

    @property
    def equal(self) -> bool:
        """Loss equal within the tolerance, and no token lost or doubled. NaN is not equal."""
        return self.difference <= self.tolerance and self.misplaced == 0

    def explain_difference(self) -> str:
        """Why the run does not count as equal, and where to look; empty when it does."""
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
            f"spread over {where} the loss is {self.loss:.6f}, with all experts in one place it is "
            f"{self.loss_local:.6f}: they differ by {self.difference:.2g}, allowed is {self.tolerance:g} ({found}). "
            "The same model, weights and text must give the same loss. Run `python -m pytest tests -k 'dispatch or "
            "combine'` to see which kernel is at fault, or another --seed to see whether it depends on timing"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "ranks": self.ranks,
            "backend": self.backend,
            "dtype": self.dtype,
            "tokens": self.tokens,
            "loss_local": _finite(self.loss_local),
            "loss_spread": _finite(self.loss),
            "difference": _finite(self.difference),
            "tolerance": self.tolerance,
            "equal": self.equal,
            "misplaced": self.misplaced,
            "load_per_expert": [list(layer) for layer in self.load],
            "dispatch": self.dispatch.to_json(),
            "combine": self.combine.to_json(),
            "moe_seconds": self.moe_seconds,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class DemoReport:
    """All that the demo found. Losses are held-out next-byte cross-entropies in nats."""

    backend: str
    seed: int
    steps: int
    model: dict[str, int]
    parameters: int
    train_bytes: int
    held_out_bytes: int
    held_out_topics: tuple[str, ...]
    loss_untrained: float
    loss_local: float
    train_seconds: float
    spread: tuple[SpreadRun, ...]
    bfloat16: SpreadRun | None  # the last of ``spread`` again with bfloat16 activations: fewer bytes, another rounding
    picture: Path
    sample: str
    seconds: float
    problems: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """One object of plain JSON types."""
        plain = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in {"spread", "bfloat16"}
        }
        plain["loss_untrained"], plain["loss_local"] = _finite(self.loss_untrained), _finite(self.loss_local)
        plain["picture"] = str(self.picture)
        plain["spread"] = [run.to_json() for run in self.spread]
        plain["bfloat16"] = self.bfloat16.to_json() if self.bfloat16 else None
        return {"schema": SCHEMA, "ok": self.ok, **plain}


def problems_of(runs: Sequence[SpreadRun]) -> tuple[str, ...]:
    """One explanation for every run that is not equal."""
    return tuple(run.explain_difference() for run in runs if not run.equal)


def _finite(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None
