"""Notebook 10: tokens between nodes, in one level and in two, and the traffic of hierarchical mode's NICs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib import reference, viz
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.emulator.timeline import Timeline
from ep_lib.jit.kernel import Kernel
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.moe.buffer import Buffer
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.simulate import simulate
from ep_lib.runtime.spawn import spawn
from ep_lib.workshop.course.ladders import Memory
from ep_lib.workshop.lessons import of_the_tutorial

_STRUCTS = "10_two_levels.cuh"
Wants = NDArray[np.bool_]  # [source, token, rank]


def draw_wants(ranks: int, tokens: int, top_k: int, seed: int = 0) -> Wants:
    """Every token goes to ``top_k`` experts, all with equal probability; each rank has the same number of experts."""
    rng = np.random.default_rng(seed)
    wants = np.zeros((ranks, tokens, ranks), np.bool_)
    experts = np.argsort(rng.random((ranks, tokens, 8 * ranks)), axis=2)[:, :, :top_k]
    np.put_along_axis(wants, experts // 8, True, axis=2)
    return wants


def rows_of(rank: int, tokens: int, words: int) -> NDArray[np.float32]:
    """The tokens of a rank: float32 [tokens, words]."""
    return np.random.default_rng(100 + rank).standard_normal((tokens, words), np.float32)


def by_node(wants: Wants, mates: int) -> Wants:
    """[source, token, node]: whether some rank of the node needs the token."""
    ranks, tokens, _ = wants.shape
    return np.asarray(wants.reshape(ranks, tokens, ranks // mates, mates).any(axis=3))


def crossings(wants: Wants, mates: int) -> tuple[int, int]:
    """Rows that cross between nodes: with one row for each rank that needs the token, and with one for each node."""
    ranks = len(wants)
    node = np.arange(ranks) // mates
    other_rank = node[:, None] != node[None, :]
    other_node = node[:, None] != np.arange(ranks // mates)[None, :]
    to_ranks = int((wants & other_rank[:, None, :]).sum())
    return to_ranks, int((by_node(wants, mates) & other_node[:, None, :]).sum())


def expected_sum(source: int, wants: Wants, words: int, mates: int) -> NDArray[np.float32]:
    """The oracle of combine, [tokens, words]: a node's results in order of ranks, then nodes in order, in float32. The
    result of rank r for a row is the row times r + 1."""
    tokens, ranks = wants.shape[1], wants.shape[2]
    rows, out = rows_of(source, tokens, words), np.zeros((tokens, words), np.float32)
    for token in range(tokens):
        for begin in range(0, ranks, mates):
            here = [r for r in range(begin, begin + mates) if wants[source, token, r]]
            total = np.zeros(words, np.float32)
            for r in here:
                total = total + rows[token] * np.float32(r + 1)
            if here:
                out[token] = out[token] + total
    return out


def rows_that_come(rank: int, wants: Wants, words: int) -> NDArray[np.float32]:
    """The rows that a dispatch brings to a rank, [source, token, words]; zeros where it needs none."""
    sources, tokens, _ = wants.shape
    rows = np.stack([rows_of(source, tokens, words) for source in range(sources)])
    return np.where(wants[:, :, rank, None], rows, np.float32(0))


def labels_that_come(rank: int, wants: Wants, mates: int) -> NDArray[np.uint64]:
    """The labels of the messages that its partners send to a rank, [node, message]; 0 behind the last."""
    ranks, tokens, _ = wants.shape
    labels, here = np.zeros((ranks // mates, tokens), np.uint64), rank // mates
    for node in set(range(ranks // mates)) - {here}:
        wanted = wants[node * mates + rank % mates, :, here * mates : (here + 1) * mates] @ (1 << np.arange(mates))
        crossing = np.flatnonzero(wanted)
        labels[node, : len(crossing)] = crossing << 32 | wanted[crossing]
    return labels


def one_token_picture() -> Any:
    """The paths of a token of rank 1 that three of the four ranks of another node need, in one level and in two."""
    from matplotlib.patches import Circle, Rectangle  # here: a lesson without pictures does without matplotlib

    from ep_lib.viz.style import EMPTY, INK, QUIET, ink_on

    source, needed, partner, mates = 1, (4, 6, 7), 5, 4
    ways = {
        "one level: 3 rows cross": ([(source, to) for to in needed], []),
        "two levels: 1 row crosses": ([(source, partner)], [(partner, to) for to in needed]),
    }
    at = {rank: (2.6 * (rank // mates), float(mates - 1 - rank % mates)) for rank in range(2 * mates)}
    picture = viz.new_picture(viz.NARROW, 3.0)
    for axes, (title, (crossing, handed_on)) in zip(picture.subplots(1, 2), ways.items(), strict=True):
        for node in range(2):
            left, bottom = 2.6 * node - 0.5, -0.5
            axes.add_patch(Rectangle((left, bottom), 1.0, mates, facecolor=EMPTY, edgecolor=QUIET))
            axes.text(left + 0.5, bottom - 0.4, f"node {node}", ha="center", fontsize=10)
        for rank, (x, y) in at.items():
            color = viz.rank_color(rank) if rank in (source, *needed) else "white"
            axes.add_patch(Circle((x, y), 0.28, facecolor=color, edgecolor=QUIET, zorder=2))
            axes.text(x, y, rank, ha="center", va="center", fontsize=10, color=ink_on(color), zorder=3)
        for paths, width, bend in ((crossing, 2.5, 0.0), (handed_on, 1.2, 0.75)):
            for begin, end in paths:
                bent = f"arc3,rad={-bend if end > begin else bend}"
                arrow = {"arrowstyle": "-|>", "linewidth": width, "color": INK, "connectionstyle": bent}
                axes.annotate("", at[end], at[begin], arrowprops={**arrow, "shrinkA": 9, "shrinkB": 9})
        axes.text(1.3, -0.9, "network", ha="center", fontsize=9, color=QUIET)
        if handed_on:
            axes.text(3.45, 1.35, "NVLink", fontsize=9, color=QUIET)
        axes.set(xlim=(-0.7, 4.4), ylim=(-1.2, mates - 0.3), aspect="equal")
        axes.set_axis_off()
        axes.set_title(title, loc="left", fontsize=11)
    picture.describe(
        "A token of rank 1 that ranks 4, 6 and 7 of the other node need: in one level 3 rows cross the network; in two "
        "levels 1 row crosses, to the partner, rank 5, which stores it to the three."
    )
    return picture


class Exchange:
    """The arrays of one rank, and its kernels' structs. ``dispatched``: whether the arrays start as after a dispatch
    and the experts, or empty."""

    def __init__(self, memory: Memory, wants: Wants, words: int, mates: int, dispatched: bool = False) -> None:
        rank = memory.rank
        ranks, tokens, me = rank.world_size, wants.shape[1], rank.rank
        nodes, here = ranks // mates, rank.rank // mates
        self.memory, self.rank, self.wants, self.words, self.mates = memory, rank, wants, words, mates
        self.rows = memory.symmetric(rows_of(me, tokens, words))
        came = rows_that_come(me, wants, words) * np.float32(me + 1)
        self.arrived = memory.symmetric(came if dispatched else np.zeros_like(came))
        self.own, self.out = (memory.own(np.zeros((n, words), np.float32)) for n in (1, tokens))
        signals = memory.symmetric(np.zeros(ranks, np.uint64))
        bits = (wants[me].astype(np.uint64) << np.arange(ranks, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        expects = wants[:, :, me].sum(axis=1).astype(np.int32)
        partners = np.arange(nodes) * mates + me % mates
        comes = by_node(wants, mates)[partners, :, here].sum(axis=1).astype(np.int32)
        device_bits, device_expects, device_comes = map(memory.own, (bits, expects, comes))
        arrays = {"wants": device_bits, "rows": self.rows, "arrived": self.arrived, "signals": signals}
        sizes = {"expects": device_expects, "count": tokens, "words": words, "mates": mates}
        self.tokens = of_the_tutorial(_STRUCTS, "Tokens", **arrays, **sizes)
        labels = labels_that_come(me, wants, mates) * np.uint64(dispatched)
        self.relay, self.staging, self.back = (
            of_the_tutorial(
                _STRUCTS,
                "Relay",
                rows=memory.symmetric(np.zeros((nodes, tokens, words), np.float32)),
                labels=memory.symmetric(first),
                comes=device_comes,
            )
            for first in (labels, np.zeros_like(labels), np.zeros_like(labels))
        )
        rank.barrier()

    def launch_dispatch(self, kernel: Kernel, levels: int) -> None:
        if levels == 1:
            kernel.launch(self.rank, 1, 32, self.tokens, uses=self.memory.arrays)
        else:
            kernel.launch(self.rank, 2, 32, self.tokens, self.relay, uses=self.memory.arrays)

    def launch_combine(self, kernel: Kernel) -> None:
        areas = (self.tokens, self.relay, self.staging, self.back, self.own, self.out)
        kernel.launch(self.rank, 2, 32, *areas, uses=self.memory.arrays)

    def dispatch(self, kernel: Kernel, levels: int) -> bool:
        """Dispatches; returns whether exactly the right rows arrived."""
        rank = self.rank
        self.launch_dispatch(kernel, levels)
        rank.synchronize()
        rank.barrier()
        return np.array_equal(rank.to_host(self.arrived), rows_that_come(rank.rank, self.wants, self.words))

    def combine(self, kernel: Kernel) -> bool:
        """Combines; returns whether the sums equal the oracle's, bit for bit. Each rank's experts multiply by its
        number plus 1."""
        rank = self.rank
        self.arrived[...] *= np.float32(rank.rank + 1)
        rank.barrier()
        self.launch_combine(kernel)
        rank.synchronize()
        rank.barrier()
        return np.array_equal(rank.to_host(self.out), expected_sum(rank.rank, self.wants, self.words, self.mates))


def dispatch(rank: Rank, kernel: Kernel, wants: Wants, mates: int, words: int = 8, levels: int = 1) -> bool:
    """A dispatch by a kernel of tutorial_kernels/10_two_levels.cu. Returns whether exactly the right rows arrived
    here."""
    return Exchange(Memory(rank), wants, words, mates).dispatch(kernel, levels)


def there_and_back(
    rank: Rank, kernels: Sequence[Kernel], wants: Wants, mates: int, words: int = 8
) -> tuple[bool, bool]:
    """A dispatch and a combine in two levels. Returns whether the rows and the sums are right."""
    exchange = Exchange(Memory(rank), wants, words, mates)
    return exchange.dispatch(kernels[0], 2), exchange.combine(kernels[1])


def rows_through_nics(kernel: Kernel, wants: Wants, levels: int) -> int:
    """How many rows a dispatch among two nodes of two ranks gives to NICs, counted on the virtual clock."""
    clock = simulate(dispatch, 4, Fabric("srd", ranks_per_node=2), args=(kernel, wants, 2, 8, levels))
    return sum(message.kind == "put_signal" for message in clock.messages)


# ---- the library's hierarchical mode ---------------------------------------------------------------------------------
def tally(main: Callable[[Rank, str], bool], name: str, fabric: str, seeds: Iterable[int]) -> Counter[str]:
    """How often ``main(rank, name)`` is right on all four ranks of two nodes, over ``seeds``."""
    two_nodes, happened = Fabric(fabric, ranks_per_node=2), Counter[str]()
    for seed in seeds:
        right = spawn(main, 4, "emulator", fabric=two_nodes, seed=seed, args=(name,))
        happened["right" if all(right) else "wrong data"] += 1
    return happened


def through_buffer(rank: Rank, mates: int = 2, tokens: int = 12) -> bool:
    """A dispatch and a combine in hierarchical mode. Returns whether the received rows and the sums equal the oracle's,
    bit for bit."""
    rng, ranks, me = np.random.default_rng(10), rank.world_size, rank.rank
    shape: dict[str, Any] = {"num_experts": 2 * ranks, "top_k": 3, "hidden": 64, "max_tokens": tokens}
    xs = list(rng.standard_normal((ranks, tokens, shape["hidden"]), np.float32))
    ids = list(np.argsort(rng.random((ranks, tokens, shape["num_experts"])), axis=2)[:, :, : shape["top_k"]])
    with Buffer(rank, **shape, hierarchical=True, dtype="float32", num_sms=6) as buffer:
        recv = buffer.dispatch(rank.to_device(xs[me]), rank.to_device(ids[me]))
        out = rank.to_host(buffer.combine(recv.x, recv.handle))
    rows = [want.x for want in reference.dispatch(xs, ids, num_experts=shape["num_experts"])]
    sums = reference.combine(rows, ids, num_experts=shape["num_experts"], ranks_per_node=mates)
    return np.array_equal(rank.to_host(recv.x), rows[me]) and np.array_equal(out, sums[me])


SCALE = 14  # rows are so many times shorter than 7168 elements, and each byte counts so many times


def buffer_on_clock(hierarchical: bool, nodes: int = 2, mates: int = 8, tokens: int = 32) -> Timeline:
    """A BF16 dispatch and combine, ``tokens`` tokens a rank to 8 of 256 experts, hidden 7168; H100 with ConnectX-7."""
    ranks, hidden = nodes * mates, 7168 // SCALE
    shape: dict[str, Any] = {"num_experts": 256, "top_k": 8, "hidden": hidden, "max_tokens": tokens, "num_sms": 6}
    shape |= {"hierarchical": True} if hierarchical else {"allow_nvlink_for_normal_mode": False}

    def main(rank: Rank) -> bool:
        rng = np.random.default_rng(rank.rank)
        ids = np.argsort(rng.random((tokens, 256)), axis=1)[:, :8]
        with Buffer(rank, **shape) as buffer:
            x = rank.to_device(rng.standard_normal((tokens, hidden), np.float32).astype(BFLOAT16))
            recv = buffer.dispatch(x, rank.to_device(ids))
            out = buffer.combine(recv.x, recv.handle)
            return bool(np.isfinite(rank.to_host(out).astype(np.float32)).all())

    return simulate(
        main,
        ranks,
        fabric=Fabric("rc", ranks_per_node=mates),
        hardware=HARDWARE["h100-cx7"].scaled(SCALE),
        transport="emulated" if hierarchical else "by_pair",
        timeout=600,
    )


def bytes_between(timeline: Timeline) -> NDArray[np.float64]:
    """The bytes posted to NICs, [source, target], for full rows."""
    total = np.zeros((timeline.ranks, timeline.ranks))
    for message in timeline.messages:
        total[message.source, message.target] += message.bytes * SCALE
    return total
