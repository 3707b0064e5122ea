"""ep_lib.compat.deep_ep.ElasticBuffer: DeepEP V2's calls and their results."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support import Spmd

torch = pytest.importorskip("torch")

from support.deep_ep_cases import EXPERTS, HIDDEN, TOP_K, back, choices, fp8_rows, on_its_device
from support.refusals import refused
from support.torch_cases import gather
from torch import Tensor

import ep_lib
from ep_lib.compat import deep_ep
from ep_lib.errors import ArgumentError, BufferClosedError, HandleError, NotSupportedError

MOST = 7


class Wanted:
    """The rows of one rank, from what all ranks sent: sorted by source rank, then token."""

    def __init__(self, rank: ep_lib.Rank, x: Tensor, idx: Tensor, weights: Tensor, most: int) -> None:
        local = EXPERTS // rank.world_size
        xs, ids, ws = gather(rank, x.float()), gather(rank, idx), gather(rank, weights)
        home = [torch.where(i < 0, -1, i // local) == rank.rank for i in ids]
        rows = [h.any(1).nonzero().flatten() for h in home]
        self.per_rank = [len(r) for r in rows]
        self.x = torch.cat([x[r] for x, r in zip(xs, rows, strict=True)])
        here = torch.cat([h[r] for h, r in zip(home, rows, strict=True)])
        self.idx = torch.cat([i[r] for i, r in zip(ids, rows, strict=True)]).sub(rank.rank * local)
        self.idx = self.idx.masked_fill(~here, -1)
        self.weights = torch.cat([w[r] for w, r in zip(ws, rows, strict=True)]).masked_fill(~here, 0)
        self.source = torch.cat([r + number * most for number, r in enumerate(rows)])
        self.counts = [int((self.idx == e).sum()) for e in range(local)]


def padded(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment


@on_its_device
def every_form(rank: ep_lib.Rank) -> None:
    """Rows and expanded rows, waited for or not, in bfloat16 and FP8; what handles tell, by handle again, and back."""
    ranks, local = rank.world_size, EXPERTS // rank.world_size
    buffer = deep_ep.ElasticBuffer(
        rank, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=TOP_K, deterministic=True
    )
    sms = buffer.get_theoretical_num_sms(EXPERTS, TOP_K)
    x, idx, weights = choices(rank, [MOST, 0, 5, 3][rank.rank])
    wanted = Wanted(rank, x, idx, weights, MOST)
    rows, scales = fp8_rows(x)
    forms = itertools.product((False, True), (True, False), (False, True), (1, 16))
    for expand, waits, fp8, alignment in forms:
        stats = torch.ones(local, dtype=torch.int32)
        came, came_idx, came_weights, handle, event = buffer.dispatch(
            (rows, scales) if fp8 else x, topk_idx=idx, topk_weights=weights, num_experts=EXPERTS, num_sms=sms,
            cumulative_local_expert_recv_stats=stats, expert_alignment=alignment, do_cpu_sync=waits, do_expand=expand,
            use_tma_aligned_col_major_sf=fp8 and expand, do_handle_copy=waits, previous_event=buffer.capture(),
            async_with_compute_stream=fp8, allocate_on_comm_stream=True,
        )  # fmt: skip
        event.current_stream_wait() if fp8 else None
        many, ends = len(wanted.x), [padded(count, alignment) for count in wanted.counts]
        starts = [sum(ends[:e]) for e in range(local)]
        assert (handle.topk_idx.data_ptr() != idx.data_ptr()) == (waits and len(idx) > 0)
        assert handle.num_recv_tokens_per_expert_list == (ends if waits else [])
        psum = [sum(wanted.per_rank[: r + 1]) for r in range(ranks)]
        assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == psum and psum[-1] == many
        inside = [
            start + (count if expand else end) for start, count, end in zip(starts, wanted.counts, ends, strict=True)
        ]
        assert handle.psum_num_recv_tokens_per_expert.tolist() == inside
        assert stats.tolist() == [1 + count for count in wanted.counts]
        assert handle.num_recv_tokens == (many if waits else MOST * ranks) == len(handle.recv_src_metadata)
        metadata = handle.recv_src_metadata[:many]
        assert metadata[:, 0].tolist() == wanted.source.tolist() and handle.recv_src_metadata.dtype == torch.int32
        if fp8:
            assert not expand or came[1].stride(0) == 1
            plain = back(came[0], came[1].contiguous())
        else:
            plain = came.float()
        near = {"rtol": 0.07, "atol": 0.1} if fp8 else {"rtol": 0, "atol": 0}
        slots = metadata[:, 2:].long()
        if expand:
            assert came_idx is None and torch.equal(slots >= 0, wanted.idx >= 0)
            assert len(came_weights) == handle.num_expanded_tokens == len(plain) and len(plain) % alignment == 0
            for e in range(local):
                mine = (wanted.idx == e).nonzero()
                at = slots[mine[:, 0], mine[:, 1]]
                assert at.tolist() == list(range(starts[e], starts[e] + wanted.counts[e]))
                assert torch.allclose(plain[at], wanted.x[mine[:, 0]], **near)
                assert torch.equal(came_weights[at], wanted.weights[mine[:, 0], mine[:, 1]])
                gap = slice(starts[e] + wanted.counts[e], starts[e] + ends[e])
                assert not plain[gap].any() and not came_weights[gap].any()
        else:
            assert bool((slots == -1).all()) and handle.num_unaligned_recv_tokens_per_expert is None
            assert torch.allclose(plain[:many], wanted.x, **near)
            assert torch.equal(came_idx[:many], wanted.idx) and bool((came_idx[many:] == -1).all())
            assert torch.equal(came_weights[:many], wanted.weights)
        again_came, again_idx, again_weights, same, _ = buffer.dispatch(
            (rows, scales) if fp8 else 2 * x, topk_weights=2 * weights if expand else None, handle=handle,
            num_sms=handle.num_sms, do_expand=expand, do_zero_padding=expand, do_cpu_sync=False,
        )  # fmt: skip
        assert same is handle and (again_idx is None if expand else torch.equal(again_idx, came_idx))
        filled = slots[slots >= 0] if expand else torch.arange(many)
        again = back(*again_came) if fp8 else again_came.float() / 2
        assert torch.equal(again[filled], plain[filled])
        assert again_weights is None or torch.equal(again_weights[filled], 2 * came_weights[filled])

        halves = plain.bfloat16() if not fp8 else torch.ones_like(plain, dtype=torch.bfloat16)
        bias = torch.ones_like(x)
        for biases, more in ((None, 0), (bias, 1), ((bias, bias), 2)):
            out, weights_back, event = buffer.combine(
                halves, handle, topk_weights=came_weights, bias=biases, previous_event=deep_ep.EventOverlap(),
            )  # fmt: skip
            home = torch.where(idx < 0, -1, idx // local)
            times = (idx >= 0).sum(1) if expand else torch.stack([(home == r).any(1) for r in range(ranks)]).sum(0)
            sent = torch.ones_like(x) if fp8 else x
            assert torch.equal(out, (sent.float() * times.unsqueeze(1) + more).bfloat16()) and event.event is None
            assert torch.equal(weights_back, weights.masked_fill(idx < 0, 0))
        assert buffer.combine(halves, handle)[1] is None
    assert len(buffer._engines) == 1
    buffer.barrier()


@on_its_device
def other_scales(rank: ep_lib.Rank) -> None:
    """Scales that a sender has packed, and one for each row: as they were sent, by rows and by columns."""
    buffer = deep_ep.ElasticBuffer(rank, num_max_tokens_per_rank=MOST, hidden=HIDDEN, explicitly_destroy=True)
    x, idx, weights = choices(rank, 4)
    wanted = Wanted(rank, x, idx, weights, MOST)
    rows, scales = fp8_rows(x, powers_of_two=True)
    packed = (scales.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)
    for form in (packed, packed.repeat(1, 4).contiguous(), scales[:, :1].contiguous()):
        for by_columns in (False, True):
            (_, came_scales), *_ = buffer.dispatch(
                (rows, form), idx, num_experts=EXPERTS, use_tma_aligned_col_major_sf=by_columns
            )
            columns = form.shape[1]
            assert came_scales.dtype == form.dtype and came_scales.shape == (len(wanted.x), columns)
            assert came_scales.stride(0) == (1 if by_columns else columns)
            token = wanted.source % MOST
            everywhere = gather(rank, form)
            source = (wanted.source // MOST).tolist()
            for row, (r, t) in enumerate(zip(source, token.tolist(), strict=True)):
                assert torch.equal(came_scales[row], everywhere[r][t])
    buffer.destroy()
    buffer.destroy()


@on_its_device
def several_nodes(rank: ep_lib.Rank) -> list[Any]:
    """Two ranks on each of two nodes, which NICs connect."""
    buffer = deep_ep.ElasticBuffer(rank, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=TOP_K)
    x, idx, weights = choices(rank, 5)
    wanted = Wanted(rank, x, idx, weights, MOST)
    came, came_idx, came_weights, handle, _ = buffer.dispatch(x, idx, weights, num_experts=EXPERTS)
    assert torch.equal(came.float(), wanted.x) and torch.equal(came_idx, wanted.idx)
    per_rank = torch.tensor(wanted.per_rank).view(2, 2).sum(0).cumsum(0)
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == per_rank.tolist()
    local = EXPERTS // rank.world_size
    home = torch.where(idx < 0, -1, idx // local)
    times = torch.stack([(home == r).any(1) for r in range(rank.world_size)]).sum(0)
    out, weights_back, _ = buffer.combine(came, handle, came_weights)
    assert torch.equal(out, (x.float() * times.unsqueeze(1)).bfloat16())
    assert torch.equal(weights_back, weights.masked_fill(idx < 0, 0))
    return [*buffer.get_logical_domain_size(), buffer.scaleout_rank_idx, buffer.scaleup_rank_idx]


@on_its_device
def replayed(rank: ep_lib.Rank) -> None:
    """What a CUDA graph of a layer gives for other inputs, beside the same calls without a graph."""
    buffer = deep_ep.ElasticBuffer(rank, num_max_tokens_per_rank=MOST, hidden=HIDDEN)
    x, idx, weights = choices(rank, MOST)

    def layer(expand: bool) -> tuple[Tensor, ...]:
        came, came_idx, came_weights, handle, _ = buffer.dispatch(
            x, idx, weights, num_experts=EXPERTS, do_cpu_sync=False, do_expand=expand
        )
        weigh = came_weights.unsqueeze(1) if expand else (came_weights * (came_idx >= 0)).sum(1, keepdim=True)
        out, _, event = buffer.combine(
            (came.float() * weigh).bfloat16(), handle, async_with_compute_stream=True, allocate_on_comm_stream=True
        )
        event.current_stream_wait()
        psums = handle.psum_num_recv_tokens_per_scaleup_rank, handle.psum_num_recv_tokens_per_expert
        return out, *psums, handle.recv_src_metadata[:, 0].clone()

    for expand in (False, True):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            layer(expand)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        rank.barrier()
        with torch.cuda.graph(graph):
            captured = layer(expand)
        for step in range(3):
            x.mul_(0.5), idx.copy_(idx.roll(step, 0)), weights.copy_(weights.roll(1, 0))
            rank.synchronize()
            rank.barrier()
            graph.replay()
            torch.cuda.synchronize()
            for mine, eager in zip(captured, layer(expand), strict=True):
                assert torch.equal(mine, eager)


def test_every_form_returns_what_deep_ep_returns(spmd: Spmd) -> None:
    spmd(every_form, ranks=4)


def test_scales_come_as_they_were_sent(spmd: Spmd) -> None:
    spmd(other_scales, ranks=2)


@pytest.mark.slow
def test_nodes_are_found_by_themselves() -> None:
    nodes = ep_lib.Fabric("rc", ranks_per_node=2)
    found = ep_lib.spawn(several_nodes, ranks=4, backend="emulator", fabric=nodes)
    assert found == [[2, 2, rank // 2, rank % 2] for rank in range(4)]


@pytest.mark.gpu(count=2)
def test_in_a_cuda_graph() -> None:
    ep_lib.spawn(replayed, ranks=2, backend="cuda")


def test_what_cannot_be_is_a_sentence_that_names_a_way_out() -> None:
    def main(rank: ep_lib.Rank) -> None:
        make = deep_ep.ElasticBuffer
        buffer = make(rank, 4 << 20, explicitly_destroy=True)
        x, idx, weights = choices(rank, 4)
        assert buffer.num_bytes == 4 << 20 and buffer.get_theoretical_num_qps(4) == 65
        assert make.get_buffer_size_hint(rank, 64, 512) % (2 << 20) == 0
        assert make(rank, num_max_tokens_per_rank=64, hidden=512).num_bytes == make.get_buffer_size_hint(rank, 64, 512)
        refused(lambda: make(rank, num_max_tokens_per_rank=4), ArgumentError, "hidden is 0")
        refused(lambda: make(rank, 4 << 20, 2 << 20), NotSupportedError, "num_cpu_bytes")
        refused(lambda: make(rank, 4 << 20).destroy(), ArgumentError, "explicitly_destroy=True")
        refused(lambda: buffer.dispatch(x, idx, num_experts=8), ArgumentError, "num_max_tokens_per_rank, the same")
        refused(lambda: buffer.dispatch(x, idx, num_experts=8, num_max_tokens_per_rank=3), ArgumentError, "4 tokens")
        refused(lambda: buffer.dispatch(x, num_experts=8), ArgumentError, "needs topk_idx")
        refused(lambda: buffer.dispatch(x, idx), ArgumentError, "needs num_experts")
        refused(lambda: buffer.dispatch(x, idx, num_experts=8, do_zero_padding=True), ArgumentError, "do_expand")
        options = {"num_experts": 8, "num_max_tokens_per_rank": 4}
        came, _, _, handle, event = buffer.dispatch(x, idx, weights, **options)
        for wrong in (torch.zeros(5, dtype=torch.int32), torch.zeros(8)):
            refused(lambda: buffer.dispatch(x, idx, weights, wrong, 8, 4), ArgumentError, r"int32 \[8\] on cpu")  # noqa: B023
        refused(lambda: buffer.dispatch(x, handle=handle, topk_idx=idx), ArgumentError, "the handle's")
        refused(lambda: buffer.dispatch(x, handle=handle, do_cpu_sync=True), ArgumentError, "leave it out")
        refused(lambda: buffer.dispatch(x, handle=handle, expert_alignment=8), ArgumentError, "the handle's is 1")
        refused(lambda: buffer.dispatch(x, handle=handle, do_expand=True), HandleError, "sorted_by_expert")
        refused(lambda: buffer.combine(came, (handle,)), HandleError, "very object")
        refused(lambda: buffer.combine(came, handle, weights[0]), ArgumentError, "2 dimensions")
        refused(lambda: buffer.combine(came, handle, previous_event=3), ArgumentError, "EventHandle")
        refused(event.current_stream_wait, ArgumentError, "async")
        for name in ("engram_fetch", "pp_send", "all_gather", "get_agrs_buffer_size_hint"):
            refused(lambda: getattr(buffer, name)(1), NotSupportedError, "dispatch and combine only")  # noqa: B023
        buffer.destroy()
        refused(lambda: buffer.dispatch(x, idx, **options), BufferClosedError, "destroyed")

    ep_lib.spawn(main, ranks=1, backend="emulator")


def test_a_dispatch_for_more_tokens_makes_more_memory() -> None:
    def main(rank: ep_lib.Rank) -> list[int]:
        buffer = deep_ep.ElasticBuffer(rank, num_max_tokens_per_rank=8, hidden=HIDDEN)
        handles = []
        for most in (4, 300, 16):
            x, idx, _ = choices(rank, most)
            came, *_, handle, _ = buffer.dispatch(
                x, idx, num_experts=8, num_max_tokens_per_rank=most, do_cpu_sync=False
            )
            assert len(came) == 2 * most
            handles.append((came, handle, x, idx))
        for came, handle, x, idx in handles:
            home = torch.where(idx < 0, -1, idx // 4)
            times = torch.stack([(home == r).any(1) for r in range(2)]).sum(0)
            assert torch.equal(buffer.combine(came, handle)[0], (x.float() * times.unsqueeze(1)).bfloat16())
        return [engine.max_tokens for engine in buffer._engines.values()]

    assert ep_lib.spawn(main, ranks=2, backend="emulator") == [[320], [320]]
