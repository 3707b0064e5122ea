"""What `make prove` goes through: the kernels of ep_lib and of the tutorials in their smallest shapes, each with a
mistake that must be found in the same shape, as a proof that cannot fail proves nothing.

Sizes: 2 ranks where the kernel allows it, one block or two, a warp, one token or a few messages. A program compares
what came with what was sent, so that a schedule with a wrong result is found as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import ep_lib
from ep_lib import Fabric, Kernel, Rank
from ep_lib.jit.kernel import library_kernel
from ep_lib.jit.names import find_global_functions
from ep_lib.jit.structs import header_struct
from ep_lib.memory.arrays import describe
from ep_lib.moe.agreement import Tag
from ep_lib.moe.config import make_config
from ep_lib.moe.direct import DirectMode
from ep_lib.moe.direct.tuning import EMULATED
from ep_lib.moe.mode import DispatchOptions, Payload
from ep_lib.workshop.course.ladders import Memory, exchange
from ep_lib.workshop.lessons import bounce_buffers, ring_and_proxy, two_levels

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "tutorial_kernels"
sys.path.insert(0, str(ROOT / "tests"))

P2P, NICS = ("p2p",), ("rc", "srd")
ALL = (*P2P, *NICS)
HEAP_BYTES = 1 << 20
ONE = ("sc",)  # kinds of memory: under PTX's these do not come far


class Mistake(NamedTuple):
    """``old`` in ``file`` becomes ``new``, and the check must find it on ``fabric`` under ``memory``."""

    file: str
    old: str
    new: str
    fabric: str = "p2p"
    memory: str = "sc"


@dataclass(frozen=True)
class Case:
    """``main(rank, *args)`` on each of ``fabrics`` and kinds of ``memory``. ``kernels``: the schedules of these alone,
    as the others of the program have a case of their own."""

    name: str
    what: str  # for the table
    main: Callable[..., Any]
    args: tuple[Any, ...]
    fabrics: tuple[str, ...]
    mistake: Mistake
    ranks: int = 2
    kernels: tuple[str, ...] = ()
    memory: tuple[str, ...] = ("sc", "ptx")
    transport: str = "emulated"
    ranks_per_node: int = 1
    queue_pairs: int = 4
    beside: tuple[str, ...] = ()  # kernels that never end, which no timeline has

    def fabric(self, kind: str) -> Fabric:
        if kind == "p2p":
            return Fabric(kind)
        return Fabric(kind, ranks_per_node=self.ranks_per_node, queue_pairs=self.queue_pairs)

    def launched(self, fabric: str) -> list[str]:
        """The kernels of one run, all of which are compiled then, but for those whose schedules are not explored."""
        run = ep_lib.simulate(
            self.main, self.ranks, self.fabric(fabric), args=self.args, transport=self.transport, heap_bytes=HEAP_BYTES
        )
        seen = {span.name.split("<")[0] for span in run.spans if span.kind == "kernel"} | {*self.beside}
        return sorted(seen & {*self.kernels} if self.kernels else seen)

    def check(self, fabric: str, memory: str, **how: Any) -> ep_lib.CheckReport:
        """Every schedule, within the bounds that ``how`` says."""
        return ep_lib.check(
            self.main,
            self.ranks,
            self.fabric(fabric),
            args=self.args,
            memory=memory,
            exhaustive=True,
            kernels=self.kernels,
            heap_bytes=HEAP_BYTES,
            events=100_000,
            transport=self.transport,
            **how,
        )


@functools.cache
def tutorial(name: str, file: str) -> Kernel:
    return Kernel.from_file(TUTORIALS / f"{file}.cu", name)


def words_of(rank: int, count: int) -> Any:
    return np.arange(count, dtype=np.uint64) + np.uint64(100 * rank + 1)


SOURCE = """
#include <ep/net.cuh>
#include <ep/packet.cuh>
#include <ep/ring.cuh>
#include <ep/write_signal.cuh>
using namespace ep;

// Both ranks write 64 bytes to each other, and signal.
extern "C" __global__ void write_signal(uint64_t* data, uint64_t* flags, uint64_t* out) {
    const int peer = 1 - rank();
    for (int i = 0; i < 8; i++) data[i] = 100 * rank() + i;
    if (reachable(peer)) {
        write_and_signal_thread(data + 8, data, 64, flags, 1, peer);
    } else {
        net_put_signal_nbi(data + 8, data, 64, flags, 1, peer);
    }
    if (!wait_for_signal(flags, 1, peer)) return;
    for (int i = 0; i < 8; i++) out[i] = data[8 + i];
    net_quiet();
}

// Rank 0 sends three messages through a ring of two slots; the flags are credits and arrivals.
extern "C" __global__ void ring_of_two(uint64_t* data, uint64_t* flags, uint64_t* out) {
    char* const slots = reinterpret_cast<char*>(data);
    const Ring to_peer = {1 - rank(), 0, 2, 16, slots, slots + 32, flags + 1, flags};
    for (uint64_t message = 0; message < 3; message++) {
        if (rank() == 0) {
            if (!ring_send_warp(to_peer, out + 2 * message, 16, message)) return;
        } else {
            if (!ring_receive_warp(to_peer, out + 2 * message, 16, message)) return;
        }
    }
    net_quiet();
}

// Two packets each way, one after the other.
extern "C" __global__ void packets(TaggedWord* data, uint64_t* flags, uint64_t* out) {
    const int peer = 1 - rank();
    for (int i = 0; i < 2; i++) send_packet(data + i, 100 * rank() + i, 1, peer);
    for (int i = 0; i < 2; i++)
        if (!wait_packet(data + i, 1, out + i, {kPhaseSignal, peer, i})) return;
}

// Two barriers: what was written before the first is read after it, and written again after the second.
extern "C" __global__ void barrier(uint64_t* data, uint64_t* flags, uint64_t* out) {
    const int peer = 1 - rank();
    for (int round = 1; round <= 2; round++) {
        data[0] = 10 * round + rank();
        if (reachable(peer)) {
            *peer_ptr(data + round, peer) = data[0];
            signal_add(flags, 1, peer);
        } else {
            net_put_signal_nbi(data + round, data, 8, flags, 1, peer);
            net_quiet();
        }
        if (!wait_for_signal(flags, round, peer)) return;
        out[round] = data[round];
    }
}
"""


def piece(rank: Rank, name: str, threads: int) -> None:
    """What everything else is built of."""
    data, flags = rank.symmetric(16, np.uint64), rank.symmetric(4, np.uint64)
    first = np.arange(8, dtype=np.uint64) if rank.rank == 0 else np.zeros(8, np.uint64)
    out = rank.to_device(first)
    Kernel.from_source(SOURCE, name, filename="prove.cu").launch(rank, 1, threads, data, flags, out)
    peer, got = 1 - rank.rank, rank.to_host(out)
    want = {
        "write_signal": [100 * peer + i for i in range(8)],
        "ring_of_two": [*range(6), *first.tolist()[6:]],
        "packets": [100 * peer, 100 * peer + 1, *first.tolist()[2:]],
        "barrier": [int(first[0]), 10 + peer, 20 + peer, *first.tolist()[3:]],
    }
    assert got.tolist() == want[name]


# ---- 00: the first kernels -------------------------------------------------------------------------------------------
def greet(rank: Rank) -> None:
    box, flag, heard = rank.symmetric(1, np.int32), rank.symmetric(1, np.uint64), rank.to_device(np.zeros(1, np.int32))
    tutorial("greet", "00_start_here").launch(rank, 1, 1, box, flag, heard)
    assert rank.to_host(heard).tolist() == [100 + 1 - rank.rank]


def take_a_number(rank: Rank) -> None:
    counter, who = rank.symmetric(1, np.uint32), rank.symmetric(4, np.int32)
    tutorial("take_a_number", "00_start_here").launch(rank, 1, 2, counter, who)
    rank.barrier()
    assert rank.rank or (counter.tolist() == [4] and sorted(who.tolist()) == [0, 0, 1, 1])


def pass_on(rank: Rank) -> None:
    peer, box, flag = 1 - rank.rank, rank.symmetric(3, np.int32), rank.symmetric(1, np.uint64)
    numbers, out = words_of(rank.rank, 3).astype(np.int32), rank.to_device(np.zeros(3, np.int32))
    args = (box, rank.to_device(numbers), 3, flag, out, peer, peer)
    tutorial("pass_on", "00_start_here").launch(rank, 1, 32, *args)
    assert np.array_equal(rank.to_host(out), words_of(peer, 3))


# ---- 01: write and signal --------------------------------------------------------------------------------------------
def write_signal(rank: Rank, name: str) -> None:
    peer, size = 1 - rank.rank, 40
    target, signal = rank.symmetric(size, np.uint8), rank.symmetric(1, np.uint64)
    sent, out = words_of(rank.rank, size // 8).view(np.uint8), rank.to_device(np.zeros(size, np.uint8))
    tutorial(name, "01_write_signal").launch(rank, 1, 32, target, rank.to_device(sent), size, signal, peer)
    tutorial("wait_and_read", "01_write_signal").launch(rank, 1, 32, signal, 1, target, size, out, peer)
    assert np.array_equal(rank.to_host(out), words_of(peer, size // 8).view(np.uint8))


def several_writes(rank: Rank) -> None:
    peer, offsets = 1 - rank.rank, np.array([0, 16, 40], np.uint64)
    target, signal = rank.symmetric(40, np.uint8), rank.symmetric(1, np.uint64)
    sent, out = words_of(rank.rank, 5).view(np.uint8), rank.to_device(np.zeros(40, np.uint8))
    args = (target, rank.to_device(sent), rank.to_device(offsets), 2, signal, peer)
    tutorial("multi_write_one_signal", "01_write_signal").launch(rank, 1, 32, *args)
    tutorial("wait_and_read", "01_write_signal").launch(rank, 1, 32, signal, 1, target, 40, out, peer)
    assert np.array_equal(rank.to_host(out), words_of(peer, 5).view(np.uint8))


def pipeline(rank: Rank, traced: bool) -> None:
    """Three rounds through two slots, with a note of each step or without."""
    peer, slots = 1 - rank.rank, rank.symmetric(2 * 16, np.uint8)
    arrived, credits = rank.symmetric(1, np.uint64), rank.symmetric(1, np.uint64)
    data = words_of(0, 6).view(np.uint8)
    mine = rank.to_device(data if rank.rank == 0 else np.zeros_like(data))
    name, file, notes = "pipelined_send" if rank.rank == 0 else "pipelined_receive", "01_write_signal", ()
    if traced:
        name, file = f"{name}_traced", f"{file}_traced"
        notes = (rank.symmetric(1, np.uint64), rank.to_device(np.zeros(6, np.uint64)))
        notes = (1, *notes) if rank.rank == 0 else notes  # whether to wait for credits
    tutorial(name, file).launch(rank, 1, 32, slots, 16, 2, arrived, credits, mine, 3, peer, *notes)
    assert np.array_equal(rank.to_host(mine), data)


def publish_words(rank: Rank) -> None:
    peer, board, edition = 1 - rank.rank, rank.symmetric(2, np.uint64), rank.symmetric(1, np.uint64)
    out = rank.to_device(np.zeros(2, np.uint64))
    source = rank.to_device(words_of(rank.rank, 2))
    tutorial("publish_words", "01_write_signal").launch(rank, 1, 32, board, source, 2, edition, 1, peer)
    tutorial("wait_and_look", "01_write_signal").launch(rank, 1, 32, edition, 1, board, 2, out, peer)
    assert np.array_equal(rank.to_host(out), words_of(peer, 2))


def look_at_board(rank: Rank) -> None:
    edition, words = rank.symmetric(1, np.uint64), rank.symmetric(2, np.uint64)
    out = rank.to_device(np.zeros(3, np.uint64))
    tutorial("write_and_look", "01_board").launch(rank, 1, 1, edition, words, out)
    assert len(set(rank.to_host(out).tolist()[1:])) == 1


# ---- 02: NIXL's device API -------------------------------------------------------------------------------------------
def nixl(rank: Rank, post: str) -> None:
    """A write and a signal by memory views, from rank 0 to rank 1."""
    from ep_lib.compat.nixl import DeviceHost

    data, signal, host = rank.symmetric(64, np.uint8), rank.symmetric(1, np.uint64), DeviceHost(rank)
    host.register(data)
    host.register(signal)
    if rank.rank == 1:
        out = rank.to_device(np.zeros(64, np.uint8))
        tutorial("wait_and_copy", "02_memory_views").launch(rank, 1, 32, signal, data, out, 64)
        assert np.array_equal(rank.to_host(out), words_of(0, 8).view(np.uint8))
        return
    source = rank.to_device(words_of(0, 8).view(np.uint8))
    host.register(source)
    views = host.prep_local_view([source]), host.prep_remote_view([(data, 1), (signal, 1)])
    tutorial(post, "02_memory_views").launch(rank, 1, 32, *views, 64)
    host.close()


# ---- 03: the shim ----------------------------------------------------------------------------------------------------
def shim(rank: Rank, send: str, receive: str) -> None:
    """Two messages of 16 bytes each way; channels have chunks of one."""
    peer, channels, messages, size = 1 - rank.rank, 1, 2, 16
    inbox, outbox, staging = (rank.symmetric(messages * size, np.uint8) for _ in range(3))
    counters, signals = rank.symmetric(channels, np.uint32), rank.symmetric(messages, np.uint64)
    out = rank.to_device(np.zeros(messages * size, np.uint8))
    outbox[:] = words_of(rank.rank, messages * size // 8).view(np.uint8)
    ep_lib.ibgda.init_efa_device_state(rank, num_channels=channels)
    run = functools.partial(tutorial, file="03_ibgda_shim")
    if "channel" in send:
        run(send).launch(rank, 1, 32, inbox, outbox, size, messages, 1, counters, peer)
        run(receive).launch(rank, 1, 64, counters, messages, 1, inbox, size, out, peer)
    else:
        flags = signals if send == "send_with_signals" else counters
        sources = (staging, outbox) if "staged" in send else (outbox,)
        run(send).launch(rank, 1, 32, inbox, *sources, size, messages, flags, peer)
        run(receive).launch(rank, 1, 32, flags, messages, inbox, size, out, peer)
    assert np.array_equal(rank.to_host(out), words_of(peer, messages * size // 8).view(np.uint8))


def put_message(rank: Rank) -> None:
    """A put, and in the next kernel a signal of its own."""
    peer, inbox, outbox = 1 - rank.rank, rank.symmetric(16, np.uint8), rank.symmetric(16, np.uint8)
    counters, out = rank.symmetric(2, np.uint32), rank.to_device(np.zeros(16, np.uint8))
    outbox[:] = words_of(rank.rank, 2).view(np.uint8)
    ep_lib.ibgda.init_efa_device_state(rank)
    run = functools.partial(tutorial, file="03_ibgda_shim")
    run("put_message").launch(rank, 1, 32, inbox, outbox, 16, peer)
    run("count_by_source").launch(rank, 1, 32, counters, 1, peer)
    run("receive_messages").launch(rank, 1, 32, counters[peer:], 1, inbox, 16, out, peer)
    assert np.array_equal(rank.to_host(out), words_of(peer, 2).view(np.uint8))


def count_by_source(rank: Rank) -> None:
    counters = rank.symmetric(rank.world_size, np.uint32)
    ep_lib.ibgda.init_efa_device_state(rank)
    tutorial("count_by_source", "03_ibgda_shim").launch(rank, 1, 32, counters, 2, 0)
    rank.barrier()
    assert rank.rank or counters.tolist() == [2, 2]


# ---- 04 and 05: a ring to a proxy, bounce buffers --------------------------------------------------------------------
def to_proxy(rank: Rank, name: str) -> None:
    """Three messages of a word from rank 0 to rank 1, through a ring of two slots."""
    count, slots, rows = 3, 4 if name == "batches" else 2, 1 if name == "completions" else 3
    outbox, inbox = rank.symmetric((rows, 1), np.uint64), rank.symmetric((count, 1), np.uint64)
    ring, sent = ring_and_proxy.new_ring(rank, slots), words_of(0, count).reshape(count, 1)
    source = rank.to_device(sent)
    rank.barrier()
    if rank.rank == 0:
        messages = ring_and_proxy.messages_of(source, outbox, inbox, 1)
        kernel = tutorial(name, "04_ring_and_proxy")
        kernel.launch(rank, ring_and_proxy.BLOCKS, 32, ring, messages)
        rank.synchronize()
    rank.barrier()
    assert rank.rank == 0 or np.array_equal(rank.to_host(inbox), sent)


def traced_ring(rank: Rank) -> None:
    """Two messages through a ring of one slot: filled before it is taken, and taken before it is filled again."""
    kernel = tutorial("ring_traced", "04_ring_and_proxy_traced")
    filled, taken = ring_and_proxy.traced(rank, kernel, 2, slots=1, ahead=1)
    assert sorted([*filled.ravel(), *taken.ravel()]) == list(range(8))
    assert (filled[:, 1] < taken[:, 0]).all() and taken[0, 1] < filled[1, 0]


def bounce(rank: Rank, name: str) -> None:
    """Rank 0 has two rows for rank 1 and none for itself; a slot takes one."""
    counts, slots = np.array([[0, 2], [0, 0]], np.int32), 0 if name == "exchange_unbounded" else 1
    blocks = 1 if name in ("exchange_unbounded", "exchange_merged") else 2
    program = tutorial(name, "05_bounce_buffer")
    assert bounce_buffers.exchange(rank, program, counts, slots, 1, blocks, max_rows=2, row_bytes=16)


# ---- 06 to 10 ------------------------------------------------------------------------------------------------
ONE_TOKEN = exchange.Shape(tokens=1, hidden=4, blocks=1, threads=32, ranks=2, top_k=2)


def rung_of_dispatch(rank: Rank, name: str) -> None:
    memory = Memory(rank)
    there = exchange.Exchange(memory, TUTORIALS / "06_dispatch.cu", ONE_TOKEN)
    rank.barrier()
    there.dispatch(name)
    got, want = there.received(), exchange.arrivals(ONE_TOKEN)[rank.rank]
    order = np.lexsort(got["source"].T[::-1])
    assert np.array_equal(got["x"][order], want.x) and np.array_equal(got["topk_weights"][order], want.topk_weights)


def enter(rank: Rank) -> None:
    """The barrier of a dispatch that knows all counts already."""
    there = exchange.Exchange(Memory(rank), TUTORIALS / "06_dispatch.cu", ONE_TOKEN)
    rank.barrier()
    assert not rank.to_host(there.enter(7)).any()


def rung_of_combine(rank: Rank, name: str) -> None:
    memory = Memory(rank)
    there = exchange.Exchange(memory, TUTORIALS / "07_combine.cu", ONE_TOKEN)
    out = there.prepare_combine()
    rank.barrier()
    there.experts_and_combine(name)
    assert np.allclose(rank.to_host(out), exchange.combined(ONE_TOKEN)[rank.rank], rtol=1e-4)


def ping_pong(rank: Rank, name: str) -> None:
    """Two words, twice."""
    peer, words = 1 - rank.rank, np.stack([words_of(r, 2 * 1).reshape(2, 1) for r in range(2)])
    inbox, flag = rank.symmetric((1, 2), np.uint64), rank.symmetric(1, np.uint64)
    memory = (inbox, flag) if name == "ping_pong_flag" else (inbox,)
    out = rank.to_device(np.zeros((2, 1), np.uint64))
    args = (rank.to_device(words[rank.rank]), out, 1, 2, peer)
    tutorial(name, "08_fp8_and_low_latency").launch(rank, 1, 32, *memory, *args)
    assert np.array_equal(rank.to_host(out), words[peer])


def row_to_peer(rank: Rank, send: str, receive: str) -> None:
    peer, hidden = 1 - rank.rank, 128
    slots, flags = rank.symmetric((1, 2 * hidden), np.uint8), rank.symmetric(1, np.uint64)
    x = np.full((1, hidden), 0x3F80 + 0x80 * rank.rank, np.uint16)  # 1 or 2 in bfloat16
    out = rank.to_device(np.zeros((1, hidden), np.float32))
    scale = [1.0 / 128] if send == "send_fp8_one_scale" else []
    file = "08_fp8_and_low_latency"
    vectors = 2 * hidden // 16
    tutorial(send, file).launch(rank, 1, 32, slots, vectors, flags, rank.to_device(x), 1, hidden, *scale, peer)
    tutorial(receive, file).launch(rank, 1, 32, slots, vectors, flags, out, 1, hidden, peer)
    assert (rank.to_host(out) == 1 + peer).all()


def to_experts(rank: Rank, send: str, receive: str) -> None:
    """One token with two experts on two ranks, there and back as one sum a rank."""
    ranks, per_rank, top_k, tokens, hidden, file = 2, 1, 2, 1, 128, "08_fp8_and_low_latency"
    places = per_rank * ranks * tokens
    arrays = [rank.symmetric((places, 144), np.uint8), rank.symmetric(places, np.uint64)]
    arrays.append(rank.symmetric((ranks * tokens, 2), np.uint64))
    addresses = np.array([rank.peer_address(array, rank.rank) for array in arrays], np.uint64)
    batch = addresses.tobytes() + np.array([tokens, top_k, per_rank, hidden], np.int32).tobytes()
    sums, flags = rank.symmetric((ranks, tokens, hidden), np.float32), rank.symmetric((ranks, tokens), np.uint64)
    packets = rank.symmetric((ranks, tokens, top_k, 2), np.uint64)
    x = np.full((tokens, hidden), 0x3F80 + 0x80 * rank.rank, np.uint16)
    idx, weights = rank.to_device(np.array([[0, 1]], np.int32)), rank.to_device(np.array([[0.25, 0.5]], np.float32))
    out = rank.to_device(np.zeros((places, hidden), np.float32))
    result = rank.to_device(np.zeros((tokens, hidden), np.float32))
    sent = rank.to_device(np.zeros(ranks, np.int32))
    tutorial(send, file).launch(rank, 1, 32, batch, rank.to_device(x), idx, sent)
    tutorial(receive, file).launch(rank, 1, 32, batch, out)
    tutorial("combine_sums", file).launch(rank, 1, 32, batch, out, packets, sums, flags, idx, weights, result)
    combined = rank.to_host(result)
    assert (combined == 0.75 * (1 + rank.rank)).all()


def rounds(rank: Rank) -> None:
    """Three rounds of a word through two buffers."""
    peer, inbox, flag = 1 - rank.rank, rank.symmetric((2, 1), np.uint64), rank.symmetric(1, np.uint64)
    out = rank.to_device(np.zeros(3, np.uint64))
    args = (inbox, 2, flag, rank.to_device(words_of(rank.rank, 3)), out, 1, 3, peer)
    tutorial("exchange_rounds", "08_fp8_and_low_latency").launch(rank, 1, 32, *args)
    assert np.array_equal(rank.to_host(out), words_of(peer, 3))


# ---- 09: a dispatch in one kernel ------------------------------------------------------------------------------------
def own(rank: Rank, kernel: str) -> None:
    """One token of each rank with both experts, one on each rank, and back as a sum."""
    symmetric, me, hidden, file = rank.symmetric, rank.rank, 4, "09_own_dispatch"
    rows, made = symmetric((2, hidden), np.float32), symmetric((2, hidden), np.float32)
    arrived, routes = symmetric(2, np.uint64), symmetric((2, 2), np.uint64)
    out, wanted = rank.to_device(np.zeros((2, hidden), np.float32)), rank.to_device(np.zeros(2, np.uint64))
    arrays = {"rows": rows, "arrived": arrived, "routes": routes, "out": out, "wanted": wanted}
    sizes = {"num_tokens": 1, "max_tokens": 1, "row_vectors": 1, "top_k": 2, "experts_per_rank": 1}
    addresses = {name: describe(array).address for name, array in arrays.items()}
    struct = header_struct(str(TUTORIALS / f"{file}.cuh"), "Dispatch").pack(**addresses, epoch=1, **sizes)
    x, idx = np.full((1, hidden), me + 1, np.float32), rank.to_device(np.array([[0, 1]], np.int32))
    rank.barrier()
    tutorial(kernel, file).launch(rank, 1, 32, struct, rank.to_device(x), idx, uses=(*arrays.values(),))
    assert rank.to_host(out)[:, 0].tolist() == [1, 2] and rank.to_host(wanted).tolist() == [1, 1]
    made[...] = out * (me + 2)
    rank.barrier()
    weights, sums = (rank.to_device(np.array(rows, np.float32)) for rows in ([[0.25, 0.5]], [[0.0] * hidden]))
    more = (made, idx, weights, sums, hidden)
    tutorial("own_combine", file).launch(rank, 1, 32, struct, *more, uses=(*arrays.values(),))
    assert (rank.to_host(sums) == 2 * (me + 1)).all()
    rank.barrier()


WANTS = two_levels.draw_wants(4, tokens=1, top_k=3)


def levels(rank: Rank, there_and_back: bool) -> None:
    file = "10_two_levels"
    if there_and_back:
        pair = (tutorial("dispatch_two_levels", file), tutorial("combine_two_levels", file))
        assert two_levels.there_and_back(rank, pair, WANTS, 2, 4) == (True, True)
    else:
        assert two_levels.dispatch(rank, tutorial("dispatch_one_level", file), WANTS, 2, 4)


# ---- the library -----------------------------------------------------------------------------------------------------
ONE_WARP = replace(EMULATED, dispatch_warps=1, add_warps=1, route_threads=32, local_threads=32, add_vectors=1)


def direct(rank: Rank, way: str = "", again: bool = False, tma: bool = False) -> None:
    """One token to the other rank by direct writes; back by ``way``, or once more to there."""
    tuning = replace(ONE_WARP, way="Tma" if tma else "Lanes", push=way == "push")
    config = make_config(2, num_experts=2, top_k=1, hidden=4, max_tokens=1, dtype="float32", num_sms=1)
    mode = DirectMode(rank, config, tuning)
    x, idx = np.full((1, 4), rank.rank + 1, np.float32), np.array([[1 - rank.rank]], np.int32)
    weights, options = np.ones((1, 1), np.float32), DispatchOptions(describe(idx))
    payload = Payload(describe(x), None)
    routing, plan, arrivals = mode.dispatch(payload, options.ids, describe(weights), 0, options)
    assert arrivals is not None and plan.tokens_per_expert.tolist() == [1] and (arrivals.x == 2 - rank.rank).all()
    if again:
        more = mode.dispatch_again(payload, None, routing, 1, 7, options)
        assert (more.x == 2 - rank.rank).all()
    if way:
        rows = arrivals.x
        if way == "pull":
            rows = mode.combine_input(arrivals.x, 1)
            rows[...] = arrivals.x
        out = mode.combine(describe(rows), None, routing, Tag(5), bias=(), async_finish=False)
        assert (rank.to_host(out) == rank.rank + 1).all()
    assert mode.mismatched_ranks() == []
    mode.close()


def by_expert(rank: Rank, combines: bool) -> None:
    """One token to both experts of the other rank, grouped by expert, and back."""
    config = make_config(2, num_experts=4, top_k=2, hidden=4, max_tokens=1, dtype="float32", num_sms=1)
    mode = DirectMode(rank, config, ONE_WARP)
    x, idx = np.full((1, 4), rank.rank + 1, np.float32), np.array([[2, 3]], np.int32) - 2 * rank.rank
    options = DispatchOptions(describe(idx), sorted_by_expert=True)
    weights = describe(np.full((1, 2), 0.5, np.float32))
    routing, _, arrivals = mode.dispatch(Payload(describe(x), None), options.ids, weights, 0, options)
    assert arrivals is not None and arrivals.by_expert is not None
    rows = arrivals.by_expert
    assert rows.row.tolist() == [0, 0] and (rows.x == 2 - rank.rank).all() and rows.weights.tolist() == [0.5, 0.5]
    if combines:
        more = {"bias": (), "async_finish": False, "by_expert": rows}
        out = mode.combine(describe(rows.x), None, routing, Tag(5), **more)
        assert (rank.to_host(out) == 2 * x).all()
    mode.close()


def scales_by_column(rank: Rank) -> None:
    """One token as FP8 with two scales to the other rank, which gets them by columns."""
    x = np.full((1, 256), rank.rank + 1, np.float32)
    shape = {"num_experts": 2, "top_k": 1, "hidden": 256, "max_tokens": 1, "dtype": "float32", "num_sms": 1}
    with ep_lib.Buffer(rank, **shape) as made:
        given, idx = (x.astype(ml_dtypes.float8_e4m3fn), x[:, :2]), np.array([[1 - rank.rank]], np.int64)
        recv = made.dispatch(given, idx, np.ones((1, 1), np.float32), column_major_scales=True)
        assert (recv.x[0].astype(np.float32) == 2 - rank.rank).all() and (recv.x[1] == 2 - rank.rank).all()


def meet(rank: Rank) -> None:
    """Both ranks say hello to each other, as those that go on without a third one do."""
    file, hello = "moe/common/regroup.cu", header_struct("moe/common/regroup.cu", "Hello")
    hellos, said = rank.symmetric((2, hello.size // 8), np.uint64), rank.host_array((2, 2), np.uint64)
    rank.barrier()
    args = header_struct(file, "RegroupArgs").pack(
        hellos=describe(hellos).address,
        mine=hello.pack(nonce=5 + rank.rank, members=3, buffer=7, answer=0),
        said=describe(said).address,
    )
    library_kernel(file, "ep_regroup").launch(rank, 1, 64, args)
    rank.synchronize()
    assert said[1 - rank.rank].tolist() == [3, 7]


def hand_on(rank: Rank) -> None:
    """Each rank copies 40 bytes to the other one, in chunks of 32, once a counter says that they are there."""
    peer, source, target = 1 - rank.rank, rank.symmetric(40, np.uint8), rank.symmetric(40, np.uint8)
    arrived, done = rank.symmetric(1, np.uint64), rank.symmetric(1, np.uint64)
    out, given = rank.to_device(np.zeros(40, np.uint8)), rank.to_device(words_of(rank.rank, 5).view(np.uint8))
    tutorial("write_signal_warp", "01_write_signal").launch(rank, 1, 32, source, given, 40, arrived, peer)
    addresses = {"target": target, "source": source, "arrived": arrived, "done": done}
    task = header_struct("ep/peer_copy.cuh", "CopyTask").pack(
        **{name: describe(array).address for name, array in addresses.items()},
        bytes=40,
        expected=1,
        peer=peer,
        reserved=0,
    )
    tasks = rank.to_device(np.frombuffer(task, np.uint8))
    kernel = library_kernel("transports/proxy/peer_copy.cu", "ep_peer_copy")
    kernel.launch(rank, 2, 32, tasks, 1, 32, uses=(*addresses.values(),))
    tutorial("wait_and_read", "01_write_signal").launch(rank, 1, 32, done, 2, target, 40, out, peer)
    assert np.array_equal(rank.to_host(out), words_of(rank.rank, 5).view(np.uint8))


def buffer(rank: Rank, combines: bool, weighted: bool = False, **more: Any) -> None:
    """One token from each rank to the next one, by a Buffer."""
    ranks = rank.world_size
    x, idx = np.full((1, 8), rank.rank + 1, np.float32), np.array([[(rank.rank + 1) % ranks]], np.int64)
    shape = {"num_experts": ranks, "top_k": 1, "hidden": 8, "max_tokens": 1, "dtype": "float32", "num_sms": 2}
    with ep_lib.Buffer(rank, **{**shape, **more}) as made:
        recv = made.dispatch(x, idx, np.ones((1, 1), np.float32))
        assert (recv.x == (rank.rank - 1) % ranks + 1).all()
        if weighted:
            assert (made.combine(recv.x, recv.handle, np.full((1, 1), 0.5, np.float32)) == x / 2).all()
        elif combines:
            assert (made.combine(recv.x, recv.handle) == x).all()


def pcie(rank: Rank, combines: bool) -> None:
    buffer(rank, combines, allow_nvlink_for_normal_mode=False)


def hierarchical(rank: Rank, combines: bool, weighted: bool = False) -> None:
    """Two nodes."""
    buffer(rank, combines, weighted, hierarchical=True, ranks_per_node=rank.world_size // 2, num_sms=3)


def low_latency(rank: Rank, combines: bool) -> None:
    """One token in bfloat16 to the other rank's expert."""
    x, idx = np.ones((1, 8), ml_dtypes.bfloat16), np.array([[1 - rank.rank]], np.int64)
    shape = {"num_experts": 2, "top_k": 1, "hidden": 8, "max_tokens": 1, "dtype": "bfloat16"}
    with ep_lib.Buffer(rank, **shape, num_max_dispatch_tokens_per_rank=1, num_low_latency_sms=1) as made:
        sent = made.low_latency_dispatch(x, idx, False)
        rank.synchronize()
        assert sent.recv_count.tolist() == [1]
        if combines:
            back = made.low_latency_combine(sent.recv_x, idx, np.ones((1, 1), np.float32), sent.handle)
            rank.synchronize()
            assert (back.out == x).all()
        mask = made._low_latency.mask
    assert not rank.to_host(mask).any()  # of ranks that did not come to the last barrier


def proxy(rank: Rank) -> None:
    """A write and a signal behind it, which the host's proxy posts."""
    from support import proxy_cases

    inbox, outbox, signal = rank.symmetric(2, np.uint64), rank.symmetric(2, np.uint64), rank.symmetric(1, np.uint64)
    out, peer = rank.to_device(np.zeros(2, np.uint64)), 1 - rank.rank
    proxy_cases.kernel("send").launch(rank, 1, 32, inbox, outbox, 2, signal, peer, proxy_cases.RIGHT)
    proxy_cases.kernel("receive").launch(rank, 1, 32, inbox, 2, signal, out, peer)
    assert rank.to_host(out).tolist() == [1, 2]


# ---- what goes wrong -------------------------------------------------------------------------------------------------
_WRITE, _SHIM, _PROXY, _BOUNCE = (
    "ep_lib/device/ep/write_signal.cuh",
    "tutorial_kernels/03_ibgda_shim.cu",
    "tutorial_kernels/04_ring_and_proxy.cu",
    "tutorial_kernels/05_bounce_buffer.cu",
)
_NIXL, _START, _PIPE_TRACED, _RING_TRACED, _OWN = (
    "ep_lib/device/ep/nixl_device.cuh",
    "tutorial_kernels/00_start_here.cu",
    "tutorial_kernels/01_write_signal_traced.cu",
    "tutorial_kernels/04_ring_and_proxy_traced.cu",
    "tutorial_kernels/09_own_dispatch.cuh",
)
_OWN_COVERED = "__syncwarp();  // a lane's release covers the other lanes' stores only if they come before it"
_ROWS, _LEVELS = "tutorial_kernels/08_fp8_and_low_latency.cu", "tutorial_kernels/10_two_levels.cu"
_ALL_RANKS = "ep_lib/device/ep/all_ranks.cuh"


def relaxed(file: str, store: str, fabric: str = "p2p", memory: str = "sc") -> Mistake:
    """A store without its release."""
    return Mistake(file, store, store.replace("release", "relaxed"), fabric, memory)


def without(file: str, line: str, fabric: str = "p2p", memory: str = "sc") -> Mistake:
    """A line left out."""
    return Mistake(file, line, "", fabric, memory)


_SIGNAL = "signal_add(signal, increment, peer);  // a release: it publishes this thread's stores before it"
_EVERY_SIGNAL = relaxed(_ALL_RANKS, "st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch)")
_ROW_FLAG = relaxed(_ROWS, "ep::st_release_sys_u64(ep::peer_ptr(flags + token, peer), 1)")
_EXPERT_FLAG = relaxed(_ROWS, "ep::st_release_sys_u64(ep::peer_ptr(batch.flags + at, to), 1)")
_ROOM = "chunk < slots ? 0 : chunk + 1 - slots"
_PACKET = "st_relaxed_sys_u64x2(&peer_ptr(mine, peer)->data, data, tag);"
_TWO_STORES = (
    "st_relaxed_sys_u64(&peer_ptr(mine, peer)->tag, tag); st_relaxed_sys_u64(&peer_ptr(mine, peer)->data, data);"
)
_WARP_COVERED = "__syncwarp();  // lane 0's release covers the other lanes' stores only if they come before it"
_EDITION = "if (ep::lane_id() == 0) ep::st_release_sys_u64("
_EACH_LINE = "for (int i = warp_id(); i < kTile; i += warps_in_block()) {"
_FILLED = "__syncwarp();  // all lanes have filled in their part, and have read the chunk"
_NODE_SIGNAL = "signal_set(signals + kind * ranks_of_node + me, epoch, first + i);"
_BETWEEN_NODES, _EACH_NODE = "ep_lib/moe/hierarchical/exchange_nodes.cu", "for (int node = thread; node < nodes;"
_POINTERS = "__syncwarp();  // all lanes may read the pointers"
_NODE_SIGNAL_RELAXED = "st_relaxed_sys_u64(peer_ptr(signals + kind * ranks_of_node + me, first + i), epoch);"
_TOKENS_WEIGHTS = "weights + static_cast<int64_t>(first_token + first"
_LISTED = "__syncwarp();  // all lanes may read the pointers, and the messages that one lane acquired"
_TOLD = "const size_t bytes"
_LABEL = "ep::wait_until_ge_warp(relay.labels + slot, "
_ARRIVED = "ep::wait_until_ge_warp(arrived + peer, "
_CREDIT = "wait_until_ge(ring.credits, "
_ROUND = "if (!wait_for_signal(flags, "
_NO_ATOMIC = Mistake(
    "tutorial_kernels/06_dispatch.cu",
    "atom_add_relaxed_sys_u32(peer_ptr(next_row, to), 1)",
    "(*peer_ptr(next_row, to))++",
)
_NO_SUM = Mistake("tutorial_kernels/07_combine.cu", "atomicAdd_system(sum + i, ", "sum[i] += (")
_FENCE = "ep::proxy_push(ring, ep::proxy_command(ep::kProxyFence, peer));"
_OWN_SIGNAL = "ep::net_put_signal_nbi(inbox + at, outbox + at, bytes, signals + i, 1, peer, i % ep::num_queue_pairs());"
_SIGNAL_FIRST = (
    "ep::net_atomic_add_u64_nbi(signals + i, 1, peer, 0); ep::net_put_nbi(inbox + at, outbox + at, bytes, peer, 0);"
)
_STAGED_QUIET = "nvshmemi_ibgda_quiet(peer, qp);\n            nvshmemi_ibgda_amo_nonfetch_add(arrived, 1"
_BATCH_QUIET = "nvshmemi_ibgda_quiet(peer, qp);\n        nvshmemi_ibgda_amo_nonfetch_add(arrived, messages"
_CHUNK_QUIET = "nvshmemi_ibgda_quiet(peer, qp);\n            nvshmemi_ibgda_amo_nonfetch_add(tails"


def _second_line(two: str) -> str:
    return two.split("\n")[1].strip()


CASES = (
    Case("write+signal", "64 bytes and a signal each way, a thread", piece, ("write_signal", 1), ALL,
         Mistake(_WRITE, f"put_thread(target, source, bytes, peer);\n    {_SIGNAL}",
                 f"{_SIGNAL}\n    put_thread(target, source, bytes, peer);")),
    Case("ring", "three messages through two slots with credits, a warp on each side", piece, ("ring_of_two", 32), ALL,
         Mistake("ep_lib/device/ep/ring.cuh", f"{_CREDIT}ring_credits_needed(ring, message)", f"{_CREDIT}0")),
    Case("packets", "two one-shot packets each way", piece, ("packets", 1), P2P,
         Mistake("ep_lib/device/ep/packet.cuh", _PACKET, _TWO_STORES)),
    Case("barrier", "two barriers", piece, ("barrier", 1), ALL,
         Mistake("benchmarks/prove_cases.py", f"{_ROUND}round, peer)", f"{_ROUND}round - 1, peer)")),
    Case("00 greet", "a number and a signal each way, a thread", greet, (), P2P,
         without(_START, "if (!ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, -1})) return;")),
    Case("00 take_a_number", "two threads of each rank count", take_a_number, (), P2P,
         Mistake(_START, "ep::atom_add_relaxed_sys_u32(ep::peer_ptr(counter, 0), 1)", "(*ep::peer_ptr(counter, 0))++")),
    Case("00 pass_on", "three numbers and a signal each way, a warp", pass_on, (), P2P,
         without(_START, "if (!ep::wait_until_ge_block(flag, 1, {ep::kPhaseSignal, from, -1})) return;")),
    Case("01 write_signal_bare", "40 bytes and a signal each way, a thread", write_signal, ("write_signal_bare",), P2P,
         relaxed("tutorial_kernels/01_write_signal.cu", "ep::red_add_release_sys_u64(their_signal, 1)")),
    Case("01 write_signal_thread", "the same by the library's thread", write_signal, ("write_signal_thread",), P2P,
         Mistake(_WRITE, f"put_thread(target, source, bytes, peer);\n    {_SIGNAL}",
                 f"{_SIGNAL}\n    put_thread(target, source, bytes, peer);")),
    Case("01 write_signal_warp", "the same by a warp", write_signal, ("write_signal_warp",), P2P,
         without(_WRITE, _WARP_COVERED)),
    Case("01 multi_write_one_signal", "two writes under one signal, each way", several_writes, (), P2P,
         without(_WRITE, "__syncwarp();  // once, for all writes")),
    Case("01 pipelined_send", "three rounds through two slots with credits", pipeline, (False,), P2P,
         Mistake(_WRITE, "round - slots + 1, {kPhaseCredit", "round - slots, {kPhaseCredit")),
    Case("01 pipelined_send_traced", "the same, with a note of each step", pipeline, (True,), P2P,
         Mistake(_PIPE_TRACED, "round - num_slots + 1, {", "round - num_slots, {")),
    Case("01 publish_words", "two words and their edition, each way", publish_words, (), P2P,
         Mistake("tutorial_kernels/01_write_signal.cu", f"__syncwarp();\n    {_EDITION}", _EDITION)),
    Case("01 write_and_look", "a sequence lock: one writes, one looks once", look_at_board, (), P2P,
         without("tutorial_kernels/01_board.cuh", "ep::fence_sys();  // the second look comes after the words",
                 memory="ptx")),
    Case("02 put_and_signal", "NIXL's device API: a write and a signal one way, a warp", nixl, ("put_and_signal",), P2P,
         without(_NIXL, "if constexpr (LEVEL == nixl_gpu_level_t::WARP) __syncwarp();")),
    Case("03 put_message", "a message each way, and a signal by the next kernel", put_message, (), ALL,
         Mistake(_SHIM, "if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);\n}", "}", "srd")),
    Case("03 send_staged", "two messages each way, put, quiet, signal", shim, ("send_staged", "receive_messages"), ALL,
         Mistake(_SHIM, _STAGED_QUIET, _second_line(_STAGED_QUIET), "srd")),
    Case("03 send_batched", "two messages each way, one quiet", shim, ("send_batched", "receive_messages"), ALL,
         Mistake(_SHIM, _BATCH_QUIET, _second_line(_BATCH_QUIET), "srd")),
    Case("03 send_with_signals", "two messages each way, put with signal", shim, ("send_with_signals", "receive_each"),
         ALL, Mistake(_SHIM, _OWN_SIGNAL, _SIGNAL_FIRST, "srd")),
    Case("03 channel_send", "two chunks each way, a tail", shim, ("channel_send", "channel_receive"), ALL,
         Mistake(_SHIM, _CHUNK_QUIET, _second_line(_CHUNK_QUIET), "srd")),
    Case("03 count_by_source", "two additions of each rank", count_by_source, (), ALL,
         Mistake(_SHIM, "counters + ep::rank(), 1, target", "counters, 1, target", "srd")),
    Case("04 mailbox", "three messages one way by a proxy, one slot", to_proxy, ("mailbox",), ALL,
         relaxed(_PROXY, "ep::st_release_sys_u64(&slot->number, i + 1)", "rc")),
    Case("04 ring_of_slots", "three messages one way by a proxy, two slots", to_proxy, ("ring_of_slots",), ALL,
         Mistake(_PROXY, "number - ring.num_slots + 1, {", "number - ring.num_slots, {", "rc")),
    Case("04 many_producers", "the same from three threads", to_proxy, ("many_producers",), ALL,
         Mistake(_PROXY, "number - ring.num_slots + 1, {", "number - ring.num_slots, {", "rc")),
    Case("04 batches", "three messages one way by a proxy, in batches", to_proxy, ("batches",), ALL,
         Mistake(_PROXY, "while (n < kBatch && ep::ld_acquire", "while (n < kBatch && ep::ld_relaxed", "rc")),
    Case("04 completions", "three messages one way by a proxy, through one row", to_proxy, ("completions",), ALL,
         Mistake(_PROXY, "ep::net_quiet();\n        ep::st_release_sys_u64(&ring.credits->completed",
                 "ep::st_release_sys_u64(&ring.credits->completed", "rc")),
    Case("04 ring_traced", "two messages each way through one slot, with a note of each step", traced_ring, (), ALL,
         Mistake(_RING_TRACED, "i - ahead + 1, {", "i - ahead, {", "rc")),
    Case("05 exchange_unbounded", "two rows one way, room for all", bounce, ("exchange_unbounded",), ALL,
         Mistake(_BOUNCE, f"{_ARRIVED}1,", f"{_ARRIVED}0,", "rc")),
    Case("05 exchange_with_credits", "two rows one way, through one slot", bounce, ("exchange_with_credits",), ALL,
         Mistake(_BOUNCE, "ring.credits + peer, chunk, {ep::kPhaseCredit", "ring.credits + peer, 0, {ep::kPhaseCredit",
                 "rc")),
    Case("05 exchange_pipelined", "the same, as if there were more slots", bounce, ("exchange_pipelined",), ALL,
         Mistake(_BOUNCE, _ROOM, "0", "rc")),
    Case("05 exchange_merged", "the same, one block a peer", bounce, ("exchange_merged",), ALL,
         Mistake(_BOUNCE, _ROOM, "0", "rc")),
    Case("05 exchange_by_rings", "the same by the library's ring", bounce, ("exchange_by_rings",), ALL,
         without(_BOUNCE, "if (is_lane_0) ep::ring_return_credit(ring);", "rc")),
    *(
        Case(f"06 {name}", "a token each way, to two experts of two ranks", rung_of_dispatch, (name,), P2P,
             _NO_ATOMIC if name == "dispatch_atomics" else _EVERY_SIGNAL)
        for name in ("dispatch_atomics", "dispatch_counted", "dispatch_exact", "dispatch_warp", "dispatch",
                     "dispatch_tma")
    ),
    Case("06 enter", "the barrier of a dispatch with a handle", enter, (), P2P, _EVERY_SIGNAL),
    *(
        Case(f"07 {name}", "back, and added up", rung_of_combine, (name,), P2P,
             relaxed("ep_lib/device/ep/groups.cuh", "st_release_sys_u64(peer_ptr(flag, owner), epoch)")
             if name == "experts_and_combine" else _NO_SUM if name == "combine_atomics" else _EVERY_SIGNAL,
             kernels=kernels)
        for name, kernels in (
            ("combine_atomics", ("experts", "combine_atomics")), ("combine_thread", ("stage", "combine_thread")),
            ("combine_warp", ("stage", "combine_warp")), ("combine", ("stage", "combine")),
            ("experts_and_combine", ("experts_and_combine",)),
        )
    ),
    Case("08 send_bf16", "a row each way", row_to_peer, ("send_bf16", "receive_bf16"), P2P, _ROW_FLAG),
    Case("08 send_fp8_one_scale", "a row each way as FP8", row_to_peer, ("send_fp8_one_scale", "receive_fp8"), P2P,
         _ROW_FLAG),
    Case("08 send_fp8", "the same with scales", row_to_peer, ("send_fp8", "receive_fp8"), P2P, _ROW_FLAG),
    Case("08 ping_pong_flag", "a word there and back, twice", ping_pong, ("ping_pong_flag",), P2P,
         relaxed(_ROWS, "ep::st_release_sys_u64(ep::peer_ptr(flag, peer), round + 1)")),
    Case("08 ping_pong_packets", "the same in packets", ping_pong, ("ping_pong_packets",), P2P,
         Mistake("ep_lib/device/ep/packet.cuh", _PACKET, _TWO_STORES)),
    Case("08 dispatch_to_experts", "a token to two experts", to_experts, ("dispatch_to_experts", "receive_at_experts"),
         P2P, _EXPERT_FLAG, kernels=("dispatch_to_experts", "receive_at_experts")),
    Case("08 dispatch_to_ranks", "a token to two ranks", to_experts, ("dispatch_to_ranks", "receive_and_scatter"), P2P,
         _EXPERT_FLAG, kernels=("dispatch_to_ranks", "receive_and_scatter")),
    Case("08 combine_sums", "and back as sums", to_experts, ("dispatch_to_ranks", "receive_and_scatter"), P2P,
         relaxed(_ROWS, "ep::st_release_sys_u64(ep::peer_ptr(flags + me * batch.tokens + token, owner), 1)"),
         kernels=("combine_sums",)),
    Case("08 exchange_rounds", "a word each way, three times through two buffers", rounds, (), P2P,
         relaxed(_ROWS, "ep::st_release_sys_u64(ep::peer_ptr(flag, peer), round + 1)")),
    Case("09 dispatch_one_warp", "a token of each rank to both, and back as sums", own, ("dispatch_one_warp",), P2P,
         without(_OWN, _OWN_COVERED)),
    Case("09 own_dispatch", "the same", own, ("own_dispatch",), P2P, without(_OWN, _OWN_COVERED)),
    Case("10 dispatch_one_level", "a token of each of four ranks to three, two nodes", levels, (False,), NICS,
         Mistake("tutorial_kernels/10_two_levels.cuh", "t.expects[source], {ep", "t.expects[source] - 1, {ep", "rc"),
         ranks=4, ranks_per_node=2),
    Case("10 dispatch_two_levels", "the same in two levels, and back as sums", levels, (True,), NICS,
         Mistake(_LEVELS, f"{_LABEL}1,", f"{_LABEL}0,", "rc"), ranks=4, ranks_per_node=2),
    Case("direct dispatch", "a token each way, direct writes", direct, (), P2P, _EVERY_SIGNAL),
    Case("direct dispatch by TMA", "the same by bulk copies", direct, ("", False, True), P2P, _EVERY_SIGNAL),
    Case("direct dispatch, again", "with a handle, behind the first", direct, ("", True), P2P, _EVERY_SIGNAL,
         kernels=("ep_dispatch_bulk",)),
    Case("direct combine, pushed", "back by the experts' blocks", direct, ("push",), P2P,
         relaxed("ep_lib/device/ep/groups.cuh", "st_release_sys_u64(peer_ptr(flag, owner), epoch)"),
         kernels=("ep_combine_push",)),
    Case("direct combine, pulled", "back by loads", direct, ("pull",), P2P,
         Mistake("ep_lib/moe/direct/combine_add.cuh", "wait_until_ge(signals.flags + entry, signals.epoch,",
                 "wait_until_ge(signals.flags + entry, 0,"), kernels=("ep_combine_pull",)),
    Case("direct combine, staged", "back by loads, copied meanwhile", direct, ("stage",), P2P,
         Mistake("ep_lib/moe/direct/combine_send.cuh", "ld_acquire_sys_u64(complete_ + r)",
                 "ld_relaxed_sys_u64(complete_ + r)"), kernels=("ep_combine_pull",)),
    Case("direct dispatch by expert", "a token to both experts of the other rank, grouped by expert", by_expert,
         (False,), P2P,
         Mistake("ep_lib/moe/direct/expert_rows.cuh", "by.row[slot] = choice / top_k;", "by.row[slot] = choice;")),
    Case("direct combine by expert", "back to the other rank, and added up", by_expert, (True,), P2P,
         Mistake("ep_lib/moe/direct/combine_send.cuh", "ld_acquire_sys_u64(complete_ + r)",
                 "ld_relaxed_sys_u64(complete_ + r)"), kernels=("ep_combine_pull",)),
    Case("direct, scales by column", "a token each way as FP8, with scales by columns", scales_by_column, (), P2P,
         Mistake("ep_lib/moe/direct/scales_by_column.cu", f"__syncthreads();\n        {_EACH_LINE}", _EACH_LINE)),
    Case("regroup", "both ranks say hello and answer", meet, (), P2P,
         relaxed("ep_lib/moe/common/regroup.cu", "st_release_sys_u64(&there->nonce, args.mine.nonce)", memory="ptx")),
    Case("peer copy", "40 bytes on to the other rank in two chunks, when they have come", hand_on, (), P2P,
         without("ep_lib/device/ep/peer_copy.cuh", "__syncthreads();  // all threads have stored their part")),
    Case("PCIe dispatch", "a token each way through rings", pcie, (False,), NICS,
         without("ep_lib/moe/pcie/rings.cuh", _FILLED, "rc"),
         kernels=("ep_pcie_dispatch",)),
    Case("PCIe counts", "the counts before it", pcie, (False,), NICS,
         Mistake("ep_lib/moe/pcie/exchange_counts.cu", f"__syncthreads();\n\n    {_TOLD}", _TOLD, "rc"),
         kernels=("ep_get_dispatch_layout", "ep_pcie_exchange_counts")),
    Case("PCIe combine", "back through rings", pcie, (True,), NICS,
         without("ep_lib/moe/pcie/combine.cu", _LISTED, "rc"), kernels=("ep_pcie_combine",)),
    Case("low-latency dispatch", "a token each way", low_latency, (False,), P2P,
         relaxed("ep_lib/moe/low_latency/dispatch.cu", "st_release_sys_u64(peer_ptr(args.row_flags + slot, r), epoch)"),
         kernels=("ep::low_latency::dispatch",)),
    Case("low-latency end", "the last meeting of a Buffer's ranks", low_latency, (False,), P2P,
         without("ep_lib/moe/low_latency/common.cuh",
                 "if (!is_masked(args, r)) st_release_sys_u64(peer_ptr(ends + rank(), r), 1);"),
         kernels=("ep::low_latency::finish",)),
    Case("low-latency combine", "and back", low_latency, (True,), P2P,
         relaxed("ep_lib/moe/low_latency/combine.cu",
                 "st_release_sys_u64(peer_ptr(args.row_flags + slot, source), epoch)"),
         kernels=("ep::low_latency::combine",)),
    *(
        replace(case, name=f"{case.name}{name}", what=f"{case.what}{what}", ranks=2 * mates, ranks_per_node=mates)
        for name, what, mates in (("", ", two nodes of a rank", 1), (", four ranks", ", two nodes of two ranks", 2))
        for case in (
            Case("hierarchical counts", "the counts before a dispatch", hierarchical, (False,), NICS,
                 Mistake(_BETWEEN_NODES, f"__syncthreads();\n\n    {_EACH_NODE}", _EACH_NODE, "rc"),
                 kernels=("ep_hierarchical_layout", "ep_hierarchical_exchange_nodes")),
            Case("hierarchical dispatch", "a token of each rank", hierarchical, (False,), NICS,
                 without("ep_lib/moe/hierarchical/dispatch.cu", _POINTERS, "rc"), memory=ONE,
                 kernels=("ep_hierarchical_dispatch",)),
            Case("hierarchical weights", "the weights before the rows come back", hierarchical, (True, True), NICS,
                 Mistake("ep_lib/moe/hierarchical/combine.cu", _TOKENS_WEIGHTS, f"{_TOKENS_WEIGHTS} + 1", "rc"),
                 kernels=("ep_hierarchical_send_weights",), memory=ONE),
            Case("hierarchical combine", "and back", hierarchical, (True,), NICS,
                 without("ep_lib/moe/hierarchical/combine.cu", _LISTED, "rc"), memory=ONE,
                 kernels=("ep_hierarchical_combine",)),
        )
    ),
    Case("hierarchical meetings", "of a node's ranks, behind a dispatch and before a combine", hierarchical, (True,),
         NICS, Mistake("ep_lib/moe/hierarchical/nodes.cuh", _NODE_SIGNAL, _NODE_SIGNAL_RELAXED, "rc"),
         ranks=4, ranks_per_node=2, kernels=("ep_hierarchical_stored", "ep_hierarchical_staged")),
    Case("proxy", "two words and a signal each way, by a proxy beside the kernels", proxy, (), NICS,
         without("tests/kernels/proxy_ring.cu", _FENCE, "srd"),
         transport="proxy", queue_pairs=1, beside=("ep_proxy",)),
)  # fmt: skip


# ---- what is in no row -----------------------------------------------------------------------------------------------
NOT_PROVED = {  # by file, or by file and kernel
    "tutorial_kernels/*_broken.cu": "wrong on purpose: the checker must find it (tests/checker/ and others)",
    "tutorial_kernels/02_memory_views.cu:signal_first": "wrong on purpose, as its name says",
    "tutorial_kernels/00_start_here.cu:wait_for_ever": "wrong on purpose, as its name says",
    "tutorial_kernels/00_start_here.cu:write_past_the_end": "wrong on purpose, as its name says",
    "tutorial_kernels/00_start_here.cu:sum_every": "one thread and no peer; with step 0 wrong on purpose",
    "tutorial_kernels/03_ibgda_shim_before.cu": "what `ep-lib migrate` reads; it is not run",
    "tutorial_kernels/03_ibgda_shim_debug.cu": "prints what it finds, and takes times: it reads a clock",
    "tutorial_kernels/06_dispatch.cu:read_rows": "reads rows for their time only, behind a dispatch",
    "ep_lib/moe/pcie/exchange_counts.cu:ep_pcie_finish": "one thread waits for its NIC, before the host frees memory",
    "ep_lib/compat/deep_ep/layout.cu": "counts in its own rank's memory: no peer takes part",
    "ep_lib/commands/bench/*": "takes times: it reads a clock, or its result is not used",
    "ep_lib/transports/nixl/mapped_addresses.cu": "asks UCX on a GPU, which the emulator has not",
    "ep_lib/transports/proxy/signal.cu": "one release by one thread, behind a copy of CUDA's copy engine",
    "ep_lib/workshop/hidden/*": "calls what learners wrote: their pieces are checked when they are graded",
}


def kernels_of_the_house() -> dict[str, list[str]]:
    """The names of the kernels in each file of ep_lib and of the tutorials."""
    files = sorted(file for place in (ROOT / "ep_lib", TUTORIALS) for file in place.rglob("*.cu*"))
    named = {str(file.relative_to(ROOT)): find_global_functions([file.read_text()]).names for file in files}
    return {file: [*names] for file, names in named.items() if names}


def reason_not_proved(file: str, kernel: str) -> str | None:
    """Why a kernel is in no row, where it has to be in none."""
    names = (file, f"{file}:{kernel}")
    return next((why for what, why in NOT_PROVED.items() if any(fnmatch(name, what) for name in names)), None)
