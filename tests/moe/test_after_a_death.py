"""After the death of a rank: errors and NaN, never a result that looks right. On the emulator, way by way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.dispatch_combine_cases import BF16

import ep_lib
from ep_lib import Buffer, Fabric, Rank, reference
from ep_lib.cuda.faults import ShownFault
from ep_lib.errors import ArgumentError, BufferClosedError, EpError, PeerTimeout, RankMismatchError
from ep_lib.jit import device_state
from ep_lib.memory.arrays import ArrayInfo, describe
from ep_lib.moe.direct.tuning import EMULATED
from ep_lib.moe.low_latency import mode as low_latency_mode
from ep_lib.moe.low_latency.mode import LowLatencyMode

TOKENS, EXPERTS, HIDDEN = 5, 6, 128
SHAPE = {"num_experts": EXPERTS, "top_k": 3, "hidden": HIDDEN, "max_tokens": TOKENS, "num_sms": 3}
LOW_LATENCY = {"num_max_dispatch_tokens_per_rank": TOKENS}
IDX = (np.arange(TOKENS)[:, None] + np.array([0, 2, 4])) % EXPERTS  # every token goes to every rank
WEIGHTS = np.ones((TOKENS, 3), np.float32)


def rows_of(rank: int) -> Any:
    return (np.arange(TOKENS * HIDDEN).reshape(TOKENS, HIDDEN) % 61 + rank).astype(BF16)


def is_nan(array: Any) -> Any:
    return np.isnan(np.asarray(array).astype(np.float32))


class Results:
    """What a way of calling hands out: floats, which must be NaN after a failure, and counts and ids."""

    def __init__(self, *floats: Any, zeros: tuple[Any, ...] = (), none: tuple[Any, ...] = ()) -> None:
        self.floats, self.zeros, self.none = floats, zeros, none

    def forget(self) -> None:
        """As if a caller had used the memory for something else in between."""
        for array in (*self.floats, *self.zeros, *self.none):
            array[...] = 1

    def require_spoilt(self) -> None:
        assert all(is_nan(array).all() for array in self.floats)
        assert all((array == 0).all() for array in self.zeros) and all((array == -1).all() for array in self.none)


def cached(buffer: Buffer, recv: Any, x: Any) -> Results:
    again = buffer.dispatch(x, None, WEIGHTS, handle=recv.handle, async_finish=True)
    return Results(again.x, again.topk_weights)


def in_place(buffer: Buffer, recv: Any, x: Any) -> Results:
    return Results(buffer.dispatch(x, handle=recv.handle, async_finish=True, copy=False).x)


def fp8(buffer: Buffer, recv: Any, x: Any) -> Results:
    pair = reference.quantize_fp8(x)
    return Results(*buffer.dispatch(pair, handle=recv.handle, async_finish=True).x)


def worst(buffer: Buffer, recv: Any, x: Any) -> Results:
    came = buffer.dispatch(x, IDX, WEIGHTS, num_worst_tokens=3 * TOKENS, async_finish=True, sorted_by_expert=True)
    by = came.by_expert
    assert by is not None
    none = (came.topk_idx, came.src_rank, came.src_token, by.row, by.slot)
    return Results(came.x, came.topk_weights, by.x, by.weights, zeros=(by.offsets,), none=none)


def push(buffer: Buffer, recv: Any, x: Any) -> Results:
    return Results(buffer.combine(recv.x, recv.handle, WEIGHTS, async_finish=True)[0])


def pull(buffer: Buffer, recv: Any, x: Any) -> Results:
    y = buffer.combine_input(recv.handle, recv.x)
    y[...] = recv.x
    return Results(buffer.combine(y, recv.handle, async_finish=True)[0])


def stage(buffer: Buffer, recv: Any, x: Any) -> Results:
    mode: Any = buffer._mode
    mode._spare_blocks, mode.tuning = 2, replace(EMULATED, push=False)
    return push(buffer, recv, x)


def both(buffer: Buffer, recv: Any, x: Any) -> Results:
    """The combine is queued behind a dispatch that fails."""
    came = buffer.dispatch(x, IDX, num_worst_tokens=3 * TOKENS, async_finish=True)
    out, _ = buffer.combine(came.x, came.handle, async_finish=True)
    return Results(out)


def low_latency(buffer: Buffer, recv: Any, x: Any) -> Results:
    (rows, scales), counts, handle, _, _ = buffer.low_latency_dispatch(x, IDX, topk_weights=WEIGHTS)
    # The combine reads the routing that the dispatch was to write.
    y = np.ones(rows.shape, BF16)
    out = buffer.low_latency_combine(y, IDX, None, handle).out
    return Results(rows, scales, out, zeros=(counts,))


def low_latency_hooks(buffer: Buffer, recv: Any, x: Any) -> Results:
    sent = buffer.low_latency_dispatch(x, IDX, False, return_recv_hook=True)
    assert sent.hook is not None
    sent.hook()
    back = buffer.low_latency_combine(sent.recv_x, IDX, WEIGHTS, sent.handle, return_recv_hook=True)
    assert back.hook is not None
    back.hook()
    return Results(sent.recv_x, back.out, zeros=(sent.recv_count,))


def low_latency_combine(buffer: Buffer, recv: Any, x: Any) -> Results:
    """The dispatch before was right."""
    return Results(buffer.low_latency_combine(recv.recv_x, IDX, WEIGHTS, recv.handle).out)


# name: (the way, how often rank 1 sends in the dispatch before it, after how many more it stops)
WAYS: dict[str, tuple[Callable[..., Results], int, tuple[int, ...]]] = {
    "cached": (cached, 4, (0, 2, 3)),
    "in place": (in_place, 4, (0, 3)),
    "fp8": (fp8, 4, (2,)),
    "worst": (worst, 4, (0, 1, 2)),
    "push": (push, 4, (0, 1, 2, 4)),
    "pull": (pull, 4, (0, 2, 3)),
    "stage": (stage, 4, (0, 2, 4)),
    "both": (both, 4, (0, 2, 3)),
    "low latency": (low_latency, 4, (0, 2, 7)),
    "low latency, hooks": (low_latency_hooks, 4, (1, 9)),
}


def survives(rank: Rank, way: Callable[..., Results]) -> str:
    """What a rank does whose peer is killed; what follows stands for a CUDA graph that is replayed, too."""
    x = rows_of(rank.rank)
    told: list[EpError] = []
    buffer = Buffer(rank, **SHAPE, **LOW_LATENCY, on_fault=told.append)
    recv = buffer.dispatch(x, IDX, WEIGHTS)
    launches: list[Any] = []
    launch = rank._backend.launch
    rank._backend.launch = lambda *args, **more: (launches.append((args, more)), launch(*args, **more))  # type: ignore
    results = way(buffer, recv, x)
    try:
        rank.synchronize()
    except PeerTimeout as error:
        assert told == [error] and error.peer in (0, 1, 2)
    else:
        return "right"  # rank 1 had sent all that this rank needed
    results.require_spoilt()
    for _ in range(2):
        results.forget()
        for args, more in launches:
            launch(*args, **more)
        rank.synchronize()  # the fault was raised, and there is no other
        results.require_spoilt()
    with pytest.raises(BufferClosedError, match=r"an operation on it failed, .* out of step; make a new one"):
        buffer.dispatch(x, IDX)
    before = len(launches)
    buffer.close()
    rank.synchronize()
    assert len(launches) == before, "close() waits for nobody after a fault"
    return "spoilt"


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("name", WAYS)
def test_what_a_failed_operation_hands_out_is_nan(name: str) -> None:
    way, before, moments = WAYS[name]
    spoilt = 0
    for seed, moment in enumerate(moments):
        fabric = Fabric(stopped_ranks={1: before + moment})
        found = ep_lib.spawn(survives, 3, "emulator", fabric=fabric, seed=seed, args=(way,))
        assert found[1] is None
        spoilt += found.count("spoilt")
    assert spoilt >= len(moments)


SLEEP = """
#include <ep/memory.cuh>
extern "C" __global__ void sleep_a_minute() { for (int i = 0; i < 60; ++i) ep::sleep_ns(1000000000); }
"""


def wait_as_torch_does(rank: Rank) -> None:
    """Like torch.cuda.synchronize(): until the kernels are done, without a look at what went wrong."""
    backend: Any = rank._backend
    backend._world.wait_for_ticket(rank.rank, backend._last_ticket)


def is_late(rank: Rank) -> None:
    """Rank 1 comes when rank 0 has given up. Nothing of rank 0 waits for its kernels: the next call tells it."""
    told: list[EpError] = []
    arguments = {"num_experts": 4, "top_k": 1, "hidden": HIDDEN, "max_tokens": 1}
    buffer, x, idx = Buffer(rank, **arguments, **LOW_LATENCY, on_fault=told.append), rows_of(0)[:1], np.array([[3]])
    other = Buffer(rank, **arguments)
    if rank.rank == 0:
        rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, idx, False)
        wait_as_torch_does(rank)
    else:
        ep_lib.Kernel.from_source(SLEEP, "sleep_a_minute").launch(rank, 1, 1)
        rank.synchronize()
    rank.all_gather(None)
    if rank.rank == 0:
        assert is_nan(rows).all() and not counts.any() and not told
        with pytest.raises(PeerTimeout, match="rank 0 waited too long for rank 1"):
            buffer.low_latency_combine(rows, idx, WEIGHTS[:1, :1], handle)
        assert len(told) == 1
        with pytest.raises(BufferClosedError, match="make a new one"):
            buffer.dispatch(x, idx)
    rank.barrier()
    # Another Buffer of these ranks is in step.
    out = other.combine((recv := other.dispatch(x, idx)).x, recv.handle)
    assert (out == x).all()
    for each in (buffer, other):
        each.close()


def test_the_next_call_raises_where_nothing_waits() -> None:
    ep_lib.spawn(is_late, 2, "emulator")


def test_a_buffer_whose_operation_was_skipped_is_out_of_step() -> None:
    """The fault is another Buffer's. What was queued behind it was not done, and peers must not pair it with a later
    call."""

    def main(rank: Rank) -> None:
        arguments = {"num_experts": 4, "top_k": 1, "hidden": HIDDEN, "max_tokens": 1}
        failing, queued = Buffer(rank, **arguments, **LOW_LATENCY), Buffer(rank, **arguments)
        x, idx = rows_of(0)[:1], np.array([[3]])
        handle = queued.dispatch(x, idx).handle
        if rank.rank == 0:
            failing.low_latency_dispatch(x, idx, False)
            recv = queued.dispatch(x, handle=handle, async_finish=True)
            with pytest.raises(PeerTimeout):
                rank.synchronize()
            assert is_nan(recv.x).all()
            with pytest.raises(BufferClosedError, match="out of step"):
                queued.dispatch(x, idx)
        else:
            ep_lib.Kernel.from_source(SLEEP, "sleep_a_minute").launch(rank, 1, 1)
            rank.synchronize()
        rank.barrier()

    ep_lib.spawn(main, 2, "emulator")


def tries_again(rank: Rank, what: str) -> None:
    """A dispatch without counts that is refused on the device: its results are NaN, and the next call works."""
    x, good = rows_of(rank.rank), {"num_worst_tokens": rank.world_size * TOKENS, "async_finish": True}
    idx = np.where(IDX == 2, EXPERTS, IDX) if what == "expert" else IDX
    weights = WEIGHTS if what == "options" and rank.rank else None
    refused = {"expert": ArgumentError, "options": RankMismatchError}[what]
    with Buffer(rank, **SHAPE) as buffer:
        for _ in range(2):
            recv = buffer.dispatch(x, idx, weights, **good)
            out, _ = buffer.combine(recv.x, recv.handle, async_finish=True)
            with pytest.raises(refused):
                rank.synchronize()
            assert is_nan(recv.x).all() and (recv.topk_idx == -1).all() and is_nan(out).all()
            assert not recv.tokens_per_expert.any()
            recv = buffer.dispatch(x, IDX, **good)
            out, _ = buffer.combine(recv.x, recv.handle, async_finish=True)
            rank.synchronize()
            assert (out == (x.astype(np.float32) * rank.world_size).astype(BF16)).all()


@pytest.mark.parametrize(("what", "ranks"), [("expert", 1), ("options", 2)])
def test_what_kernels_refuse_is_nan_and_the_ranks_stay_in_step(what: str, ranks: int) -> None:
    ep_lib.spawn(tries_again, ranks, "emulator", args=(what,))


def test_rows_that_find_no_room_leave_nan_and_the_ranks_in_step() -> None:
    def main(rank: Rank) -> None:
        x, rows = rows_of(rank.rank), 2 * TOKENS
        with Buffer(rank, **SHAPE) as buffer:
            for room in (rows - rank.rank, rows):
                recv = buffer.dispatch(x, IDX, WEIGHTS, num_worst_tokens=room, async_finish=True)
                if room < rows:
                    with pytest.raises(ArgumentError, match="brought 10 rows, and num_worst_tokens was 9"):
                        rank.synchronize()
                    assert is_nan(recv.x).all() and is_nan(recv.topk_weights).all() and (recv.src_rank == -1).all()
                else:
                    rank.synchronize()
                    assert not is_nan(recv.x).any()

    ep_lib.spawn(main, 2, "emulator")


# ---- masks -----------------------------------------------------------------------------------------------------------


def shrink_and_rejoin(rank: Rank) -> None:
    """Rank 1 is left out for some operations, in which it leaves out the others; then all are together again."""
    x, me = rows_of(rank.rank), rank.rank
    with Buffer(rank, **SHAPE, **LOW_LATENCY) as buffer:

        def layer(present: tuple[int, ...]) -> None:
            rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, IDX, False)
            out = buffer.low_latency_combine(rows, IDX, WEIGHTS, handle).out
            rank.synchronize()
            here = [np.where(np.isin(IDX // 2, present), IDX, -1) if r in present else IDX[:0] for r in range(3)]
            xs = [rows_of(r) if r in present else x[:0] for r in range(3)]
            want = reference.low_latency_dispatch(xs, here, num_experts=EXPERTS, max_tokens=TOKENS, use_fp8=False)
            assert np.array_equal(counts, want[me].counts)
            expected = reference.low_latency_combine([w.x for w in want], want, [WEIGHTS[: len(h)] for h in here])
            assert np.array_equal(out.astype(np.float32), expected[me].astype(np.float32))

        layer((0, 1, 2))
        gone = (1,) if me != 1 else (0, 2)
        for other in gone:
            buffer.low_latency_update_mask_buffer(other, True)
        for _ in range(3):
            layer((0, 2) if me != 1 else (1,))
        for other in gone:
            buffer.low_latency_update_mask_buffer(other)
        for _ in range(3):
            layer((0, 1, 2))


def test_ranks_shrink_and_rejoin() -> None:
    ep_lib.spawn(shrink_and_rejoin, 3, "emulator")


def masks_the_dead(rank: Rank) -> tuple[list[int], bool] | None:
    """Goes on without the rank that dies in mid-dispatch; rows of its that were announced and did not come are NaN."""
    x = rows_of(rank.rank)
    with Buffer(rank, **SHAPE, **LOW_LATENCY, low_latency_mask_on_timeout=True) as buffer:
        lost = False
        for _ in range(3):
            rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, IDX, False)
            out = buffer.low_latency_combine(np.ones(rows.shape, BF16), IDX, WEIGHTS, handle).out
            rank.synchronize()
            for e in range(2):
                came = rows[e, : counts[e]]
                nan = is_nan(came).all(1)
                known = [any((row == r).all() for rank in range(3) for r in rows_of(rank)) for row in came[~nan]]
                assert all(known), "a row is that of a rank, or NaN"
                lost |= bool(nan.any())
            assert ((out == 2) | (out == 3)).all(), "of two ranks, or of three"
        masked = buffer.low_latency_query_mask_buffer().tolist()
    return masked, lost


def test_rows_that_died_on_their_way_are_nan_and_close_ends() -> None:
    lost = False
    for sends in (0, 5, 9, 13):  # rows are signalled from 4 on
        found = ep_lib.spawn(masks_the_dead, 3, "emulator", fabric=Fabric(stopped_ranks={1: sends}), seed=sends)
        assert found[0][0] == found[2][0] == [0, 1, 0]
        lost |= found[0][1] or found[2][1]
    assert lost


# ---- DeepEP's names --------------------------------------------------------------------------------------------------


def test_zero_copy_reads_what_experts_wrote_to_its_buffer() -> None:
    def main(rank: Rank) -> None:
        x = rows_of(rank.rank)
        with Buffer(rank, **SHAPE, **LOW_LATENCY) as buffer:
            rows, _, handle, _, _ = buffer.low_latency_dispatch(x, IDX, False)
            nothing = np.zeros(rows.shape, BF16)
            with pytest.raises(ArgumentError, match=r"zero_copy=True .* call it and write the rows there"):
                buffer.low_latency_combine(nothing, IDX, WEIGHTS, handle, zero_copy=True)
            place = buffer.get_next_low_latency_combine_buffer(handle)
            rank.synchronize()
            place[...] = rows
            assert buffer.get_next_low_latency_combine_buffer(handle) is place
            out = buffer.low_latency_combine(nothing, IDX, WEIGHTS, handle, zero_copy=True).out
            plain = buffer.low_latency_combine(rows, IDX, WEIGHTS, handle).out
            rank.synchronize()
            assert out.tobytes() == plain.tobytes() and (out == (x.astype(np.float32) * 3).astype(BF16)).all()

    ep_lib.spawn(main, 2, "emulator")


@pytest.mark.parametrize("bad", [EXPERTS, -2, 2**40])
@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_kernels_refuse_experts_that_do_not_exist(bad: int, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs, where the host does not look at values: the same kernels, with the host's look left out."""

    def unseen(_: LowLatencyMode, topk_idx: Any, topk_weights: Any, __: int) -> tuple[ArrayInfo, ArrayInfo | None]:
        return describe(topk_idx), None if topk_weights is None else describe(topk_weights)

    monkeypatch.setattr(LowLatencyMode, "_check_choices", unseen)
    monkeypatch.setattr(low_latency_mode, "_require_same_choices", lambda *_: None)

    def main(rank: Rank) -> None:
        x, wrong = rows_of(0), IDX.copy()
        wrong[3, 1] = bad
        buffer = Buffer(rank, **SHAPE, **LOW_LATENCY)
        of_dispatch, of_combine = (wrong, IDX) if operation == "dispatch" else (IDX, wrong)
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, of_dispatch, False)
        out = buffer.low_latency_combine(np.ones(rows.shape, BF16), of_combine, WEIGHTS, handle).out
        with pytest.raises(ArgumentError, match=rf"topk_idx has the value {bad} \(element 10\), .* are NaN"):
            rank.synchronize()
        assert is_nan(out[3]).all()  # the other rows are right, or NaN as well
        if operation == "dispatch":
            assert is_nan(out).all() and is_nan(rows[0, -1]).all()
            assert all((row == x).all(1).any() for row in rows.reshape(-1, HIDDEN) if not is_nan(row).any())
        with pytest.raises(BufferClosedError, match="make a new one"):
            buffer.low_latency_dispatch(x, IDX)

    ep_lib.spawn(main, 1, "emulator")


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("other", [[1, 1, 2], [0, 1, -1]])
def test_kernels_refuse_choices_that_the_dispatch_has_not(
    other: list[int], hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on GPUs, where the host keeps no ids. The peer, whose own choices are right, gets its sums in time."""
    monkeypatch.setattr(low_latency_mode, "_require_same_choices", lambda *_: None)

    def main(rank: Rank) -> None:
        x, ids = rows_of(rank.rank), np.tile([0, 1, 2], (len(rows_of(0)), 1))
        with Buffer(rank, **(SHAPE | LOW_LATENCY | {"num_experts": 4})) as buffer:
            rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, False)
            given = ids[:, ::-1].copy()
            if rank.rank == 1:
                given[2] = other
            made = np.ones(rows.shape, BF16)
            out, _, hook = buffer.low_latency_combine(made, given, WEIGHTS, handle, return_recv_hook=hooked)
            if hook is not None:
                hook()
            if rank.rank == 0:
                rank.synchronize()
                assert (out == 3).all()
                return
            with pytest.raises(ArgumentError, match=r"topk_idx has the value .* the handle's dispatch sent this token"):
                rank.synchronize()
            assert is_nan(out[2]).all()

    ep_lib.spawn(main, 2, "emulator", timeout=20)


# ---- the host's side on GPUs -----------------------------------------------------------------------------------------


def fault_of(peer: int) -> np.ndarray[Any, Any]:
    record = np.zeros(1, device_state.FAULT_DTYPE)
    record[0]["code"], record[0]["peer"], record[0]["expected"] = device_state.FAULT_TIMEOUT, peer, 7
    return record.view(np.uint8)


def test_a_fault_is_seen_without_waiting_and_hooks_hear_of_it_once() -> None:
    memory, told, heard = np.zeros(device_state.FAULT_BYTES, np.uint8), [], threading.Event()
    shown = ShownFault(memory)
    assert shown.error() is None and not shown.word[0]
    stop = shown.watch(lambda error: (told.append(error), heard.set()))
    memory[:] = fault_of(3)
    assert heard.wait(30) and shown.word[0]
    error = shown.error()
    assert isinstance(error, PeerTimeout) and error.peer == 3 and error.expected == 7
    assert len(told) == 1 and str(told[0]) == str(error)
    shown.clear()
    assert shown.error() is None
    heard.clear()
    memory[:] = fault_of(4)
    assert heard.wait(30) and [e.peer for e in told] == [3, 4]
    stop()
    shown.stop()
    shown.clear()
    memory[:] = fault_of(5)
    assert shown.error() is not None and len(told) == 2
    assert describe(shown.word).address == memory.ctypes.data
