"""What the tests of CUDA's built-ins share: a table of expressions and what Python says about them.

One kernel computes all expressions of a table for all inputs.
"""

from __future__ import annotations

import atexit
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ep_lib


def alone(backend: str, main: Callable[[ep_lib.Rank], Any]) -> Any:
    """``main(rank)`` on a world of one rank. On CUDA all tests share this process's rank: starting one takes long."""
    if backend == "emulator":
        return ep_lib.spawn(main, 1, "emulator")[0]
    return main(_cuda_rank())


@functools.lru_cache(maxsize=1)
def _cuda_rank() -> ep_lib.Rank:
    rank = ep_lib.init("cuda")
    atexit.register(rank.close)
    return rank


@dataclass(frozen=True)
class Row:
    """``expression`` in the variables a, b, c; ``expected(a, b, c)``.

    The result may be off by so many ``ulps`` of its type, or by ``absolute``; by default not at all.
    """

    expression: str
    expected: Callable[..., float]
    ulps: int = 0
    absolute: float = 0.0

    def __str__(self) -> str:
        return self.expression


@dataclass
class Table:
    """Rows over the same inputs. ``c_type`` is that of a, b and c, ``out_type`` that of every result."""

    c_type: str
    out_type: str
    inputs: Sequence[np.ndarray[Any, Any]]
    rows: list[Row]
    prelude: str = ""

    def source(self) -> str:
        stores = "\n".join(f"    out[{i} * n + at] = ({self.out_type})({row});" for i, row in enumerate(self.rows))
        return f"""{self.prelude}
extern "C" __global__ void table(const {self.c_type}* as, const {self.c_type}* bs, const {self.c_type}* cs,
                                 {self.out_type}* out, int n) {{
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    const {self.c_type} a = as[at], b = bs[at], c = cs[at];
{stores}
}}
"""

    def kernel(self) -> ep_lib.Kernel:
        return ep_lib.Kernel.from_source(self.source(), "table", filename="table.cu")

    def results(self, backend: str) -> np.ndarray[Any, Any]:
        """All results as an array (row, input)."""
        kernel, inputs = self.kernel(), [np.ascontiguousarray(x) for x in self.inputs]
        shape = (len(self.rows), inputs[0].size)
        dtype = {"long long": np.int64, "double": np.float64, "float": np.float32}[self.out_type]

        def main(rank: ep_lib.Rank) -> np.ndarray[Any, Any]:
            out = rank.to_device(np.zeros(shape, dtype))
            kernel.launch(rank, -(-shape[1] // 64), 64, *map(rank.to_device, inputs), out, shape[1])
            return rank.to_host(out).copy()

        results: np.ndarray[Any, Any] = alone(backend, main)
        return results

    def check(self, backend: str) -> None:
        """Compares all results; fails naming each row that differs, with the first input for which it does."""
        wrong = []
        for row, results in zip(self.rows, self.results(backend), strict=True):
            for values, result in zip(zip(*self.inputs, strict=True), results, strict=True):
                a, b, c = (v.item() for v in values)
                expected = row.expected(a, b, c)
                if not same(expected, result.item(), row, self.out_type):
                    wrong.append(f"{row} with a={a!r}, b={b!r}, c={c!r}: {result.item()!r}, not {expected!r}")
                    break
        assert not wrong, "\n".join(wrong)


def same(expected: float, got: float, row: Row, out_type: str) -> bool:
    if expected != expected or got != got:
        return expected != expected and got != got
    if out_type == "long long":
        return int(expected) == int(got)
    if expected == got:
        return row.ulps > 0 or np.signbit(expected) == np.signbit(got)
    if not np.isfinite(expected) or not np.isfinite(got):
        return False
    spacing = np.spacing(np.float32(expected)) if out_type == "float" else np.spacing(expected)
    return abs(expected - got) <= max(row.ulps * abs(float(spacing)), row.absolute)


def s32(x: int) -> int:
    """The 32 low bits as a signed number."""
    return (int(x) + (1 << 31)) % (1 << 32) - (1 << 31)


def u32(x: int) -> int:
    return int(x) % (1 << 32)


def s64(x: int) -> int:
    return (int(x) + (1 << 63)) % (1 << 64) - (1 << 63)


def u64(x: int) -> int:
    return int(x) % (1 << 64)


def f32(x: float) -> float:
    """x rounded to float32 and back."""
    with np.errstate(all="ignore"):
        return float(np.float32(x))


def bits_of(x: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", x))[0])


def lanes(x: int, size: int, signed: bool) -> list[int]:
    """The lanes of a 32-bit word, lowest first; ``size`` in bytes."""
    kind = {(1, True): "i1", (1, False): "u1", (2, True): "<i2", (2, False): "<u2"}[size, signed]
    return [int(v) for v in np.frombuffer(struct.pack("<I", u32(x)), kind)]


def word(values: Sequence[int], size: int) -> int:
    """Lanes, cut to ``size`` bytes each, as a 32-bit word."""
    return sum((int(v) % (1 << 8 * size)) << (8 * size * i) for i, v in enumerate(values))
