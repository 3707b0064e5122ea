"""What test_nixl_ep.py starts as processes: ``nixl_ep_program.py RANK RANKS FILE cpu|cuda``.

How vLLM's elastic expert parallelism calls NIXL EP: the same calls with the same arguments, in the same order, with
``import nixl_ep`` as it has it. FILE is the store in which the processes meet.
https://github.com/vllm-project/vllm/blob/08f95fe/vllm/model_executor/layers/fused_moe/prepare_finalize/nixl_ep.py, and
NixlEPAll2AllManager of vllm/distributed/device_communicators/all2all.py (2026-11)

All ranks but the last begin; the last one is staged and comes in. Then it is masked, and taken in again; disconnected,
and replaced by itself, with a Buffer made anew; and it dies at the end, and the others go on.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ep_lib.compat.deep_ep.scales import unpack_ue8m0
from ep_lib.compat.nixl_ep import install_alias

install_alias()

import nixl_ep  # noqa: E402

HIDDEN, PER_RANK, TOP_K, MOST, MOST_RANKS = 512, 2, 2, 8, 6
number, size, file, device = sys.argv[1:]
RANK, RANKS = int(number), int(size)
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count()) if device == "cuda" else torch.device("cpu")
LAST = RANKS - 1


class Manager:
    """NixlEPAll2AllManager's calls, of one process."""

    def __init__(self, store: Any, world_size: int) -> None:
        num_rdma_bytes = nixl_ep.Buffer.get_rdma_size_hint(
            num_max_dispatch_tokens_per_rank=MOST, hidden=HIDDEN, num_ranks=MOST_RANKS,
            num_experts=MOST_RANKS * PER_RANK,
        )  # fmt: skip
        self.buffer = nixl_ep.Buffer(rank=RANK, tcp_store_group=store)
        self.buffer.update_memory_buffers(
            num_ranks=MOST_RANKS, num_experts_per_rank=PER_RANK, num_rdma_bytes=num_rdma_bytes
        )
        self.buffer.connect_ranks(list(range(world_size)))

    def stage(self, store: Any, begin: int, end: int) -> None:
        self.buffer.set_tcp_store_group(store)
        self.buffer.connect_ranks(list(range(begin, end)), activate=False)

    def commit(self, begin: int, end: int) -> None:
        for rank in range(begin, end):
            self.buffer.update_mask_buffer(rank, mask=False)

    def shrink(self, store: Any, begin: int, end: int) -> None:
        self.buffer.set_tcp_store_group(store)
        self.buffer.disconnect_ranks(list(range(begin, end)))


def meet(store: Any) -> None:
    store.set(str(RANK), "is here")
    store.wait([str(rank) for rank in range(RANKS)])


def masked(buffer: Any) -> list[int]:
    status = torch.zeros((MOST_RANKS,), dtype=torch.int32, device=DEVICE)
    buffer.query_mask_buffer(status)
    return status.nonzero().flatten().tolist()


def step(buffer: Any, there: list[int], seed: int, capacity: int = MOST_RANKS * PER_RANK) -> None:
    """NixlEPPrepareAndFinalize's prepare and finalize, in the formats that it asks for. Tokens choose experts of any
    rank that there may be, and get back what those of ``there`` make of them."""
    for fp8, ue8m0, waits in ((False, False, False), (True, False, True), (True, True, True)):
        g = torch.Generator().manual_seed(1000 * seed + RANK)
        a1 = torch.randint(-8, 8, (MOST - RANK, HIDDEN), generator=g).bfloat16().to(DEVICE)
        ids = torch.rand(len(a1), capacity, generator=g).topk(TOP_K, dim=1).indices.to(DEVICE)
        weights = torch.full((len(a1), TOP_K), 0.5, device=DEVICE)
        expert_x, counts, handle, _, hook = buffer.dispatch(
            a1, ids, MOST, capacity, use_fp8=fp8, round_scale=ue8m0, use_ue8m0=ue8m0, async_finish=False,
            return_recv_hook=True,
        )  # fmt: skip
        hook()
        rows = expert_x
        if fp8:
            rows, scales = expert_x
            assert scales.dtype == (torch.int32 if ue8m0 else torch.float32) and scales.stride(1) == 1
            if ue8m0:
                scales = unpack_ue8m0(scales)
            rows = (rows.float().unflatten(2, (-1, 128)) * scales.unsqueeze(3)).flatten(2).bfloat16()
        assert rows.shape == (PER_RANK, capacity // PER_RANK * MOST, HIDDEN) and counts.shape == (PER_RANK,)
        source, ranges, most, hidden = handle
        assert source.shape == rows.shape[:2] and (most, hidden) == (MOST, HIDDEN)
        assert ((ranges & 0xFFFFFFFF).sum(1) == counts).all() and ((source >= 0).sum(1) == counts).all()
        assert {rank for rank in range(ranges.shape[1]) if (ranges[:, rank] & 0xFFFFFFFF).any()} <= set(there)
        output = torch.empty_like(a1)
        _, _, hook = buffer.combine(
            rows, ids, weights, handle, async_finish=False, zero_copy=False, return_recv_hook=waits, out=output
        )
        if waits:
            hook()
        home = ids // PER_RANK
        here = torch.stack([home == rank for rank in there]).any(0)
        assert torch.allclose(output.float(), a1.float() * (weights * here).sum(1, keepdim=True), rtol=0.1, atol=0.05)


def zero_copy(buffer: Any, there: list[int], **capacity: int) -> None:
    x: Tensor = torch.full((3, HIDDEN), RANK + 1.0, device=DEVICE).bfloat16()
    ids = torch.tensor(there, device=DEVICE).mul(PER_RANK).repeat(3, 1)  # an expert of each
    rows, _, handle, event, _ = buffer.dispatch(x, ids, MOST, use_fp8=False, async_finish=True, **capacity)
    event.current_stream_wait()
    into = buffer.get_next_combine_buffer(handle)
    assert into.shape == rows.shape
    into.copy_(rows)
    out, event, _ = buffer.combine(
        into, ids, torch.ones(ids.shape, device=DEVICE), handle, zero_copy=True, async_finish=True
    )
    event.current_stream_wait()
    assert torch.equal(out, x * len(there))


def main() -> None:
    store = dist.FileStore(file, -1)
    before, everyone = list(range(LAST)), list(range(RANKS))
    absent = list(range(RANKS, MOST_RANKS))

    # Scale up: a rank more is connected while the others serve, and then unmasked.
    if RANK == LAST:
        manager = Manager(dist.PrefixStore("up", store), RANKS)
    else:
        manager = Manager(dist.PrefixStore("first", store), LAST)
        step(manager.buffer, before, 1)
        manager.stage(dist.PrefixStore("up", store), LAST, RANKS)
        step(manager.buffer, before, 2)
        assert masked(manager.buffer) == [LAST, *absent]
        manager.commit(LAST, RANKS)
    buffer = manager.buffer
    step(buffer, everyone, 3)
    step(buffer, everyone, 4, RANKS * PER_RANK)
    zero_copy(buffer, everyone)
    zero_copy(buffer, everyone, num_experts=MOST_RANKS * PER_RANK)
    assert masked(buffer) == absent

    # Leave it out for a while: the others and it go on without each other, with the memory that they have.
    for rank in before if RANK == LAST else [LAST]:
        buffer.update_mask_buffer(rank, mask=True)
    step(buffer, [LAST] if RANK == LAST else before, 5)
    assert masked(buffer) == [*(before if RANK == LAST else [LAST]), *absent]
    meet(dist.PrefixStore("masked", store))
    buffer.clean_mask_buffer()
    step(buffer, everyone, 6)

    # Scale down, and up again with a Buffer that was made anew in its place.
    if RANK == LAST:
        manager = Manager(dist.PrefixStore("again", store), RANKS)
    else:
        manager.shrink(dist.PrefixStore("down", store), LAST, RANKS)
        step(buffer, before, 7)
        assert masked(buffer) == [LAST, *absent]
        manager.stage(dist.PrefixStore("again", store), LAST, RANKS)
        manager.commit(LAST, RANKS)
    step(manager.buffer, everyone, 8)

    # It dies. The kernels mask it, and the others disconnect it.
    if RANK == LAST:
        sys.stdout.write("done\n")
        sys.stdout.flush()
        os._exit(0)
    step(manager.buffer, before, 9)
    assert masked(manager.buffer) == [LAST, *absent]
    manager.shrink(dist.PrefixStore("dead", store), LAST, RANKS)
    step(manager.buffer, before, 10)
    manager.buffer.set_tcp_store_group(None)


torch.set_num_threads(1)
if device == "cuda":
    torch.cuda.set_device(DEVICE)
main()
sys.stdout.write("done\n")
