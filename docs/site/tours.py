"""The runs that the site shows step by step, and its pages with sliders.

README's picture and animation are of the first one. Each tour is a right or wrong kernel of the workshop; nothing here
is made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import ep_lib
from ep_lib import Kernel, Rank, ibgda, viz
from ep_lib.viz import Page

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tutorial_kernels"
MOST_SEEDS = 40  # that are tried, to find one that shows what a tour is about


class Tour(NamedTuple):
    """A page of the site: ``text`` says what to look at."""

    name: str
    title: str
    text: str
    page: Page


def kernel(name: str, file: str) -> Kernel:
    return Kernel.from_file(KERNELS / file, name)


def write_and_signal(rank: Rank, send: Kernel, receive: Kernel, size: int) -> None:
    """Both ranks write `size` bytes into the peer's memory and signal, then read what has come."""
    peer = 1 - rank.rank
    target, source = (rank.symmetric(size, np.uint8, fill=rank.rank) for _ in range(2))
    signal = rank.symmetric(1, np.uint64, fill=0)
    out = rank.to_device(np.zeros(size, np.uint8))
    send.launch(rank, 1, 32, target, source, size, signal, peer)
    receive.launch(rank, 1, 32, signal, 1, target, size, out, peer)


def pipeline(rank: Rank, send: Kernel, receive: Kernel, rounds: int, slot_bytes: int, num_slots: int) -> None:
    """Rank 0 streams to rank 1 through a few slots."""
    slots = rank.symmetric(num_slots * slot_bytes, np.uint8)
    arrived, credits = rank.symmetric(1, np.uint64, fill=0), rank.symmetric(1, np.uint64, fill=0)
    data = rank.to_device(np.arange(rounds * slot_bytes, dtype=np.uint8))
    mine = send if rank.rank == 0 else receive
    mine.launch(rank, 1, 32, slots, slot_bytes, num_slots, arrived, credits, data, rounds, 1 - rank.rank)


def by_nic(rank: Rank, send: Kernel, receive: Kernel, size: int, messages: int) -> None:
    """Each rank's NIC carries messages to the other one, through a staging buffer."""
    peer = 1 - rank.rank
    inbox, outbox, staging = (rank.symmetric(size * messages, np.uint8, fill=1) for _ in range(3))
    arrived = rank.symmetric(1, np.uint32, fill=0)
    out = rank.to_device(np.zeros(size * messages, np.uint8))
    ibgda.init_efa_device_state(rank, num_channels=4)
    send.launch(rank, 1, 32, inbox, staging, outbox, size, messages, arrived, peer)
    receive.launch(rank, 1, 32, arrived, messages, inbox, size, out, peer)


def noted(rank: Rank, rounds: int, num_slots: int) -> np.ndarray:
    """When each round was written or read, by one counter: rung 5 of 01 with notes."""
    slots = rank.symmetric(num_slots * 64, np.uint8)
    arrived, credits, counter = (rank.symmetric(1, np.uint64, fill=0) for _ in range(3))
    data = rank.to_device(np.zeros(rounds * 64, np.uint8))
    notes = rank.to_device(np.zeros((rounds, 2), np.uint64))
    peer, pipe = 1 - rank.rank, (slots, 64, num_slots, arrived, credits)
    if rank.rank == 0:
        send = kernel("pipelined_send_traced", "01_write_signal_traced.cu")
        send.launch(rank, 1, 32, *pipe, data, rounds, peer, 1, counter, notes)
    else:
        receive = kernel("pipelined_receive_traced", "01_write_signal_traced.cu")
        receive.launch(rank, 1, 32, *pipe, data, rounds, peer, counter, notes)
    rank.barrier()
    return rank.to_host(notes)


def found(program: object, args: tuple[object, ...], fabric: str = "p2p") -> Page:
    """The run of the first seed with a finding."""
    report = ep_lib.check(program, 2, fabric, MOST_SEEDS, args, stop_at_first=True)  # type: ignore[arg-type]
    seed = report.findings[0].seed
    return viz.time_travel(program, 2, seed=seed, fabric=fabric, args=args)  # type: ignore[arg-type]


RIGHT, BROKEN = "01_write_signal.cu", "01_write_signal_broken.cu"


def no_syncwarp() -> Page:
    """The first tour: a race that a learner would not see."""
    send = kernel("write_signal_warp_short", BROKEN)
    return found(write_and_signal, (send, kernel("wait_and_read", RIGHT), 128))


def tours() -> Iterator[Tour]:
    receive = kernel("wait_and_read", RIGHT)
    yield Tour(
        "no_syncwarp",
        "A missing __syncwarp",
        "32 lanes write into the peer's memory, and lane 0 signals. Lanes do not run in lockstep: the signal covers "
        "what lane 0 has done, and nobody else. Watch the stripes: they stay where no reader is ordered after the "
        "write.",
        no_syncwarp(),
    )
    yield Tour(
        "write_and_signal",
        "The same, right",
        "With the barrier of the warp, the whole array loses its stripes in one step: when the reader sees the signal.",
        viz.time_travel(write_and_signal, args=(kernel("write_signal_warp", RIGHT), receive, 128), seed=3),
    )
    yield Tour(
        "no_credits",
        "A ring without credits",
        "The sender does not wait until a slot has been read. Press n for the finding, then w: who wrote this?",
        found(
            pipeline, (kernel("pipelined_send_without_credits", BROKEN), kernel("pipelined_receive", RIGHT), 5, 64, 2)
        ),
    )
    yield Tour(
        "no_credit_given",
        "A wait without end",
        "The receiver never gives a credit back. At the last step, both ranks say what they wait for.",
        found(
            pipeline, (kernel("pipelined_send", RIGHT), kernel("pipelined_receive_without_credit", BROKEN), 5, 64, 2)
        ),
    )
    yield Tour(
        "source_reused",
        "A NIC reads late",
        "The staging buffer is filled again although the NIC may not have read it. Messages have a life of their own: "
        "posted, read, delivered, complete.",
        found(
            by_nic,
            (
                kernel("send_staged_reuses_source", "03_ibgda_shim_broken.cu"),
                kernel("receive_messages", "03_ibgda_shim.cu"),
                96,
                3,
            ),
            "srd",
        ),
    )
    yield Tour(
        "networks",
        "RC against SRD",
        "The same eight puts, each followed by a signal, on two networks. Move the slider: another seed, another "
        "order.",
        viz.networks_by_seed(),
    )
    written, read = ep_lib.spawn(noted, ranks=2, backend="emulator", seed=4, args=(10, 3))
    yield Tour(
        "ring",
        "Credits fill and drain",
        "Ten rounds through three slots, as they happened in one run.",
        viz.ring_step_by_step(written, read, 3),
    )
    random = np.random.default_rng(0)
    routed = [np.stack([random.permutation(16)[:3] for _ in range(12)]) for _ in range(4)]
    yield Tour(
        "dispatch",
        "Dispatch as a flow",
        "A token goes once to each rank that has one of its experts, into exactly the slot that the prefix sums leave.",
        viz.dispatch_flow(routed, 16),
    )
    results = ROOT / "benchmarks" / "results"
    yield Tour(
        "calculator",
        "What it takes at least",
        "Your own sizes against the floor of a link, and against what was measured on H200.",
        viz.calculator({"4 H200": results / "h200x4.json", "2 H200": results / "h200x2.json"}),
    )
