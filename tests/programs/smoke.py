"""What `make matrix` runs in each environment: a kernel, the checker, and a Buffer's dispatch and combine."""

import sys

import numpy as np

import ep_lib

SOURCE = """
#include <ep/peer.cuh>
#include <ep/signal.cuh>
extern "C" __global__ void greet(int* box, uint64_t* flag) {
    const int peer = 1 - ep::rank();
    *ep::peer_ptr(box, peer) = 100 + ep::rank();
    ep::st_release_sys_u64(ep::peer_ptr(flag, peer), 1);
    while (ep::read_signal(flag) == 0) {
    }
}
"""
KERNEL = ep_lib.Kernel.from_source(SOURCE, "greet")


def greet(rank: ep_lib.Rank) -> int:
    box, flag = rank.symmetric(1, np.int32), rank.symmetric(1, np.uint64)
    KERNEL.launch(rank, 1, 1, box, flag)
    return int(rank.to_host(box)[0])


def exchange(rank: ep_lib.Rank) -> bool:
    buffer = ep_lib.Buffer(rank, num_experts=4, top_k=1, hidden=64, max_tokens=8, dtype="float32", num_sms=2)
    x = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    received = buffer.dispatch(x, np.arange(8, dtype=np.int64).reshape(8, 1) % 4)
    return np.array_equal(buffer.combine(received.x, received.handle), x)


def main() -> None:
    assert ep_lib.spawn(greet, 2, "emulator") == [101, 100]
    assert ep_lib.check(greet, 2, seeds=2).ok
    assert ep_lib.spawn(exchange, 2, "emulator") == [True, True]
    sys.stdout.write(f"Python {sys.version.split()[0]}, NumPy {np.__version__}: works\n")


main()
