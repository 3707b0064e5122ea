"""ep_lib.compat.deep_ep: DeepEP V1's calls, their results, and the calling sequences of those who make them."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import gc
import importlib
import re
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support import ROOT, TESTS, Spmd, deep_ep_cases
from support.refusals import refused
from support.threads import on_threads
from support.waiting import run_ranks, wait_until

import ep_lib
from ep_lib.bootstrap.group import StoreGroup
from ep_lib.bootstrap.torchrun import StoreBootstrap
from ep_lib.compat import deep_ep
from ep_lib.compat.deep_ep import engines
from ep_lib.compat.deep_ep.layout import CountingKernel, layout_by_torch
from ep_lib.errors import (
    ArgumentError,
    BackendUnavailable,
    BufferClosedError,
    HandleError,
    NotSupportedError,
    PeerTimeout,
    RankFailed,
    RankMismatchError,
)
from ep_lib.processes import Identity

PROGRAM = TESTS / "programs" / "deep_ep_program.py"


@pytest.fixture(autouse=True)
def _few_blocks() -> Iterator[None]:
    """Of emulated kernels."""
    deep_ep.Buffer.set_num_sms(4)
    yield
    deep_ep.Buffer.set_num_sms(20)


def test_normal_mode_returns_what_deep_ep_returns(spmd: Spmd) -> None:
    spmd(deep_ep_cases.normal_mode, ranks=4)


def test_low_latency_mode_returns_what_deep_ep_returns(spmd: Spmd) -> None:
    spmd(deep_ep_cases.low_latency_mode, ranks=4)


def test_the_others_go_on_after_a_loss(spmd: Spmd) -> None:
    spmd(deep_ep_cases.after_a_loss, ranks=3, timeout=2)


@pytest.mark.slow
def test_nodes_that_nics_connect_are_found_by_themselves() -> None:
    nodes = ep_lib.Fabric("rc", ranks_per_node=2)
    assert ep_lib.spawn(deep_ep_cases.several_nodes, ranks=4, backend="emulator", fabric=nodes) == [[192]] * 4


@pytest.mark.extended
@pytest.mark.slow
def test_its_callers_sequences_run_on_gloo_groups(tmp_path: Path) -> None:
    run_ranks(PROGRAM, 3, str(tmp_path / "store"), "gloo")


@pytest.mark.parametrize(
    "ranks", [pytest.param(ranks, marks=pytest.mark.gpu(count=ranks, own=True)) for ranks in (2, 3)]
)
def test_its_callers_sequences_run_on_nccl_groups(tmp_path: Path, ranks: int) -> None:
    run_ranks(PROGRAM, ranks, str(tmp_path / "store"), "nccl")


def test_a_rank_with_more_tokens_makes_all_meet_and_handles_stay_good() -> None:
    def main(rank: ep_lib.Rank) -> list[int]:
        buffer = deep_ep.Buffer(rank, explicitly_destroy=True)
        handles = []
        for tokens in (4, 300 if rank == 1 else 0, 5):
            x, idx, _ = deep_ep_cases.choices(rank, tokens)
            came, *_, handle, _ = buffer.dispatch(x, topk_idx=idx, **deep_ep_cases.layout_of(buffer, idx))
            handles.append((came, handle, x))
        for came, handle, x in reversed(handles):
            out, none, _ = buffer.combine(came, handle)
            assert none is None and torch.equal(out, (x.float() * handle[4].sum(1, keepdim=True)).bfloat16())
        alive = len(buffer._members._engines)
        del handles, came, handle
        buffer.destroy()
        with pytest.raises(BufferClosedError, match="destroyed"):
            buffer.combine(out, None)
        return [alive, len(buffer._members._engines)]

    assert ep_lib.spawn(main, ranks=2, backend="emulator") == [[2, 0], [2, 0]]


def test_a_group_lives_no_longer_than_its_buffers() -> None:
    group = StoreGroup(torch.distributed.HashStore(), 0, 1, timeout=5)
    buffer = deep_ep.Buffer(group)
    assert engines.members_of(group) is buffer._members
    known = weakref.ref(group)
    del group, buffer
    gc.collect()
    assert known() is None


def test_a_token_goes_where_is_token_in_rank_says() -> None:
    def main(rank: ep_lib.Rank) -> None:
        buffer = deep_ep.Buffer(rank)
        x, idx, weights = deep_ep_cases.choices(rank, 6)
        idx[0] = torch.tensor([0, 1, 7])  # on both ranks
        idx[1] = -1
        layout = deep_ep_cases.layout_of(buffer, idx)
        mask = layout["is_token_in_rank"]
        mask[0, 1] = False  # in place: it is no longer what get_dispatch_layout has said
        came, came_idx, _, counts, handle, _ = buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **layout)
        assert handle is not None and came_idx is not None
        assert len(came) == sum(int(theirs[rank.rank]) for theirs in rank.all_gather(mask.sum(0).numpy()))
        assert counts == [int((came_idx == e).sum()) for e in range(deep_ep_cases.EXPERTS // 2)]
        out, weights_back, _ = buffer.combine(came, handle, topk_weights=torch.ones_like(came_idx, dtype=torch.float32))
        assert torch.equal(out, (x.float() * mask.sum(1, keepdim=True)).bfloat16()) and weights_back is not None
        layout["is_token_in_rank"] = torch.ones_like(mask)
        refused(lambda: buffer.dispatch(x, topk_idx=idx, **layout), ArgumentError, r"\[1, 0\] is True, .* on rank 0")
        for wrong in (mask[:, :1], mask[:3], mask.int()):
            layout["is_token_in_rank"] = wrong
            refused(lambda: buffer.dispatch(x, topk_idx=idx, **layout), ArgumentError, r"of bool \[6, 2\]")
            refused(lambda: buffer.dispatch(x, **layout), ArgumentError, r"of bool \[6, 2\]")

    ep_lib.spawn(main, ranks=2, backend="emulator")


@pytest.mark.parametrize("has_engine", [False, True])
def test_a_layout_of_ids_that_are_no_experts_is_refused(has_engine: bool) -> None:
    def main(rank: ep_lib.Rank) -> None:
        buffer = deep_ep.Buffer(rank)
        x, idx, _ = deep_ep_cases.choices(rank, 4)
        if has_engine:
            buffer.dispatch(x, topk_idx=idx, **deep_ep_cases.layout_of(buffer, idx))
        for wrong in (8, -2, 2**32 + 1):
            refused(
                lambda: buffer.get_dispatch_layout(torch.full_like(idx, wrong), 8), ArgumentError,  # noqa: B023
                rf"topk_idx\[0, 0\] is {wrong}; expert ids go from 0 to 7",
            )  # fmt: skip

    ep_lib.spawn(main, ranks=1, backend="emulator")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_both_ways_to_count_choices_agree(dtype: torch.dtype) -> None:
    def main(rank: ep_lib.Rank) -> None:
        ids = torch.randint(-1, 8, (150, 3), generator=torch.Generator().manual_seed(1)).to(dtype)
        ids[7] = torch.tensor([-5, 8, 3 if dtype == torch.int32 else 2**32 + 1])  # of a GPU, where nothing looks
        for tokens in (150, 64, 0):
            by_torch, counted = layout_by_torch(ids[:tokens], 8, 2), CountingKernel(rank)(ids[:tokens], 8)
            for wanted, got in zip(by_torch, counted, strict=True):
                assert wanted.dtype == got.dtype and torch.equal(wanted, got)

    ep_lib.spawn(main, ranks=2, backend="emulator")


def test_wrong_statistics_are_refused_by_their_name() -> None:
    def main(rank: ep_lib.Rank) -> None:
        buffer = deep_ep.Buffer(rank)
        x, idx, _ = deep_ep_cases.choices(rank, 4)
        for wrong in (torch.zeros(5, dtype=torch.int32), torch.zeros(8)):
            refused(
                lambda: buffer.low_latency_dispatch(x, idx, 8, 8, wrong),  # noqa: B023
                ArgumentError,
                r"^cumulative_local_expert_recv_stats is .* int32 array of shape \(8,\)",
            )

    ep_lib.spawn(main, ranks=1, backend="emulator")


SHAPE = engines.Shape("emulator", 8, 2, 64, "bfloat16", 4)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[engines.Members]]:
    """The members of a group of two, which meet in a store of torch."""
    server = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(
        engines,
        "make_group_bootstrap",
        lambda group: StoreBootstrap(
            torch.distributed.TCPStore("localhost", server.port), "group", group.rank(), 2, group.rank(), kind="group"
        ),
    )
    groups = [StoreGroup(None, rank, 2, timeout=5) for rank in range(2)]
    made = on_threads({group.rank(): (lambda group=group: engines.Members(group)) for group in groups})
    yield [made[0], made[1]]


def failed_kernel() -> PeerTimeout:
    return PeerTimeout("its kernel waited", rank=0, peer=1, phase="layout", slot=0, seen=1, expected=4)


def test_a_rank_that_fails_elsewhere_ends_the_others_wait(pair: list[engines.Members]) -> None:
    def dispatch() -> None:
        assert wait_until(lambda: pair[0]._bootstrap.peek(1) is not None)
        pair[0].report(SHAPE, failed_kernel())

    other = SHAPE._replace(hidden=128)
    for wish in (lambda: pair[1].make(other, 4), pair[1].close_unused):
        said = on_threads({0: dispatch, 1: wish})
        assert [type(said[rank]) for rank in range(2)] == [RankMismatchError, RankFailed], said
        what = "destroy()" if wish == pair[1].close_unused else f"the first call of a shape ({other})"
        assert f"rank 0 in a call with {SHAPE}, rank 1 in {what}" in str(said[0])
        assert f"rank 1 waited in {what}, and rank 0 was in a call with {SHAPE}, which failed: PeerTimeout" in str(
            said[1]
        )
    again = on_threads({me.rank: (lambda me=me: me.all_gather(me.rank, "a call")) for me in pair})
    assert again == {0: [0, 1], 1: [0, 1]}


def test_a_rank_that_failed_before_is_not_waited_for(pair: list[engines.Members]) -> None:
    for _ in range(2):
        pair[0].report(SHAPE, failed_kernel())
        with pytest.raises(RankFailed, match=r"rank 1 waited in destroy\(\), and rank 0 was in a call .* which failed"):
            pair[1].close_unused()
    pair[0].report(SHAPE, failed_kernel())
    pair[1].report(SHAPE, failed_kernel())  # so that this rank need not be told of the other's
    again = on_threads({me.rank: (lambda me=me: me.all_gather(me.rank, "a call")) for me in pair})
    assert again == {0: [0, 1], 1: [0, 1]}


def test_ranks_in_different_calls_are_told_alike(pair: list[engines.Members]) -> None:
    said = on_threads({0: lambda: pair[0].make(SHAPE, 4), 1: pair[1].close_unused})
    for error in said.values():
        assert isinstance(error, RankMismatchError) and error.is_everywhere
        assert re.search(r"rank 0 in the first call .*, rank 1 in destroy\(\)", str(error))


def test_a_meeting_waits_as_long_as_the_limit_says(
    pair: list[engines.Members], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EP_LIB_TIMEOUT_S", "0.7")
    with pytest.raises(PeerTimeout, match=r"rank 1 waited 0.7 s \(EP_LIB_TIMEOUT_S\) for rank 0 in the first call"):
        pair[1].make(SHAPE, 4)
    ended = subprocess.Popen(["true"])
    pair[1]._processes[0] = Identity.of(ended.pid)
    ended.wait()
    with pytest.raises(RankFailed, match=r"whose process \d+ has ended"):
        pair[1].close_unused()
    assert capfd.readouterr().err == ""  # torch's store tells of each wait that met its limit


def test_what_cannot_be_is_a_sentence_that_names_a_way_out() -> None:
    def main(rank: ep_lib.Rank) -> None:
        buffer = deep_ep.Buffer(rank)
        x, idx, weights = deep_ep_cases.choices(rank, 4)
        layout = deep_ep_cases.layout_of(buffer, idx)
        wide_layout = deep_ep_cases.layout_of(buffer, idx.repeat(50, 1))
        came, counts, low, event, _ = buffer.low_latency_dispatch(x, idx, 8, 8, use_fp8=False)
        handle = buffer.dispatch(x, topk_idx=idx, **layout)[4]
        assert handle is not None
        bad_scales = torch.ones(4, 3)
        fp8 = x.to(torch.float8_e4m3fn)
        refused(lambda: deep_ep.Buffer(None), ArgumentError, "comm=")
        refused(lambda: deep_ep.Buffer("world"), ArgumentError, "process group")
        refused(lambda: deep_ep.Buffer(rank, allow_nvlink_for_low_latency_mode=False), NotSupportedError, "over NVLink")
        refused(buffer.destroy, ArgumentError, "explicitly_destroy=True")
        refused(lambda: deep_ep.Buffer.set_num_sms(7), ArgumentError, "even")
        refused(lambda: deep_ep.Config(4, 9, 8), ArgumentError, "smaller")
        refused(event.current_stream_wait, ArgumentError, "without async_finish")
        refused(lambda: buffer.dispatch(x, topk_idx=idx), ArgumentError, "num_tokens_per_expert")
        refused(lambda: buffer.dispatch(x, handle=handle, topk_idx=idx), ArgumentError, "the handle's")
        refused(lambda: buffer.dispatch((fp8, bad_scales), topk_idx=idx, **layout), NotSupportedError, "fewer columns")
        refused(lambda: buffer.combine(came[0], tuple(handle)), HandleError, "very object")
        refused(
            lambda: buffer.dispatch(x.repeat(50, 1), topk_idx=idx.repeat(50, 1), num_worst_tokens=2, **wide_layout),
            ArgumentError, "reserve",
        )  # fmt: skip
        refused(lambda: buffer.low_latency_dispatch(x, idx, 8, 8, use_ue8m0=True), ArgumentError, "round_scale=True")
        refused(lambda: buffer.low_latency_dispatch(x, idx, 8, 8, None, counts), NotSupportedError, "profiler")
        refused(
            lambda: buffer.low_latency_dispatch(x, idx, 8, 8, async_finish=True, return_recv_hook=True),
            ArgumentError, "exclude",
        )  # fmt: skip
        refused(
            lambda: buffer.low_latency_combine(came, idx, weights, low, use_logfmt=True), NotSupportedError, "bfloat16"
        )
        refused(lambda: buffer.get_comm_stream(), NotSupportedError, "no GPU")
        buffer.reserve(500, x.shape[1], 8, idx.shape[1], x)
        wide = buffer.dispatch(x.repeat(50, 1), topk_idx=idx.repeat(50, 1), num_worst_tokens=200, **wide_layout)
        assert len(wide[0]) == 200
        raw = deep_ep.Buffer(rank, 1000)
        view = raw.get_local_buffer_tensor(torch.int32, torch.Size([5, 6]), offset=2)
        view.fill_(3)
        assert int((raw.get_local_buffer_tensor(torch.int32) == 3).sum()) == 30
        refused(lambda: raw.get_local_buffer_tensor(torch.int32, torch.Size([300])), ArgumentError, "250 elements")

    ep_lib.spawn(main, ranks=1, backend="emulator")


def test_an_event_is_let_go_of_behind_a_with_that_says_so() -> None:
    waited: list[int] = []
    event = deep_ep.EventOverlap(deep_ep.EventHandle(), (torch.ones(1),))
    event.register_hook_after_wait(lambda: waited.append(1))
    with event() as same:
        assert same is event and not waited
    assert event.event is not None and waited == [1]
    with event(release_handle=True):
        assert event.event is not None
    assert event.event is None and event.extra_tensors is None


def test_the_program_of_the_guide_runs() -> None:
    text = (ROOT / "docs" / "migrate-from-deepep.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/migrate-from-deepep.md", "exec"), {"__name__": "__main__"})


def test_the_name_deep_ep_is_this_module_where_one_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a call (deep_ep_program.py makes it), and by the distribution in extras/; never over another module."""
    names = ("deep_ep", "deep_ep.utils", "deep_ep.buffer")
    monkeypatch.setitem(sys.modules, "deep_ep", types.ModuleType("deep_ep"))
    refused(deep_ep.install_alias, BackendUnavailable, "call install_alias\\(\\) first")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(ROOT / "extras" / "deep_ep")
    refused(deep_ep.install_alias, BackendUnavailable, "replace=True")
    try:
        assert importlib.import_module("deep_ep") is deep_ep
        assert importlib.import_module("deep_ep.utils").EventOverlap is deep_ep.EventOverlap
        import deep_ep.utils as utils

        assert utils.EventHandle is deep_ep.EventHandle
        assert importlib.import_module("deep_ep.buffer").Buffer is deep_ep.Buffer
        deep_ep.install_alias()
    finally:
        for name in names:
            sys.modules.pop(name, None)
