"""What test_deep_ep.py starts as processes: ``deep_ep_program.py RANK RANKS FILE gloo|nccl``.

How vLLM, SGLang and Megatron-LM call DeepEP: the same calls with the same arguments, in the same order, on groups of
torch.distributed, with ``import deep_ep`` as they have it. FILE is where the processes meet.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ep_lib.compat.deep_ep import install_alias

install_alias()

import deep_ep  # noqa: E402
from deep_ep import Buffer  # noqa: E402
from deep_ep.utils import EventHandle, EventOverlap  # noqa: E402

HIDDEN, EXPERTS, TOP_K, DECODED = 512, 6, 2, 16


def inputs(group: Any, tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(100 * seed + dist.get_rank(group))
    x = torch.randint(-8, 8, (tokens, HIDDEN), generator=g).bfloat16()
    idx = torch.rand(tokens, EXPERTS, generator=g).topk(TOP_K, dim=1).indices
    return x.to(DEVICE), idx.to(DEVICE), torch.full((tokens, TOP_K), 1 / TOP_K, device=DEVICE)


def ranks_of(group: Any, idx: Tensor) -> Tensor:
    """How many ranks a token goes to, ``[T, 1]``."""
    home = idx // (EXPERTS // dist.get_world_size(group))
    return torch.tensor([len(set(row)) for row in home.tolist()], device=DEVICE).view(-1, 1)


# ---- Megatron-LM: fused_a2a.py, moe_flex_dispatcher_backend=deepep ---------------------------------------------------
_buffer: Any = None


def megatron_buffer(group: Any, hidden_bytes: int) -> Any:
    global _buffer
    nvl = rdma = 0
    for config in (Buffer.get_dispatch_config(group.size()), Buffer.get_combine_config(group.size())):
        nvl = max(config.get_nvl_buffer_size_hint(hidden_bytes, group.size()), nvl)
        rdma = max(config.get_rdma_buffer_size_hint(hidden_bytes, group.size()), rdma)
    if _buffer is None or _buffer.group != group or _buffer.num_nvl_bytes < nvl or _buffer.num_rdma_bytes < rdma:
        _buffer = Buffer(group, nvl, rdma)
    return _buffer


class MegatronDispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, idx: Tensor, probs: Tensor, group: Any, beside: bool) -> Any:
        previous = EventOverlap(EventHandle()) if beside else None
        buffer = megatron_buffer(group, x.size(1) * 2)
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            idx, EXPERTS, previous_event=previous, async_finish=beside, allocate_on_comm_stream=beside
        )
        came, came_idx, came_probs, counts, handle, after = buffer.dispatch(
            x, topk_idx=idx, topk_weights=probs, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, previous_event=event, async_finish=beside,
            allocate_on_comm_stream=beside,
        )  # fmt: skip
        if beside:
            after.current_stream_wait()
        ctx.group, ctx.handle, ctx.beside = group, handle, beside
        return came, came_idx, came_probs, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        buffer = megatron_buffer(ctx.group, grads[0].size(1) * 2)
        previous = EventOverlap(EventHandle()) if ctx.beside else None
        grad_x, grad_probs, after = buffer.combine(
            grads[0].contiguous(), ctx.handle, topk_weights=grads[2].float(), previous_event=previous,
            async_finish=ctx.beside, allocate_on_comm_stream=ctx.beside,
        )  # fmt: skip
        if ctx.beside:
            after.current_stream_wait()
        return grad_x, None, grad_probs, None, None


class MegatronCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, handle: Any, beside: bool) -> Any:
        previous = EventOverlap(EventHandle()) if beside else None
        buffer = megatron_buffer(group, x.size(1) * 2)
        out, _, after = buffer.combine(
            x, handle=handle, async_finish=beside, previous_event=previous, allocate_on_comm_stream=beside
        )
        if beside:
            after.current_stream_wait()
        ctx.handle, ctx.group, ctx.beside = handle, group, beside
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        previous = EventOverlap(EventHandle()) if ctx.beside else None
        buffer = megatron_buffer(ctx.group, grad.size(1) * 2)
        grad_x, _, _, _, _, after = buffer.dispatch(
            grad.contiguous(), handle=ctx.handle, previous_event=previous, async_finish=ctx.beside,
            allocate_on_comm_stream=ctx.beside,
        )  # fmt: skip
        if ctx.beside:
            after.current_stream_wait()
        return grad_x, None, None, None


def megatron(group: Any) -> None:
    """Two microbatches before their backward, the second one larger on one rank alone; then another hidden size."""
    for hidden in (HIDDEN, 2 * HIDDEN):
        steps = []
        for number, tokens in enumerate((20, 20 + 200 * (dist.get_rank(group) == 1))):
            x, idx, probs = inputs(group, tokens, number)
            x = x.repeat(1, hidden // HIDDEN).requires_grad_()
            probs = probs.requires_grad_()
            came, came_idx, came_probs, counts, handle = MegatronDispatch.apply(x, idx, probs, group, bool(number))
            assert counts.tolist() == [int((came_idx == e).sum()) for e in range(len(counts))]
            weight = (came_probs * (came_idx >= 0)).sum(1, keepdim=True)
            out = MegatronCombine.apply((came.float() * weight).bfloat16(), group, handle, bool(number))
            assert torch.equal(out, x), "the probabilities of a token sum to 1, and halves are exact"
            steps.append((x, probs, out))
        for x, probs, out in reversed(steps):
            # In one piece: a copy that makes it so comes behind the event that Megatron's backward has captured.
            out.backward(torch.ones_like(out))
            assert torch.equal(x.grad, torch.ones_like(x))
            # Of each choice: the token's row times the gradient of the sum, which is 1 everywhere.
            wanted = x.detach().float().sum(1, keepdim=True).expand_as(probs)
            assert torch.allclose(probs.grad, wanted, rtol=1e-5)


# ---- vLLM: deepep_ht and deepep_ll, prepare and finalize -------------------------------------------------------------
def vllm(group: Any) -> None:
    high = deep_ep.Buffer(
        group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=1
    )
    high.set_num_sms(4)
    for tokens in (0 if dist.get_rank(group) == 0 else 9, 12):
        x, idx, weights = inputs(group, tokens)
        per_rank, per_node, per_expert, in_rank, _ = high.get_dispatch_layout(
            topk_idx=idx, num_experts=EXPERTS, previous_event=None, async_finish=False, allocate_on_comm_stream=False
        )
        rows = x.to(torch.float8_e4m3fn), torch.ones(tokens, 1, device=DEVICE)  # quantised by tokens
        (came, scales), _, _, counts, handle, _ = high.dispatch(
            x=rows, handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=weights,
            expert_alignment=1, config=deep_ep.Buffer.get_dispatch_config(group.size()), previous_event=None,
            async_finish=False, allocate_on_comm_stream=False,
        )  # fmt: skip
        assert scales.shape == (len(came), 1) and isinstance(counts, list)
        out, _, _ = high.combine(
            x=came.bfloat16(), handle=handle, topk_weights=None,
            config=deep_ep.Buffer.get_combine_config(group.size()), previous_event=None, async_finish=False,
            allocate_on_comm_stream=False,
        )  # fmt: skip
        assert torch.equal(out, x * ranks_of(group, idx))
    nbytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(DECODED, HIDDEN, group.size(), EXPERTS)
    low = deep_ep.Buffer(
        group=group, num_nvl_bytes=0, num_rdma_bytes=nbytes, low_latency_mode=True,
        num_qps_per_rank=EXPERTS // group.size(), allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False,
    )  # fmt: skip
    x, idx, weights = inputs(group, 7)
    came, _, handle, _, _ = low.low_latency_dispatch(
        x, idx, DECODED, EXPERTS, use_fp8=False, async_finish=False, return_recv_hook=False
    )
    output = torch.empty_like(x)
    low.low_latency_combine(
        came, idx, weights, handle, async_finish=False, zero_copy=False, return_recv_hook=False, out=output
    )
    assert torch.equal(output, x)


# ---- SGLang: --moe-a2a-backend deepep, prefill and decode on one Buffer ----------------------------------------------
def sglang(group: Any) -> None:
    nvl = rdma = 0
    for config in (Buffer.get_dispatch_config(group.size()), Buffer.get_combine_config(group.size())):
        nvl = max(config.get_nvl_buffer_size_hint(2 * HIDDEN, group.size()), nvl)
        rdma = max(config.get_rdma_buffer_size_hint(2 * HIDDEN, group.size()), rdma)
    rdma = max(Buffer.get_low_latency_rdma_size_hint(DECODED, HIDDEN, group.size(), EXPERTS), rdma)
    queue_pairs = max(Buffer.num_sms, EXPERTS // group.size())
    buffer = Buffer(group, nvl, rdma, low_latency_mode=True, num_qps_per_rank=queue_pairs, allow_mnnvl=True)
    x, idx, weights = inputs(group, 30)
    scales = torch.full((HIDDEN // 128, 30), 0.5, device=DEVICE).t()
    previous = Buffer.capture()
    per_rank, per_node, per_expert, in_rank, previous = buffer.get_dispatch_layout(
        idx, EXPERTS, previous_event=previous, async_finish=True, allocate_on_comm_stream=True
    )
    (came, came_scales), _, _, counts, handle, event = buffer.dispatch(
        (x.to(torch.float8_e4m3fn), scales), topk_idx=idx, topk_weights=weights, num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        previous_event=previous, async_finish=True, allocate_on_comm_stream=True, expert_alignment=128, config=None,
    )  # fmt: skip
    event.current_stream_wait()
    assert all(count % 128 == 0 for count in counts) and bool((came_scales == 0.5).all())
    out, _, event = buffer.combine(
        came.bfloat16(), handle, async_finish=True, previous_event=Buffer.capture(), allocate_on_comm_stream=True,
        config=None,
    )  # fmt: skip
    event.current_stream_wait()
    assert torch.equal(out, x * ranks_of(group, idx))
    buffer.clean_low_latency_buffer(DECODED, HIDDEN, EXPERTS)
    x, idx, weights = inputs(group, DECODED - 3 * dist.get_rank(group))
    for hooked in (False, True):
        (rows, row_scales), masked_m, handle, event, hook = buffer.low_latency_dispatch(
            x, idx, DECODED, EXPERTS, use_fp8=True, async_finish=not hooked, return_recv_hook=hooked,
            round_scale=hooked, use_ue8m0=hooked,
        )  # fmt: skip
        hook() if hooked else event.current_stream_wait()
        assert masked_m.shape == (EXPERTS // group.size(),) and row_scales.dtype == (
            torch.int32 if hooked else torch.float32
        )
        experts = torch.ones(rows.shape, dtype=torch.bfloat16, device=DEVICE)
        out, event, hook = buffer.low_latency_combine(
            x=experts, topk_idx=idx, topk_weights=weights, handle=handle, async_finish=not hooked,
            return_recv_hook=hooked,
        )  # fmt: skip
        hook() if hooked else event.current_stream_wait()
        assert torch.equal(out, torch.ones_like(x))


def main() -> None:
    world = dist.group.WORLD
    members = [0, dist.get_world_size() - 1]
    some = dist.new_group(members)
    for group in [world, some] if dist.get_rank() in members else [world]:
        # A group of two has its second rank: what is larger on one rank alone is larger there.
        megatron(group)
    vllm(world)
    if dist.get_rank() in members:
        sglang(some)
    dist.barrier()


number, size, file, backend = sys.argv[1:]
DEVICE = torch.device("cuda", int(number)) if backend == "nccl" else torch.device("cpu")
if backend == "nccl":
    torch.cuda.set_device(DEVICE)
torch.set_num_threads(1)
dist.init_process_group(backend, init_method=f"file://{file}", rank=int(number), world_size=int(size))
Buffer.set_num_sms(4)
main()
dist.destroy_process_group()
sys.stdout.write("done\n")
