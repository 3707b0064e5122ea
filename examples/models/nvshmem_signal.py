"""NVSHMEM's put-with-signal: a stream of chunks, and a barrier of signals.

    ep-lib check examples/models/nvshmem_signal.py --fabric srd --exhaustive
    ep-lib check examples/models/nvshmem_signal.py --fabric srd --main one_counter_for_all_chunks

A put-with-signal orders its own data before its own signal, and nothing else: two of them may complete in any order. A
fence orders what is posted to one PE; quiet waits until the source may be written again. Written from NVSHMEM's
documentation (docs.nvidia.com/nvshmem, "Signaling Operations" and "Memory Ordering"). The mistakes are those of its own
ring-reduce example (github.com/NVIDIA/nvshmem issue 84) and of its barrier on unordered networks (pull request 36).
"""

import numpy as np
from changed import changed

import ep_lib

CHUNKS = 2
SOURCE = """
#include <ep/net.cuh>
#include <ep/wait.cuh>
using namespace ep;
constexpr int kChunks = 2;

// Rank 0 sends chunks of 16 bytes, and then writes its source anew.
extern "C" __global__ void stream(uint64_t* data, uint64_t* source, uint64_t* signals, uint64_t* out) {
    if (rank() == 0) {
        for (int c = 0; c < kChunks; ++c) {
            source[2 * c] = source[2 * c + 1] = c + 1;
            net_put_signal_nbi(data + 2 * c, source + 2 * c, 16, signals + c, 1, 1);
        }
        net_quiet(1);
        for (int c = 0; c < kChunks; ++c) source[2 * c] = 0;
    } else {
        for (int c = 0; c < kChunks; ++c) {
            if (!wait_until_ge(signals + c, 1, {kPhaseSignal, 0, c})) return;
            out[c] = data[2 * c] + data[2 * c + 1];
        }
    }
}

// Two barriers: each rank sets the other's flag to the number of the barrier.
extern "C" __global__ void barrier(uint64_t* data, uint64_t* source, uint64_t* signals, uint64_t* out) {
    const int peer = 1 - rank();
    for (uint64_t round = 1; round <= 2; ++round) {
        net_fence(peer);  // what was set before is there before
        net_put_signal_nbi(data, source, 8, signals, round, peer, 0, NetSignal::kSet);
        if (!wait_until_ge(signals, round, {kPhaseSignal, peer, 0})) return;
        out[round - 1] = round;
    }
    net_quiet(peer);
}
"""


def run(rank: ep_lib.Rank, source: str, kernel: str = "stream") -> list[int]:
    data, words, signals = (rank.symmetric(2 * CHUNKS, np.uint64) for _ in range(3))
    out = rank.to_device(np.zeros(CHUNKS, np.uint64))
    program = ep_lib.Kernel.from_source(source, kernel, filename="nvshmem_signal.cu")
    program.launch(rank, 1, 1, data, words, signals, out)
    return rank.to_host(out).tolist()


def main(rank: ep_lib.Rank) -> list[int]:
    return run(rank, SOURCE)


def one_counter_for_all_chunks(rank: ep_lib.Rank) -> list[int]:
    """Every chunk adds to one signal, and chunk c waits for c + 1 of them: others may have come (issue 84)."""
    source = changed(SOURCE, "16, signals + c, 1, 1)", "16, signals, 1, 1)")
    return run(rank, changed(source, "wait_until_ge(signals + c, 1,", "wait_until_ge(signals, c + 1,"))


def put_and_signal_apart(rank: ep_lib.Rank) -> list[int]:
    """A put, then an atomic, and no fence between them: right where queue pairs keep their order, wrong on EFA."""
    apart = "net_put_nbi(data + 2 * c, source + 2 * c, 16, 1);\n            net_atomic_add_u64_nbi(signals + c, 1, 1);"
    together = "net_put_signal_nbi(data + 2 * c, source + 2 * c, 16, signals + c, 1, 1);"
    return run(rank, changed(SOURCE, together, apart))


def source_without_quiet(rank: ep_lib.Rank) -> list[int]:
    """The source is written again while the NIC may still read it: "nbi" means that it may."""
    return run(rank, changed(SOURCE, "        net_quiet(1);\n", ""))


def barrier(rank: ep_lib.Rank) -> list[int]:
    """The right barrier."""
    return run(rank, SOURCE, "barrier")


def barrier_without_fence(rank: ep_lib.Rank) -> list[int]:
    """A flag that is set, not added to: the first round's may come last, and the second's is lost (pull request 36)."""
    fence = "        net_fence(peer);  // what was set before is there before\n"
    return run(rank, changed(SOURCE, fence, ""), "barrier")


if __name__ == "__main__":
    assert ep_lib.spawn(main, ranks=2, backend="emulator", fabric="srd")[1] == [2, 4]
