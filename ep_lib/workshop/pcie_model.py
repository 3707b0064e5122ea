"""PCIe mode on the virtual clock, beside the table that DeepEP published for its PCIe mode.

Published: DeepEP, ``docs/README_PCIe.md`` (commit 476ad70), H20 without NVLink, a ConnectX-7 of 400 Gb/s for each GPU,
4096 tokens, hidden 7168, top-8, 24 SMs. Its test, ``tests/test_normal_without_nvl.py``, defines the measurement, and
this module does the same: every token chooses 8 of 256 experts with equal probability (no groups of nodes); the routing
is known (a dispatch by a handle), so no counts and no top-k travel; a row counts once for each rank that it goes to,
the sender's own rank included; an FP8 row is its hidden bytes and a float32 scale for each 128 of them.

There are two speeds. **Logical** GB/s count those rows, as the caller sees them. **Wire** GB/s count the bytes that a
NIC sends: without the rows that stay on their rank, with the headers of packets. The line rate bounds the wire, not the
logical speed: of N ranks, (N - 1) / N of the rows cross the wire.

With merged senders and receivers (a plan of DeepEP, an option here), 12 SMs have as many channels and rings as 24
without.

A run with rows that are k times shorter takes as long as the full rows on hardware where each byte counts k times
(:meth:`Hardware.scaled`): less memory, the same virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.emulator.timeline import Timeline
from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import Kernel
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.moe.buffer import Buffer
from ep_lib.moe.pcie.memory import MAX_ROWS_PER_MESSAGE, MESSAGE_BYTES, MESSAGES_PER_RING, packet_bytes
from ep_lib.reference import quantize_fp8
from ep_lib.require import at_least_one, flag, one_of, whole_number
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.simulate import simulate

HIDDEN, TOP_K, NUM_EXPERTS, NUM_SMS, TOKENS = 7168, 8, 256, 24, 4096
MERGED_SMS = NUM_SMS // 2
MAX_RANKS = 32
DISPATCH, COMBINE = "FP8 dispatch", "BF16 combine"
PUBLISHED: Mapping[tuple[str, int], float] = {
    (DISPATCH, 8): 53.01,
    (DISPATCH, 16): 47.98,
    (COMBINE, 8): 53.67,
    (COMBINE, 16): 49.48,
}
"""Logical GB/s (10**9 bytes) per rank, by operation and number of ranks."""

ROUTING = (
    "every token chooses 8 of 256 experts, all with equal probability, no groups of nodes: "
    "tests/test_normal_without_nvl.py of DeepEP 476ad70"
)

_TIMEOUT_S = 3600.0  # of real time: a kernel of 32 ranks takes a minute, or longer on a busy machine
_SCALE_GROUP = 128  # elements of an FP8 row that share a scale
_MARK = 'extern "C" __global__ void phase_begins() {}'  # its spans on the timeline separate the operations


@dataclass(frozen=True)
class Setting:
    """The setting of a run. ``scale``: rows are so many times shorter than HIDDEN, and each byte counts so many
    times."""

    ranks: int
    tokens: int = TOKENS
    scale: int = 14
    fabric: str = "rc"
    hardware: str = "h20-cx7"
    merge_sender_receiver: bool = False
    seed: int = 0  # of the routing

    @property
    def num_sms(self) -> int:
        """The published 24; merged, half as many SMs have the same number of channels."""
        return MERGED_SMS if self.merge_sender_receiver else NUM_SMS

    @property
    def hidden(self) -> int:
        """Elements of a row in the run."""
        return HIDDEN // self.scale

    def check(self) -> None:
        """Raises ArgumentError for a number that cannot be run, with its limits."""
        if NUM_EXPERTS % whole_number("ranks", self.ranks, 2, MAX_RANKS):
            raise ArgumentError(
                f"{self.ranks} ranks: PCIe mode has 2 to {MAX_RANKS}, and they must divide the {NUM_EXPERTS} experts"
            )
        at_least_one("tokens", self.tokens)
        if HIDDEN % (at_least_one("scale", self.scale) * _SCALE_GROUP):
            fits = [k for k in range(1, HIDDEN) if HIDDEN % (k * _SCALE_GROUP) == 0]
            raise ArgumentError(
                f"scale is {self.scale}; rows of {HIDDEN} elements can be {', '.join(map(str, fits))} times shorter, "
                f"so that a row is still a multiple of the {_SCALE_GROUP} elements that share an FP8 scale"
            )
        one_of("hardware", self.hardware, HARDWARE)
        one_of("fabric", self.fabric, ("rc", "srd"))
        flag("merge_sender_receiver", self.merge_sender_receiver)
        whole_number("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True)
class ModelRow:
    """One operation at one number of ranks. GB/s are 10**9 bytes per second, of one rank (the mean of all).

    ``wire_gbps == logical_gbps * leaving_share * (1 + wire_overhead)``: without rows that stay on their rank, with
    headers, signals and credits.
    """

    ranks: int
    what: str  # DISPATCH or COMBINE
    merge_sender_receiver: bool
    num_sms: int
    published_gbps: float | None  # only for the published setting, which is not merged
    logical_gbps: float
    wire_gbps: float
    line_gbps: float
    us: float
    rows_per_token: float  # ranks that a token goes to, its own included if it is among them
    leaving_share: float  # of these rows, those to other ranks
    wire_overhead: float  # wire bytes over the bytes of the rows that left their rank, minus 1
    first_rank_us: (
        float  # when the first and the last rank had received all; if they are far apart, NICs were idle at the end
    )
    last_rank_us: float

    @property
    def ratio(self) -> float | None:
        """Model over published."""
        return None if self.published_gbps is None else self.logical_gbps / self.published_gbps


def routing(setting: Setting, rank: int) -> NDArray[Any]:
    """int64 ``[tokens, TOP_K]``: for each token of a rank, different experts, all with equal probability."""
    scores = np.random.default_rng([setting.seed, rank]).random((setting.tokens, NUM_EXPERTS), np.float32)
    return np.argpartition(scores, TOP_K, axis=1)[:, :TOP_K].astype(np.int64)


def ranks_of_tokens(topk_idx: NDArray[Any], ranks: int) -> NDArray[Any]:
    """bool ``[tokens, ranks]``: which ranks each token goes to."""
    goes = np.zeros((len(topk_idx), ranks), bool)
    np.put_along_axis(goes, topk_idx // (NUM_EXPERTS // ranks), True, axis=1)
    return goes


def row_bytes(what: str, hidden: int = HIDDEN) -> int:
    """Bytes of a row, as published: FP8 with its float32 scales, or BF16."""
    return hidden + 4 * hidden // _SCALE_GROUP if what == DISPATCH else 2 * hidden


def bounce_bytes(setting: Setting) -> int:
    """Bytes of a ring with as many messages, of as many rows, as the default has for rows of HIDDEN elements."""
    whole, short = (packet_bytes(row_bytes(COMBINE, hidden), 0, TOP_K) for hidden in (HIDDEN, setting.hidden))
    rows_a_message = min(max(MESSAGE_BYTES // whole, 1), MAX_ROWS_PER_MESSAGE)
    return MESSAGES_PER_RING * rows_a_message * short


def simulate_operations(setting: Setting) -> Timeline:
    """A dispatch that finds the routing, then the two measured operations, each after a ``phase_begins``."""
    setting.check()
    sizes: dict[str, Any] = {
        "num_experts": NUM_EXPERTS,
        "top_k": TOP_K,
        "hidden": setting.hidden,
        "max_tokens": setting.tokens,
        "allow_nvlink_for_normal_mode": False,
        "bounce_bytes": bounce_bytes(setting),
        "merge_sender_receiver": setting.merge_sender_receiver,
        "num_sms": setting.num_sms,
    }
    needed = Buffer.symmetric_bytes(setting.ranks, **sizes)
    return simulate(
        _operations,
        setting.ranks,
        fabric=Fabric(setting.fabric, ranks_per_node=min(8, setting.ranks), p2p=False, queue_pairs=setting.num_sms),
        hardware=HARDWARE[setting.hardware].scaled(setting.scale),
        args=(setting, sizes),
        heap_bytes=needed + (4 << 20),
        timeout=_TIMEOUT_S,
    )


def _operations(rank: Rank, setting: Setting, sizes: Mapping[str, Any]) -> None:
    mark = Kernel.from_source(_MARK, "phase_begins", filename="pcie_model.cu")
    topk_idx = rank.to_device(routing(setting, rank.rank))
    rows = np.random.default_rng(rank.rank).standard_normal((setting.tokens, setting.hidden), np.float32)
    x = tuple(map(rank.to_device, quantize_fp8(rows)))
    with Buffer(rank, **sizes) as buffer:
        handle = buffer.dispatch(x, topk_idx).handle
        y = rank.to_device(np.ones((handle.num_recv_tokens, setting.hidden), BFLOAT16))
        operations: list[Callable[[], object]] = [
            lambda: buffer.dispatch(x, handle=handle),
            lambda: buffer.combine(y, handle),
            lambda: None,
        ]
        for operation in operations:
            rank.barrier()
            mark.launch(rank, 1, 1)
            rank.barrier()
            operation()


def rows_of(timeline: Timeline, setting: Setting) -> list[ModelRow]:
    """The two operations of :func:`simulate_operations` as rows of the table."""
    ranks = setting.ranks
    goes = [ranks_of_tokens(routing(setting, rank), ranks) for rank in range(ranks)]
    visits = sum(int(table.sum()) for table in goes) / ranks  # rows that a rank sends, also to itself
    leaving = visits - sum(int(table[:, rank].sum()) for rank, table in enumerate(goes)) / ranks
    found = []
    for what, (begin, end) in zip((DISPATCH, COMBINE), _phases(timeline), strict=True):
        spans = [s for s in timeline.spans if s.kind == "kernel" and begin <= s.begin_ns and s.end_ns <= end]
        first, last = min(s.begin_ns for s in spans), max(s.end_ns for s in spans)
        ns = last - first
        sent = [m for m in timeline.messages if m.source != m.target and first <= m.posted_ns <= last]
        # The wire's bytes are the run's: each counts `scale` times.
        wire_bytes = sum(m.wire_bytes for m in sent) * setting.scale / ranks
        received = [first] * ranks
        for m in sent:
            if m.kind == "put_signal":  # rows; credits are additions
                received[m.target] = max(received[m.target], m.delivered_ns)
        found.append(
            ModelRow(
                ranks=ranks,
                what=what,
                merge_sender_receiver=setting.merge_sender_receiver,
                num_sms=setting.num_sms,
                published_gbps=None if setting.merge_sender_receiver else PUBLISHED.get((what, ranks)),
                logical_gbps=visits * row_bytes(what) / ns,
                wire_gbps=wire_bytes / ns,
                line_gbps=HARDWARE[setting.hardware].nic.gbytes_per_s,
                us=ns / 1000,
                rows_per_token=visits / setting.tokens,
                leaving_share=leaving / visits,
                wire_overhead=wire_bytes / (leaving * row_bytes(what)) - 1 if leaving else math.nan,
                first_rank_us=(min(received) - first) / 1000,
                last_rank_us=(max(received) - first) / 1000,
            )
        )
    return found


def _phases(timeline: Timeline) -> list[tuple[int, int]]:
    """(begin, end) of the kernels after each ``phase_begins`` but the last."""
    marks = [s for s in timeline.spans if s.kind == "kernel" and s.name == "phase_begins"]
    by_rank = [sorted((s.begin_ns, s.end_ns) for s in marks if s.rank == rank) for rank in range(timeline.ranks)]
    last_ends = [max(end for _, end in ends) for ends in zip(*by_rank, strict=True)]
    first_begins = [min(begin for begin, _ in begins) for begins in zip(*by_rank, strict=True)]
    return list(zip(last_ends[:-1], first_begins[1:], strict=True))
