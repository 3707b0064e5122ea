"""The puzzles of notebook 03: a message and its signal on EFA, a source that is reused, one writer, four signals."""

from __future__ import annotations

import numpy as np

from ep_lib.compat import ibgda
from ep_lib.workshop.course.puzzles.puzzle import SENT_TO_INBOX, Bench, Flow, Puzzle

_LANES = 32
_HEAD = """
#include <ep/ibgda_shim.cuh>
#include <ep/wait.cuh>

EP_DEVICE uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

"""


def _one_message(bench: Bench) -> None:
    ibgda.init_efa_device_state(bench.rank, num_channels=4)
    inbox, outbox = (bench.symmetric(name, _LANES, np.uint64) for name in ("inbox", "outbox"))
    arrived = bench.symmetric("arrived", 1, np.uint32)
    got = bench.array("got", np.zeros(_LANES, np.uint64))
    outbox[:] = 100 * (bench.me + 1) + np.arange(_LANES)
    bench.rank.barrier()
    bench.launch(1, _LANES, inbox, outbox, arrived, got)
    bench.expect("got", 100 * (2 - bench.me) + np.arange(_LANES), "That is what the other rank has in its outbox.")
    bench.rank.barrier()
    bench.expect("arrived", 1, "One message, one signal of 1.")


def _three_from_one_buffer(bench: Bench) -> None:
    ibgda.init_efa_device_state(bench.rank, num_channels=4)
    inbox, staging = (
        bench.symmetric(name, size, np.uint32) for name, size in (("inbox", 3 * _LANES), ("staging", _LANES))
    )
    bench.rank.barrier()
    bench.launch(1, _LANES, inbox, staging)
    bench.rank.barrier()
    bench.expect("inbox", 100 * np.repeat(np.arange(1, 4), _LANES) + np.tile(np.arange(_LANES), 3), "Three messages.")


def _counts(bench: Bench) -> None:
    ibgda.init_efa_device_state(bench.rank, num_channels=4)
    counters = bench.symmetric("counters", 2, np.uint32)
    bench.launch(2, 1, counters)
    bench.rank.barrier()
    if bench.me == 0:
        bench.require(int(np.asarray(counters).sum()) == 8, f"rank 0's counters are {counters}; 8 were added in all")


def _four_signals(bench: Bench) -> None:
    inbox, outbox = (bench.symmetric(name, 4 * 8, np.uint64) for name in ("inbox", "outbox"))
    signals = bench.symmetric("signals", 4, np.uint64)
    got = bench.array("got", np.zeros(4 * 8, np.uint64))
    outbox[:] = 100 * (bench.me + 1) + np.arange(4 * 8)
    bench.rank.barrier()
    bench.launch(1, 1, inbox, outbox, signals, got)
    bench.expect("got", 100 * (2 - bench.me) + np.arange(4 * 8), "Four messages of eight words.")


PUZZLES = (
    Puzzle(
        number="03.1",
        title="A message and its signal, on a network without order",
        task="""
A warp of each rank: send the 256 bytes of `outbox` to the peer's `inbox`, and then add 1 to the peer's `arrived`.
The peer reads its inbox as soon as it sees that. The network is EFA. Three lines.
""",
        template=_HEAD
        + """
extern "C" __global__ void puzzle(uint64_t* inbox, uint64_t* outbox, uint32_t* arrived,
                                  uint64_t* got) {
    const int lane = threadIdx.x, peer = 1 - ep::rank(), qp = 0;
    const uint64_t to = address(inbox), from = address(outbox);
    // YOUR LINES

    const ep::WaitInfo info = {ep::kPhaseSignal, peer, -1};
    if (__syncthreads_or(lane == 0 && !ep::wait_until_ge_u32(arrived, 1, info))) return;
    got[lane] = inbox[lane];
}
""",
        main=_one_message,
        hints=(
            "`put_message` of notebook 03 has the put and the quiet; the add is in the table of the five functions.",
            "Which of the three must the whole warp call, and which only one lane? What must have happened before the "
            "peer may see the counter?",
            "`nvshmemi_ibgda_put_nbi_warp(to, from, 256, peer, qp, lane, 0);`, then lane 0 alone: "
            "`nvshmemi_ibgda_quiet(peer, qp);` and `nvshmemi_ibgda_amo_nonfetch_add(arrived, ...);`",
        ),
        solution="""
nvshmemi_ibgda_put_nbi_warp(to, from, 256, peer, qp, lane, 0);
if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);
""",
        discussion="""
Put, quiet, signal. Without the quiet it would be right on InfiniBand, as long as its packets take one path. The add
by all lanes would count 32 messages.
""",
        picture=("inbox", "arrived"),
        fabric="srd",
        flows=SENT_TO_INBOX,
    ),
    Puzzle(
        number="03.2",
        title="When is the buffer mine again?",
        task="""
Three messages leave from **one** staging buffer of 32 words, which the 32 lanes fill anew each time. What must
stand at the end of the loop's body? Two lines.
""",
        template=_HEAD
        + """
extern "C" __global__ void puzzle(uint32_t* inbox, uint32_t* staging) {
    const int lane = threadIdx.x, peer = 1 - ep::rank(), qp = 0;
    for (int i = 0; i < 3; ++i) {
        staging[lane] = 100 * (i + 1) + lane;
        __syncwarp(0xffffffff);
        const uint64_t to = address(inbox + 32 * i);
        nvshmemi_ibgda_put_nbi_warp(to, address(staging), 128, peer, qp, lane, i);
        // YOUR LINES
    }
}
""",
        main=_three_from_one_buffer,
        hints=(
            "The picture of the life of a put: until when does the source have to stay as it is?",
            "One lane can wait for the NIC. What keeps the other 31 from going on meanwhile?",
            "`if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);`, and a barrier of the warp behind it.",
        ),
        solution="""
if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);
__syncwarp();
""",
        discussion="""
The quiet is lane 0's wait for the NIC; the `__syncwarp()` makes it everybody's. Lane 0's quiet alone is wrong, and so
is `__syncwarp()` alone; on an idle network the result nearly always looks right.
""",
        fabric="rc",
    ),
    Puzzle(
        number="03.3",
        title="Four messages, no wait in between",
        task="""
Four messages of 64 bytes, from `outbox` to the peer's `inbox`, each with its own signal in `signals`. There is no
wait between them, and the network is EFA. Two lines.
""",
        template="""
#include <ep/net.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(uint64_t* inbox, uint64_t* outbox, uint64_t* signals,
                                  uint64_t* got) {
    const int peer = 1 - ep::rank();
    // YOUR LINES

    for (int m = 0; m < 4; ++m) {
        if (!ep::wait_until_ge(signals + m, 1, {ep::kPhaseSignal, peer, m})) return;
        for (int k = 8 * m; k < 8 * m + 8; ++k) got[k] = inbox[k];
    }
    ep::net_quiet(peer);
}
""",
        main=_four_signals,
        hints=(
            "`send_with_signals` of notebook 03.",
            "`ep::net_put_signal_nbi(to, from, bytes, signal, value, peer)` is one operation. Whose signal is the last "
            "argument but two, if all messages share it?",
            "`for (int i = 0; i < 4; ++i) ep::net_put_signal_nbi(inbox + 8 * i, ..., 64, signals + i, 1, peer);`",
        ),
        solution="""
for (int i = 0; i < 4; ++i)
    ep::net_put_signal_nbi(inbox + 8 * i, outbox + 8 * i, 64, signals + i, 1, peer);
""",
        discussion="""
A signal speaks for its own data and for nothing else, so each message has one, and the receiver waits for each
before it reads. The quiet at the end is for the outbox, not for the receiver.
""",
        picture=("inbox", "signals"),
        fabric="srd",
        flows=SENT_TO_INBOX,
        forbids={r"quiet|fence|wait": "No wait between the messages: neither a quiet nor another wait is needed."},
    ),
    Puzzle(
        number="03.4",
        title="Eight additions, none lost",
        task="""
Both ranks run two blocks of one thread each, and each thread adds 1 twice. `counters` has two words on rank 0;
their **sum** should be 8 in the end, on an InfiniBand NIC with staged atomics, as most have them. One line, which runs
twice.
""",
        template=_HEAD
        + """
extern "C" __global__ void puzzle(uint32_t* counters) {
    const int target = 0, me = ep::rank(), qp = blockIdx.x;
    for (int i = 0; i < 2; ++i) {
        // YOUR LINES
    }
    nvshmemi_ibgda_quiet(target, qp);
}
""",
        main=_counts,
        hints=(
            "`nvshmemi_ibgda_amo_nonfetch_add(to, value, pe, qp)` adds, wherever the counter lies.",
            "Rank 0 adds by its GPU, rank 1 through its NIC. What may a NIC lose?",
            "`count_together` of notebook 03, with another first argument: each kind of writer has a counter.",
        ),
        solution="nvshmemi_ibgda_amo_nonfetch_add(counters + me, 1, target, qp);",
        discussion="""
Each rank has a word of its own: rank 0's is written by its GPU only, rank 1's by a NIC only. Two NICs would be two
kinds of writers, too, so with more ranks there are more words. Two *blocks* of one rank may share one.
""",
        fabric="rc",
        flows=(
            Flow("counters", "writes", "another", "Each of the four threads adds 1 twice, rank 1's through the NIC."),
            Flow("counters", "writes", "own", "Both blocks of rank 0 have to add, too.", threads=2),
        ),
        requires={r"[,(]\s*1u?\s*,": "Each thread adds 1, twice."},
    ),
)
