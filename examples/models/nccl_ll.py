"""NCCL's LL protocol: eight bytes are four of data and a flag of four, and a store of eight bytes comes whole.

    ep-lib check examples/models/nccl_ll.py --exhaustive --memory ptx
    ep-lib check examples/models/nccl_ll.py --main looks_at_one_flag --memory ptx

A line of 16 bytes is two such words, in a FIFO of lines that are used again and again. The flag is the number of the
step, so a line of an earlier step is not taken for this one's; the receiver's head, a counter, says which lines it has
emptied. No fence is needed between data and flag: they are one access. Written from what NCCL's authors say of it:
github.com/NVIDIA/nccl issues 281, 824 and 1641, and 572 about the fence that the Simple protocol has instead.
"""

import numpy as np
from changed import changed

import ep_lib

SLOTS, STEPS = 1, 2
SOURCE = """
#include <ep/signal.cuh>
constexpr uint64_t kSlots = 1, kSteps = 2;

__device__ uint64_t word_of(uint64_t step, uint64_t data) { return (step + 1) << 32 | data; }
__device__ bool has_come(uint64_t word, uint64_t step) { return word >> 32 == step + 1; }

extern "C" __global__ void ll(uint64_t* fifo, uint64_t* head, uint64_t* out) {
    for (uint64_t step = 0; step < kSteps; ++step) {
        uint64_t* const line = fifo + 2 * (step % kSlots);
        const uint64_t first = 10 * step + 1, second = 10 * step + 2;  // the data of this step
        if (ep::rank() == 0) {
            while (step >= kSlots && ep::ld_acquire_sys_u64(head) + kSlots <= step) {
            }
            ep::st_relaxed_sys_u64(ep::peer_ptr(line, 1), word_of(step, first));
            ep::st_relaxed_sys_u64(ep::peer_ptr(line + 1, 1), word_of(step, second));
        } else {
            uint64_t one, other;
            do {
                one = ep::ld_relaxed_sys_u64(line);
                other = ep::ld_relaxed_sys_u64(line + 1);
            } while (!has_come(one, step) || !has_come(other, step));
            if (uint32_t(one) != first || uint32_t(other) != second) __trap();  // data of another step
            out[step] = uint32_t(one) + uint32_t(other);
            ep::signal_add(head, 1, 0);
        }
    }
}
"""


def run(rank: ep_lib.Rank, source: str) -> list[int]:
    fifo, head = rank.symmetric(2 * SLOTS, np.uint64), rank.symmetric(1, np.uint64)
    out = rank.to_device(np.zeros(STEPS, np.uint64))
    ep_lib.Kernel.from_source(source, "ll", filename="nccl_ll.cu").launch(rank, 1, 1, fifo, head, out)
    return rank.to_host(out).tolist()


def main(rank: ep_lib.Rank) -> list[int]:
    return run(rank, SOURCE)


def looks_at_one_flag(rank: ep_lib.Rank) -> list[int]:
    """As if 16 bytes came whole, as a vector access looks: PTX takes it for two of eight bytes (issues 824, 1641)."""
    return run(rank, changed(SOURCE, " || !has_come(other, step)", ""))


def flag_of_the_slot(rank: ep_lib.Rank) -> list[int]:
    """The flag does not change from step to step: what lies in the line since the last round is taken for new."""
    return run(rank, changed(SOURCE, "return (step + 1) << 32", "return 1ull << 32").replace("== step + 1", "== 1"))


def head_not_waited_for(rank: ep_lib.Rank) -> list[int]:
    """The FIFO's race: a line is written again before all of it has been read."""
    return run(rank, changed(SOURCE, "while (step >= kSlots &&", "while (false &&"))


if __name__ == "__main__":
    assert ep_lib.spawn(main, ranks=2, backend="emulator")[1] == [3, 23]
