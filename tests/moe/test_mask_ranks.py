"""Ranks that leave a Buffer and come back: Buffer.mask_ranks and connect_ranks, in normal and low-latency mode."""

from __future__ import annotations

import pytest
from support.mask_cases import BOTH, RANKS, SHAPE, WAYS, low_latency, normal, tokens

import ep_lib
from ep_lib import Buffer, Fabric, Rank
from ep_lib.errors import ArgumentError, BackendUnavailable, HandleError, PeerTimeout


def leave_and_return(rank: Rank, ways: list[str], seed: int, areas: int = 1) -> bool:
    """Rank 1 leaves, then rank 3; rank 1 comes back, and rank 3 at last."""
    me = rank.rank
    with Buffer(rank, **BOTH, receive_areas=areas) as buffer:

        def layer(number: int) -> None:
            for way in ways:
                WAYS[way](buffer, rank, seed + number)

        layer(0)
        if me != 1:
            buffer.mask_ranks([1])
            layer(1)
            if me != 3:
                buffer.mask_ranks([3])
                assert buffer.masked_ranks == (1, 3)
                layer(2)
        if me != 3:
            buffer.connect_ranks([1], masked=[3] if me == 1 else [])
            layer(3)
        buffer.connect_ranks([3])
        assert buffer.masked_ranks == ()
        layer(4)
    return True


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("ways", [["normal"], ["unwatched"], ["low latency"], ["low latency", "normal", "unwatched"]])
def test_ranks_leave_and_return(ways: list[str]) -> None:
    for seed in range(3):
        assert ep_lib.spawn(leave_and_return, RANKS, "emulator", seed=seed, args=(ways, seed)) == [True] * RANKS


@pytest.mark.extended
def test_ranks_leave_and_return_with_other_receive_areas() -> None:
    for areas in (0, 3):
        assert ep_lib.spawn(leave_and_return, RANKS, "emulator", seed=0, args=(["normal"], 0, areas)) == [True] * RANKS


@pytest.mark.gpu(count=RANKS)
@pytest.mark.parametrize("ways", [["normal"], ["low latency"], ["low latency", "normal", "unwatched"]])
def test_ranks_leave_and_return_on_gpus(ways: list[str]) -> None:
    for seed in range(3):
        assert ep_lib.spawn(leave_and_return, RANKS, "cuda", args=(ways, seed)) == [True] * RANKS


@pytest.mark.extended
@pytest.mark.slow
def test_ranks_leave_and_return_without_a_race() -> None:
    report = ep_lib.check(leave_and_return, RANKS, args=(["low latency", "normal"], 0), seeds=2)
    assert report.ok, str(report)


def outlives(rank: Rank, way: str) -> tuple[bool, int]:
    """Rank 1 stops somewhere; the others go on in the same Buffer."""
    with Buffer(rank, **BOTH) as buffer:
        lost = 0
        for seed in range(4):
            try:
                WAYS[way](buffer, rank, seed)
            except PeerTimeout:
                lost += 1
                break
        if lost:
            buffer.mask_ranks([1])
            for seed in range(3):
                normal(buffer, rank, seed)
                low_latency(buffer, rank, seed)
    return True, lost


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(("way", "moments"), [("normal", (9, 14, 21)), ("low latency", (9, 20))])
def test_a_buffer_outlives_a_rank(way: str, moments: tuple[int, ...]) -> None:
    for seed, moment in enumerate(moments):
        found = ep_lib.spawn(
            outlives, RANKS, "emulator", fabric=Fabric(stopped_ranks={1: moment}), seed=seed, args=(way,)
        )
        assert found[1] is None and all(found[r] == (True, 1) for r in (0, 2, 3)), (moment, found)


def test_what_does_not_fit_together_is_told() -> None:
    def main(rank: Rank) -> None:
        me = rank.rank
        with Buffer(rank, **SHAPE) as buffer:
            handle = buffer.dispatch(*(each[me] for each in tokens(0))).handle
            with pytest.raises(ArgumentError, match="cannot mask itself"):
                buffer.mask_ranks([me])
            for bad in ([RANKS], ["a"], 3, [True]):
                with pytest.raises(ArgumentError, match="mask_ranks is"):
                    buffer.mask_ranks(bad)  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match="has masked no rank"):
                buffer.connect_ranks([(me + 1) % RANKS])
            with pytest.raises(BackendUnavailable, match="mpiexec"):
                rank.invitation()
            with pytest.raises(PeerTimeout) as caught:
                buffer.mask_ranks([1] if me == 3 else [])
            if me in (0, 2):  # rank 3 says nothing to rank 1
                assert "rank 3 ranks 0, 2, 3. Pass the same" in "\n".join(caught.value.__notes__)
            if me == 1:
                return
            buffer.mask_ranks([1])
            normal(buffer, rank, 1)
            with pytest.raises(HandleError, match="since its last mask_ranks"):
                buffer.combine(tokens(0)[0][me], handle)

    ep_lib.spawn(main, RANKS, "emulator")


def test_pcie_mode_has_no_masks() -> None:
    def main(rank: Rank) -> None:
        shape = {**SHAPE, "num_sms": 2, "allow_nvlink_for_normal_mode": False}
        with Buffer(rank, **shape) as buffer, pytest.raises(ArgumentError, match="PCIe mode"):
            buffer.mask_ranks([1])

    ep_lib.spawn(main, 2, "emulator")
