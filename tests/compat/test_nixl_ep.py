"""ep_lib.compat.nixl_ep: the calls of NIXL EP, as vLLM's elastic expert parallelism makes them."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import TESTS
from support.refusals import refused
from support.waiting import run_ranks
from torch import distributed as dist

from ep_lib.compat import nixl_ep
from ep_lib.config import Config
from ep_lib.cuda import mps
from ep_lib.errors import ArgumentError, BufferClosedError, HandleError, NotSupportedError

PROGRAM = TESTS / "programs" / "nixl_ep_program.py"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.extended)])
def test_vllms_sequence_runs_while_a_rank_comes_goes_comes_back_and_dies(tmp_path: Path, ranks: int) -> None:
    run_ranks(PROGRAM, ranks, str(tmp_path / "store"), "cpu")


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=pytest.mark.gpu(count=ranks)) for ranks in (2, 4)])
def test_vllms_sequence_runs_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    with contextlib.ExitStack() as stack:
        if Config.from_environment().gpus is not None:
            for name, value in stack.enter_context(mps.service()).items():
                monkeypatch.setenv(name, value)
        run_ranks(PROGRAM, ranks, str(tmp_path / "store"), "cuda")


def made(**arguments: Any) -> nixl_ep.Buffer:
    """A Buffer of rank 1, for up to 4 ranks of 2 experts."""
    buffer = nixl_ep.Buffer(rank=1, **arguments)
    buffer.update_memory_buffers(4, 2, 1 << 20)
    return buffer


def test_masks_follow_what_is_connected() -> None:
    buffer = made()
    status = torch.zeros(4, dtype=torch.int32)

    def left_out() -> list[int]:
        buffer.query_mask_buffer(status)
        return status.nonzero().flatten().tolist()

    assert left_out() == [0, 2, 3]
    buffer.connect_ranks([0, 1, 2], activate=False)
    assert left_out() == [0, 2, 3]
    buffer.update_mask_buffer(2)
    assert left_out() == [0, 3]
    buffer.connect_ranks([3])
    assert left_out() == [0]
    buffer.update_mask_buffer(3, True)
    assert left_out() == [0, 3]
    buffer.disconnect_ranks([2])
    buffer.clean_mask_buffer()
    assert left_out() == [2]


def test_what_nixl_refuses_is_refused_in_words() -> None:
    buffer = made(explicitly_destroy=True)
    status, x, idx = torch.zeros(3, dtype=torch.int32), torch.ones(2, 128).bfloat16(), torch.zeros(2, 1).long()
    for wrong in ({"disable_ll_nvlink": True}, {"low_latency_mode": False}, {"comm": object()}):
        refused(lambda wrong=wrong: nixl_ep.Buffer(**wrong), NotSupportedError, next(iter(wrong)))
    refused(lambda: nixl_ep.Buffer(timeout_ms=0), ArgumentError, "timeout_ms is 0")
    refused(lambda: nixl_ep.Buffer(rank=4).update_memory_buffers(4, 2, 0), ArgumentError, "at least 5")
    refused(lambda: nixl_ep.Buffer().connect_ranks([0]), ArgumentError, "update_memory_buffers")
    refused(lambda: buffer.update_memory_buffers(4, 2, 0), NotSupportedError, "sizes already")
    refused(lambda: buffer.connect_ranks([]), ArgumentError, "at least one")
    refused(lambda: buffer.connect_ranks([4]), ArgumentError, "from 0 to 3")
    refused(lambda: buffer.disconnect_ranks([2]), ArgumentError, r"rank 1 is connected to \[\]")
    refused(lambda: buffer.update_mask_buffer(2), ArgumentError, r"connect_ranks\(\[2\]\)")
    refused(lambda: buffer.update_mask_buffer(1, True), ArgumentError, "cannot mask itself")
    refused(lambda: buffer.query_mask_buffer(status), ArgumentError, r"int32 \[4\]")
    refused(lambda: buffer.dispatch(x, idx, 4), ArgumentError, "pass tcp_store_group")
    buffer.set_tcp_store_group("a store")
    refused(lambda: buffer.dispatch(x, idx, 4), ArgumentError, "it must be a store of torch.distributed")
    refused(buffer.get_comm_stream, ArgumentError, "before the first dispatch")
    refused(made().destroy, ArgumentError, "explicitly_destroy=True")
    buffer.destroy()
    refused(lambda: buffer.dispatch(x, idx, 4), BufferClosedError, "destroy")


def test_a_rank_alone_drops_what_others_would_get() -> None:
    buffer = made(explicitly_destroy=True, tcp_store_group=dist.HashStore())
    x = torch.arange(3 * 128).view(3, 128).bfloat16()
    idx = torch.tensor([[2, 0], [3, 2], [-1, 7]])  # its own are 2 and 3
    weights = torch.full((3, 2), 0.5)
    assert nixl_ep.Buffer.get_rdma_size_hint(4, 128, 4, 8) > 0
    for number, rows in ((None, 8), (4, 8), (8, 16)):
        stats = torch.ones(2, dtype=torch.int32)
        came, counts, handle, _, hook = buffer.dispatch(x, idx, 4, number, stats, use_fp8=False)
        assert hook is None and came.shape == (2, rows, 128) and counts.tolist() == [2, 1] and stats.tolist() == [3, 2]
        source, ranges, most, hidden = handle
        assert source[:, :3].tolist() == [[0, 1, -1], [1, -1, -1]] and (most, hidden, len(handle)) == (4, 128, 4)
        assert ranges.tolist() == [[0, 2, *[0] * (rows // 4 - 2)], [0, 1, *[0] * (rows // 4 - 2)]]
        out, _, _ = buffer.combine(came, idx, weights, handle)
        assert torch.equal(out, x * torch.tensor([[0.5], [1.0], [0.0]]).bfloat16())
    refused(lambda: buffer.dispatch(x, idx, 4, 2), ArgumentError, "a multiple of 2 from 4 to 8")
    refused(lambda: buffer.dispatch(x, idx + 6, 4, 8), ArgumentError, "expert")
    refused(lambda: buffer.combine(came[:, :8], idx, weights, handle), ArgumentError, r"\[2, 16, hidden\]")
    refused(lambda: buffer.combine(came, idx, weights, tuple(handle)), HandleError, "dispatch")
    buffer._leave_world()
    buffer.dispatch(x, idx, 4)
    refused(lambda: buffer.combine(came, idx, weights, handle), BufferClosedError, "dispatch again")
    buffer.destroy()
