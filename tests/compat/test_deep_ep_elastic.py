"""ep_lib.compat.deep_ep.ElasticBuffer: DeepEP V2's calls and their results."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import deep_ep_cases, elastic_cases
from support.refusals import refused

import ep_lib
from ep_lib.compat import deep_ep
from ep_lib.errors import ArgumentError, BufferClosedError, HandleError, NotSupportedError


def test_every_form_returns_what_deep_ep_returns(spmd: Callable[..., Any]) -> None:
    spmd(elastic_cases.every_form, ranks=4)


def test_scales_come_as_they_were_sent(spmd: Callable[..., Any]) -> None:
    spmd(elastic_cases.other_scales, ranks=2)


@pytest.mark.slow
def test_nodes_are_found_by_themselves() -> None:
    nodes = ep_lib.Fabric("rc", ranks_per_node=2)
    found = ep_lib.spawn(elastic_cases.several_nodes, ranks=4, backend="emulator", fabric=nodes)
    assert found == [[2, 2, rank // 2, rank % 2] for rank in range(4)]


@pytest.mark.gpu(count=2)
def test_in_a_cuda_graph() -> None:
    ep_lib.spawn(elastic_cases.replayed, ranks=2, backend="cuda")


def test_what_cannot_be_is_a_sentence_that_names_a_way_out() -> None:
    def main(rank: ep_lib.Rank) -> None:
        make = deep_ep.ElasticBuffer
        buffer = make(rank, 4 << 20, explicitly_destroy=True)
        x, idx, weights = deep_ep_cases.choices(rank, 4)
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
        buffer = deep_ep.ElasticBuffer(rank, num_max_tokens_per_rank=8, hidden=deep_ep_cases.HIDDEN)
        handles = []
        for most in (4, 300, 16):
            x, idx, _ = deep_ep_cases.choices(rank, most)
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
