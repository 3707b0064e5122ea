"""What ranks do that call ep_lib as if it were DeepEP, on tensors of their own device: each asserts."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

import ep_lib
from ep_lib.compat import deep_ep
from ep_lib.compat.deep_ep.scales import unpack_ue8m0
from ep_lib.reference import FP8_GROUP
from support.torch_cases import device_of, gather

HIDDEN, EXPERTS, TOP_K = 512, 8, 3


def on_its_device(case: Callable[[ep_lib.Rank], Any]) -> Callable[[ep_lib.Rank], Any]:
    """A case that makes its tensors on the rank's GPU, where it has one."""

    @functools.wraps(case)
    def run(rank: ep_lib.Rank) -> Any:
        with device_of(rank):
            return case(rank)

    return run


def choices(rank: ep_lib.Rank, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """x of halves (so that sums are exact), topk_idx with some -1, topk_weights."""
    device = device_of(rank)
    with torch.device("cpu"):  # where this generator draws
        g = torch.Generator().manual_seed(1000 * rank.rank + tokens)
        x = torch.randint(-64, 64, (tokens, HIDDEN), generator=g).bfloat16() / 2
        idx = torch.rand(tokens, EXPERTS, generator=g).topk(TOP_K, dim=1).indices
        idx = idx.masked_fill(torch.rand(idx.shape, generator=g) < 0.1, -1)
        return x.to(device), idx.to(device), torch.rand(idx.shape, generator=g).to(device)


def layout_of(buffer: Any, idx: Tensor, experts: int = EXPERTS) -> dict[str, Any]:
    """What a caller hands on from get_dispatch_layout."""
    per_rank, per_node, per_expert, sent, event = buffer.get_dispatch_layout(idx, experts)
    assert per_node is None and event.event is None
    home = idx // (experts // buffer.group_size)
    expected = torch.stack([((home == r) & (idx >= 0)).any(1) for r in range(buffer.group_size)], dim=1)
    assert torch.equal(sent, expected) and torch.equal(per_rank, expected.sum(0, dtype=torch.int32))
    assert per_expert.tolist() == [int((idx == e).sum()) for e in range(experts)] and per_expert.dtype == torch.int32
    return {"num_tokens_per_rank": per_rank, "is_token_in_rank": sent, "num_tokens_per_expert": per_expert}


def fp8_rows(x: Tensor, *, powers_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """By a scale for 128 elements."""
    groups = x.float().view(len(x), x.shape[1] // FP8_GROUP, FP8_GROUP)
    scales = groups.abs().amax(-1).clamp(min=1e-4) / 448
    if powers_of_two:
        scales = torch.exp2(torch.log2(scales).ceil())
    return (groups / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).view(x.shape), scales


def back(rows: Tensor, scales: Tensor) -> Tensor:
    return (rows.float().view(*scales.shape, FP8_GROUP) * scales.unsqueeze(-1)).view(rows.shape)


@on_its_device
def normal_mode(rank: ep_lib.Rank) -> None:
    """Sizes that grow on one rank only, ranks without tokens, all forms of input, handles, weights that come back."""
    buffer = deep_ep.Buffer(rank, 1 << 20, 0)
    me, ranks = rank.rank, rank.world_size
    for tokens in ([3, 0, 5, 1][me], 70 + 60 * me, 10):
        x, idx, weights = choices(rank, tokens)
        layout = layout_of(buffer, idx)
        sent = layout["is_token_in_rank"]
        came, came_idx, came_weights, counts, handle, event = buffer.dispatch(
            x, topk_idx=idx, topk_weights=weights, **layout, config=deep_ep.Buffer.get_dispatch_config(ranks)
        )
        assert type(counts) is list and counts == [int((came_idx == e).sum()) for e in range(EXPERTS // ranks)]
        assert len(handle) == 6 and event.event is None
        prefix, channel, recv_channel, source, in_rank, head = handle
        received = [int(s[me]) for s in rank.all_gather(sent.sum(0).cpu().numpy())]
        assert prefix[:, me].tolist() == torch.tensor(received).cumsum(0).tolist()
        assert channel[:, 0].tolist() == sent.sum(0).tolist() and not recv_channel.any()
        assert in_rank is sent and len(source) == len(came) and handle[0] is prefix
        assert torch.equal(head >= 0, sent) and (not tokens or int(head.max()) == int(sent.sum(0).max()) - 1)
        bias = torch.ones_like(x)
        out, out_weights, event = buffer.combine(came, handle, topk_weights=came_weights, bias=(bias, bias))
        times = sent.sum(1, keepdim=True)
        assert torch.equal(out, (x.float() * times + 2).bfloat16())
        assert torch.equal(out_weights, weights.masked_fill(idx < 0, 0))
        everywhere, every_weight, _ = buffer.combine(came, handle, topk_weights=torch.ones_like(came_weights) / 3)
        third = torch.tensor(1 / 3)
        assert torch.allclose(every_weight, times * third, rtol=1e-6) and everywhere.dtype == torch.bfloat16
    assert [engine.max_tokens for engine in buffer._engines.values()] == [256]

    again, *nothing, event = buffer.dispatch(x * 2, handle=handle)
    assert torch.equal(again, came * 2) and nothing == [None] * 4
    padded, padded_idx, _, empty, worst_handle, _ = buffer.dispatch(
        x, topk_idx=idx, topk_weights=weights, **layout, num_worst_tokens=10 * ranks
    )
    assert empty == [] and torch.equal(padded[: len(came)], came) and bool((padded_idx[len(came) :] == -1).all())
    assert torch.equal(buffer.combine(padded, worst_handle)[0], (x.float() * times).bfloat16())
    by_layout, none_idx, none_weights, aligned, _, _ = buffer.dispatch(x, **layout, expert_alignment=16)
    assert torch.equal(by_layout, came) and none_idx is None and none_weights is None
    assert aligned == [-(-count // 16) * 16 for count in counts]

    rows, scales = fp8_rows(x, powers_of_two=True)
    packed = (scales.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)
    assert torch.equal(unpack_ue8m0(packed), scales)
    for form in (
        scales,
        scales.t().contiguous().t(),
        packed,
        packed.t().contiguous().t(),
        scales[:, :1].contiguous(),
        scales[:, 0].contiguous(),
    ):
        before = deep_ep.Buffer.capture()
        (got, got_scales), *_, fp8_handle, event = buffer.dispatch(
            (rows, form), topk_idx=idx, **layout, previous_event=before, async_finish=True, allocate_on_comm_stream=True
        )
        with event:
            pass
        assert got_scales.dtype == form.dtype and got_scales.shape[1:] == form.shape[1:]
        if form.shape == scales.shape:
            assert torch.allclose(back(got, got_scales), came.float(), rtol=0.07, atol=0.1)
        sums = buffer.combine(torch.ones(len(got), HIDDEN).bfloat16(), fp8_handle)[0]
        assert torch.equal(sums, times.bfloat16().expand_as(sums))
        token_of = fp8_handle[3]
        assert len(token_of) == len(got)


@on_its_device
def low_latency_mode(rank: ep_lib.Rank) -> None:
    """Every form of the rows, with hooks and without, what handles tell, statistics, combine by weights, masks."""
    most, me, ranks = 8, rank.rank, rank.world_size
    local = EXPERTS // ranks
    buffer = deep_ep.Buffer(rank, 0, deep_ep.Buffer.get_low_latency_rdma_size_hint(most, HIDDEN, ranks, EXPERTS), True)
    x, idx, weights = choices(rank, [8, 0, 5, 3][me])
    tokens, routes = gather(rank, x.float()), gather(rank, idx)
    stats = torch.zeros(local, dtype=torch.int32)
    forms = [(fp8, rounded, ue8m0) for fp8, rounded, ue8m0 in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1))]
    for number, (fp8, rounded, ue8m0) in enumerate(forms):
        hooked = bool(number % 2)
        came, counts, handle, event, hook = buffer.low_latency_dispatch(
            x, idx, most, EXPERTS, stats, use_fp8=bool(fp8), round_scale=bool(rounded), use_ue8m0=bool(ue8m0),
            async_finish=not hooked, return_recv_hook=hooked,
        )  # fmt: skip
        hook() if hooked else event.current_stream_wait()
        assert (hook is None) == (not hooked)
        rows = came
        if fp8:
            rows, scales = came
            assert scales.transpose(1, 2).is_contiguous(), "by columns"
            if ue8m0:
                scales = unpack_ue8m0(scales)
            rows = back(rows, scales)
            if rounded:
                assert torch.equal(torch.frexp(scales[0, : int(counts[0])])[0].unique(), torch.tensor([0.5]))
        sources, ranges, *sizes = handle
        assert sizes == [most, HIDDEN, EXPERTS] and len(handle) == 5
        for e in range(local):
            expected = [(r, t) for r in range(ranks) for t in range(len(routes[r])) if me * local + e in routes[r][t]]
            assert int(counts[e]) == len(expected) == int((ranges[e] & 0xFFFFFFFF).sum())
            assert sources[e, : len(expected)].tolist() == [t for _, t in expected]
            for r in range(ranks):
                begin, many = int(ranges[e, r] >> 32), int(ranges[e, r] & 0xFFFFFFFF)
                assert [p for p, (s, _) in enumerate(expected) if s == r] == list(range(begin, begin + many))
            if expected:
                wanted = torch.stack([tokens[r][t] for r, t in expected])
                got = rows[e, : len(expected)].float()
                assert torch.allclose(got, wanted, rtol=0.07, atol=0.1) if fp8 else torch.equal(got, wanted)
        assert torch.equal(stats, (number + 1) * counts)
    plain = came[0].bfloat16() if isinstance(came, tuple) else came
    into = torch.empty_like(x)
    for zero_copy in (False, True):
        experts = torch.ones_like(plain)
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle).fill_(1)
        out, event, hook = buffer.low_latency_combine(
            experts, idx, weights, handle, zero_copy=zero_copy, return_recv_hook=zero_copy, out=into
        )
        if hook is not None:
            hook()
        assert out is into
        total = weights.masked_fill(idx < 0, 0).sum(1, keepdim=True)
        assert torch.allclose(out.float(), total.expand_as(out), rtol=0.02)
    buffer.clean_low_latency_buffer(most, HIDDEN, EXPERTS)
    status = torch.full((ranks,), 7, dtype=torch.int32)
    other = (me + 1) % ranks
    for masked in ([other], []):
        buffer.low_latency_update_mask_buffer(other, True)
        if not masked:
            buffer.low_latency_clean_mask_buffer()
        buffer.low_latency_query_mask_buffer(status)
        assert status.nonzero().flatten().tolist() == masked
    rank.barrier()


@on_its_device
def after_a_loss(rank: ep_lib.Rank) -> None:
    """The last rank stops coming. The others go on as vLLM does: they clean, leave out again who is lost, and retry."""
    lost, experts, most = rank.world_size - 1, 2 * rank.world_size, 8
    buffer = deep_ep.Buffer(rank, 0, 1 << 10, True, enable_shrink=True)
    x, idx, weights = choices(rank, 5)
    idx = idx.clamp(max=experts - 1)
    status = torch.zeros(rank.world_size, dtype=torch.int32)

    def step() -> Tensor:
        came, _, handle, _, hook = buffer.low_latency_dispatch(
            x, idx, most, experts, use_fp8=False, return_recv_hook=True
        )
        hook()
        out, _, hook = buffer.low_latency_combine(came, idx, weights, handle, return_recv_hook=True)
        hook()
        buffer.low_latency_query_mask_buffer(status)
        return out

    step()
    assert not status.any()
    if rank.rank != lost:
        step()
        assert status.nonzero().flatten().tolist() == [lost]
        buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True).zero_()
        buffer.low_latency_clean_mask_buffer()
        buffer.low_latency_query_mask_buffer(status)
        assert not status.any()
        buffer.low_latency_update_mask_buffer(lost, True)
        kept = (weights * ((idx >= 0) & (idx // 2 != lost))).sum(1, keepdim=True)
        for _ in range(2):
            assert torch.allclose(step().float(), x.float() * kept, rtol=0.02)
            assert status.nonzero().flatten().tolist() == [lost]
    rank.all_gather(None)


@on_its_device
def several_nodes(rank: ep_lib.Rank) -> list[int]:
    """Two ranks on each of two nodes, which NICs connect; one rank has more tokens the second time."""
    buffer = deep_ep.Buffer(rank)
    for tokens in (4, 5 + 150 * (rank.rank == 2), 3):
        x, idx, weights = choices(rank, tokens)
        per_rank, per_node, per_expert, sent, _ = buffer.get_dispatch_layout(idx, EXPERTS)
        assert per_node.tolist() == [int(sent[:, node : node + 2].any(1).sum()) for node in (0, 2)]
        came, _, came_weights, _, handle, _ = buffer.internode_dispatch(
            x, None, per_rank, per_node, sent, per_expert, idx, weights, 1, 0, deep_ep.Config(4)
        )
        out, out_weights, _ = buffer.internode_combine(came, handle, came_weights)
        assert torch.equal(out, x * sent.sum(1, keepdim=True))
        assert torch.equal(out_weights, weights.masked_fill(idx < 0, 0))
    return [engine.max_tokens for engine in buffer._engines.values()]
