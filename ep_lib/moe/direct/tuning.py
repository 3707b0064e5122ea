"""The shapes of the launches of direct writes: the fastest ones on H200 that fit into shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ep_lib.errors import ArgumentError
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.moe.config import VECTOR_BYTES, BufferConfig

_FEW_SMS = 16  # below that, what an SM can store is the limit, not the links
_LEAST_WARPS = 4  # warps that add up, at least: if these do not fit, pieces get smaller
_LEAST_PIECE = 8  # vectors
_CASTING_WARPS, _CASTING_SHARE = 7, 0.54  # warps of a block that pushes rows as FP8; such blocks' share of all
_STATIC_BYTES = 1024  # of static shared memory in kernels
_BARRIER_BYTES, _FLOAT_BYTES = 8, 4


@dataclass(frozen=True)
class Tuning:
    """Shapes of the launches for rows of one size. Measurements: benchmarks/NOTES.md."""

    way: str = "Lanes"  # or "Tma": DispatchWay in <moe/direct/dispatch_bulk.cu>
    dispatch_warps: int = 8
    dispatch_stages: int = 2  # rows in flight per warp
    add_warps: int = 12  # of a block that combines
    add_stages: int = 2  # pieces in flight per warp
    add_vectors: int = 128  # vectors of a row in a piece
    push: bool = True  # push rows that are not in symmetric memory; False: copy them there while others pull
    push_share: float = 0.55  # share of the blocks that push before they add up
    send_warps: int = 5  # of its add_warps, those of a block that push or copy; fewer where rows are few
    send_stages: int = 3  # rows in flight per warp
    group_rows: int = 4  # rows under one signal
    route_threads: int = 1024
    local_threads: int = 512  # of kernels that stay on this GPU


# An emulated thread costs memory and time of its own.
EMULATED = Tuning(
    dispatch_warps=2,
    add_warps=2,
    add_vectors=256,
    send_warps=1,
    send_stages=2,
    group_rows=2,
    route_threads=64,
    local_threads=64,
)


def choose_tuning(config: BufferConfig, row_bytes: int, limit: int, *, costly_threads: bool) -> Tuning:
    """The tuning for rows of ``row_bytes`` and at most ``limit`` bytes of shared memory per block. Raises
    ArgumentError."""
    wanted = EMULATED if costly_threads else Tuning()
    if most_ranks(config) <= 2 and not costly_threads:  # a token's pieces may be twice as long
        wanted = replace(wanted, add_warps=13, add_vectors=256, send_warps=12)
    if config.world_size == 2 and not costly_threads:  # only one of a token's two rows comes over the link
        wanted = replace(wanted, push_share=0.25 + 3 / config.num_sms)
    if config.num_sms < _FEW_SMS and not costly_threads:
        wanted = replace(wanted, way="Tma", dispatch_stages=3, push=False, group_rows=2)
    elif not costly_threads:  # with fewer blocks that push, signals cost more
        wanted = replace(wanted, group_rows=max(4, 16 - config.num_sms // 2))
    return fitted(wanted, config, row_bytes // VECTOR_BYTES, limit)


def fitted(wanted: Tuning, config: BufferConfig, row_vectors: int, limit: int) -> Tuning:
    """The largest shapes up to ``wanted`` that fit."""
    ranks, found = config.world_size, wanted
    while not _fits(dispatch_shared(found.dispatch_warps, found.dispatch_stages, row_vectors, ranks), limit):
        if found.dispatch_warps > 1:
            found = replace(found, dispatch_warps=found.dispatch_warps - 1)
        elif found.dispatch_stages > 2:
            found = replace(found, dispatch_stages=2)
        else:
            raise _too_large(config, limit)
    while not _fits(combine_shared(found, config, row_vectors), limit):
        rows, _ = send_shared(found.send_warps, found.send_stages, row_vectors)
        pieces, _ = _add_shared(found, config)
        if pieces > rows and found.add_warps > _LEAST_WARPS:
            found = replace(found, add_warps=found.add_warps - 1)
        elif pieces > rows and found.add_vectors // 2 >= _LEAST_PIECE:
            found = replace(found, add_vectors=found.add_vectors // 2)
        elif found.send_warps > 1:
            found = replace(found, send_warps=found.send_warps - 1)
        elif found.send_stages > 2:
            found = replace(found, send_stages=2)
        elif found.add_warps > 1:
            found = replace(found, add_warps=found.add_warps - 1)
        else:
            raise _too_large(config, limit)
    return replace(found, send_warps=min(found.send_warps, found.add_warps))


def for_packed_rows(tuning: Tuning, config: BufferConfig, limit: int) -> Tuning:
    """The same for rows that come back as FP8: pieces are whole chunks (<moe/direct/packed_rows.cuh>)."""
    chunk = header_constant("moe/direct/packed_rows.cuh", "kChunkVectors")
    found = replace(tuning, add_vectors=max(1, tuning.add_vectors // chunk) * chunk)
    if found.send_stages > 2:  # casting takes a warp's time: more warps help more than more rows in flight
        warps, share = min(_CASTING_WARPS, found.add_warps), max(found.push_share, _CASTING_SHARE)
        found = replace(found, send_stages=2, send_warps=warps, push_share=share)
    while not _fits(combine_shared(found, config, config.row_vectors), limit):
        if found.add_warps == 1:
            raise _too_large(config, limit)
        found = replace(found, add_warps=found.add_warps - 1, send_warps=min(found.send_warps, found.add_warps - 1))
    return found


def dispatch_shared(warps: int, stages: int, row_vectors: int, ranks: int) -> int:
    """``bulk_dispatch_shared`` of <moe/direct/dispatch_bulk.cu>, bytes."""
    return warps * (stages * (row_vectors * VECTOR_BYTES + _BARRIER_BYTES) + ranks * _size_of("RowPtr"))


def add_shared(warps: int, stages: int, piece_vectors: int, most_ranks: int, ranks: int) -> tuple[int, int]:
    """Bytes of ``add_pieces_shared`` and ``add_records_shared`` of <moe/direct/combine_add.cuh>."""
    stage = _size_of("Piece") + _BARRIER_BYTES + most_ranks * _FLOAT_BYTES
    pieces = warps * stages * most_ranks * piece_vectors * VECTOR_BYTES
    return pieces, warps * (stages * stage + ranks * _size_of("RowPtr"))


def send_shared(warps: int, stages: int, row_vectors: int) -> tuple[int, int]:
    """Bytes of ``send_rows_shared`` and ``send_records_shared`` of <moe/direct/combine_send.cuh>."""
    rows = warps * stages
    return rows * row_vectors * VECTOR_BYTES, rows * (_size_of("SentRow") + 2 * _BARRIER_BYTES)


def combine_shared(tuning: Tuning, config: BufferConfig, row_vectors: int) -> int:
    """Bytes of dynamic shared memory of a combine for rows of up to ``row_vectors``: <moe/direct/combine_push.cu>."""
    rows, send_records = send_shared(tuning.send_warps, tuning.send_stages, row_vectors)
    pieces, add_records = _add_shared(tuning, config)
    return max(rows, pieces) + send_records + add_records


def _add_shared(tuning: Tuning, config: BufferConfig) -> tuple[int, int]:
    ranks = config.world_size
    return add_shared(tuning.add_warps, tuning.add_stages, tuning.add_vectors, most_ranks(config), ranks)


def _size_of(struct: str) -> int:
    return header_struct("moe/direct/combine_add.cuh", struct).size


def _fits(shared_bytes: int, limit: int) -> bool:
    """Whether ``shared_bytes`` of dynamic shared memory fit into a block's ``limit``, beside static ones."""
    return shared_bytes <= limit - _STATIC_BYTES


def most_ranks(config: BufferConfig) -> int:
    """The most ranks that a token can go to."""
    return min(config.top_k, config.world_size)


def _too_large(config: BufferConfig, limit: int) -> ArgumentError:
    return ArgumentError(
        f"hidden is {config.hidden}: two rows of {config.row_bytes} bytes ({config.dtype.name}) and what "
        f"{config.world_size} ranks need beside them do not fit into the {limit} bytes of shared memory of a block"
    )
