"""What ranks do that are processes of their own: ``python rank_programs.py NAME FOLDER``; each leaves FOLDER/<rank>."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ep_lib
from ep_lib import Buffer, Fabric, Kernel, Rank
from ep_lib.errors import BufferClosedError, KernelTimeout, PeerTimeout, RankFailed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ep_lib.runtime import launcher
from ep_lib.runtime.rank_process import encode
from support import buffer_cases, low_latency_cases, mask_cases, pcie_cases
from support.dispatch_combine_cases import make_case

FOLDER = Path()  # where ranks leave what they return
SOURCE = """
#include <ep/memory.cuh>
#include <ep/net.cuh>
#include <ep/peer.cuh>
#include <ep/wait.cuh>
using namespace ep;
// Rank 0 and 1 in turns: data, then the signal; what arrived wrong is counted.
extern "C" __global__ void ping_pong(uint64_t* signal, int* data, int* wrong, int rounds) {
    const int other = rank() ^ 1;
    if (threadIdx.x || rank() > 1) return;
    for (int r = 1; r <= rounds; ++r) {
        if (rank() == 1) while (ld_acquire_sys_u64(signal) < uint64_t(r)) {}
        for (int i = 0; rank() == 1 && i < 8; ++i) *wrong += data[i] != r;
        for (int i = 0; i < 8; ++i) peer_ptr(data, other)[i] = r;
        st_release_sys_u64(peer_ptr(signal, other), r);
        if (rank() == 0) while (ld_acquire_sys_u64(signal) < uint64_t(r)) {}
        for (int i = 0; rank() == 0 && i < 8; ++i) *wrong += data[i] != r;
    }
}
// Everybody at rank 0's words at once.
extern "C" __global__ void atomics(unsigned long long* sum, float* parts, int* most, uint64_t* by_nic) {
    atomicAdd(peer_ptr(sum, 0), 1ull);
    atomicAdd(peer_ptr(parts, 0), 0.5f);
    atomicMax(peer_ptr(most, 0), rank() * 1000 + int(threadIdx.x));
    for (int old = *peer_ptr(most + 1, 0), seen;; old = seen) {
        seen = atomicCAS(peer_ptr(most + 1, 0), old, old + 2);
        if (seen == old) break;
    }
    if (threadIdx.x == 0) net_atomic_add_u64_nbi(by_nic, 1, 0);
    net_quiet();
}
// A right operation, and one for a rank that there may not be.
extern "C" __global__ void push_wrongly(uint64_t* counter, int peer) {
    net_atomic_add_u64_nbi(counter, 1, rank() ^ 1);
    net_atomic_add_u64_nbi(counter, 1, peer);
    net_quiet();
}
extern "C" __global__ void wait_for(uint64_t* signal) { while (ld_acquire_sys_u64(signal) == 0) {} }
extern "C" __global__ void tell(uint64_t* signal, int to) { st_release_sys_u64(peer_ptr(signal, to), 1); }
extern "C" __global__ void tell_by_nic(uint64_t* counter, int times, int to) {
    for (int i = 0; i < times; ++i) net_atomic_add_u64_nbi(counter, 1, to);
}
extern "C" __global__ void wait_for_many(uint64_t* counter, uint64_t times) {
    wait_until_ge(counter, times, {kPhaseUser, 0, 0});
}
extern "C" __global__ void wait_with_a_limit(uint64_t* signal) { wait_until_ge(signal, 1, {kPhaseUser, 1, 0}); }
"""


def kernel(name: str) -> Kernel:
    return Kernel.from_source(SOURCE, name)


def memory(rank: Rank) -> Any:
    """What small kernels use: signal, data, wrong or most."""
    return rank.symmetric(2, np.uint64), rank.symmetric(8, np.int32), rank.symmetric(2, np.int32)


def ping_pong(rank: Rank) -> int:
    signal_word, data, wrong = memory(rank)
    kernel("ping_pong").launch(rank, 1, 32, signal_word, data, wrong, 300)
    rank.barrier()
    return int(wrong[0])


def atomics(rank: Rank) -> Any:
    by_nic, _, most = memory(rank)
    total, parts = rank.symmetric(1, np.uint64), rank.symmetric(1, np.float32)
    kernel("atomics").launch(rank, 3, 64, total, parts, most, by_nic)
    rank.barrier()
    return [int(total[0]), float(parts[0]), most.tolist(), int(by_nic[0])]


def loses_its_proxy(rank: Rank) -> None:
    """Rank 0's native proxy ends before its kernel pushes; rank 1 lives."""
    by_nic, _, most = memory(rank)
    total, parts = rank.symmetric(1, np.uint64), rank.symmetric(1, np.float32)
    kernel("atomics").compile()  # rank 1 waits for rank 0's end only as long as its time limit says
    rank.barrier()
    if rank == 0:
        rank._backend._transport._proxy.stop()
        kernel("atomics").launch(rank, 1, 32, total, parts, most, by_nic)
        rank.synchronize()


def pushes_wrongly(rank: Rank, peer: int) -> None:
    counter, _, _ = memory(rank)
    if rank == 0:
        kernel("push_wrongly").launch(rank, 1, 1, counter, peer)
        rank.synchronize()


def forks(rank: Rank) -> int:
    """Rank 1's process forks a child that ends as Python ends it, inside of all blocks. Returns its exit code."""
    code = 3
    with Buffer(rank, num_experts=4, top_k=1, hidden=16, max_tokens=4, dtype="float32") as buffer:
        if rank == 1:
            child = os.fork()
            if child == 0:
                try:
                    rank.barrier()
                except BufferClosedError:
                    sys.exit(code)
                os._exit(1)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        rank.barrier()
        x, idx = np.full((4, 16), rank.rank + 1, np.float32), np.arange(4).reshape(4, 1)
        recv = buffer.dispatch(x, idx)
        assert (np.asarray(buffer.combine(recv.x, recv.handle)) == x).all()
    return code


def says_goodbye(rank: Rank) -> int:
    """Rank 0 posts, waits for no completion, and leaves; rank 1 gets all of it."""
    counter, _, _ = memory(rank)
    if rank == 0:
        kernel("tell_by_nic").launch(rank, 1, 1, counter, 1000, 1)
    else:
        kernel("wait_for_many").launch(rank, 1, 1, counter, 1000)
    rank.synchronize()
    return int(counter[0])


def in_the_background(rank: Rank) -> bool:
    """A kernel goes on while its host waits for other ranks, and its signal ends another's wait."""
    signal_word, _, _ = memory(rank)
    if rank == 0:
        kernel("wait_for").launch(rank, 1, 1, signal_word)
    rank.all_gather("it waits")
    if rank == 1:
        kernel("tell").launch(rank, 1, 1, signal_word, 0)
    rank.all_gather("told")
    rank.synchronize()
    return True


def buffers(rank: Rank) -> Any:
    """Every mode, some seeds each."""
    size = rank.world_size
    direct = [buffer_cases.run_case(rank, make_case(seed, world_size=size)) for seed in range(2)]
    pcie = [pcie_cases.run_case(rank, make_case(seed, world_size=size), seed) for seed in range(2)]
    low = [
        low_latency_cases.run_case(rank, low_latency_cases.low_latency_case(seed, fp8=fp8, world_size=size), fp8)
        for seed, fp8 in enumerate((False, True))
    ]
    return direct, pcie, low


def never_sends(rank: Rank, dies: bool = False) -> None:
    """Rank 0's kernel waits for what nobody sends; rank 1 is there all the time, or dies."""
    signal_word, _, _ = memory(rank)
    if dies and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        kernel("wait_for").launch(rank, 1, 1, signal_word)
        rank.synchronize()
    rank.barrier()


def die(rank: Rank) -> None:
    """Rank 1 is killed before it sends; rank 0's kernel waits for it, the others wait in a barrier."""
    never_sends(rank, dies=True)


def raises(rank: Rank) -> None:
    """Rank 0 ends by an error that is none of the library's; the others wait for it."""
    if rank == 0:
        (FOLDER / "0").write_bytes(pickle.dumps(None))
        rank._is_closed = True  # as where nothing closes it
        sys.exit(0)
    rank.barrier()


def paused(rank: Rank, waits_in: str = "kernel") -> None:
    """Rank 1 stands still, as on a machine that sleeps, until somebody continues it; rank 0 waits with a limit. In
    "close()" all others do."""
    signal_word, _, _ = memory(rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 0 and waits_in == "kernel":
        kernel("wait_with_a_limit").launch(rank, 1, 1, signal_word)
        rank.synchronize()
    elif rank == 0 and waits_in == "barrier()":
        rank.barrier()


def closes_after_an_error(rank: Rank) -> bool:
    """Rank 1 stands still, and rank 0 learns it in a host collective. Whether its Buffer then closes without a kernel,
    which would wait for rank 1 again."""
    shape = {"num_experts": 2, "top_k": 1, "hidden": 128, "max_tokens": 4, "num_max_dispatch_tokens_per_rank": 4}
    buffer = Buffer(rank, **shape)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return True
    try:
        rank.barrier()
    except PeerTimeout:
        before = rank._backend._last_ticket
        buffer.close()
        return rank._backend._last_ticket == before
    raise AssertionError


def outlives(rank: Rank, way: str, dies_after: float, dead: Sequence[int] = (1,), replaced: bool = True) -> Any:
    """The ranks ``dead`` are killed at any moment of a Buffer's operations; the others go on in the same Buffer, and
    take in new processes in their places. Returns what the others were told, and the seconds until those took part."""
    told = ""
    with Buffer(rank, **mask_cases.BOTH) as buffer:
        if rank.rank in dead:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, dies_after)
        for seed in itertools.count():
            try:
                mask_cases.WAYS[way](buffer, rank, seed % 7)
            except (RankFailed, PeerTimeout) as error:
                told = f"{type(error).__name__}: {error}"
                break
        while rank.rank in dead:  # another died first
            signal.pause()
        while replaced and not (FOLDER / "dead").exists():  # a masked rank that lives would be taken back itself
            time.sleep(0.01)
        buffer.mask_ranks(dead)
        layers(buffer, rank)
        begin = time.monotonic()
        if replaced:
            if rank.rank == min({*range(rank.world_size)} - {*dead}):
                (FOLDER / "invitation.new").write_text(rank.invitation())
                (FOLDER / "invitation.new").rename(FOLDER / "invitation")
            buffer.connect_ranks(dead)
            layers(buffer, rank)
    return told, time.monotonic() - begin


def works(rank: Rank, stops: bool = False, raises: str = "") -> tuple[str, int, str]:
    """Operations of all kinds until one fails: which error, the rank that it names, and its text. Rank 1 may stop, or
    raise, in the block of its Rank or where nothing closes that."""
    with Buffer(rank, **mask_cases.BOTH) as buffer:
        for seed in itertools.count():
            try:
                layers(buffer, rank)
                rank.barrier()
            except (RankFailed, PeerTimeout, KernelTimeout) as error:
                named = error.peer if isinstance(error, PeerTimeout) else getattr(error, "rank", -1)
                return type(error).__name__, named, str(error)
            if seed == 0:
                (FOLDER / f"works-{rank.rank}").touch()
                if raises and rank.rank == 1:
                    rank._is_closed = raises == "unclosed"
                    raise ValueError("my own mistake")
                if stops and rank == 1:
                    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
    raise AssertionError


def layers(buffer: Buffer, rank: Rank) -> None:
    for seed in range(2):
        mask_cases.normal(buffer, rank, seed)
        mask_cases.low_latency(buffer, rank, seed)


def replaces(rank: Rank, dead: Sequence[int]) -> bool:
    """A new process in the place of one of the ranks ``dead``, which are all replaced at once."""
    with Buffer(rank, **mask_cases.BOTH) as buffer:
        assert rank.all_gather(rank.rank) == [rank.rank] * rank.world_size
        buffer.connect_ranks(dead)
        layers(buffer, rank)
    return True


def too_much(rank: Rank) -> None:
    rank.symmetric(1 << 20, np.uint8)
    fill_shared_memory(rank)
    rank.symmetric(1 << 20, np.uint8)


def too_large_a_buffer(rank: Rank) -> None:
    fill_shared_memory(rank)
    ep_lib.Buffer(rank, num_experts=2, top_k=1, hidden=8, max_tokens=4)


def too_large_a_buffer_really(rank: Rank) -> None:
    ep_lib.Buffer(rank, num_experts=2, top_k=1, hidden=1024, max_tokens=256)


def other_buffer(rank: Rank) -> None:
    ep_lib.Buffer(rank, num_experts=2, top_k=1, hidden=128 * (1 + rank.rank), max_tokens=4)


def fill_shared_memory(rank: Rank) -> None:
    if rank == 1:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        os.posix_fallocate = full


def other_heap(rank: Rank) -> None:
    """What is wrong comes before: see main."""


NORMAL = (ping_pong, atomics, in_the_background, forks, says_goodbye, buffers, outlives, replaces, works)
FAILING = (
    die,
    raises,
    never_sends,
    paused,
    closes_after_an_error,
    loses_its_proxy,
    pushes_wrongly,
    too_much,
    too_large_a_buffer,
    other_heap,
    other_buffer,
)
PROGRAMS = {program.__name__: program for program in (*NORMAL, *FAILING, too_large_a_buffer_really)}


def main(name: str, folder: Path, options: dict[str, Any]) -> None:
    me = options.pop("replaces", None)
    is_new = me is not None
    me = me if is_new else launcher.detect().rank
    global FOLDER
    FOLDER = folder
    arguments = options.pop("arguments", {})
    if name == "other_heap":
        options["heap_bytes"] = (1 + me) << 20
    if "fabric" in options:
        options["fabric"] = Fabric(**options["fabric"])
    try:
        made = ep_lib.rejoin((folder / "invitation").read_text(), me) if is_new else ep_lib.init(**options)
        with made as rank:
            result: Any = PROGRAMS[name](rank, **arguments)
    except ep_lib.errors.EpError as error:
        result = encode(error)
    (folder / f"{me}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
