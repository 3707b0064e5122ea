"""The demo's picture: the ranks that computed each byte of held-out text, the load of every expert, and the bytes
between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import viz
from ep_lib.errors import ArgumentError
from ep_lib.moe.routing import Routing
from ep_lib.workshop.lessons.moe_model import Bytes
from ep_lib.workshop.lessons.moe_runs import SpreadRun

_COLUMNS = 64
_WIDTH_INCHES = 15.0
_TEXT_INCHES = 1.05  # of a layer's panel of text
_LOAD_INCHES = 2.5
_TRAFFIC_INCHES = 4.3
_MOST_MATRICES = 3


def draw_routing(data: Bytes, routings: Sequence[Routing], runs: Sequence[SpreadRun], *, seed: int) -> viz.Picture:
    """One picture of ``runs``; the text panels show the ranks of the last of them.

    ``data`` uint8 ``[sequences, context + 1]`` with one of ``routings`` per layer, for all its tokens.
    """
    run = runs[-1]
    num_experts = len(run.load[0])
    layers = len(run.load)
    heights = [_TEXT_INCHES * layers, _LOAD_INCHES, _TRAFFIC_INCHES]
    picture = viz.new_picture(_WIDTH_INCHES, sum(heights) + 0.9)
    picture.suptitle(
        f"Held-out text through {num_experts} experts on {run.ranks} ranks ({run.backend}, seed {seed}): "
        f"loss {run.loss:.4f}, local {run.loss_local:.4f} nats a byte",
        fontsize=13,
    )
    text_part, load_part, traffic_part = np.asarray(picture.subfigures(3, 1, height_ratios=heights))
    _text_panels(text_part, data, routings, run)
    for layer, axes in enumerate(np.atleast_1d(load_part.subplots(1, layers))):
        viz.load_per_expert(run.load[layer], ranks=run.ranks, title=f"MoE layer {layer + 1}: load", axes=axes)
        axes.set_ylim(0, 1.12 * max(map(max, run.load)))  # one scale for all layers
    shown = runs[-_MOST_MATRICES:]
    for panel, axes in zip(shown, np.atleast_1d(traffic_part.subplots(1, len(shown))), strict=True):
        matrix = np.array(panel.dispatch.matrix) + np.array(panel.combine.matrix)
        viz.bytes_between_ranks(matrix, title=f"{panel.ranks} ranks: dispatch and combine", axes=axes)
    viz.rank_legend(picture, run.ranks)
    return picture


def save(picture: viz.Picture, path: Path) -> None:
    """Writes a PNG. Raises ArgumentError if that is not possible."""
    try:
        picture.savefig(path)
    except OSError as error:
        raise ArgumentError(
            f"cannot write the picture {path}: {error.strerror or error}; choose another --out"
        ) from error


def _text_panels(part: Any, data: Bytes, routings: Sequence[Routing], run: SpreadRun) -> None:
    experts_per_rank = len(run.load[0]) // run.ranks
    first, text = _excerpt(data)
    panels = np.atleast_1d(part.subplots(len(routings), 1))
    for layer, (axes, routing) in enumerate(zip(panels, routings, strict=True)):
        choice = routing.topk_idx[first : first + len(text), 0].numpy() // experts_per_rank
        title = f"MoE layer {layer + 1}: the rank of each byte's first expert"
        viz.routed_text(text, choice, columns=min(_COLUMNS, len(text)), title=title, axes=axes)


def _excerpt(data: Bytes) -> tuple[int, bytes]:
    """(number of its first token, bytes) of the window with the most letters, since prose is more readable than
    tables."""
    inputs = data[:, :-1]
    is_letter = np.isin(inputs | 0x20, np.arange(ord("a"), ord("z") + 1))
    window = int(is_letter.sum(axis=1).argmax())
    return window * inputs.shape[1], inputs[window].tobytes()
