"""The host side of ``<ep/ibgda_shim.cuh>``: call one function of this module before kernels use the shim.

``ep_lib.ibgda.init_efa_device_state(rank, num_channels=16, num_devices=1)``, and then launch.
"""

from __future__ import annotations

import numpy as np

from ep_lib.errors import ArgumentError, RankMismatchError
from ep_lib.jit import device_state
from ep_lib.require import at_least_one, instance
from ep_lib.runtime.rank import Rank

__all__ = ["init_efa_device_state", "init_internode"]

_MAX_QUEUE_PAIRS = 2**31 - 1  # kernels multiply the two numbers as int


def init_efa_device_state(rank: Rank, num_channels: int = 16, num_devices: int = 1) -> None:
    """Collective: sets the numbers in ``ibgda_get_state()`` for this rank's kernels, and enables the shim.

    ``num_channels`` (at least 1) becomes ``num_rc_per_pe``, ``num_devices`` (at least 1) becomes
    ``num_devices_initialized``; DeepEP's kernels spread their messages over the product of the two. Calling it again
    sets new numbers for later launches. Raises ArgumentError for numbers that are too small or too large, and
    RankMismatchError on every rank if the ranks do not agree.
    """
    instance("rank", rank, Rank, "the Rank that main got")
    channels = at_least_one("num_channels", num_channels)
    devices = at_least_one("num_devices", num_devices)
    if channels * devices > _MAX_QUEUE_PAIRS:
        raise ArgumentError(
            f"num_channels x num_devices is {channels} x {devices}; kernels count queue pairs in an int, at most "
            f"{_MAX_QUEUE_PAIRS}"
        )
    rank.synchronize()  # running launches keep the old numbers
    passed = rank.all_gather((channels, devices))
    if len(set(passed)) > 1:
        given = "; ".join(f"rank {r}: {c} and {d}" for r, (c, d) in enumerate(passed))
        raise RankMismatchError(
            f"the ranks initialise the shim with different num_channels and num_devices: {given}; a queue pair has two "
            "ends, so every rank must pass the same numbers"
        )
    state = rank._backend.heap_array(device_state.IBGDA_STATE_OFFSET, (2,), np.int32)
    state[0] = channels
    state[1] = devices
    rank.synchronize()


def init_internode(rank: Rank, num_channels: int = 16, num_devices: int = 1) -> None:
    """The same under the name of the guide's Python binding (``deepep.init_internode``)."""
    init_efa_device_state(rank, num_channels, num_devices)
