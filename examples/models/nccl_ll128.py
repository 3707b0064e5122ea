"""NCCL's LL128 protocol: a flag of 8 bytes at the end of 128, and no fence. It needs more than PTX promises.

    ep-lib check examples/models/nccl_ll128.py --exhaustive --memory sc      # where a line comes in ascending order
    ep-lib check examples/models/nccl_ll128.py --exhaustive --memory ptx     # what PTX's memory model says of it
    ep-lib check examples/models/nccl_ll128.py --main released --exhaustive --memory ptx

LL spends half of what crosses the link on flags; LL128 a sixteenth. It relies on hardware that delivers the 128 bytes
of a warp's store in ascending order, and NCCL turns it on only where its authors have verified that for the whole path
(github.com/NVIDIA/nccl issues 281 and 786). On GH200 the NIC's path does not: the halves of 64 bytes became visible one
by one, and data was silently wrong (pull request 2053). Here three words stand for the line, the last one is the flag,
and "in ascending order" is one memory for all in which the sender stores upwards and the receiver looks downwards.
"""

import numpy as np
from changed import changed

import ep_lib

SOURCE = """
#include <ep/memory.cuh>
#include <ep/peer.cuh>

extern "C" __global__ void ll128(uint64_t* line, uint64_t* out) {
    if (ep::rank() == 0) {
        uint64_t* const theirs = ep::peer_ptr(line, 1);
        ep::st_relaxed_sys_u64(theirs, 11);
        ep::st_relaxed_sys_u64(theirs + 1, 12);
        ep::st_relaxed_sys_u64(theirs + 2, 1);
    } else {
        while (ep::ld_relaxed_sys_u64(line + 2) != 1) {
        }
        out[1] = ep::ld_relaxed_sys_u64(line + 1);
        out[0] = ep::ld_relaxed_sys_u64(line);
        if (out[0] != 11 || out[1] != 12) __trap();  // the flag has come, and not all of its line
    }
}
"""


def run(rank: ep_lib.Rank, source: str) -> list[int]:
    line, out = rank.symmetric(3, np.uint64), rank.to_device(np.zeros(2, np.uint64))
    ep_lib.Kernel.from_source(source, "ll128", filename="nccl_ll128.cu").launch(rank, 1, 1, line, out)
    return rank.to_host(out).tolist()


def main(rank: ep_lib.Rank) -> list[int]:
    return run(rank, SOURCE)


def halves_in_any_order(rank: ep_lib.Rank) -> list[int]:
    """GH200's path: the upper half of the line, with the flag, is there before the lower one (pull request 2053)."""
    order = [f"        ep::st_relaxed_sys_u64({word});\n" for word in ("theirs, 11", "theirs + 1, 12", "theirs + 2, 1")]
    return run(rank, changed(SOURCE, "".join(order), "".join(reversed(order))))


def released(rank: ep_lib.Rank) -> list[int]:
    """What PTX promises: the flag is stored with release and loaded with acquire, as NCCL's Simple protocol has it."""
    source = changed(SOURCE, "ep::st_relaxed_sys_u64(theirs + 2", "ep::st_release_sys_u64(theirs + 2")
    return run(rank, changed(source, "ep::ld_relaxed_sys_u64(line + 2)", "ep::ld_acquire_sys_u64(line + 2)"))


if __name__ == "__main__":
    assert ep_lib.spawn(main, ranks=2, backend="emulator")[1] == [11, 12]
