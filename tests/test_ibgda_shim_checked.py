"""The checker's opinion of tutorial_kernels/03_ibgda_shim*.cu: silence on the ladder, a finding on each mistake."""

from __future__ import annotations

import pytest
from test_ibgda_shim import LADDER, any_fabric, counted, ring

from ep_lib import Fabric, Rank, check

SEEDS = 20


def program(rank: Rank, send: str, receive: str) -> None:
    if receive:
        ring(rank, send, receive)
    else:
        counted(rank, send)


@pytest.mark.parametrize(("send", "receive"), [*LADDER, ("count_by_source", "")])
@any_fabric
def test_nothing_is_found_in_the_ladder(send: str, receive: str, fabric: Fabric | None) -> None:
    report = check(lambda rank: program(rank, send, receive), ranks=4, fabric=fabric, seeds=SEEDS)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("send", "receive", "fabric"),
    [
        ("channel_send_trusts_the_queue_pair", "channel_receive", "srd"),
        ("count_together", "", "srd"),
        ("send_staged_reuses_source", "receive_messages", "rc"),
        ("send_staged_reuses_source", "receive_messages", "srd"),
        ("send_batched_quiet_first", "receive_messages", None),
        ("send_batched_quiet_first", "receive_messages", "rc"),
        ("send_batched_quiet_first", "receive_messages", "srd"),
    ],
)
def test_every_mistake_is_found(send: str, receive: str, fabric: str | None) -> None:
    report = check(lambda rank: program(rank, send, receive), ranks=2, fabric=fabric, seeds=SEEDS)
    assert not report.ok
    assert "03_ibgda_shim" in str(report)


@pytest.mark.parametrize(
    ("send", "receive"), [("channel_send_trusts_the_queue_pair", "channel_receive"), ("count_together", "")]
)
def test_what_infiniband_forgives_is_not_found_there(send: str, receive: str) -> None:
    assert check(lambda rank: program(rank, send, receive), ranks=2, fabric="rc", seeds=SEEDS).ok
