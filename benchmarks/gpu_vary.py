"""Calls that differ, as a program's do: other routing, and another number of tokens, in every call; all libraries.

    python benchmarks/gpu_vary.py [--ranks 2] [--libraries ep_lib,nccl] [--tokens 128,1000,4096] [--json FILE]
        [--kinds counted,step,layers] [--deep-ep-v1 FOLDER] [--deep-ep-v2 FOLDER --nccl FOLDER]

A library that has seen one shape knows its sizes; a training step or a server's batch has others. Measured are

- counted: an FP8 dispatch that gets only the experts of each token;
- step: a counted BF16 dispatch, a combine, a dispatch by the same handle, a combine;
- layers: 8 of these, first all that is forward, then backward from the last to the first; until a layer's backward,
  its rows are held;

each with "one shape" (the same routing in every call), with "routing" (a fresh one in each, --tokens tokens) and with
"routing and tokens" (T/2 to T tokens as well, another number on each rank). All is drawn on the device beforehand.
The first calls are checked, with everything that they returned; then --calls calls (layers: an eighth) back to back are
timed by the wall, host included: microseconds per call, the median of 5 rounds of the slowest rank. "host" is how long
a call took to return. Libraries, their processes and options are those of gpu_compare.py; the NCCL and torch of here
count as well, with torch's operations. --backend emulator tries the script on small sizes: its times mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gpu_inputs
from gpu_compare import numbers, parsed, parser_of, queued, run
from gpu_inputs import ROUTINGS, SETS, Shape
from gpu_libraries import OWNED, Case, Library
from gpu_pace import ROUNDS
from gpu_rows import Rows

import ep_lib

LAYERS = 8
CHECKED = 3  # calls
CHANGES = ("one shape", "routing", "routing and tokens")
Right = Callable[[bool], None]


class Given(NamedTuple):
    """What one layer of one call gets, and which rows these are."""

    rows: dict[str, Any]  # by dtype
    gradient: Any
    idx: Any
    weights: Any
    turn: int
    sets: tuple[int, int]  # of rows, and of gradient


class Draws:
    """Inputs of one size and way of routing: ``number`` routings, on the device before anything is timed."""

    def __init__(self, rank: ep_lib.Rank, shape: Shape, routing: str, number: int) -> None:
        self._case = functools.partial(Case, rank, shape, routing)
        self.shape, self.first = shape, self._case()
        me, device = rank.rank, self.first.device
        self._idx = [gpu_inputs.routing(shape, me, routing, device, turn) for turn in range(number)]
        self._rows = {dtype: list(self.first.sets(dtype)) for dtype in ("fp8", "bf16")}

    def given(self, number: int, change: str) -> Given:
        """What layer ``number`` of all calls gets."""
        turn = number if change != CHANGES[0] else 0
        n = gpu_inputs.tokens_of(self.shape, self.first.me, turn) if change == CHANGES[2] else self.shape.tokens
        (x, scales), rows = self._rows["fp8"][number % SETS], self._rows["bf16"]
        here, other = number % SETS, (number + 1) % SETS
        by_dtype = {"fp8": (x[:n], scales[:n]), "bf16": rows[here][:n]}
        return Given(by_dtype, rows[other][:n], self._idx[turn][:n], self.first.weights[:n], turn, (here, other))

    def case(self, given: Given, change: str) -> Case:
        """What has to come out of it."""
        return self._case(given.turn, change == CHANGES[2])


def counted(library: Library, several: Sequence[Given], look: Callable[..., None] | None = None) -> None:
    """One FP8 dispatch."""
    for given in several:
        result = library.counted(given.rows["fp8"], given.idx, given.weights)
        if look:
            look(given, *result)


def layers(library: Library, several: Sequence[Given], look: Callable[..., None] | None = None) -> None:
    """A layer for each of ``several``: all forward, then all backward."""
    held = []
    for given in several:
        rows, came = library.counted(given.rows["bf16"], given.idx, given.weights)
        held.append((given, rows, came, library.summed(rows, came)))
    while held:
        given, rows, came, out = held.pop()
        gradient = library.again(given.gradient, came)
        back = library.summed(gradient, came)
        if look:
            look(given, rows, came, out, gradient, back)


class Kind(NamedTuple):
    call: Callable[..., None]
    dtype: str
    layers: int


KINDS = {"counted": Kind(counted, "fp8", 1), "step": Kind(layers, "bf16", 1), "layers": Kind(layers, "bf16", LAYERS)}


def checked(library: Library, draws: Draws, kind: Kind, change: str) -> bool:
    """Whether everything is right that the first calls return."""
    right = True

    def look(given: Given, rows: Any, came: Any, out: Any = None, gradient: Any = None, back: Any = None) -> None:
        nonlocal right
        case, (here, other) = draws.case(given, change), given.sets
        places = library.places(case, came)
        right &= case.arrived(rows, *places, here)
        if out is not None:
            right &= case.combined(out, here) and case.combined(back, other)
            right &= case.arrived(gradient, *places, other)

    for call in range(CHECKED):
        several = [draws.given(call * kind.layers + layer, change) for layer in range(kind.layers)]
        kind.call(library, several, look)
    return right


def calls_of(options: argparse.Namespace, what: str) -> int:
    """In each round."""
    return -(-options.calls // KINDS[what].layers)


def varied(rank: ep_lib.Rank, library: Library, options: argparse.Namespace) -> Iterator[tuple[str, Rows]]:
    """Collective: measures one library; yields the name and rows of each size and way of routing."""
    import torch

    synchronize = torch.cuda.synchronize if rank.backend == "cuda" else rank.synchronize
    for tokens in options.tokens:
        shape = Shape(options.ranks, tokens, options.hidden[0], options.experts, options.top_k)
        for routing in options.routings:
            longest = max(KINDS[what].layers * (CHECKED + (ROUNDS + 1) * calls_of(options, what)) for what in KINDS)
            draws = Draws(rank, shape, routing, longest)
            rows = Rows(rank, None, 0)
            for what in options.kinds:
                kind = KINDS[what]
                library.prepare(draws.first, kind.dtype)
                calls = calls_of(options, what)
                for change in CHANGES:
                    row = {"group": "vary", "by": library.by, "what": what, "dtype": kind.dtype, "tokens": tokens}
                    row |= {"hidden": shape.hidden, "routing": routing, "note": change, "outputs": OWNED}
                    synchronize()
                    right = checked(library, draws, kind, change)
                    rows.check(right, " ".join(str(row[key]) for key in ("by", "what", "tokens", "routing", "note")))
                    first = kind.layers * CHECKED  # the calls that were checked are not fresh any more
                    turns = []
                    for call in range(calls * (ROUNDS + 1)):
                        several = range(first + call * kind.layers, first + (call + 1) * kind.layers)
                        given = [draws.given(layer, change) for layer in several]
                        turns.append(functools.partial(kind.call, library, given))
                    times = queued(rank, turns, calls, synchronize)
                    row["samples"], row["late"] = times.pop("queued_samples"), 0
                    row["call_us"] = statistics.median(times.pop("host_samples"))
                    row |= times
                    rows.rows.append(row)
            yield f"{tokens} x {shape.hidden} {routing}", rows


def shown(report: dict[str, Any]) -> str:
    """The rows as text: wall, and host in brackets, of each way in which calls change; "*": the host was slow."""
    lines = [f"{'us per call: wall (host)':50}" + "".join(f"{change:>22}" for change in CHANGES)]
    rows = {tuple(row[key] for key in ("tokens", "what", "routing", "by", "note")): row for row in report["rows"]}
    for tokens, what, routing, by in sorted({name[:-1] for name in rows}):
        found = [rows[tokens, what, routing, by, change] for change in CHANGES]
        cells = "".join(f"{row['us']:12.1f}{'*' if 'pace' in row else ' '} ({row['call_us']:6.0f})" for row in found)
        lines.append(f"{f'{what} {tokens} {routing}, {by}':50}{cells}")
    lines += [f"not measured: {name}: {why}" for name, why in report["not_measured"].items()]
    return "\n".join([*lines, *(f"WRONG {text}" for text in report["wrong"])])


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = parser_of(str(__doc__), {"calls": 60, "turns": 2})
    parser.add_argument("--tokens", type=numbers, default="128,1000,4096", help="per rank; default %(default)s")
    parser.add_argument("--hidden", type=lambda text: [int(text)], default="7168", help="default %(default)s")
    parser.add_argument("--routings", default="random,zipf,incast", help="default %(default)s")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default %(default)s")
    return parsed(parser, {"routings": ROUTINGS, "kinds": KINDS})


if __name__ == "__main__":
    raise SystemExit(run(arguments(), varied, shown, ["kinds"]))
