"""What test_deep_ep.py starts as processes: ``deep_ep_program.py RANK RANKS FILE gloo|nccl``.

How vLLM, SGLang, Megatron-LM and TorchTitan call DeepEP, V1 and V2: the same calls with the same arguments, in the same
order, on groups of torch.distributed, with ``import deep_ep`` as they have it. FILE is where the processes meet.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ep_lib.compat.deep_ep import install_alias

install_alias()

import deep_ep  # noqa: E402
from deep_ep import Buffer, ElasticBuffer  # noqa: E402
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
# https://github.com/vllm-project/vllm/blob/0014300/vllm/distributed/device_communicators/all2all.py, and
# .../blob/055e47c/vllm/model_executor/layers/fused_moe/prepare_finalize/deepep_ht.py and deepep_ll.py (2026-11)
def vllm(group: Any) -> None:
    high = deep_ep.Buffer(
        group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=1,
        explicitly_destroy=True,
    )  # fmt: skip
    high.set_num_sms(4)
    for tokens in (0 if dist.get_rank(group) == 0 else 9, 12):
        x, idx, weights = inputs(group, tokens)
        previous = high.capture()
        per_rank, per_node, per_expert, in_rank, event = high.get_dispatch_layout(
            topk_idx=idx, num_experts=EXPERTS, previous_event=previous, async_finish=False,
            allocate_on_comm_stream=False,
        )  # fmt: skip
        rows = x.to(torch.float8_e4m3fn), torch.ones(tokens, 1, device=DEVICE)  # quantised by tokens
        (came, scales), _, _, counts, handle, event = high.dispatch(
            x=rows, handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=weights,
            expert_alignment=1, config=deep_ep.Buffer.get_dispatch_config(group.size()), previous_event=previous,
            async_finish=True, allocate_on_comm_stream=False,
        )  # fmt: skip
        if event.event is not None:
            event.current_stream_wait()
        assert scales.shape == (len(came), 1) and isinstance(counts, list)
        out, _, event = high.combine(
            x=came.bfloat16(), handle=handle, topk_weights=None,
            config=deep_ep.Buffer.get_combine_config(group.size()), previous_event=high.capture(), async_finish=True,
            allocate_on_comm_stream=False,
        )  # fmt: skip
        if event.event is not None:
            event.current_stream_wait()
        assert torch.equal(out, x * ranks_of(group, idx))
    nbytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank=DECODED, hidden=HIDDEN, num_ranks=group.size(), num_experts=EXPERTS
    )
    low = deep_ep.Buffer(
        group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=nbytes, low_latency_mode=True,
        num_qps_per_rank=EXPERTS // group.size(), allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False,
        explicitly_destroy=True, enable_shrink=True,
    )  # fmt: skip
    for rounds in (False, True):  # UE8M0 for DeepGEMM on Blackwell
        batches = [inputs(group, tokens) for tokens in (7, 5)]  # two micro-batches: each one's hook behind the other's
        sent = [
            low.low_latency_dispatch(
                x, idx, DECODED, EXPERTS, use_fp8=True, round_scale=rounds, use_ue8m0=rounds, async_finish=False,
                return_recv_hook=True,
            )
            for x, idx, _ in batches
        ]  # fmt: skip
        for *_, hook in sent:
            hook()
        outputs = [torch.empty_like(x) for x, *_ in batches]
        hooks = []
        for ((rows, _), counts, handle, _, _), (_, idx, weights), output in zip(sent, batches, outputs, strict=True):
            assert counts.shape == (EXPERTS // group.size(),)
            experts = torch.ones(rows.shape, dtype=torch.bfloat16, device=DEVICE)
            *_, hook = low.low_latency_combine(
                experts, idx, weights, handle, async_finish=False, zero_copy=False, return_recv_hook=True, out=output
            )
            hooks.append(hook)
        for hook, output in zip(hooks, outputs, strict=True):
            hook()
            assert torch.equal(output, torch.ones_like(output))
    masked = torch.ones(group.size(), dtype=torch.int32, device=DEVICE)
    low.low_latency_query_mask_buffer(masked)
    assert not masked.any()
    low.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True).zero_()
    low.low_latency_clean_mask_buffer()
    low.destroy()
    high.destroy()


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


# ---- DeepEP V2: ElasticBuffer, as four projects called it in November 2026 -------------------------------------------
# https://github.com/pytorch/torchtitan/blob/b5bcd76/torchtitan/distributed/deepep/deepep.py (2026-08-21)
_elastic: Any = None


def titan_buffer(group: Any, hidden: int, most: int, top_k: int) -> Any:
    global _elastic
    needed = ElasticBuffer.get_buffer_size_hint(group, most, hidden, num_topk=top_k, use_fp8_dispatch=False)
    if _elastic is not None and _elastic.group == group and _elastic.num_bytes >= needed:
        return _elastic
    _elastic = ElasticBuffer(
        group, num_bytes=needed, num_max_tokens_per_rank=most, hidden=hidden, num_topk=top_k, use_fp8_dispatch=False,
        explicitly_destroy=True,
    )  # fmt: skip
    return _elastic


class TitanDispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, idx: Tensor, weights: Tensor, group: Any, most: int) -> Any:
        buffer = titan_buffer(group, x.shape[1], most, TOP_K)
        came, came_idx, came_weights, handle, _ = buffer.dispatch(
            x, topk_idx=idx, topk_weights=weights, num_experts=EXPERTS, num_max_tokens_per_rank=most, do_expand=False,
            do_cpu_sync=True,
        )  # fmt: skip
        ctx.buffer, ctx.handle = buffer, handle
        return came, came_idx, came_weights, torch.tensor(handle.num_recv_tokens_per_expert_list), handle

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_x, grad_weights, _ = ctx.buffer.combine(grads[0], handle=ctx.handle, topk_weights=grads[2].float())
        return grad_x, None, grad_weights, None, None


class TitanCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: Any, handle: Any) -> Any:
        out, _, event = buffer.combine(x, handle=handle, topk_weights=None, async_with_compute_stream=True)
        event.current_stream_wait()
        ctx.buffer, ctx.handle = buffer, handle
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad_x, *_ = ctx.buffer.dispatch(grad, handle=ctx.handle, num_sms=ctx.handle.num_sms, do_cpu_sync=False)
        return grad_x, None, None


def torchtitan(group: Any) -> None:
    for number, tokens in enumerate((20 + 5 * dist.get_rank(group), 9)):
        x, idx, weights = inputs(group, tokens, number)
        x, weights = x.requires_grad_(), weights.requires_grad_()
        came, came_idx, came_weights, counts, handle = TitanDispatch.apply(x, idx, weights, group, 64)
        assert counts.tolist() == [int((came_idx == e).sum()) for e in range(len(counts))]
        weight = (came_weights * (came_idx >= 0)).sum(1, keepdim=True)
        out = TitanCombine.apply((came.float() * weight).bfloat16(), _elastic, handle)
        assert torch.equal(out, x)
        out.backward(torch.ones_like(out))
        assert torch.equal(x.grad, torch.ones_like(x))
        assert torch.allclose(weights.grad, x.detach().float().sum(1, keepdim=True).expand_as(weights), rtol=1e-5)
    with torch.inference_mode():
        rows, none, scores, handle, _ = _elastic.dispatch(
            x, topk_idx=idx, topk_weights=weights, num_experts=EXPERTS, num_max_tokens_per_rank=64, do_expand=True,
            do_cpu_sync=False,
        )  # fmt: skip
        psum = handle.psum_num_recv_tokens_per_expert
        assert none is None and psum[-1] <= len(rows) == len(scores)
        out, _, event = _elastic.combine(
            rows * scores.reshape(len(rows), -1).sum(-1, keepdim=True).to(rows.dtype), handle=handle,
            async_with_compute_stream=True,
        )  # fmt: skip
        event.current_stream_wait()
        assert torch.equal(out, x)


# https://github.com/vllm-project/vllm/blob/02bd2a4/vllm/model_executor/layers/fused_moe/prepare_finalize/deepep_v2.py
def vllm_v2(group: Any) -> None:
    """Prefill, and decode with the room of a power of two; by blocks, and MXFP8, whose scales are packed."""
    buffer = deep_ep.ElasticBuffer(
        group=group, num_max_tokens_per_rank=32, hidden=HIDDEN, num_topk=TOP_K, use_fp8_dispatch=True,
        allow_hybrid_mode=False, prefer_overlap_with_compute=True, allow_multiple_reduction=False,
        explicitly_destroy=True,
    )  # fmt: skip
    assert buffer.get_theoretical_num_sms(num_experts=EXPERTS, num_topk=TOP_K) >= 4
    for decodes, tokens in ((False, 17), (False, 0 if dist.get_rank(group) == 0 else 9), (True, 5)):
        x, idx, weights = inputs(group, tokens)
        mxfp8 = torch.full((tokens, HIDDEN // 32), 127, dtype=torch.uint8, device=DEVICE).view(torch.int32)
        blocks = torch.ones(tokens, HIDDEN // 128, device=DEVICE)
        for scales in (blocks, mxfp8):
            (came, came_scales), came_idx, came_weights, handle, event = buffer.dispatch(
                x=(x.to(torch.float8_e4m3fn), scales), topk_idx=idx, topk_weights=weights, num_experts=EXPERTS,
                num_max_tokens_per_rank=8 if decodes else None, do_expand=not decodes, do_cpu_sync=not decodes,
                async_with_compute_stream=False,
            )  # fmt: skip
            assert event.event is None and came_scales.dtype == scales.dtype
            counts, received = handle.num_recv_tokens_per_expert_list, handle.psum_num_recv_tokens_per_scaleup_rank
            if decodes:
                assert counts == [] and len(came) == 8 * group.size() and came_idx is not None
                row = torch.arange(len(came), device=DEVICE).unsqueeze(1)
                came_idx = torch.where((came_idx >= 0) & (row < received[-1]), came_idx, -1)
                weigh = (came_weights * (came_idx >= 0)).sum(1, keepdim=True)
            else:
                assert came_idx is None and sum(counts) == len(came)
                weigh = came_weights.unsqueeze(1)
            out, _, event = buffer.combine(
                x=(came.float() * weigh).bfloat16(), handle=handle, topk_weights=None,
                async_with_compute_stream=decodes, allocate_on_comm_stream=decodes,
            )  # fmt: skip
            if event.event is not None:
                event.current_stream_wait()
            assert torch.equal(out, x)
    buffer.destroy()


# https://github.com/sgl-project/sglang/blob/0134da0/python/sglang/srt/layers/moe/token_dispatcher/deepep_v2.py
def sglang_v2(group: Any) -> None:
    """Extend, then decode with rows by expert; FP8 with scales by columns."""
    buffer = ElasticBuffer(
        group, num_max_tokens_per_rank=DECODED, hidden=HIDDEN, num_topk=TOP_K, use_fp8_dispatch=True,
        allow_hybrid_mode=True, sl_idx=0, prefer_overlap_with_compute=False,
    )  # fmt: skip
    for expands in (False, True):
        x, idx, weights = inputs(group, DECODED - 3 * dist.get_rank(group))
        scales = torch.ones(HIDDEN // 128, len(x), device=DEVICE).t()
        (came, came_scales), came_idx, came_weights, handle, event = buffer.dispatch(
            (x.to(torch.float8_e4m3fn), scales), topk_idx=idx, topk_weights=weights, num_experts=EXPERTS,
            num_max_tokens_per_rank=DECODED, expert_alignment=128, num_sms=4, use_tma_aligned_col_major_sf=True,
            do_cpu_sync=not expands, do_expand=expands,
        )  # fmt: skip
        if event.event is not None:
            event.current_stream_wait()
        assert came_scales.stride(0) == 1 and handle.psum_num_recv_tokens_per_expert.dtype == torch.int32
        if expands:
            weigh = came_weights.unsqueeze(1)
        else:
            received = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1].item())
            assert received == len(came) and bool((came_scales == 1).all())
            weigh = (came_weights * (came_idx >= 0)).sum(1, keepdim=True)
        out, _, event = buffer.combine((came.float() * weigh).bfloat16(), handle=handle, topk_weights=None)
        assert event.event is None and torch.equal(out, x)


# https://github.com/NVIDIA/Megatron-LM/pull/4793 (merged into dev) and /pull/5745
def megatron_v2(group: Any) -> None:
    """Two Buffers, of decode and of prefill; each step with its own, beside the caller's stream."""
    pool = {
        most: ElasticBuffer(group, num_max_tokens_per_rank=most, hidden=HIDDEN, num_topk=TOP_K, use_fp8_dispatch=False)
        for most in (4, 32)
    }
    for most, expands in ((4, True), (32, False), (32, True)):
        buffer = pool[most]
        sms = buffer.get_theoretical_num_sms(EXPERTS, TOP_K)
        x, idx, weights = inputs(group, most - dist.get_rank(group))
        came, came_idx, came_weights, handle, event = buffer.dispatch(
            x.contiguous(), topk_idx=idx, topk_weights=weights, num_experts=EXPERTS,
            num_max_tokens_per_rank=buffer.num_max_tokens_per_rank, expert_alignment=32, num_sms=sms,
            async_with_compute_stream=True, allocate_on_comm_stream=True, do_cpu_sync=False if expands else None,
            do_expand=expands,
        )  # fmt: skip
        event.current_stream_wait()
        assert handle.topk_idx.shape[1] == TOP_K and handle.num_max_tokens_per_rank == most
        assert came_weights.dim() == (1 if expands else 2)
        weigh = came_weights.unsqueeze(1) if expands else (came_weights * (came_idx >= 0)).sum(1, keepdim=True)
        out, _, event = buffer.combine(
            (came.float() * weigh).bfloat16(), handle=handle, num_sms=handle.num_sms, async_with_compute_stream=True,
            allocate_on_comm_stream=True,
        )  # fmt: skip
        event.current_stream_wait()
        assert torch.equal(out, x)
        grad, back, event = buffer.combine(came, handle=handle, topk_weights=came_weights.float(), num_sms=sms)
        times = TOP_K if expands else ranks_of(group, idx)
        assert torch.equal(grad, x * times) and torch.equal(back, weights)
        if not expands:
            again, *_, same, _ = buffer.dispatch(x.contiguous(), handle=handle, num_sms=sms)
            assert same is handle and torch.equal(again, came)


def stateless(rank: int, ranks: int, file: str) -> None:
    """A group that torch's world does not know, as vLLM makes them for elastic expert parallelism; and one that has no
    store of its own to tell, as in older releases of torch."""
    store = dist.PrefixStore("stateless", dist.FileStore(file + ".stateless", ranks))
    for number in range(2):
        prefix = dist.PrefixStore(str(number), store)
        group = dist.ProcessGroup(rank, ranks) if number else dist.ProcessGroup(prefix, rank, ranks)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        gloo = dist.ProcessGroupGloo(prefix, rank, ranks, timedelta(seconds=60))
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        for buffer in (Buffer(group), Buffer(group), ElasticBuffer(group, 2 << 20, num_max_tokens_per_rank=8)):
            x = torch.full((3, HIDDEN), rank + 1.0).bfloat16()
            idx = torch.arange(EXPERTS)[:: EXPERTS // ranks].repeat(3, 1)  # an expert of each rank
            if isinstance(buffer, Buffer):
                _, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, EXPERTS)
                layout = {"is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
                came, _, _, counts, handle, _ = buffer.dispatch(x, topk_idx=idx, **layout)
            else:
                came, _, _, handle, _ = buffer.dispatch(x, idx, num_experts=EXPERTS)
                counts = handle.num_recv_tokens_per_expert_list
            assert counts[0] == len(came) == 3 * ranks
            assert torch.equal(buffer.combine(came, handle)[0], x * ranks)


def main() -> None:
    world = dist.group.WORLD
    members = [0, dist.get_world_size() - 1]
    some = dist.new_group(members)
    for group in [world, some] if dist.get_rank() in members else [world]:
        # A group of two has its second rank: what is larger on one rank alone is larger there.
        megatron(group)
    vllm(world)
    vllm_v2(world)
    torchtitan(world)
    megatron_v2(world)
    if dist.get_rank() in members:
        sglang(some)
        sglang_v2(some)
    if DEVICE.type == "cpu":
        stateless(dist.get_rank(), dist.get_world_size(), file)
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
