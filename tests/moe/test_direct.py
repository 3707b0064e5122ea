"""Direct writes in every shape of launch, bit for bit, and what Buffer offers beyond dispatch and combine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Spmd, simple_exchange
from support.direct_cases import TUNINGS, features, run_case
from support.dispatch_combine_cases import (
    BF16,
    Case,
    assert_received,
    assert_same,
    make_case,
    to_input,
    to_numpy,
    unpack,
)
from support.refusals import refused

import ep_lib
from ep_lib import Buffer, Rank, reference
from ep_lib.cuda import native_host
from ep_lib.errors import ArgumentError, BufferClosedError, HandleError, PeerTimeout, RankMismatchError


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("which", range(len(TUNINGS)))
def test_every_shape_of_launch(which: int) -> None:
    for seed in range(which * 20, which * 20 + 8):
        case = make_case(seed)
        ep_lib.spawn(run_case, case.world_size, "emulator", seed=seed, args=(case, TUNINGS[which], 1 + seed % 5))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_on_both_backends(spmd: Spmd, ranks: int) -> None:
    case = make_case(77, world_size=ranks, dtype="bfloat16", max_tokens=60)
    spmd(run_default, ranks, case)


def run_default(rank: Rank, case: Case) -> None:
    run_case(rank, case, None, 4)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_simple_kernels(spmd: Spmd, ranks: int) -> None:
    spmd(simple_exchange.run_simple, ranks, make_case(78, world_size=ranks, max_tokens=40))


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4]), st.integers(0, 47), st.integers(0, 999))
@settings(max_examples=15, deadline=None)
def test_any_shape_and_choice(case_seed: int, world_size: int, choice: int, seed: int) -> None:
    case = make_case(case_seed, world_size=world_size, max_tokens=24)
    ep_lib.spawn(features, world_size, "emulator", seed=seed, args=(case, choice))


def test_more_choices_and_experts_than_lanes_and_some_twice() -> None:
    rng = np.random.default_rng(5)
    xs = [rng.standard_normal((tokens, 24)).astype(np.float32) for tokens in (5, 0)]
    idx = [rng.integers(-1, 80, (len(x), 36)) for x in xs]
    weights = [rng.random(i.shape, np.float32) for i in idx]
    ep_lib.spawn(features, 2, "emulator", args=(Case(80, 36, 24, 6, "float32", xs, idx, weights), 24))


@pytest.mark.parametrize(("kind", "choice"), [("native", 5), ("native", 28), ("torch", 6), ("torch", 19)])
def test_features_on_both_backends(spmd: Spmd, kind: str, choice: int) -> None:
    spmd(features, 2, make_case(31, world_size=2, max_tokens=40), choice, kind)


def one_after_the_other(rank: Rank, kind: str, sorted_by_expert: bool, aside: bool, copied: bool) -> None:
    """Counted dispatches of as many tokens, of which each rank gets none, few or all."""
    tokens, rng = 90, np.random.default_rng(3)
    xs = [rng.standard_normal((tokens, 8)).astype(np.float32) for _ in range(2)]
    weights = [rng.random((tokens, 2)).astype(np.float32) for _ in range(2)]
    to_0, to_1, once = (np.tile(ids, (tokens, 1)) for ids in ([0, 1], [3, -1], [0, -1]))
    some = np.where(np.arange(tokens)[:, None] < 5, to_0, -1)
    with Buffer(rank, num_experts=4, top_k=2, hidden=8, max_tokens=tokens, dtype="float32", receive_areas=2) as buffer:
        x, given = (to_input(rank, a[rank.rank], kind) for a in (xs, weights))
        for idx in (to_0, to_0, to_1, to_1, some, to_0, once, to_0):
            recv = buffer.dispatch(
                x, to_input(rank, idx, kind), given,
                sorted_by_expert=sorted_by_expert, async_finish=aside, copy=copied,
            )  # fmt: skip
            if recv.event is not None:
                recv.event.synchronize()
            rank.synchronize()
            wanted = reference.dispatch(xs, [idx] * 2, weights, num_experts=4)
            want = wanted[rank.rank]
            assert_received(unpack(recv, "float32"), want, "dispatch")
            out = buffer.combine(to_input(rank, want.x, kind), recv.handle)
            rank.synchronize()
            sums = reference.combine([w.x for w in wanted], [idx] * 2, None, num_experts=4)[rank.rank]
            assert_same(to_numpy(out, "float32"), sums, "combine")
            if not sorted_by_expert:
                continue
            grouped = recv.by_expert
            assert grouped is not None
            row, offsets = reference.expert_rows(want.topk_idx, experts=2, alignment=1)
            assert np.array_equal(to_numpy(grouped.offsets), offsets) and np.array_equal(to_numpy(grouped.row), row)
            assert_same(to_numpy(grouped.x), want.x[row], "rows by expert")
            assert to_numpy(grouped.slot).shape == (len(want.x), 2) and len(grouped.weights) == len(row)
            again = buffer.dispatch(x, handle=recv.handle, sorted_by_expert=True)
            rank.synchronize()
            assert_same(to_numpy(again.by_expert.x), want.x[row], "rows by expert, again")
        ids = to_input(rank, np.where(to_1 == 3, 4, to_1), kind)
        with pytest.raises(ArgumentError, match="expert ids go from 0 to 3"):
            buffer.dispatch(x, ids, given, sorted_by_expert=sorted_by_expert, async_finish=aside, copy=copied)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(
    ("kind", "sorted_by_expert", "aside", "copied"),
    [
        ("native", False, False, True),
        ("torch", True, True, True),
        ("torch", False, True, False),
        ("native", True, False, False),
    ],
)
def test_other_counts_in_every_call(spmd: Spmd, kind: str, sorted_by_expert: bool, aside: bool, copied: bool) -> None:
    spmd(one_after_the_other, 2, kind, sorted_by_expert, aside, copied)


def many_times(rank: Rank) -> None:
    """Calls of a kind with other rows, numbers of tokens, routings and handles: by an executor from the second."""
    import torch

    me, handles = rank.rank, []
    sizes = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 64, "num_max_dispatch_tokens_per_rank": 64}
    with Buffer(rank, **sizes) as buffer:
        modes: Any = buffer._mode, buffer._low_latency
        for turn, tokens in enumerate((40, 40, 17, 64, 1)):
            rng, counts = np.random.default_rng(turn), (tokens, tokens // 2)
            xs = [rng.standard_normal((count, 256)).astype(np.float32).astype(BF16) for count in counts]
            fp8 = [rng.integers(0, 127, (count, 256), np.uint8) for count in counts]
            scales = [rng.random((count, 2)).astype(np.float32) for count in counts]
            idx = [np.add(rng.integers(0, 2, (count, 2)), (0, 2)) for count in counts]
            weights = [rng.random((count, 2)).astype(np.float32) for count in counts]
            x, ids, given, numbers, scale = (to_input(rank, a[me], "torch") for a in (xs, idx, weights, fp8, scales))
            pair = numbers.view(torch.float8_e4m3fn), scale
            recv = buffer.dispatch(x, ids, given)
            rank.synchronize()
            want = reference.dispatch(xs, idx, weights, num_experts=4)[me]
            assert_received(unpack(recv, "bfloat16"), want, f"dispatch {turn}")
            handles.append((recv.handle, want, x, pair, given, (xs, fp8, scales)))
            for handle, known, rows, of_few_bits, its, sent in (handles[0], handles[-1]):
                again, cast = (
                    buffer.dispatch(rows, None, its, handle=handle),
                    buffer.dispatch(of_few_bits, handle=handle),
                )
                rank.synchronize()
                places = list(zip(known.src_rank, known.src_token, strict=True))
                rows_of, numbers_of, scales_of = (np.stack([of[r][t] for r, t in places]) for of in sent)
                assert_same(to_numpy(again.x, "bfloat16"), rows_of, "rows by handle")
                assert_same(to_numpy(cast.x[0].view(torch.uint8)), numbers_of, "FP8")
                assert_same(to_numpy(cast.x[1]), scales_of, "scales")
            got = buffer.low_latency_dispatch(x, ids, use_fp8=False)
            out = buffer.low_latency_combine(got.recv_x, ids, given, got.handle).out
            rank.synchronize()
            wanted = reference.low_latency_dispatch(xs, idx, num_experts=4, max_tokens=64, use_fp8=False)
            assert to_numpy(got.recv_count).tolist() == wanted[me].counts.tolist()
            sums = reference.low_latency_combine([w.x for w in wanted], wanted, weights)
            assert_same(to_numpy(out, "bfloat16"), sums[me], f"low-latency combine {turn}")
        natively = rank.backend == "emulator" or (native_host.load() is not None and rank._backend._part is None)
        operations = [*modes[0]._operations.values(), *modes[1]._operations.values()]
        assert len(operations) == 6 and all((of._natively is not None) == natively for of in operations)


def test_calls_made_again_and_again(spmd: Spmd) -> None:
    pytest.importorskip("torch")
    spmd(many_times, 2)


@pytest.mark.extended
def test_other_counts_are_clean_under_the_checker() -> None:
    report = ep_lib.check(one_after_the_other, 2, seeds=2, args=("native", True, False, True))
    assert report.ok, str(report)


def in_place(rank: Rank, case: Case) -> None:
    """Rows that experts wrote where they need no copy."""
    me, dtype = rank.rank, case.dtype
    x, idx = (to_input(rank, a[me]) for a in (case.xs, case.topk_idx))
    with Buffer(rank, **case.buffer_arguments()) as buffer:
        recv = buffer.dispatch(x, idx)
        ys = [r.x for r in case.expected_dispatch()]
        for factor in (1, 2):
            place = buffer.combine_input(recv.handle, recv.x)
            rank.synchronize()
            place[...] = to_input(rank, (ys[me] * np.array(factor, ys[me].dtype)))
            want = reference.combine(
                [y * np.array(factor, y.dtype) for y in ys], case.topk_idx, num_experts=case.num_experts
            )
            assert_same(to_numpy(buffer.combine(place, recv.handle), dtype), want[me], "in place")
        narrow = to_input(rank, ys[me][:, :7].copy())
        refused(lambda: buffer.combine(narrow, recv.handle), ArgumentError, r"x has shape \(\d+, 7\)")


def test_rows_in_place(spmd: Spmd) -> None:
    spmd(in_place, 2, make_case(33, world_size=2, dtype="bfloat16", max_tokens=30))


# ---- mistakes ------------------------------------------------------------------------------------------------------
SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 16, "max_tokens": 3}
X, IDX = np.ones((3, 16), np.float32), np.array([[0, 2], [1, -1], [3, 2]])


def mistakes(rank: Rank) -> None:
    with Buffer(rank, **SHAPE, dtype="float32") as buffer:
        x, idx = to_input(rank, X), to_input(rank, IDX)
        recv = buffer.dispatch(x, idx)
        y = recv.x
        for error, says, call in (
            (ArgumentError, "num_worst_tokens is 7; .* = 6 rows", lambda: buffer.dispatch(x, idx, num_worst_tokens=7)),
            (ArgumentError, "num_worst_tokens is -1", lambda: buffer.dispatch(x, idx, num_worst_tokens=-1)),
            (ArgumentError, "num_worst_tokens is 6.0", lambda: buffer.dispatch(x, idx, num_worst_tokens=6.0)),
            (ArgumentError, "num_worst_tokens is '6'", lambda: buffer.dispatch(x, idx, num_worst_tokens="6")),
            (ArgumentError, "expert_alignment is 2.0", lambda: buffer.dispatch(x, idx, expert_alignment=2.0)),
            (ArgumentError, "expert_alignment is 0", lambda: buffer.dispatch(x, idx, expert_alignment=0)),
            (ArgumentError, "bias is a tuple of 3", lambda: buffer.combine(y, recv.handle, bias=(x, x, x))),
            (ArgumentError, "sum_order is 'k'", lambda: buffer.combine(y, recv.handle, sum_order="k")),
            (ArgumentError, r"bias has 2 rows", lambda: buffer.combine(y, recv.handle, bias=x[:2])),
            (HandleError, "of a dispatch that had it", lambda: buffer.combine(y, recv.handle, sorted_by_expert=True)),
        ):
            refused(call, error, says)
        assert len(buffer.dispatch(x, idx, num_worst_tokens=np.int64(6), expert_alignment=np.int32(2)).x) == 6
        assert len(buffer.dispatch(x, idx, num_worst_tokens=None).x) == len(y)
    if rank.sm_count is not None:
        refused(lambda: Buffer(rank, **SHAPE, num_sms=1000), ArgumentError, "num_sms is 1000, and this GPU has")


@pytest.mark.parametrize("waits", ["with", "current_stream_wait", "is_done"])
def test_the_emulator_waits_for_an_event(waits: str) -> None:
    """There the host reads what kernels write: an event that only streams wait for would wait for nothing."""

    def main(rank: Rank) -> list[float]:
        with Buffer(rank, num_experts=4, top_k=2, hidden=8, max_tokens=4, dtype=np.float32) as buffer:
            x, ids = np.full((3, 8), 1.0 + rank.rank, np.float32), np.array([[0, 2], [1, 3], [0, 3]])
            handle = buffer.dispatch(x, ids).handle
            recv = buffer.dispatch(x, handle=handle, async_finish=True)
            assert recv.event is not None
            if waits == "with":
                with recv.event:
                    x = x * 3
            elif waits == "is_done":
                assert recv.event.is_done()
            else:
                recv.event.current_stream_wait()
            there = recv.x * 1.0
            out, event = buffer.combine(there, handle, async_finish=True)
            with event:
                pass
            return [*there[:, 0].tolist(), *out[:, 0].tolist()]

    for seed in range(5):
        both = [1.0] * 3 + [2.0] * 3
        assert ep_lib.spawn(main, 2, "emulator", seed=seed) == [both + [2.0] * 3, both + [4.0] * 3]


def test_equal_rows_of_two_dispatches_go_with_either_handle() -> None:
    def main(rank: Rank) -> bool:
        tokens = np.eye(8, dtype=np.float32)
        with Buffer(rank, num_experts=2, top_k=1, hidden=8, max_tokens=4, dtype=np.float32) as buffer:
            first = buffer.dispatch(tokens[:3].copy(), np.array([[1], [1], [0]]))
            second = buffer.dispatch(tokens[[2, 0, 1]], np.array([[0], [1], [1]]))
            rows, handle = second.x.copy(), second.handle
            del second
            return bool((buffer.combine(rows, handle) == tokens[[2, 0, 1]]).all()) and len(first.x) > 0

    assert ep_lib.spawn(main, 2, "emulator") == [True, True]


def test_mistakes_are_refused_before_anything_is_sent(spmd: Spmd) -> None:
    spmd(mistakes, 2)


def later(rank: Rank, what: str) -> None:
    """What is wrong where the host does not wait is raised by the next synchronize()."""
    buffer = Buffer(rank, **SHAPE, dtype="float32")
    x, idx = to_input(rank, X), to_input(rank, IDX)
    if what == "room":
        rows = 1
    else:
        rows = 6
        if rank.rank and what == "expert":
            idx = to_input(rank, np.where(IDX == 1, 9, IDX))
    weights = to_input(rank, np.ones((3, 2), np.float32)) if what == "options" and rank.rank else None
    buffer.dispatch(x, idx, weights, num_worst_tokens=rows, async_finish=True)
    rank.synchronize()


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("room", ArgumentError, "a dispatch brought [234] rows, and num_worst_tokens was 1"),
        ("options", RankMismatchError, "called dispatch differently: topk_weights and FP8"),
        ("expert", ArgumentError, r"rank 1: topk_idx has the value 9 \(element 2\)"),
    ],
)
def test_what_is_found_on_the_device(what: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ep_lib.spawn(later, 2, "emulator", args=(what,))


SLEEP = """
#include <ep/memory.cuh>
extern "C" __global__ void sleep_seconds(int seconds) {
    for (int i = 0; i < seconds; ++i) ep::sleep_ns(1000000000);
}
"""


def times_out(rank: Rank, buffer: Buffer, phases: tuple[str, ...]) -> PeerTimeout:
    """Dispatch where rank 1 is missing: the error names it, and the Buffer says that it is of no use any more."""
    x, idx = to_input(rank, X), to_input(rank, IDX)
    with pytest.raises(PeerTimeout) as caught:
        buffer.dispatch(x, idx)
        rank.synchronize()
    error = caught.value
    assert (error.rank, error.peer) == (rank.rank, 1) and error.phase in phases, str(error)
    assert error.seen < error.expected and error.slot >= 0
    assert f"rank {rank.rank} waited too long for rank 1 ({error.phase}, slot {error.slot})" in str(error)
    return error


def comes_late(rank: Rank) -> str:
    """Rank 1 does not take part in time; the others name it, and a new Buffer works once it is back."""
    buffer, found = Buffer(rank, **SHAPE, dtype="float32"), "nothing"
    if rank.rank != 1:
        found = times_out(rank, buffer, ("layout",)).phase
    elif rank.backend == "emulator":
        ep_lib.Kernel.from_source(SLEEP, "sleep_seconds").launch(rank, 1, 1, 60)
    rank.barrier()
    with Buffer(rank, **SHAPE, dtype="float32") as fresh:
        recv = fresh.dispatch(to_input(rank, X), to_input(rank, IDX))
        assert (to_numpy(fresh.combine(recv.x, recv.handle)) == X * np.array([[2], [1], [1]])).all()
    return found


def test_a_rank_that_is_late_is_named_and_a_new_buffer_works() -> None:
    assert ep_lib.spawn(comes_late, 2, "emulator") == ["layout", "nothing"]


@pytest.mark.gpu(count=2)
def test_a_rank_that_is_late_is_named_and_a_new_buffer_works_on_gpus() -> None:
    assert ep_lib.spawn(comes_late, 2, "cuda", timeout=10) == ["layout", "nothing"]


def stops(rank: Rank) -> str:
    """Rank 1 is killed after some of its stores; the others go on by themselves."""
    buffer = Buffer(rank, **SHAPE, dtype="float32")
    if rank.rank == 1:
        buffer.dispatch(X, IDX)
    error = times_out(rank, buffer, ("layout", "dispatch"))
    with pytest.raises(BufferClosedError, match="make a new one"):
        buffer.dispatch(X, IDX)
    ep_lib.Kernel.from_source(SLEEP, "sleep_seconds").launch(rank, 1, 1, 1)
    rank.synchronize()
    return error.phase


@pytest.mark.parametrize(("after", "phase"), [(0, "layout"), (2, "dispatch")])
def test_a_rank_that_is_killed_in_mid_dispatch_is_named(
    after: int, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends two signals with its counts, then two behind its rows."""
    monkeypatch.setitem(SHAPE, "num_experts", 6)
    results = ep_lib.spawn(stops, 3, "emulator", fabric=ep_lib.Fabric(stopped_ranks={1: after}))
    assert results == [phase, None, phase]


def disagree_later(rank: Rank) -> list[str]:
    """Handles of different dispatches where nothing waits: found by synchronize(), or by the next operation."""
    found = []
    with Buffer(rank, **SHAPE, dtype="float32") as buffer:
        x, idx = to_input(rank, X), to_input(rank, IDX)
        handles = [buffer.dispatch(x, idx).handle for _ in range(2)]
        for look in ("synchronize", "next"):
            buffer.dispatch(x, handle=handles[rank.rank], async_finish=True)
            if look == "next":
                rank.synchronize()
            with pytest.raises(HandleError, match="dispatch with handles of different dispatches") as caught:
                buffer.synchronize() if look == "synchronize" else buffer.dispatch(x, idx)
            found.append(str(caught.value))
        with pytest.raises(BufferClosedError, match="different handles or options to an earlier operation"):
            buffer.dispatch(x, idx)
    return found


def test_ranks_that_disagree_where_nothing_waits(spmd: Spmd) -> None:
    for rank, found in enumerate(spmd(disagree_later, 2)):
        assert all(f"rank {rank} and rank {1 - rank}" in text for text in found)


def some_in_place(rank: Rank) -> None:
    """One rank passes combine_input and the others do not: all are told at once, and a new Buffer works."""
    with Buffer(rank, **SHAPE, dtype="float32") as buffer:
        recv = buffer.dispatch(to_input(rank, X), to_input(rank, IDX))
        y = buffer.combine_input(recv.handle, recv.x) if rank.rank == 1 else recv.x
        if rank.rank == 1:
            rank.synchronize()
            y[...] = recv.x
        with pytest.raises(
            HandleError, match=r"or combine_input, .* or quantize on some ranks only; all ranks must pass the same"
        ):
            buffer.combine(y, recv.handle)
            buffer.synchronize()
    with Buffer(rank, **SHAPE, dtype="float32") as again:
        recv = again.dispatch(to_input(rank, X), to_input(rank, IDX))
        out = to_numpy(again.combine(recv.x, recv.handle), np.dtype(np.float32))
        assert (out == X * np.array([[2], [1], [1]])).all()


def test_combine_input_on_some_ranks_only(spmd: Spmd) -> None:
    spmd(some_in_place, 2)


def captured(rank: Rank, kind: str) -> None:
    """A dispatch that counts, and its combine, in a CUDA graph: replayed with other tokens and other experts."""
    case = make_case(35, world_size=rank.world_size, dtype="bfloat16", max_tokens=20)
    other = Case(
        **{**vars(case), "xs": [x[::-1].copy() for x in case.xs], "topk_idx": [i[::-1].copy() for i in case.topk_idx]}
    )
    me, worst = rank.rank, rank.world_size * case.max_tokens
    x, idx = (to_input(rank, a[me], kind) for a in (case.xs, case.topk_idx))
    with Buffer(rank, **case.buffer_arguments()) as buffer:

        def layer() -> Any:
            recv = buffer.dispatch(x, idx, num_worst_tokens=worst, copy=False)
            return buffer.combine(recv.x, recv.handle)

        if kind == "torch":
            import torch

            side: Any = torch.cuda.Stream()
            with torch.cuda.stream(side):
                layer(), layer()
                torch.cuda.synchronize()
            graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = layer()
            replay = graph.replay
        else:
            side = rank.xp.cuda.Stream(non_blocking=True)
            with side:
                warm = [layer() for _ in range(3)]
                side.synchronize()
                del warm
                side.begin_capture()
                out = layer()
                graph = side.end_capture()
            replay = lambda: graph.launch(side)  # noqa: E731
        rank.barrier()
        for now in (case, other, case, case, other):
            x[...], idx[...] = to_input(rank, now.xs[me], kind), to_input(rank, now.topk_idx[me], kind)
            rank.synchronize()
            rank.xp.cuda.Device().synchronize()
            replay()
            rank.xp.cuda.Device().synchronize()
            ys = [r.x for r in now.expected_dispatch()]
            assert_same(to_numpy(out, "bfloat16"), now.expected_combine(ys, weighted=False)[me], "replayed")
            rank.barrier()


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("kind", ["torch", "native"])
def test_dispatch_and_combine_in_a_cuda_graph(kind: str) -> None:
    ep_lib.spawn(captured, 2, "cuda", args=(kind,))
