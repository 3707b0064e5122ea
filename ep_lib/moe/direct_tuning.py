"""The shapes of the launches of direct writes: what was quickest on H200, as far as it fits into shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ep_lib.errors import ArgumentError
from ep_lib.moe.config import VECTOR_BYTES, BufferConfig
from ep_lib.moe.kernels import direct

_FEW_SMS = 16  # below that, what a multiprocessor can store is the limit, not the links
_MANY_SMS = 24  # from there on a pushing combine wants more warps that push, which signal more often
_LEAST_PIECE = 8  # vectors


@dataclass(frozen=True)
class Tuning:
    """Shapes of the launches for rows of one size. Measurements: benchmarks/NOTES.md."""

    way: str = "Lanes"  # or "Engine": DispatchWay in <ep/dispatch_bulk.cuh>
    dispatch_warps: int = 8
    dispatch_stages: int = 2  # rows under way a warp
    combine_warps: int = 16
    push_warps: int = 4  # of these
    push_stages: int = 3  # rows under way a warp
    group_rows: int = 4  # rows that are signalled together
    pull_warps: int = 12
    pull_stages: int = 2  # pieces under way a warp
    piece_vectors: int = 128  # of a row, that come together
    route_threads: int = 1024
    local_threads: int = 512  # of kernels that stay on this GPU


# An emulated thread costs memory and time of its own.
EMULATED = Tuning("Lanes", 2, 2, 3, 1, 2, 2, 2, 2, 5, 64, 64)


def choose_tuning(config: BufferConfig, row_bytes: int, limit: int, *, emulated: bool) -> Tuning:
    """For rows of ``row_bytes`` where a block may have ``limit`` bytes of shared memory. Raises ArgumentError."""
    wanted = EMULATED if emulated else Tuning()
    if config.num_sms < _FEW_SMS and not emulated:
        wanted = replace(wanted, way="Engine", dispatch_stages=3)
    if config.num_sms >= _MANY_SMS and not emulated:
        wanted = replace(wanted, push_warps=5, group_rows=2)
    return fitted(wanted, config, row_bytes // VECTOR_BYTES, limit)


def fitted(wanted: Tuning, config: BufferConfig, row_vectors: int, limit: int) -> Tuning:
    """The largest shapes up to ``wanted`` that fit."""
    ranks, most = config.world_size, min(config.top_k, config.world_size)
    found = wanted
    while not direct.fits(
        direct.dispatch_shared(found.dispatch_warps, found.dispatch_stages, row_vectors, ranks), limit
    ):
        if found.dispatch_warps > 1:
            found = replace(found, dispatch_warps=found.dispatch_warps - 1)
        elif found.dispatch_stages > 2:
            found = replace(found, dispatch_stages=2)
        else:
            raise _too_large(config, limit)
    while not direct.fits(
        direct.combine_shared(found.combine_warps, found.push_warps, found.push_stages, row_vectors, ranks), limit
    ):
        if found.push_stages > 2:
            found = replace(found, push_stages=2)
        elif found.push_warps > 1:
            found = replace(found, push_warps=found.push_warps - 1)
        else:
            raise _too_large(config, limit)
    while not direct.fits(
        direct.pull_shared(found.pull_warps, found.pull_stages, found.piece_vectors, most, ranks), limit
    ):
        if found.piece_vectors // 2 >= _LEAST_PIECE:
            found = replace(found, piece_vectors=found.piece_vectors // 2)
        elif found.pull_warps > 1:
            found = replace(found, pull_warps=found.pull_warps - 1)
        else:
            raise _too_large(config, limit)
    return found


def _too_large(config: BufferConfig, limit: int) -> ArgumentError:
    return ArgumentError(
        f"hidden is {config.hidden}: two rows of {config.row_bytes} bytes ({config.dtype.name}) and what "
        f"{config.world_size} ranks need beside them do not fit into the {limit} bytes of shared memory of a block"
    )
