"""`Operation`: the launches of a call, declared once, with a name for everything that changes from call to call.

A mode makes one for each kind of call it has. Running it allocates the call's arrays, writes this call's values into
kept argument blocks, and launches: natively if the backend can, else by one :meth:`Kernel.launch` after another, which
checks its arguments. Sizes are values as well: the number of tokens is not part of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ep_lib.jit import pieces
from ep_lib.jit.kernel import Kernel, Launcher
from ep_lib.jit.structs import header_struct
from ep_lib.memory.arrays import Array, ArrayInfo

Value = ArrayInfo | int | None  # of a name, in one call
_ADDRESS_BYTES = 8


class Part(NamedTuple):
    """An address in an array: ``offset`` plus ``factor`` times ``number`` bytes behind its beginning."""

    array: str
    offset: int = 0
    number: str = ""
    factor: int = 0


class Word(NamedTuple):
    """A word of a struct: its ``size`` bytes at ``at`` are a number, or the address of an array or of a part of one."""

    at: int
    size: int
    value: str | Part


class Struct(NamedTuple):
    """A struct by value: constant bytes, and the words that change."""

    data: bytes
    words: tuple[Word, ...]


# A parameter of a kernel: the name of an array, a part of an array, a struct, or a constant address (None: null).
Slot = str | Part | Struct | int | None


class Made(NamedTuple):
    """An uninitialised array that the call makes; lengths are numbers or names of numbers."""

    name: str
    kind: str  # of array, as in describe()
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]


class Launch(NamedTuple):
    """One kernel of a call, and a slot for each of its parameters."""

    kernel: Kernel
    grid: int
    block: int
    slots: tuple[Slot, ...]
    shared_bytes: int = 0
    uses: tuple[ArrayInfo, ...] = ()  # further arrays that it accesses, equal in every call


def struct(header: str, name: str, /, **members: Any) -> Struct:
    """The struct ``name`` of a header. Every member must be named: numbers, bytes and None (null) are constant; names,
    Parts and Structs change from call to call, also in a tuple (the elements of an array)."""
    layout, fixed = header_struct(header, name), dict[str, Any]()
    changing: list[Word] = []
    for field in layout.fields:
        member, size = members.get(field.name), field.dtype.itemsize
        fixed[field.name] = 0 if member is None else member
        if isinstance(member, Struct):
            fixed[field.name] = member.data
            changing += [word._replace(at=field.offset + word.at) for word in member.words]
        elif isinstance(member, (str, Part)):
            fixed[field.name] = 0
            changing.append(Word(field.offset, size, member))
        elif isinstance(member, tuple):
            fixed[field.name], each = bytes(size), size // len(member)
            changing += [Word(field.offset + each * i, each, element) for i, element in enumerate(member)]
    return Struct(layout.pack(**{of: fixed.get(of) for of in members}), tuple(changing))


class Patch(NamedTuple):
    """One word of an argument: value ``slot``, or its address, plus ``add``, plus ``factor`` times value ``number``."""

    at: int
    size: int
    slot: int
    add: int
    number: int  # -1: none
    factor: int


class Argument(NamedTuple):
    """One parameter of a launch. Values are numbered: the given ones first, then the allocated arrays."""

    array: int  # a value passed as an array, which the launch checks; -1: none
    is_struct: bool
    data: bytes
    patches: tuple[Patch, ...]


class Operation:
    """``given`` names the values of :meth:`run`, in order: arrays (``ArrayInfo``, or None for none) and numbers."""

    def __init__(self, rank: Launcher, given: Sequence[str], launches: Sequence[Launch], makes: Sequence[Made] = ()):
        self.made = tuple(made.name for made in makes)
        self._slots = {name: at for at, name in enumerate((*given, *self.made))}
        self.given, self.launches = len(given), tuple(launches)
        self.arguments = [tuple(map(self._argument, launch.slots)) for launch in launches]
        self.makes = [(made.kind, tuple(map(self._length, made.shape)), made.dtype) for made in makes]
        self._rank = rank
        self._natively: Callable[[tuple[Value, ...]], Sequence[Array] | None] | None = None
        self._has_run = False

    def run(self, *values: Value) -> Sequence[Array]:
        """Launch, in the stream that the backend has chosen; returns the allocated arrays. Raises the errors of a
        launch."""
        if self._natively is not None and not pieces.in_use:
            made = self._natively(values)
            if made is not None:
                return made
        made = self._one_by_one(values)
        if not self._has_run:  # kernels are loaded now, and their parameters were checked
            self._has_run = True
            self._natively = self._rank._backend.executor(self)
        return made

    def prepare(self, values: Sequence[Any]) -> tuple[list[Array], list[tuple[Launch, list[Any], list[ArrayInfo]]]]:
        """Allocates a call's arrays; returns them, and each launch with its arguments and the arrays that it accesses
        by other addresses."""
        known, made = [*values], []  # known: the given values, then the arrays' ArrayInfos
        for kind, lengths, dtype in self.makes:
            shape: list[int] = []
            for slot, length in lengths:
                shape.append(length if slot < 0 else values[slot])
            info = self._rank._backend.empty(kind, tuple(shape), dtype)
            made.append(info.owner)
            known.append(info)
        filled = []
        for launch, arguments in zip(self.launches, self.arguments, strict=True):
            args: list[Any] = []
            uses = list(launch.uses)
            for array, is_struct, data, patches in arguments:
                if array >= 0:
                    args.append(known[array])
                    continue
                block = bytearray(data)
                for at, size, slot, add, number, factor in patches:
                    word = known[slot] or 0
                    if type(word) is ArrayInfo:
                        uses.append(word)
                        word = word.address + add + (0 if number < 0 else known[number] * factor)
                    block[at : at + size] = word.to_bytes(size, "little")
                args.append(bytes(block) if is_struct else int.from_bytes(block, "little"))
            filled.append((launch, args, uses))
        return made, filled

    def _one_by_one(self, values: Sequence[Any]) -> Sequence[Array]:
        made, filled = self.prepare(values)
        for launch, args, uses in filled:
            launch.kernel.launch(
                self._rank, launch.grid, launch.block, *args, shared_bytes=launch.shared_bytes, uses=tuple(uses)
            )
        return made

    def _argument(self, slot: Slot) -> Argument:
        if isinstance(slot, Struct):
            return Argument(-1, True, slot.data, tuple(map(self._patch, slot.words)))
        if isinstance(slot, (str, Part)):
            array = self._slots[slot] if isinstance(slot, str) else -1
            return Argument(array, False, bytes(_ADDRESS_BYTES), (self._patch(Word(0, _ADDRESS_BYTES, slot)),))
        return Argument(-1, False, (slot or 0).to_bytes(_ADDRESS_BYTES, "little"), ())

    def _length(self, of: int | str) -> tuple[int, int]:
        """The number of a value, or -1 and a length."""
        return (self._slots[of], 0) if isinstance(of, str) else (-1, of)

    def _patch(self, word: Word) -> Patch:
        at, size, value = word
        name, offset, number, factor = value if isinstance(value, Part) else Part(value)
        return Patch(at, size, self._slots[name], offset, self._slots[number] if number else -1, factor)
