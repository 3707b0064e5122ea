"""The puzzles of notebook 02: the content of a registration, a stream of bytes, and writes by memory views in a
kernel."""

from __future__ import annotations

import itertools

import numpy as np

from ep_lib.nixl import DeviceHost
from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_WORDS = 32


def _inside(bench: Bench) -> None:
    cases = [(1000, 100), (1000, 1), (1099, 1), (1040, 20), (1000, 101), (999, 2), (1099, 2), (950, 200), (1100, 1)]
    for (address, nbytes), moved in itertools.product(cases, (0, 4096)):
        want = address >= 1000 and address + nbytes <= 1100
        address += moved
        got = bench.call(1000 + moved, 100, address, nbytes)
        bench.require(got is not None, "`inside` has no value: assign True or False to it.")
        says = f"{1000 + moved} to {1100 + moved} is registered. Bytes {address} to {address + nbytes} are "
        says += f"{'' if want else 'not '}inside"
        bench.require(bool(got) is want, f"{says}, and your line says {got!r}.")


class _Stream:
    """Gives a few bytes at a time."""

    def __init__(self, data: bytes, at_once: int) -> None:
        self.left, self.at_once, self.asked = data, at_once, 0

    def receive(self, size: int) -> bytes:
        self.asked += 1
        if self.asked > 200:
            raise RuntimeError("receive() was called 200 times for 20 bytes: does your loop end?")
        piece, self.left = self.left[: min(size, self.at_once)], self.left[min(size, self.at_once) :]
        return piece


def _whole(bench: Bench) -> None:
    for at_once in (64, 7, 1):
        data = bytes(range(40))
        stream = _Stream(data, at_once)
        got = bench.call(stream.receive, 20)
        what = f"a stream that gives {at_once} bytes at a time" if at_once < 20 else "a stream that has them all"
        read = len(got) if len(got) != 20 else "20 others"
        bench.require(bytes(got) == data[:20], f"20 bytes of {what}: you have read {read}.")
        bench.require(stream.left == data[20:], f"You have taken {40 - len(stream.left)} bytes from {what}, not 20.")
    stream = _Stream(b"0123456789", 7)
    got = bench.call(stream.receive, 20)
    bench.require(bytes(got) == b"0123456789", "A stream that ends after 10 bytes: return these 10.")


def _by_view(bench: Bench, threads: int) -> None:
    """Rank 0 writes and signals by memory views, rank 1 waits and reads."""
    rank = bench.rank
    data, bell = bench.symmetric("data", _WORDS, np.uint64), bench.symmetric("bell", 1, np.uint64)
    source = bench.array("source", 100 + np.arange(_WORDS, dtype=np.uint64))
    heard = bench.array("heard", np.zeros(_WORDS, np.uint64))
    host = DeviceHost(rank)
    for array in (source, data, bell):
        host.register(array)
    local, remote = host.prep_local_view([source]), host.prep_remote_view([(data, 1), (bell, 1)])
    bench.launch(1, threads, local, remote, 8 * _WORDS, bell, data, heard)
    rank.synchronize()
    rank.barrier()
    if bench.me == 1:
        bench.expect("heard", 100 + np.arange(_WORDS), "That is what rank 0 has in `source`.")
        bench.expect("bell", 1, "One message, one signal of 1.")
    host.close()


_KERNEL = """
#include <ep/nixl_device.cuh>
#include <ep/wait.cuh>

constexpr auto LEVEL = nixl_gpu_level_t::{level};

extern "C" __global__ void puzzle(nixlMemViewH local, nixlMemViewH remote, size_t bytes,
                                  uint64_t* bell, const uint64_t* data, uint64_t* heard) {{
    const int lane = threadIdx.x;
    if (ep::rank() == 0) {{
        // YOUR LINES
        return;
    }}
    if (!ep::{wait}(bell, 1, {{ep::kPhaseSignal, 0, -1}})) return;
    for (size_t i = lane; i < bytes / 8; i += blockDim.x) heard[i] = data[i];
}}
"""

_CALLS = {
    r"\bnixlPut\b": "Put by its entry of the view: `nixlPut`.",
    r"\bnixlAtomicAdd\b": "Add to the bell by its entry of the view: `nixlAtomicAdd`.",
}

PUZZLES = (
    Puzzle(
        number="02.1",
        title="Inside of a registration",
        task="""
`begin` and `size` are a registered region, `address` and `nbytes` the memory of a transfer. Set `inside` to whether
the transfer may take place: **all** of its bytes, from the first to the last, are registered. One line of Python.
""",
        template="""
def puzzle(begin, size, address, nbytes):
    inside = None
    # YOUR LINES
    return inside
""",
        main=_inside,
        hints=(
            "The region's bytes are `begin`, `begin + 1`, ... up to, but not including, `begin + size`.",
            "It is not enough that the first byte is inside. Where does the transfer end, and where may it end?",
            "`inside = begin <= address and address + nbytes <= ...`",
        ),
        solution="inside = begin <= address and address + nbytes <= begin + size",
        discussion="""
Half-open ranges need no `- 1`: an end is compared with an end, by `<=`. A NIC makes this comparison for every
packet, with the region that its **key** names; NIXL's host makes none, so `DeviceHost` does it for you.
""",
        ranks=0,
    ),
    Puzzle(
        number="02.2",
        title="A stream has no messages",
        task="""
`receive(n)` gives at least one and at most `n` bytes of a stream, and `b""` once it has ended. Fill `data` until it
has `size` bytes, or until the stream has ended. Take nothing that lies behind. Three or four lines of Python.
""",
        template="""
def puzzle(receive, size):
    data = bytearray()
    # YOUR LINES
    return data
""",
        main=_whole,
        hints=(
            "A `while` loop around `data += receive(...)`.",
            "How many bytes may you ask for, if `len(data)` are there already? And what ends the loop if no more come?",
            "`while len(data) < size:`, and below it `piece = receive(...)`, `if ...: break`, `data += piece`",
        ),
        solution="""
while len(data) < size:
    piece = receive(size - len(data))
    if not piece: break
    data += piece
""",
        discussion="""
With small messages on a quiet machine, one `receive` nearly always gives all of it: the mistake waits for the first
busy day. The exercise raises an error at the end of the stream, since half a message is none.
""",
        ranks=0,
    ),
    Puzzle(
        number="02.3",
        title="A write and its signal, by views",
        task="""
The host of rank 0 has made two memory views. Entry 0 of `local` is `source`; entry 0 of `remote` is the `data` of
rank 1, and entry 1 its `bell`. One thread runs this kernel (`LEVEL` is `THREAD`). Put `bytes` bytes of `source`
into `data`, and then add 1 to the bell. Two lines.
""",
        template=_KERNEL.format(level="THREAD", wait="wait_until_ge"),
        main=lambda bench: _by_view(bench, 1),
        hints=(
            "`nixlPut<LEVEL>(source, target, size)` and `nixlAtomicAdd<LEVEL>(value, counter)`. Each place is "
            "`{view, entry, offset}`.",
            "The source is an entry of the local view, the target and the bell are entries of the remote one. All "
            "offsets are 0.",
            "`nixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes);` and the addition of 1 to entry 1.",
        ),
        solution="""
nixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes);
nixlAtomicAdd<LEVEL>(1, {remote, 1, 0});
""",
        discussion="""
No address in sight: the views hold both sides, and the kernel says only *which entry*, *how much* and *when*. That is
what the host's work was for. Data, then signal, as always.
""",
        picture=("data", "bell"),
        requires=_CALLS,
    ),
    Puzzle(
        number="02.4",
        title="The same by a whole warp",
        task="""
Now 32 threads run it, and `LEVEL` is `WARP`: all lanes call the put **together**, and share its work. The bell is
to ring once. Two lines; `lane` is 0 to 31.
""",
        template=_KERNEL.format(level="WARP", wait="wait_until_ge_warp"),
        main=lambda bench: _by_view(bench, 32),
        hints=(
            "The calls are those of puzzle 02.3. Which of them must all lanes reach?",
            "An addition that every lane posts at THREAD level adds 32. At WARP level, all lanes make one post.",
            "Both calls with `<LEVEL>` by all lanes; or the second one in `if (lane == 0)` with "
            "`<nixl_gpu_level_t::THREAD>`.",
        ),
        solution="""
nixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes);
nixlAtomicAdd<LEVEL>(1, {remote, 1, 0});
""",
        discussion="""
A put at WARP level is a promise of the caller: all 32 lanes are there, with the same arguments. They share its work;
the addition is posted by one of them, after the work of all. Inside of `if (lane == 0)` such a put waits for 31 lanes
that never come, on a GPU for ever.
""",
        picture=("data", "bell"),
        requires=_CALLS,
        flows=(
            Flow("data", "writes", "another", "All 32 lanes have to share the put: call it at WARP level.", threads=2),
        ),
    ),
)
