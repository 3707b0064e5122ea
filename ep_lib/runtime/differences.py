"""Compares the results of two runs of a program: where they differ, and by how much."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Launched

_ROUNDING = 1e-2  # of the largest value: no other order of additions explains more, not even in bfloat16

_WORD = 8
_LEAST_ADDRESS, _LEAST_ADDRESS_IN_A_STRUCT, _MOST_ADDRESS = 1 << 40, 1 << 22, 1 << 48

_ORDER = "find what depends on the order of threads: a race, floating-point atomics, places taken by atomics"
_SUMS = "add in a fixed order (floating-point atomics do not), or compare within a tolerance (compare_values=False)"


@dataclass(frozen=True)
class Difference:
    """``where``: the end of a sentence. ``remedy``: what to look for."""

    where: str = ""
    remedy: str = _ORDER


def digest(value: Any) -> str:
    """A digest that is equal for equal results."""
    return hashlib.sha256(b"".join(_canonical(value))).hexdigest()


def describe_difference(first: list[Any], second: list[Any]) -> Difference:
    """The first place where two results of main by rank differ; says so if only rounding differs."""
    for rank, (one, other) in enumerate(zip(first, second, strict=True)):
        if digest(one) != digest(other):
            found = _of_value(one, other)
            return Difference(f": on rank {rank}{found.where}", found.remedy)
    return Difference()


def unequal_numbers(one: Any, other: Any) -> Iterable[tuple[Any, Any]]:
    """Pairs of numbers in the same places of two results that differ there."""
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = list(one.values()), list(other.values())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape:
        differ = one != other
        one, other = one[differ].tolist(), other[differ].tolist()
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        for a, b in zip(one, other, strict=False):
            yield from unequal_numbers(a, b)
    elif isinstance(one, (int, float, np.number)) and isinstance(other, (int, float, np.number)) and one != other:
        yield one, other


def describe_launches(first: Sequence[Launched], second: Sequence[Launched]) -> str:
    """How the launches of two runs of one schedule differ, or "" if only in the addresses of arrays."""
    for one, other in zip_longest(first, second):
        if one is None or other is None:
            there = one or other
            return f"rank {there.rank} launched '{there.kernel}' in one run only"
        who = f"rank {one.rank} launched '{one.kernel}'"
        if one[:2] != other[:2]:
            return f"{who} in one run, and rank {other.rank} '{other.kernel}' in another"
        if one[2:4] != other[2:4]:
            return f"{who} with grid and block {one.grid}, {one.block}, and then {other.grid}, {other.block}"
        pointers = (line.split() for line in one.parameters.splitlines())
        names = {int(i): name for i, _, _, name in pointers if "." not in name}  # those in structs have a dot
        for i, (a, b) in enumerate(zip(one.args, other.args, strict=True)):
            is_pointer = i in names
            if _is_alike(a, b, is_pointer):
                continue
            name = f"'{names[i]}'" if is_pointer else f"{i + 1}"
            numbers = (str(int.from_bytes(data, "little")) for data in (a, b))
            said = " and then ".join(numbers) if len(a) <= _WORD else "another value"
            return f"{who} with argument {name} {said}"
    return ""


def _is_alike(one: bytes, other: bytes, is_pointer: bool) -> bool:
    """Whether two arguments differ only in addresses. An array may be anywhere, even right behind the program's image;
    a struct's word or an integer counts as an address if it looks like one."""
    if one == other:
        return True
    if is_pointer:
        return any(one) == any(other)
    if len(one) != len(other) or len(one) < _WORD:
        return False
    least = _LEAST_ADDRESS if len(one) == _WORD else _LEAST_ADDRESS_IN_A_STRUCT
    for at in range(0, len(one), _WORD):
        words = [int.from_bytes(data[at : at + _WORD], "little") for data in (one, other)]
        if words[0] != words[1] and not all(least <= word < _MOST_ADDRESS for word in words):
            return False
    return True


def _of_value(one: Any, other: Any) -> Difference:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            if digest(a) != digest(b):
                found = _of_value(a, b)
                return Difference(f", item {i}{found.where}", found.remedy)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            if digest(one[key]) != digest(other[key]):
                found = _of_value(one[key], other[key])
                return Difference(f", {key!r}{found.where}", found.remedy)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _of_arrays(one, other)
    return Difference()


def _of_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> Difference:
    if one.shape != other.shape or one.dtype != other.dtype:
        return Difference(f" ({one.dtype} {one.shape} and {other.dtype} {other.shape})")
    differ = one != other
    where = f", {int(np.count_nonzero(differ))} of {one.size} elements"
    if one.dtype.kind not in "fV" or one.dtype.names is not None:
        return Difference(where)
    a, b = (array.astype(np.float64) for array in (one, other))
    if not np.all(np.isfinite(a) & np.isfinite(b)):
        return Difference(where)
    by, largest = float(np.max(np.abs(a - b))), float(np.max(np.abs(a)))
    if 0 < by <= _ROUNDING * largest:
        return Difference(f"{where}, by rounding only (at most {by:.1e}, where the largest is {largest:.1e})", _SUMS)
    return Difference(where)


def _canonical(value: Any) -> Iterable[bytes]:
    """Bytes that are equal for equal results; arrays by type, shape and content."""
    if isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _canonical(item)
    elif isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        for key, item in value.items():
            yield from _canonical(key)
            yield from _canonical(item)
    elif isinstance(value, (set, frozenset)):  # two processes iterate over the same strings in different orders
        yield f"{type(value).__name__} {len(value)}".encode()
        yield from sorted(digest(item).encode() for item in value)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    else:
        try:
            yield pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):  # an object that cannot be pickled is not compared
            yield type(value).__name__.encode()
