"""The results of a dispatch: the received rows, and the handle with their origins."""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import numpy as np

from ep_lib.errors import BufferClosedError, HandleError
from ep_lib.memory.arrays import Array, ArrayInfo, describe
from ep_lib.moe.event import Event
from ep_lib.moe.mode import DispatchRouting, ExpertRows

Record = TypeVar("Record")

# Numbers of Buffers and handles: operators of a compiled torch graph take no other objects.
_numbers = itertools.count(1)
_numbered: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def give_number(thing: Any) -> int:
    """A number of this process for ``thing``, valid as long as something else holds it."""
    number = next(_numbers)
    _numbered[number] = thing
    return number


def find(number: int) -> Any:
    """The thing with this number. Raises BufferClosedError if it is gone."""
    thing = _numbered.get(int(number))
    if thing is None:
        raise BufferClosedError(
            f"the Buffer or handle with number {int(number)} does not exist any more; make a new one"
        )
    return thing


def make_record(kind: type[Record], **fields: Any) -> Record:
    """``kind(**fields)`` for a frozen dataclass, with all fields given, in a third of the time of its constructor,
    which sets fields one by one. Each operation makes such a record."""
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


@dataclass(frozen=True, eq=False)
class DispatchHandle:
    """The routing of one dispatch: needed to combine, and to dispatch other data with the same routing.

    Belongs to the Buffer that made it and may be used any number of times, in any order, until the Buffer is closed.
    All ranks must use the handles of the same dispatch together.
    """

    num_tokens: int  # tokens that this rank sent
    num_recv_tokens: int  # rows that this rank received, or num_worst_tokens
    recv_tokens_per_rank: Array  # int32 [ranks]: rows from each source; NumPy, with num_worst_tokens on the device
    tokens_per_expert: Array  # int32 [experts_per_rank]; where recv_tokens_per_rank is
    _owner: object = field(repr=False)  # the Buffer's token
    _epoch: int = field(repr=False)  # the dispatch's epoch, which identifies the handle on every rank
    _routing: DispatchRouting = field(repr=False)
    _recv_topk_idx: Array = field(repr=False)  # as in Received
    _recv_src_rank: Array = field(repr=False)
    _recv_src_token: Array = field(repr=False)
    _counts_on_device: bool = field(repr=False, default=False)
    _by_expert: ExpertRows | None = field(repr=False, default=None)


@dataclass(frozen=True, eq=False)
class Received:
    """A rank's result of a dispatch: a row for each token that chose at least one of this rank's experts.

    Rows are sorted by source rank, then by token. N rows; arrays are of the same kind (NumPy, torch, CuPy) as the
    corresponding input. The caller owns them: later operations never change them, except with ``copy=False``. With
    ``num_worst_tokens`` N is that number, and the rows behind the received ones have topk_idx, src_rank and src_token
    -1, weights 0 and any x. Dispatches by a handle share topk_idx, src_rank and src_token with the first one.
    """

    x: Any  # [N, hidden], dtype of the Buffer; numbers and their scales if x was such a pair or triple
    topk_idx: Array  # [N, top_k], dtype as given: this rank's local expert numbers, from 0; -1: elsewhere
    topk_weights: Array | None  # float32 [N, top_k], 0 where topk_idx is -1; None if no weights were given
    tokens_per_expert: (
        Array  # int32 [experts_per_rank]: choices of each of this rank's experts, rounded up to a multiple
    )
    # of expert_alignment; NumPy, with num_worst_tokens an array on the device
    src_rank: Array  # int32 [N]
    src_token: Array  # int32 [N]: index of the token on src_rank
    handle: DispatchHandle
    by_expert: ExpertRows | None = None  # with sorted_by_expert: the rows grouped for a grouped GEMM
    event: Event | None = None  # with async_finish: completes when all results are ready


class Arrived:
    """The arrays of rows that dispatches returned, and the handle of each, while the arrays live."""

    def __init__(self) -> None:
        self._by_address: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def remember(self, rows: Array, handle: Any) -> None:
        """Notes that ``rows`` are from the dispatch of ``handle``. Only if the host can read values at any time
        (CPU)."""
        if (info := describe(rows)).nbytes:
            self._by_address[info.address] = (weakref.ref(rows, functools.partial(self._forget, info.address)), handle)

    def _forget(self, address: int, gone: weakref.ref[Any]) -> None:
        """Forgets an array that is gone; another one may have its address now."""
        if address in self._by_address and self._by_address[address][0] is gone:
            del self._by_address[address]

    def handle_of(self, rows: ArrayInfo, handle: Any) -> Any:
        """The handle of the dispatch that brought these rows, or the rows of which they are a copy. If several
        dispatches brought such rows and ``handle`` is among them, ``handle``. None if unknown: after the rows of
        ``handle`` are gone, the origin of a copy is ambiguous."""
        known = self._by_address.get(rows.address)
        if known is not None and known[0]() is not None:
            return known[1]
        found, is_known = None, False
        for came, its in list(self._by_address.values()):
            other = came()
            if other is None:
                continue
            is_known = is_known or its is handle
            if _is_copy(rows, describe(other)):
                if its is handle:
                    return handle
                found = its
        return found if is_known else None


def _is_copy(rows: ArrayInfo, other: ArrayInfo) -> bool:
    """Whether two arrays have the same bytes. Not if all rows are equal: these do not identify their origin."""
    if rows.nbytes != other.nbytes or rows.shape != other.shape or rows.strides_bytes or other.strides_bytes:
        return False
    mine, theirs = _content(rows), _content(other)
    if not np.array_equal(mine[:1], theirs[:1]) or not np.array_equal(mine, theirs):
        return False
    return bool((mine != mine[:1]).any())


def _content(rows: ArrayInfo) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The rows' bytes: ``[rows, bytes of a row]``."""
    memory = (ctypes.c_uint8 * rows.nbytes).from_address(rows.address)
    return np.ctypeslib.as_array(memory).reshape(-1, rows.shape[-1] * rows.dtype.itemsize)


def refuse_other_rows(dispatch: str) -> NoReturn:
    """Raises HandleError: the rows have the right number, but are from other tokens than the handle's."""
    raise HandleError(
        f"x is what another {dispatch} than this handle's brought, or a copy of it, and its rows came from other "
        "tokens: pass the handle that came with x"
    )


def require_owner(handle: Any, owner: object) -> None:
    """Raises HandleError unless the Buffer with token ``owner`` made the handle."""
    if handle._owner is not owner:
        raise HandleError(
            "this handle belongs to another Buffer, and its rows to other tokens: use one that this Buffer's dispatch "
            "returned (since its last mask_ranks or connect_ranks, if there was one)"
        )
