"""DeepEP's low-latency dispatch: rows, then a count that is also the flag, and two buffers that take turns.

    ep-lib check examples/models/deepep_low_latency.py --fabric rc --exhaustive
    ep-lib check examples/models/deepep_low_latency.py --fabric rc --main cleaned_after_the_count

A call writes its rows into the peer's buffer of this parity, then adds the count + 1 to the flag behind them on the
same queue pair: "not zero" says that all rows are there. Before its own counts leave, it cleans the flags of the other
parity, for the next call. That is why two buffers are enough, and why two calls may not be under way at a time.
Written from github.com/deepseek-ai/DeepEP: README ("low-latency kernels"), csrc/kernels/legacy/internode_ll.cu, and
issue 513, in which two calls under way end in a hang. NCCL's nccl_ep has the same protocol, and consumed flags of two
calls earlier (github.com/NVIDIA/nccl pull request 2306). On a network that reorders, the count needs a fence before it.
"""

import numpy as np
from changed import changed

import ep_lib

CALLS = 3
SOURCE = """
#include <ep/net.cuh>
#include <ep/wait.cuh>
using namespace ep;
constexpr int kCalls = 3, kRows = 1;

struct Buffers {
    uint64_t *rows, *flags;  // [2]: a row, and the count of rows + 1, of each parity
    uint64_t* x;             // [kCalls]: what this rank sends
    uint64_t* out;           // [kCalls]
};

__device__ int parity_of(int call) { return call % 2; }

__device__ void send(const Buffers& b, int call) {
    const int mine = parity_of(call), peer = 1 - rank();
    st_relaxed_sys_u64(b.flags + parity_of(call + 1), 0);  // clean the next call's flag
    b.x[call] = 100 * rank() + call;
    net_put_nbi(b.rows + mine, b.x + call, 8, peer);
    net_fence(peer);
    net_atomic_add_u64_nbi(b.flags + mine, kRows + 1, peer);
}

__device__ bool receive(const Buffers& b, int call) {
    const int mine = parity_of(call), peer = 1 - rank();
    uint64_t count = 0;
    if (!wait_until_nonzero(b.flags + mine, &count, {kPhaseSignal, peer, mine})) return false;
    b.out[call] = b.rows[mine];
    if (count != kRows + 1 || b.out[call] != 100 * peer + call) __trap();  // rows of another call
    return true;
}

extern "C" __global__ void calls(uint64_t* rows, uint64_t* flags, uint64_t* x, uint64_t* out) {
    const Buffers b = {rows, flags, x, out};
    for (int call = 0; call < kCalls; ++call) {
        send(b, call);
        if (!receive(b, call)) return;
    }
    net_quiet();
}
"""


def run(rank: ep_lib.Rank, source: str) -> list[int]:
    rows, flags, x = rank.symmetric(2, np.uint64), rank.symmetric(2, np.uint64), rank.symmetric(CALLS, np.uint64)
    out = rank.to_device(np.zeros(CALLS, np.uint64))
    program = ep_lib.Kernel.from_source(source, "calls", filename="deepep_low_latency.cu")
    program.launch(rank, 1, 1, rows, flags, x, out)
    return rank.to_host(out).tolist()


def main(rank: ep_lib.Rank) -> list[int]:
    return run(rank, SOURCE)


def fence_removed(rank: ep_lib.Rank) -> list[int]:
    """As published: the queue pair keeps the order. It does on RC, and on EFA's SRD it does not."""
    return run(rank, changed(SOURCE, "    net_fence(peer);\n", ""))


def one_buffer(rank: ep_lib.Rank) -> list[int]:
    """One buffer for all calls: the next call's rows come while this one's are being read."""
    source = changed(SOURCE, "b.rows + mine, b.x", "b.rows, b.x")
    return run(rank, changed(source, "b.rows[mine]", "b.rows[0]"))


CLEAN = "    st_relaxed_sys_u64(b.flags + parity_of(call + 1), 0);  // clean the next call's flag\n"


def cleaned_after_the_count(rank: ep_lib.Rank) -> list[int]:
    """The next flag is cleaned after our count has left: the peer may have gone on, and its new flag is erased."""
    count = "    net_atomic_add_u64_nbi(b.flags + mine, kRows + 1, peer);\n"
    return run(rank, changed(changed(SOURCE, CLEAN, ""), count, count + CLEAN))


def flag_of_two_calls_ago(rank: ep_lib.Rank) -> list[int]:
    """Flags that are set to the same value each time, and not cleaned: an old one passes for new (NCCL, PR 2306)."""
    added = "net_atomic_add_u64_nbi(b.flags + mine, kRows + 1, peer);"
    put = "net_put_nbi(b.rows + mine, b.x + call, 8, peer);\n    net_fence(peer);\n    "
    both = "net_put_signal_nbi(b.rows + mine, b.x + call, 8, b.flags + mine, kRows + 1, peer, 0, NetSignal::kSet);"
    return run(rank, changed(changed(SOURCE, CLEAN, ""), put + added, both))


def two_calls_under_way(rank: ep_lib.Rank) -> list[int]:
    """A call is sent before the last one was received, and cleans the flag that the last one waits for (issue 513)."""
    in_turn = "        send(b, call);\n        if (!receive(b, call)) return;\n"
    overlapped = "        send(b, call);\n        if (call > 0 && !receive(b, call - 1)) return;\n"
    return run(rank, changed(SOURCE, in_turn, overlapped))


if __name__ == "__main__":
    assert ep_lib.spawn(main, ranks=2, backend="emulator", fabric="rc")[0] == [100, 101, 102]
