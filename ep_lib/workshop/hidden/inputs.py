"""Inputs of the hidden tests' kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ep_lib.jit import sealed
from ep_lib.workshop.grader.scenario import Array
from ep_lib.workshop.hidden import Rng

Bytes = NDArray[np.uint8]
Job = Any  # an instance of the class that job_of() makes


def random_bytes(rng: Rng, count: int) -> Bytes:
    return rng.integers(0, 256, count, dtype=np.uint8)


def random_words(rng: Rng, shape: int | Sequence[int], dtype: Any = np.uint64, most: int = 1 << 62) -> Array:
    """Numbers below ``most``, some of them 0, which must be sent, summed and copied like any others."""
    numbers = rng.integers(1, most, shape).astype(dtype)
    numbers[rng.random(numbers.shape) < 0.2] = 0
    return numbers


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def job_of(test: str) -> Any:
    """A dataclass with those fields of the struct Job of the .cu file beside ``test`` that have a default there; all
    are 64-bit integers. The others are passed to :func:`job_numbers`."""
    text = sealed.opened(Path(test).with_suffix(".cu").read_text("utf-8"))
    (declared,) = re.findall(r"^struct Job \{$(.*?)^\};$", text, re.MULTILINE | re.DOTALL)
    fields = re.findall(r"(\w+) =\s+(-?\d+)", re.sub(r"//.*", "", declared))
    return make_dataclass("Job", [(name, int, int(value)) for name, value in fields], frozen=True)


def job_numbers(job: Job, *before: int) -> NDArray[np.int64]:
    """``before``, then the fields of ``job``."""
    return np.array([*before, *asdict(job).values()], dtype=np.int64)
