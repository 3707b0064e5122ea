"""The demo's results as plain data, and its output while it runs; importable without torch and matplotlib."""

from __future__ import annotations

import dataclasses
import math
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ep_lib.workshop.lessons.moe_runs import LOSS_TOLERANCE, SpreadRun, Traffic, finite

SCHEMA = 1  # of the JSON object; increased when a field is removed or changes its meaning
_INDENT = 11
_WIDTH = 110


@dataclass(frozen=True)
class DemoReport:
    """The results of the demo. Losses are held-out next-byte cross-entropies in nats."""

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
    bfloat16: SpreadRun | None  # the last of ``spread`` repeated with bfloat16 activations: fewer bytes, other rounding
    picture: Path
    sample: str
    seconds: float
    problems: tuple[str, ...] = field(default=())
    mine: tuple[dict[str, Any], ...] | None = None  # with --mine: the pieces that ran
    aside: tuple[str, ...] = ()  # with --mine: the learner's pieces beside the path of tokens
    routed: int = 0  # tokens that the router sent to experts in training, over all layers

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """One object of plain JSON types."""
        plain = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in {"spread", "bfloat16"}
        }
        plain["loss_untrained"], plain["loss_local"] = finite(self.loss_untrained), finite(self.loss_local)
        plain["picture"] = str(self.picture)
        plain["mine"] = None if self.mine is None else list(self.mine)
        plain["spread"] = [run.to_json() for run in self.spread]
        plain["bfloat16"] = self.bfloat16.to_json() if self.bfloat16 else None
        return {"schema": SCHEMA, "ok": self.ok, **plain}


# ---- listeners of a run ----------------------------------------------------------------------------------------------
class Listener:
    """Receives the events of a running demo; the base class ignores them."""

    def prepared(self, report: DemoReport, ranks: Sequence[int]) -> None:
        """Called when text, model and plan are known; fields for results are still empty."""

    def trained_step(self, step: int, steps: int, loss: float) -> None:
        """Called after every training step."""

    def trained(self, report: DemoReport) -> None:
        """Called after training and the local evaluation."""

    def mine(self, report: DemoReport) -> None:
        """Called with --mine, before the first run: the pieces in use."""

    def spreading(self, done: int, parts: int) -> None:
        """Called during a run with spread experts, if progress is known: first with 0, last with all ``parts``."""

    def spread(self, run: SpreadRun) -> None:
        """Called after each run with spread experts."""

    def finished(self, report: DemoReport) -> None:
        """Called at the end, also if the run found problems."""


_WAYS = {"direct": "direct writes", "pcie": "PCIe mode over EFA (srd)", "low latency": "low-latency mode"}


class Console(Listener):
    """Prints as results arrive; the progress bar goes to stderr, if that is a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._load: tuple[tuple[int, ...], ...] = ()  # as last printed

    def prepared(self, report: DemoReport, ranks: Sequence[int]) -> None:
        model = report.model
        _say(
            "Text",
            f"Python {sys.version_info.major}.{sys.version_info.minor}'s help topics: {report.train_bytes:,} bytes to "
            f"train on, {report.held_out_bytes:,} held out ({', '.join(report.held_out_topics[:4])}, ...)",
        )
        _say(
            "Model",
            f"{report.parameters:,} weights, byte by byte, {model['layers']} MoE layers, top-{model['top_k']} of "
            f"{model['num_experts']} experts each, hidden {model['hidden']}",
        )
        _say("Plan", f"{report.steps} training steps, then {in_words(ranks)} ranks on backend {report.backend}")
        self._bar = tqdm(total=report.steps, desc="Training", unit="step", disable=None, leave=False, ncols=_WIDTH)

    def trained_step(self, step: int, steps: int, loss: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            self._bar.update()

    def trained(self, report: DemoReport) -> None:
        if self._bar is not None:
            self._bar.close()
        _say(
            "Training",
            f"{report.train_seconds:.1f} s; held-out loss {report.loss_untrained:.3f} before, {report.loss_local:.3f} "
            f"nats per byte after ({report.loss_local / math.log(2):.2f} bits)",
        )

    def mine(self, report: DemoReport) -> None:
        _say("")
        for piece in report.mine or ():
            if piece["mine"]:
                _say("Yours", f"{piece['piece']}: {', '.join(piece['files'])}")
                if piece["exercise"] == "09_router":
                    _say("", f"{report.routed:,} tokens went through your router in training")
            else:
                _say("Library's", f"{piece['piece']} ({piece['why_not']})")
        if report.aside:
            _say(
                "Yours too",
                f"{', '.join(report.aside)}; counted nowhere on this path (workshop.my_program() shows more)",
            )

    def spreading(self, done: int, parts: int) -> None:
        if self._bar is not None and done:
            self._bar.update()
        if self._bar is not None and done in (0, parts):
            self._bar.close()
        if done == 0:
            self._bar = tqdm(total=parts, desc="Running", unit="part", disable=None, leave=False, ncols=_WIDTH)

    def spread(self, run: SpreadRun) -> None:
        _say("")
        how = f"{run.backend}, {_WAYS[run.way]}, activations travel as {run.dtype}"
        _say(f"{run.ranks} rank{'s' if run.ranks > 1 else ''}", how)
        is_compared = run.dtype == "float32" or run.tolerance == LOSS_TOLERANCE
        verdict = ("equal" if is_compared else "close") if run.equal else "NOT EQUAL"
        for line, _ in run.carried:
            _say("  yours", line)
        measure = "the library's pieces" if run.way == "low latency" else "local"
        _say(
            "  loss",
            f"{measure} {run.loss_local:.6f}, spread {run.loss:.6f}: {verdict} "
            f"(difference {run.difference:.1e}, allowed {run.tolerance:.0e})",
        )
        _say("  dispatch", _traffic(run.dispatch))
        _say("  combine", _traffic(run.combine))
        if run.load == self._load:
            _say("  load", "as above")
        else:
            self._load = run.load
            for layer, load in enumerate(run.load):
                mean = sum(load) / len(load)
                title = "  load" if layer == 0 else ""
                counts = " ".join(map(str, load))
                _say(title, f"layer {layer + 1}, tokens of experts 0 to {len(load) - 1}: {counts}")
                _say("", f"  busiest {max(load) / mean:.2f}x, idlest {min(load) / mean:.2f}x of an even share")
        _say(
            "  time",
            f"{run.seconds:.2f} s for {run.tokens:,} tokens, {run.moe_seconds:.2f} s of it in the MoE layers"
            + (" (emulated: this says nothing about a GPU's time)" if run.backend == "emulator" else ""),
        )

    def finished(self, report: DemoReport) -> None:
        _say("")
        _say("Sample", " ".join(report.sample.split()))
        _say("Picture", str(report.picture))
        _say("Total", f"{report.seconds:.1f} s")


def _traffic(traffic: Traffic) -> str:
    return f"{traffic.wire_bytes:,} bytes crossed ranks; {traffic.logical_bytes:,} received, own rows included"


def in_words(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def _say(title: str, text: str = "") -> None:
    head = title.ljust(_INDENT)
    print(textwrap.fill(head + text, _WIDTH, subsequent_indent=" " * _INDENT).rstrip(), flush=True)
