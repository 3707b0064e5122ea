"""PCIe mode's limits and failures: said before anything is sent, or with the name of the rank that did not come."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support import bad_input as shared
from support.bad_input import IDX, SHAPE, X, bad_buffers, check_good
from support.dispatch_combine_cases import BF16
from support.refusals import refused

from ep_lib import Buffer, Fabric, Rank, reference, spawn
from ep_lib.errors import (
    ArgumentError,
    DeadlockError,
    EpError,
    OutOfSymmetricMemory,
    PeerTimeout,
    RankMismatchError,
)
from ep_lib.moe.config import make_config
from ep_lib.moe.pcie.memory import check_resident
from ep_lib.moe.pcie.mode import PcieMode

PCIE = {"allow_nvlink_for_normal_mode": False, "num_sms": 4}
HIERARCHICAL = {"hierarchical": True, "ranks_per_node": 1, "num_sms": 3}


# Arguments, and what the error says. A packet: 16 bfloat16, 2 ids and weights, a number: 52 bytes, in 16s.
BAD_BUFFERS: list[tuple[dict[str, Any], str]] = [
    ({"num_sms": 3}, "num_sms is 3; .* one half of the blocks sends .* 4 for example, or merge_sender_receiver"),
    ({"bounce_bytes": 63}, "bounce_bytes is 63, too small for one token: .* at least 64, or None"),
    ({"bounce_bytes": 0}, "bounce_bytes is 0; it must be at least 1"),
    ({"bounce_bytes": 1e6}, "bounce_bytes is 1000000.0; it must be a whole number"),
    (
        {"bounce_bytes": 1000, "allow_nvlink_for_normal_mode": True},
        "bounce_bytes is for PCIe mode: pass allow_nvlink_for_normal_mode=False",
    ),
    (
        {"merge_sender_receiver": True, "allow_nvlink_for_normal_mode": True},
        "merge_sender_receiver is for PCIe mode",
    ),
]


def test_bad_buffers_are_refused() -> None:
    def main(rank: Rank) -> None:
        bad_buffers(rank, SHAPE | PCIE, BAD_BUFFERS)
        for good in ({"bounce_bytes": 64}, {"num_sms": 3, "merge_sender_receiver": True, "bounce_bytes": 64}):
            with Buffer(rank, **(SHAPE | PCIE | good)) as buffer:
                check_good(buffer, rank, str(good))

    spawn(main, 2, "emulator", fabric="srd")


def test_more_blocks_than_sms_are_refused_before_anything_is_sent() -> None:
    """On a GPU of 78 SMs, that is not there: nothing else of the rank is touched."""
    gpu = SimpleNamespace(backend="cuda", sm_count=78)
    for sms in (80, 256):
        config = make_config(2, dtype="bfloat16", **(SHAPE | PCIE | {"num_sms": sms}))
        pattern = f"num_sms is {sms}, but this GPU has 78 SMs; .* pass at most 78"
        with pytest.raises(ArgumentError, match=pattern):
            PcieMode(cast(Rank, gpu), config)
    check_resident(78, 78)


def more_than_the_gpu_has(rank: Rank) -> None:
    count = rank.sm_count or 0
    bad_buffers(rank, SHAPE | PCIE, [({"num_sms": count + 2 - count % 2}, "SMs")])


@pytest.mark.gpu(count=2)
def test_more_blocks_than_the_gpu_has_are_refused() -> None:
    spawn(more_than_the_gpu_has, 2, "cuda")


def test_more_than_32_ranks_are_refused() -> None:
    shape = {"num_experts": 33, "top_k": 1, "hidden": 16, "max_tokens": 1}
    pattern = "connects at most 32 ranks, not 33; use fewer ranks, or allow NVLink"
    with pytest.raises(ArgumentError, match=pattern):
        Buffer.symmetric_bytes(33, **shape, **PCIE)
    with pytest.raises(ArgumentError, match=pattern):
        spawn(lambda rank: Buffer(rank, **shape, **PCIE), 33, "emulator", fabric="rc")


def test_ranks_that_make_different_buffers() -> None:
    def main(rank: Rank) -> None:
        for other, says in (
            ({"allow_nvlink_for_normal_mode": True}, "allow_nvlink_for_normal_mode is False on rank 0 but True on"),
            ({"bounce_bytes": 640}, "bounce_bytes is None on rank 0 but 640 on rank 1"),
            ({"merge_sender_receiver": True}, "merge_sender_receiver"),
        ):
            mine = SHAPE | PCIE | (other if rank.rank else {})
            refused(lambda mine=mine: Buffer(rank, **mine), RankMismatchError, says)
        with Buffer(rank, **(SHAPE | PCIE)) as buffer:
            check_good(buffer, rank, "after all")

    spawn(main, 2, "emulator")


def test_a_heap_that_is_too_small_says_what_to_lower() -> None:
    with pytest.raises(OutOfSymmetricMemory, match=r"rings of 459776 bytes .* Lower bounce_bytes or") as caught:
        arguments = SHAPE | PCIE | {"hidden": 7168}
        spawn(lambda rank: Buffer(rank, **arguments), 4, "emulator", heap_bytes=1 << 20)
    assert caught.value.short_by > 0


@pytest.mark.parametrize("options", [PCIE, HIERARCHICAL], ids=["PCIe", "hierarchical"])
def test_bad_input_is_refused_as_with_direct_writes(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in options.items():
        monkeypatch.setitem(SHAPE, name, value)
    spawn(shared.bad_dispatches, 2, "emulator", fabric="srd")
    spawn(shared.one_rank_tries_again, 2, "emulator", fabric="rc")
    spawn(shared.use_after_close, 2, "emulator", fabric="rc")
    spawn(shared.disagree, 2, "emulator", fabric="srd")
    assert spawn(shared.one_rank_stays_away, 2, "emulator", fabric="rc") == ["away", "noticed"]


@pytest.mark.parametrize("options", [PCIE, HIERARCHICAL], ids=["PCIe", "hierarchical"])
def test_what_only_direct_mode_does_is_refused(options: dict[str, Any]) -> None:
    """By a rank alone, before it tells others: it calls again, and the Buffer works on."""
    hidden = 128
    x, fp8 = np.ones((3, hidden), BF16), reference.quantize_fp8(np.ones((3, hidden), np.float32))
    mxfp8 = reference.quantize_mxfp8(x)
    mode = make_config(2, dtype="bfloat16", **(SHAPE | options)).mode_name

    def main(rank: Rank) -> None:
        with Buffer(rank, **(SHAPE | options | {"hidden": hidden})) as buffer:
            recv = buffer.dispatch(x, IDX)
            y, handle = recv.x, recv.handle
            calls: list[tuple[str, Callable[[], Any]]] = [
                ("num_worst_tokens", lambda: buffer.dispatch(x, IDX, num_worst_tokens=6)),
                ("sorted_by_expert", lambda: buffer.dispatch(x, IDX, sorted_by_expert=True)),
                ("column_major_scales", lambda: buffer.dispatch(fp8, IDX, column_major_scales=True)),
                ("quantize", lambda: buffer.dispatch(x, IDX, quantize="fp8")),
                ("x has MXFP8 rows", lambda: buffer.dispatch(mxfp8, IDX)),
                ("bias", lambda: buffer.combine(y, handle, bias=x)),
                ("quantize", lambda: buffer.combine(y, handle, quantize="ue8m0")),
                ("sum_order", lambda: buffer.combine(y, handle, sum_order="choices")),
                ("combine_input", lambda: buffer.combine_input(handle, x)),
                ("mask_ranks and connect_ranks", lambda: buffer.mask_ranks([1])),
            ]
            for name, call in calls if rank.rank == 0 else []:
                refused(call, ArgumentError, f"^{name}: {re.escape(mode)}")
            again = buffer.dispatch(x, handle=handle)
            there, event = buffer.combine(again.x, handle, async_finish=True)
            event.synchronize()
            assert (there == buffer.combine(y, handle)).all()

    spawn(main, 2, "emulator", fabric="rc")


def test_a_dispatch_that_meets_a_combine() -> None:
    message = "the ranks call different operations: dispatch on rank 0 but combine on rank 1; call the same ones"

    def main(rank: Rank) -> None:
        with Buffer(rank, **(SHAPE | PCIE)) as buffer:
            recv = check_good(buffer, rank, "at first")
            again = [lambda: buffer.dispatch(X, IDX), lambda: buffer.combine(recv.x, recv.handle)]
            refused(again[rank.rank], RankMismatchError, message)
            check_good(buffer, rank, "afterwards")

    spawn(main, 2, "emulator", fabric="rc")


def operations(rank: Rank, tokens: int, bounce: int) -> None:
    shape = {"num_experts": 4, "top_k": 4, "hidden": 64, "max_tokens": tokens, "bounce_bytes": bounce}
    with Buffer(rank, **shape, **PCIE) as buffer:
        recv = buffer.dispatch(np.ones((tokens, 64), X.dtype), np.tile(np.arange(4), (tokens, 1)))
        buffer.combine(recv.x, recv.handle)


@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_a_broken_link_names_who_waited_for_whom(kind: str) -> None:
    """Nothing goes from rank 2 to rank 1: rank 1 waits for rank 2, and the others wait for rank 1, which stays there.
    All of them are at their limits when nothing moves any more; the schedule says whose error is raised."""
    fabric = Fabric(kind, broken_links=((2, 1),))
    with pytest.raises((PeerTimeout, DeadlockError)) as caught:
        spawn(operations, 4, "emulator", fabric=fabric, args=(6, 4096))
    assert isinstance(caught.value, PeerTimeout), str(caught.value)
    waiting = [(1, 2, "layout"), *((rank, 1, "dispatch") for rank in (0, 2, 3))]
    assert (caught.value.rank, caught.value.peer, caught.value.phase) in waiting


def test_a_rank_that_stops_on_its_way_is_noticed() -> None:
    """Rank 2 posts a few messages and then nothing more: the others wait for data or credits, and say so."""
    phases = set()
    for posts in (0, 3, 9, 20, 33):
        fabric = Fabric("srd", stopped_ranks={2: posts})
        with pytest.raises(EpError) as caught:
            spawn(operations, 4, "emulator", fabric=fabric, args=(12, 300), seed=posts)
        assert isinstance(caught.value, PeerTimeout), f"after {posts} posts: {caught.value}"
        phases.add(caught.value.phase)
    assert phases <= {"layout", "dispatch", "combine", "credit"} and len(phases) > 1, phases
