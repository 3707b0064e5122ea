"""NIXL EP's dispatch over channels, and its barrier with one counter for each pair of ranks.

    ep-lib check examples/models/nixl_ep.py --fabric rc --exhaustive
    ep-lib check examples/models/nixl_ep.py --fabric rc --ranks 3 --main one_counter_for_all_ranks

nixlPut and nixlAtomicAdd take a channel; the count goes on the channel of its rows, and arrives behind them where a
channel keeps its order. Ranks come and go, so each pair of ranks counts its own barriers: a rank puts the number of
the barrier into its slot at the peer, and waits for the peer's in its own. Here a channel is a queue pair. Written from
github.com/ai-dynamo/nixl, examples/device/ep; its barrier wrote and waited for the wrong slot (pull request 1147), and
counted for all ranks together although not all take part in every barrier (pull request 1189).
"""

import numpy as np
from changed import changed

import ep_lib

SOURCE = """
#include <ep/net.cuh>
#include <ep/wait.cuh>
using namespace ep;

// Rank 0 sends a row and its count to rank 1, on the channel of the expert there.
extern "C" __global__ void dispatch(uint64_t* rows, uint64_t* counts, uint64_t* x, uint64_t* out) {
    const int expert = 0;
    if (rank() == 0) {
        x[0] = 7;
        net_put_nbi(rows, x, 8, 1, expert);
        net_atomic_add_u64_nbi(counts, 2, 1, expert);  // the count of rows + 1
        net_quiet(1);
    } else {
        if (!wait_until_ge(counts, 2, {kPhaseSignal, 0, expert})) return;
        out[0] = rows[0];
    }
}

__device__ bool meet(uint64_t* slots, uint64_t* numbers, int peer) {
    const uint64_t number = ++numbers[peer];
    net_put_signal_nbi(numbers + peer, numbers + peer, 0, slots + rank(), number, peer, 0, NetSignal::kSet);
    return wait_until_ge(slots + peer, number, {kPhaseSignal, peer, peer});
}

// Ranks 0 and 1 meet, then rank 2 joins, and all meet: rank 2 has been to one barrier less.
extern "C" __global__ void barriers(uint64_t* rows, uint64_t* slots, uint64_t* numbers, uint64_t* out) {
    if (rank() < 2 && !meet(slots, numbers, 1 - rank())) return;
    net_quiet();
    for (int peer = 0; peer < num_ranks(); ++peer) {
        if (peer != rank() && !meet(slots, numbers, peer)) return;
    }
    net_quiet();
    out[0] = 1;
}
"""


def run(rank: ep_lib.Rank, source: str, kernel: str = "dispatch") -> list[int]:
    rows, counts, x = (rank.symmetric(4, np.uint64) for _ in range(3))
    out = rank.to_device(np.zeros(1, np.uint64))
    program = ep_lib.Kernel.from_source(source, kernel, filename="nixl_ep.cu")
    program.launch(rank, 1, 1, rows, counts, x, out)
    return rank.to_host(out).tolist()


def main(rank: ep_lib.Rank) -> list[int]:
    return run(rank, SOURCE)


def count_on_another_channel(rank: ep_lib.Rank) -> list[int]:
    """The count does not go on the channel of its rows, and may arrive before them."""
    return run(rank, changed(SOURCE, "(counts, 2, 1, expert)", "(counts, 2, 1, expert + 1)"))


def barriers(rank: ep_lib.Rank) -> list[int]:
    """The right barriers."""
    return run(rank, SOURCE, "barriers")


def waits_for_the_wrong_slot(rank: ep_lib.Rank) -> list[int]:
    """A rank waits for the slot that it has itself written at the peer (pull request 1147)."""
    return run(
        rank, changed(SOURCE, "wait_until_ge(slots + peer, number", "wait_until_ge(slots + rank(), number"), "barriers"
    )


def one_counter_for_all_ranks(rank: ep_lib.Rank) -> list[int]:
    """One number for all peers, as if every rank were in every barrier (pull request 1189)."""
    return run(rank, changed(SOURCE, "++numbers[peer];", "++numbers[3];"), "barriers")


if __name__ == "__main__":
    assert ep_lib.spawn(main, ranks=2, backend="emulator", fabric="rc")[1] == [7]
