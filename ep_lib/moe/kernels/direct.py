"""The structs of the tuned kernels, as in :mod:`ep_lib.moe.kernels`: they mirror those of the device headers."""

from __future__ import annotations

from ep_lib.moe.kernels import DISPATCH_ARGS, PLACE_BYTES, struct

BOARD = struct(("flags", "u8"), ("notes", "u8"), ("state", "u8"))

BOARD_STATE = struct(
    ("completed", "u8"),
    ("last_dispatch", "u8"),
    ("last_combine", "u8"),
    ("finished_blocks", "u4"),
    ("next_item", "u4"),
    ("bad_expert", "u4"),
    ("bad_weight", "u4"),
    ("next_token", "u4"),
    ("copied_blocks", "u4"),
)

ROUTE_ARGS = struct(
    ("board", BOARD),
    ("counts", "u8"),
    ("expert_counts", "u8"),
    ("report", "u8"),
    ("ticket", "u8"),
    ("num_tokens", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
    ("options", "i4"),
    ("expert_alignment", "i4"),
)

BULK_DISPATCH_ARGS = struct(
    ("board", BOARD), ("common", DISPATCH_ARGS), ("recv_scales", "u8"), ("note", "u8"), ("row_scales", "i4")
)

UNPACK_ARGS = struct(
    ("rows", "u8"),
    ("scales", "u8"),
    ("topk", "u8"),
    ("weights", "u8"),
    ("source", "u8"),
    ("capacity", "i4"),
    ("row_vectors", "i4"),
    ("row_scales", "i4"),
    ("top_k", "i4"),
)

EXPERT_ROWS_ARGS = struct(
    ("plan", "u8"),
    ("slot", "u8"),
    ("row", "u8"),
    ("offsets", "u8"),
    ("weights", "u8"),
    ("capacity", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
)

ADD_ARGS = struct(
    ("bias", ("u8", (2,))),
    ("num_tokens", "i4"),
    ("row_vectors", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
    ("piece_vectors", "i4"),
    ("most_ranks", "i4"),
    ("stages", "i4"),
)

SEND_ARGS = struct(
    ("returned", "u8"),
    ("arrived", "u8"),
    ("max_tokens", "i4"),
    ("max_groups", "i4"),
    ("group_rows", "i4"),
    ("blocks", "i4"),
    ("warps", "i4"),
    ("stages", "i4"),
)

PUSH_COMBINE_ARGS = struct(("board", BOARD), ("note", "u8"), ("add", ADD_ARGS), ("send", SEND_ARGS))

PULL_COMBINE_ARGS = struct(
    ("board", BOARD), ("note", "u8"), ("add", ADD_ARGS), ("send", SEND_ARGS), ("pull_blocks", "i4")
)

ROUTED, REFUSED, ROUTE_FAILED = range(3)  # RouteStatus in <moe/direct/route.cuh>
_STATIC_BYTES = 1024  # of shared memory, what kernels take for themselves
_VECTOR_BYTES, _FLOAT_BYTES, _BARRIER_BYTES, _SENT_ROW_BYTES, _PIECE_BYTES = 16, 4, 8, 16, 16


def dispatch_shared(warps: int, stages: int, row_vectors: int, ranks: int) -> int:
    """``bulk_dispatch_shared`` of <moe/direct/dispatch_bulk.cuh>, bytes."""
    return warps * (stages * (row_vectors * _VECTOR_BYTES + _BARRIER_BYTES) + ranks * PLACE_BYTES)


def add_shared(warps: int, stages: int, piece_vectors: int, most_ranks: int, ranks: int) -> tuple[int, int]:
    """Bytes of ``add_pieces_shared`` and ``add_notes_shared`` of <moe/direct/combine_add.cuh>."""
    stage = _PIECE_BYTES + _BARRIER_BYTES + most_ranks * _FLOAT_BYTES
    pieces = warps * stages * most_ranks * piece_vectors * _VECTOR_BYTES
    return pieces, warps * (stages * stage + ranks * PLACE_BYTES)


def send_shared(warps: int, stages: int, row_vectors: int) -> tuple[int, int]:
    """Bytes of ``send_rows_shared`` and ``send_notes_shared`` of <moe/direct/combine_send.cuh>."""
    rows = warps * stages
    return rows * row_vectors * _VECTOR_BYTES, rows * (_SENT_ROW_BYTES + 2 * _BARRIER_BYTES)


def fits(shared_bytes: int, limit: int) -> bool:
    """Whether a block that may have ``limit`` bytes of shared memory may have so many of dynamic shared memory."""
    return shared_bytes <= limit - _STATIC_BYTES
