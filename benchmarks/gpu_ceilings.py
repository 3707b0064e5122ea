"""The ceilings: what the links carry if all GPUs send to (or read from) all others at once, without any waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from gpu_inputs import device_of
from gpu_rows import Rows

import ep_lib
from ep_lib.memory.arrays import describe

SOURCE = Path(__file__).resolve().with_name("gpu_ceilings.cu")
ROW = 14336  # bytes: 7168 BF16, what a warp of `plain_all` moves at a time
ALIGNMENT = 2048
_DEVICE_TO_DEVICE = 3


class Way(NamedTuple):
    """A launch: with ``stages`` 0, lanes load and store 16 bytes; else TMA copies pieces of ``piece`` bytes."""

    blocks: int
    warps: int
    stages: int
    piece: int

    @property
    def note(self) -> str:
        return f"bulk copies, {self.warps} warps" if self.stages else f"16-byte vectors, {self.warps} warps"


WAYS = [Way(8, 32, 0, ROW), Way(24, 32, 0, ROW)] + [Way(blocks, 8, 3, 7168) for blocks in (8, 16, 24, 32)]
TOY = [Way(2, 2, 0, 256), Way(2, 2, 2, 256)]  # for the emulator


def bytes_each(megabytes: int, gpu: bool) -> int:
    """Bytes that a rank sends to each other rank: whole rows."""
    return (megabytes << 20) // ROW * ROW if gpu else 4096


def symmetric_bytes(ranks: int, megabytes: int) -> int:
    """The heap that :func:`measure` needs."""
    return ranks * (megabytes << 20) + 2 * ALIGNMENT


def measure(rank: ep_lib.Rank, rows: Rows, megabytes: int) -> None:
    """Collective: adds rows of group "ceiling"; every way is checked before it is timed."""
    import torch

    gpu, device, me, ranks = rank.backend == "cuda", device_of(rank), rank.rank, rank.world_size
    each = bytes_each(megabytes, gpu)
    mine = rank.symmetric(ranks * each + ALIGNMENT, "uint8")
    skip = -describe(mine).address % ALIGNMENT
    slots = [mine[skip + source * each : skip + (source + 1) * each] for source in range(ranks)]
    address = describe(slots[0]).address
    made = [_pattern(each, source, device) for source in range(ranks)]
    data, out = made[me], torch.empty(each, dtype=torch.uint8, device=device)
    counters = torch.zeros(4096, dtype=torch.int32, device=device)
    used = 0
    kernels = {name: ep_lib.Kernel.from_file(SOURCE, name) for name in ("plain_all", "bulk_all")}

    def launch(way: Way, target: Any) -> None:
        nonlocal used
        used += 1
        counter = counters[used : used + 1]
        threads, pieces = 32 * way.warps, each // way.piece * way.piece
        if way.stages:
            shared = way.warps * way.stages * (way.piece + 8)
            args = (address, data, target, way.piece, pieces, way.stages, counter)
            kernels["bulk_all"].launch(rank, way.blocks, threads, *args, shared_bytes=shared)
        else:
            kernels["plain_all"].launch(rank, way.blocks, threads, address, data, target, way.piece, pieces, counter)

    sent = {"logical_bytes": (ranks - 1) * each, "wire_bytes": (ranks - 1) * each}
    for what, target in (("stores", None), ("loads", out)):
        for way in WAYS if gpu else TOY:
            out.zero_()
            for source, slot in enumerate(slots):
                slot[...] = 0 if target is None else rank.xp.asarray(made[source])
            rank.synchronize()
            rank.barrier()
            launch(way, target)
            rank.synchronize()
            rank.barrier()
            if target is None:
                right = all(_same(slots[source], made[source]) for source in range(ranks) if source != me)
            else:  # every other rank holds the same bytes where this one reads
                right = bool(torch.equal(out, data))
            rows.check(right, f"ceiling {what} {way}: the bytes differ")
            rows.time(
                [lambda way=way, target=target: launch(way, target)],
                **{"group": "ceiling", "by": "kernel", "what": what, "sms": way.blocks, "note": way.note, **sent},
            )
    if gpu:
        for note, at_once in (("one peer after the other", False), ("all peers at once", True)):
            copy = _copy_engines(rank, slots[me], data, at_once)
            rows.time([copy], group="ceiling", by="copy engine", what="copies", note=note, **sent)
    rank.barrier()
    rank.free(mine)


def _copy_engines(rank: ep_lib.Rank, slot: Any, data: Any, at_once: bool) -> Any:
    """Launches one copy to the ``slot`` of each other rank; in each turn, every rank copies to a different one."""
    cuda = rank.xp.cuda
    others = [(rank.rank + turn) % rank.world_size for turn in range(1, rank.world_size)]
    targets = [rank.peer_address(slot, peer) for peer in others]
    streams = [cuda.Stream(non_blocking=True) for _ in targets[: None if at_once else 1]]

    def launch() -> None:
        main = cuda.get_current_stream()
        begin = main.record()
        for number, stream in enumerate(streams):
            stream.wait_event(begin)
            for target in targets[number :: len(streams)]:
                cuda.runtime.memcpyAsync(target, data.data_ptr(), data.nbytes, _DEVICE_TO_DEVICE, stream.ptr)
            main.wait_event(stream.record())

    return launch


def _pattern(nbytes: int, source: int, device: str) -> Any:
    import torch

    generator = torch.Generator(device=device).manual_seed(4000 + source)
    return torch.randint(0, 255, (nbytes,), dtype=torch.uint8, generator=generator, device=device)


def _same(got: Any, want: Any) -> bool:
    import torch

    return bool(torch.equal(torch.from_dlpack(got), want))
