"""Hostile calls: every public callable, each of its parameters in turn with every value of a table of nasty ones.

A call may return, or raise an exception of ``ep_lib.errors``; :class:`Tally` collects everything else. Python's own
TypeError for a call that does not fit the signature is no concern here: names are always right, values are not.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ep_lib.errors import EpError


class Unfriendly:
    """Fails at whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __index__(self) -> int:
        raise TypeError("no index")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array")


class Int(int):
    """An int of another type."""


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def nasty_values() -> dict[str, Any]:
    """By a name for reports. New ones at every call: some are used up."""
    f32 = np.float32
    return {
        "None": None,
        "True": True,
        "False text": "False",
        "empty text": "",
        "text": "nonsense",
        "NUL": "a\0b",
        "surrogate": "\udc80",
        "bytes": b"abc",
        "zero": 0,
        "minus one": -1,
        "one": 1,
        "seven": 7,
        "int max": 2**31 - 1,
        "2**31": 2**31,
        "2**63": 2**63,
        "huge": 10**40,
        "minus huge": -(10**40),
        "half": 2.5,
        "NaN": math.nan,
        "infinity": math.inf,
        "minus infinity": -math.inf,
        "complex": 1j,
        "np.int64": np.int64(2),
        "np.float64": np.float64(2.5),
        "np.bool": np.bool_(True),
        "int subclass": Int(1),
        "empty list": [],
        "list": [1, 2, 3],
        "nested": [[1], [2, 3]],
        "list of None": [None],
        "list of text": ["a", "b"],
        "tuple": (1, 2),
        "long tuple": (1,) * 40,
        "negative tuple": (-1, 2),
        "dict": {"a": 1},
        "set": {1, 2},
        "generator": (n for n in (1, 2)),
        "object": object(),
        "unfriendly": Unfriendly(),
        "class": int,
        "function": lambda *a, **k: None,
        "module": math,
        "path": Path("/proc/self/no-such"),
        "folder": Path("/"),
        "ellipsis": ...,
        "slice": slice(None),
        "error": ValueError("an error"),
        "float32 array": np.zeros((4, 4), f32),
        "array of NaN": np.full((4, 4), math.nan, f32),
        "float64 array": np.zeros((4, 4)),
        "int64 array": np.zeros((4, 4), np.int64),
        "negative ids": np.full((4, 2), -7, np.int64),
        "huge ids": np.full((4, 2), 2**40, np.int64),
        "bf16 array": np.zeros((4, 16), ml_dtypes.bfloat16),
        "fp8 array": np.zeros((4, 128), ml_dtypes.float8_e4m3fn),
        "bool array": np.zeros(4, bool),
        "complex array": np.zeros(4, np.complex64),
        "byte-swapped": np.zeros((4, 4), ">f4"),
        "object array": np.array([None, 1], object),
        "text array": np.array(["a", "b"]),
        "structured": np.zeros(4, [("a", "i4"), ("b", "f8")]),
        "dates": np.zeros(4, "datetime64[s]"),
        "masked": np.ma.masked_array(np.zeros(4, f32), mask=True),
        "matrix": np.zeros((4, 4), f32).view(np.matrix),
        "read-only": read_only(np.zeros((4, 4), f32)),
        "read-only bf16": read_only(np.zeros((4, 16), ml_dtypes.bfloat16)),
        "empty array": np.zeros((0, 16), ml_dtypes.bfloat16),
        "no columns": np.zeros((4, 0), f32),
        "scalar array": np.zeros((), f32),
        "three dimensions": np.zeros((2, 2, 2), f32),
        "transposed": np.zeros((16, 4), ml_dtypes.bfloat16).T,
        "every other": np.zeros((8, 16), ml_dtypes.bfloat16)[::2],
        "reversed": np.zeros((4, 4), f32)[::-1],
        "broadcast": np.broadcast_to(np.zeros(1, f32), (4, 4)),
        "odd address": np.zeros(65, np.uint8)[1:].view(f32),
        "dtype": np.dtype(f32),
        "swapped dtype": np.dtype(">i4"),
        "object dtype": np.dtype(object),
        "subarray dtype": np.dtype((f32, (2,))),
    }


def torch_values() -> dict[str, Any]:
    import torch

    return {
        "tensor": torch.zeros(4, 4),
        "bf16 tensor": torch.zeros(4, 16, dtype=torch.bfloat16),
        "tensor with gradient": torch.zeros(4, 16, dtype=torch.bfloat16, requires_grad=True),
        "id tensor": torch.zeros(4, 2, dtype=torch.int64),
        "scalar tensor": torch.tensor(3),
        "meta tensor": torch.zeros(4, 4, device="meta"),
        "sparse tensor": torch.eye(4).to_sparse(),
        "complex tensor": torch.zeros(4, dtype=torch.complex64).conj(),
        "quantized tensor": torch.quantize_per_tensor(torch.zeros(4), 1.0, 0, torch.qint8),
        "strided tensor": torch.zeros(8, 16, dtype=torch.bfloat16)[::2],
        "expanded tensor": torch.zeros(1, 16, dtype=torch.bfloat16).expand(4, 16),
        "torch dtype": torch.float32,
        "torch device": torch.device("cpu"),
        "parameter": torch.nn.Parameter(torch.zeros(4, 4)),
    }


class Call(NamedTuple):
    """A callable, and arguments with which it works; ``fresh`` makes them anew for each call."""

    name: str
    function: Callable[..., Any]
    fresh: Callable[[], Mapping[str, Any]]


class Outcome(NamedTuple):
    """What a hostile call did that it may not: ``what`` is the exception's type, ``where`` its last line in ep_lib."""

    call: str
    parameter: str
    value: str
    what: str
    message: str
    where: str


class Tally:
    """Outcomes so far."""

    def __init__(self) -> None:
        self.calls = 0
        self.refused: dict[str, int] = {}
        self.accepted: list[tuple[str, str, str]] = []
        self.obscure: list[Outcome] = []

    def add(self, call: str, parameter: str, value: str, attempt: Callable[[], Any]) -> None:
        self.calls += 1
        try:
            attempt()
        except EpError as error:
            self.refused[type(error).__name__] = self.refused.get(type(error).__name__, 0) + 1
            if not str(error).strip():
                self.obscure.append(Outcome(call, parameter, value, type(error).__name__, "no message", ""))
        except Exception as error:  # noqa: BLE001 - that is what is counted
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "ep_lib" in f.filename]
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            text = str(error).partition("\n")[0][:120]
            self.obscure.append(Outcome(call, parameter, value, type(error).__name__, text, where))
        else:
            self.accepted.append((call, parameter, value))


def try_one(
    call: Call, chosen: Mapping[str, Sequence[str]], values: Callable[[], Mapping[str, Any]], tally: Tally
) -> None:
    """``call`` with the ``chosen`` values, by their names, in some of its parameters: first the first of each."""
    for names in zip(*chosen.values(), strict=True):
        fresh = values()
        arguments = {**call.fresh(), **{p: fresh[name] for p, name in zip(chosen, names, strict=True)}}
        tally.add(call.name, ", ".join(chosen), ", ".join(names), lambda given=arguments: call.function(**given))


def parameters(calls: Iterable[Call]) -> Iterator[tuple[Call, str]]:
    for call in calls:
        for parameter in call.fresh():
            yield call, parameter
