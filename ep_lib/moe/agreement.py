"""Checks that ranks agree when they make a Buffer, and ranks' names in errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, NoReturn

from ep_lib.errors import RankMismatchError, everywhere
from ep_lib.moe.config import BufferConfig
from ep_lib.runtime.rank import Rank


def name_ranks(numbers: list[int]) -> str:
    """``rank 3``, ``ranks 0, 2``."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def require_same_everywhere(rank: Rank, config: BufferConfig) -> None:
    """Raises RankMismatchError, which names the ranks and their values."""
    require_same_values(rank, asdict(config), "make different Buffers")


def require_same_values(rank: Rank, values: Mapping[str, Any], what: str) -> None:
    """Collective. Raises RankMismatchError on every rank, ``the ranks <what>``, if one has other values."""
    mine = {name: str(value) for name, value in values.items()}
    passed = rank.all_gather(mine)
    complaints = []
    for name in mine:
        by_value: dict[str, list[int]] = {}
        for r, theirs in enumerate(passed):
            by_value.setdefault(theirs[name], []).append(r)
        if len(by_value) > 1:
            complaints.append(f"{name} is " + " but ".join(f"{v} on {name_ranks(r)}" for v, r in by_value.items()))
    if complaints:
        raise everywhere(RankMismatchError(f"the ranks {what}: {'; '.join(complaints)}; pass the same everywhere"))


# The content of a dispatch, as bits that the ranks compare: whether there are topk_weights, and the code of x's form
# (ep_lib/moe/formats.py).
WITH_WEIGHTS = 1
FORM_SHIFT, _FORMS = 1, 8
_BITS = 4
NO_ROOM = 16  # content of a rank that declines, since its tokens do not fit: Buffer.decline_dispatch()


class NoRoomError(RankMismatchError):
    """A rank has more tokens than the Buffer has room for, and declined a dispatch; the Buffer stays usable."""


class Tag(NamedTuple):
    """The collective tag of an operation: the arguments that must be equal on all ranks, in one number that they
    compare."""

    epoch: int  # of the dispatch whose handle is used
    bits: int = 0  # the content of a dispatch, or the way in which a combine brings rows back
    row_vectors: int = 0  # a combine's row_vectors, if its rows are narrower than the Buffer's

    @property
    def number(self) -> int:
        """The tag as kernels compare it."""
        return (self.epoch + (self.row_vectors << 16) << _BITS) + self.bits


def content_of(tag_bits: int) -> int:
    """The content in (differing) bits of tags."""
    return tag_bits & (1 << _BITS) - 1


def require_same_content(contents: Sequence[int], names: Sequence[str]) -> None:
    """Raises RankMismatchError, which names the ranks and their contents, if ``contents`` ``[ranks]`` differ;
    NoRoomError if a rank declined. ``names``: the names of the forms of rows."""
    if len(set(contents)) == 1 and not contents[0] & NO_ROOM:
        return
    declining = [r for r, bits in enumerate(contents) if bits & NO_ROOM]
    if declining:
        raise everywhere(
            NoRoomError(f"{name_ranks(declining)} declined the dispatch: more tokens than max_tokens; nothing was sent")
        )
    weights = [bits & WITH_WEIGHTS for bits in contents]
    if len(set(weights)) > 1:
        _refuse_some("topk_weights", weights)
    forms = [bits >> FORM_SHIFT & _FORMS - 1 for bits in contents]
    others = set(forms) - {0}
    if len(others) == 1 and 0 in forms:
        _refuse_some(names[others.pop()], forms)
    if others and len(set(forms)) > 1:
        said = ", ".join(f"{names[form]} on {name_ranks(_where(forms, form))}" for form in sorted(set(forms)))
        raise RankMismatchError(
            f"the ranks passed rows of different forms to dispatch: {said}; pass the same everywhere"
        )


def _where(values: list[int], value: int) -> list[int]:
    return [r for r, each in enumerate(values) if each == value]


def _refuse_some(what: str, given: list[int]) -> NoReturn:
    having, lacking = [r for r, value in enumerate(given) if value], _where(given, 0)
    raise RankMismatchError(
        f"{name_ranks(having)} passed {what} to dispatch, {name_ranks(lacking)} did not; "
        "pass them on all ranks or on none"
    )
