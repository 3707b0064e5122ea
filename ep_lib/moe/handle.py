"""What a dispatch returns: the rows that arrived, and the handle that knows where each came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib.memory.arrays import like
from ep_lib.moe.mode import Routing


@dataclass(frozen=True, eq=False)
class DispatchHandle:
    """The routing of one dispatch: needed to combine, and to dispatch other data the same way again.

    Belongs to the Buffer that made it and may be used any number of times, in any order, until the Buffer is closed.
    All ranks must use the handles of the same dispatch together.
    """

    num_tokens: int  # that this rank sent
    num_recv_tokens: int  # rows that this rank received
    recv_tokens_per_rank: NDArray[np.int32]  # [ranks]: rows from each source
    tokens_per_expert: NDArray[np.int32]  # [experts_per_rank]
    _owner: object = field(repr=False)  # the Buffer's token
    _operation: int = field(repr=False)  # number of the dispatch: names the handle on every rank
    _routing: Routing = field(repr=False)
    _recv_topk_idx: Any = field(repr=False)  # int32 [num_recv_tokens, top_k]: local expert ids
    _recv_source: Any = field(repr=False)  # int32 [num_recv_tokens, 2]: rank, token
    _index_dtype: np.dtype[Any] = field(repr=False)  # and kind of array in which topk_idx was given
    _index_kind: str = field(repr=False)


@dataclass(frozen=True, eq=False)
class Received:
    """What one rank holds after a dispatch: a row for each token that chose at least one of this rank's experts.

    Rows are sorted by source rank, then by token. N rows; arrays are of the same kind (NumPy, torch, CuPy) as the input
    that they answer, and the caller's own: later operations never change them.
    """

    x: Any  # [N, hidden], dtype of the Buffer; (FP8 [N, hidden], scales float32 [N, hidden / 128]) if x was such a pair
    topk_idx: Any  # [N, top_k], dtype as given: experts as this rank numbers its own, from 0; -1 for experts elsewhere
    topk_weights: Any | None  # float32 [N, top_k], 0 where topk_idx is -1; None if no weights were given
    tokens_per_expert: NDArray[np.int32]  # [experts_per_rank], in host memory: choices of each of this rank's experts
    src_rank: Any  # int32 [N]
    src_token: Any  # int32 [N]: index of the token on src_rank
    handle: DispatchHandle


def as_kind(kind: str, rows: Any, dtype: np.dtype[Any]) -> Any:
    """Rows as they are stored, as an array of the caller's kind, and of ``dtype`` where that kind has it."""
    if kind == "numpy":
        return rows.view(dtype)
    array = like(kind, rows)
    if kind == "torch" and rows.dtype != dtype:
        import torch

        return array.view(getattr(torch, dtype.name))
    return array
