"""What ``ep-lib demo`` prints for people."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from ep_lib.commands.demo import Listener
from ep_lib.commands.demo.report import DemoReport, SpreadRun, Traffic

_INDENT = 11
_WIDTH = 110


class Console(Listener):
    """Prints as results arrive; the progress bar goes to stderr and only to a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._load: tuple[tuple[int, ...], ...] = ()  # as printed last

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
        _say("Plan", f"{report.steps} training steps, then {_ranks(ranks)} ranks on backend {report.backend}")
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
            f"nats a byte after ({report.loss_local / math.log(2):.2f} bits)",
        )

    def spread(self, run: SpreadRun) -> None:
        _say("")
        _say(f"{run.ranks} rank{'s' if run.ranks > 1 else ''}", f"{run.backend}, activations travel as {run.dtype}")
        verdict = ("equal" if run.dtype == "float32" else "close") if run.equal else "NOT EQUAL"
        _say(
            "  loss",
            f"local {run.loss_local:.6f}, spread {run.loss:.6f}: {verdict} "
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
            + (" (emulated: a GPU's time is something else)" if run.backend == "emulator" else ""),
        )

    def finished(self, report: DemoReport) -> None:
        _say("")
        _say("Sample", " ".join(report.sample.split()))
        _say("Picture", str(report.picture))
        _say("Total", f"{report.seconds:.1f} s")


def _traffic(traffic: Traffic) -> str:
    return f"{traffic.wire_bytes:,} bytes crossed ranks; {traffic.logical_bytes:,} received with one's own"


def _ranks(ranks: Sequence[int]) -> str:
    return " and ".join(map(str, ranks))


def _say(title: str, text: str = "") -> None:
    head = title.ljust(_INDENT)
    print(textwrap.fill(head + text, _WIDTH, subsequent_indent=" " * _INDENT).rstrip(), flush=True)
