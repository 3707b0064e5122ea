"""Pages with sliders: networks by seed, a ring's credits, the path of tokens, and the least time of a dispatch.

All data is computed in advance, so a page responds at once, also on a static site and without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ep_lib.emulator import recording as rec
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.emulator.recording import Recording
from ep_lib.errors import ArgumentError
from ep_lib.jit.device_state import MAX_RANKS
from ep_lib.jit.kernel import Kernel
from ep_lib.require import whole_number
from ep_lib.runtime.check import record
from ep_lib.runtime.rank import Rank
from ep_lib.viz.figures import Report, ceiling_of, rows_of
from ep_lib.viz.page import Page, make_page
from ep_lib.viz.style import draws

_FABRICS = (("rc", "RC (InfiniBand)"), ("srd", "SRD (EFA)"))
_HEIGHT = 590
_COMPARED = ("normal", "low latency", "peer")  # of the groups of a report


# ---- RC against SRD --------------------------------------------------------------------------------------------------

_PUTS = 8
_ROW = 64  # bytes
_PUT_THEN_SIGNAL = """
#include <ep/net.cuh>
#include <ep/wait.cuh>

// Each row, and then a signal of its own: right where a queue pair keeps the order, wrong where it does not.
extern "C" __global__ void put_then_signal(char* inbox, const char* outbox, uint64_t* arrived, int rows, int bytes) {
    const int peer = 1 - ep::rank();
    for (int i = 0; ep::rank() == 0 && i < rows; ++i) {
        ep::net_put_nbi(inbox + i * bytes, outbox + i * bytes, bytes, peer);
        ep::net_atomic_add_u64_nbi(arrived, 1, peer);
    }
    if (ep::rank() == 0) return ep::net_quiet();
    uint64_t sum = 0;
    for (int i = 0; i < rows; ++i) {
        if (!ep::wait_until_ge(arrived, i + 1, {ep::kPhaseSignal, peer, i})) return;
        sum += inbox[i * bytes];
    }
    arrived[1] = sum;
}
"""


def _put_then_signal(rank: Rank) -> None:
    inbox, outbox = (rank.symmetric(_PUTS * _ROW, np.uint8, fill=1) for _ in range(2))
    arrived = rank.symmetric(2, np.uint64, fill=0)
    kernel = Kernel.from_source(_PUT_THEN_SIGNAL, "put_then_signal")
    kernel.launch(rank, 1, 1, inbox, outbox, arrived, _PUTS, _ROW)


def networks_by_seed(
    main: Callable[..., Any] = _put_then_signal,
    ranks: int = 2,
    seeds: int = 20,
    *,
    source: int = 0,
    target: int = 1,
    args: Sequence[Any] = (),
) -> Page:
    """One program on RC and on SRD, with a slider for the seed: the order in which messages leave and arrive.

    ``main`` as for ``ep_lib.check``; by default rank 0 puts eight rows, each followed by a signal of its own. Messages
    are those from ``source`` to ``target``. Raises ArgumentError if there are none.
    """
    seeds = whole_number("seeds", seeds, 1, 1000)
    ranks = whole_number("ranks", ranks, 1, MAX_RANKS)
    source, target = whole_number("source", source, 0, ranks - 1), whole_number("target", target, 0, ranks - 1)
    panels = []
    for fabric, label in _FABRICS:
        runs = [_order(record(main, ranks, fabric, seed, args), source, target) for seed in range(seeds)]
        if not any(run["messages"] for run in runs):
            raise ArgumentError(f"no message goes from rank {source} to rank {target} in this program on {fabric}")
        panels.append({"label": label, "runs": runs})
    name = getattr(main, "__name__", "main").strip("_")
    title = f"{name}: the order of messages from rank {source} to rank {target}"
    return make_page("networks_by_seed", title, {"seeds": seeds, "source": source, "panels": panels}, _HEIGHT)


def _order(run: Recording, source: int, target: int) -> dict[str, Any]:
    """Messages in the order of posting: kind, queue pair, place in the order of arrival; and the checker's findings."""
    arrived: dict[int, int] = {}
    done = np.isin(run.events["kind"], (rec.NIC_WRITE, rec.NIC_SIGNAL))
    for place, number in enumerate(run.events["thread"][done].tolist()):
        arrived[number] = place  # the last piece, or the signal behind it
    between = (source, target)
    mine = [(n, m) for n, m in enumerate(run.messages) if (m.source, m.target) == between and m.kind != "get"]
    order = sorted((arrived.get(number, len(done)), number) for number, _ in mine)
    places = {number: place for place, (_, number) in enumerate(order)}
    return {
        "messages": [[m.kind, m.queue_pair, m.bytes, places[number]] for number, m in mine],
        "found": list(dict.fromkeys(f"{one.finding.kind}: {one.finding.message}" for one in run.found)),
    }


# ---- credits ---------------------------------------------------------------------------------------------------------


@draws
def ring_step_by_step(written: Any, read: Any, num_slots: int, *, title: str | None = None) -> Page:
    """A ring that fills and drains, with a slider over the events; the arguments are those of ``slots_over_time``.

    ``written[round]`` and ``read[round]`` are (begin, end), by one clock or counter; round r uses slot ``r %
    num_slots``. A slot that is written again before its previous round has been read is a lost round.
    """
    writes, reads = np.asarray(written, dtype=float), np.asarray(read, dtype=float)
    num_slots = whole_number("num_slots", num_slots, 1, 1000)
    if writes.ndim != 2 or writes.shape[1:] != (2,) or writes.shape != reads.shape or not len(writes):
        raise ArgumentError(
            f"ring_step_by_step needs (begin, end) of each round's write and read; got shapes {writes.shape} and "
            f"{reads.shape}"
        )
    events = sorted(
        (float(table[number][side]), 2 * which + side, number)
        for which, table in enumerate((writes, reads))
        for number in range(len(table))
        for side in (0, 1)
    )
    data = {"slots": num_slots, "rounds": len(writes), "events": [[kind, number] for _, kind, number in events]}
    return make_page("ring_step_by_step", title or f"A ring of {num_slots} slots, step by step", data, _HEIGHT)


# ---- the path of tokens ----------------------------------------------------------------------------------------------


@draws
def dispatch_flow(topk_idx: Sequence[Any], num_experts: int, *, title: str | None = None) -> Page:
    """The path of tokens to the ranks of their experts, with a slider over the tokens of all ranks.

    ``topk_idx[rank]`` has a row for each token: the experts that it chose, -1 for none. Experts are spread evenly, in
    order. A token goes to each rank once, to the first slot behind the counts of earlier ranks and tokens.
    """
    tables = [np.asarray(table, dtype=np.int64) for table in topk_idx]
    ranks = len(tables)
    num_experts = whole_number("num_experts", num_experts, 1, 1 << 20)
    if not ranks or num_experts % ranks or any(t.ndim != 2 or (t.size and t.max() >= num_experts) for t in tables):
        raise ArgumentError(
            f"dispatch_flow needs a table [tokens, top-k] of experts below {num_experts} for each rank, and as many "
            f"experts on each of them; got shapes {[t.shape for t in tables]}"
        )
    tokens: list[tuple[int, int, list[int], list[list[int]]]] = []
    sent = [[0] * ranks for _ in range(ranks)]  # [source][destination]
    for rank, table in enumerate(tables):
        for number, chosen in enumerate(table.tolist()):
            experts = [expert for expert in chosen if expert >= 0]
            rows = []
            for destination in sorted({expert * ranks // num_experts for expert in experts}):
                rows.append([destination, sent[rank][destination]])
                sent[rank][destination] += 1
            tokens.append((rank, number, experts, rows))
    begins = [[sum(sent[s][d] for s in range(source)) for d in range(ranks)] for source in range(ranks)]
    packed = [[rank, n, experts, [[d, begins[rank][d] + i] for d, i in rows]] for rank, n, experts, rows in tokens]
    data = {"ranks": ranks, "experts": num_experts, "sent": sent, "begins": begins, "tokens": packed}
    return make_page("dispatch_flow", title or f"{len(tokens)} tokens and {num_experts} experts", data, 640)


# ---- the least time --------------------------------------------------------------------------------------------------


@draws
def calculator(
    reports: Mapping[str, Report] | None = None,
    published: Iterable[Mapping[str, Any]] = (),
    *,
    title: str | None = None,
) -> Page:
    """The least time of a dispatch or combine, beside measured and published times.

    ``reports``: reports of benchmarks/gpu.sh, by name (``{"4 H200": "benchmarks/results/h200x4.json"}``); their
    ceilings are selectable links, their rows points for comparison. ``published``: further points, mappings with
    ``what``, ``by``, ``wire_bytes`` and ``us``. The other links are those of ``ep_lib.HARDWARE``, less their headers.
    """
    links: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for name, report in (reports or {}).items():
        links.append({"name": f"{name}, measured", "gbps": ceiling_of(report), "latency_us": 0.0})
        for row in rows_of(report):
            if row["group"] in _COMPARED and row.get("wire_bytes"):
                words = [row.get("dtype", "").upper(), row["what"], row.get("note", "")]
                what = f"{' '.join(filter(None, words))}, {row.get('tokens', '?')} tokens, {name}"
                points.append({"what": what, "by": row["by"], "bytes": row["wire_bytes"], "us": row["us"]})
    for link in {link.name: link for h in HARDWARE.values() for link in (h.nvlink, h.pcie, h.nic)}.values():
        useful = link.mtu_bytes / (link.mtu_bytes + link.header_bytes)
        links.append({"name": link.name, "gbps": link.gbytes_per_s * useful, "latency_us": link.latency_ns / 1e3})
    points += [{"what": p["what"], "by": p["by"], "bytes": p["wire_bytes"], "us": p["us"]} for p in published]
    return make_page("calculator", title or "What a dispatch takes at least", {"links": links, "points": points}, 760)
