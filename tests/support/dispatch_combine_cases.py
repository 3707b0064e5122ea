"""Random routings for the tests of dispatch and combine, on any backend, and what they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ep_lib import Rank, reference
from ep_lib.memory.arrays import BFLOAT16, like
from ep_lib.moe import Received

BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Case:
    """One input for all ranks; lists are over ranks."""

    num_experts: int
    top_k: int
    hidden: int
    max_tokens: int
    dtype: str
    xs: list[Any]
    topk_idx: list[Any]
    topk_weights: list[Any]

    @property
    def world_size(self) -> int:
        return len(self.xs)

    def buffer_arguments(self) -> dict[str, Any]:
        return {
            "num_experts": self.num_experts,
            "top_k": self.top_k,
            "hidden": self.hidden,
            "max_tokens": self.max_tokens,
            "dtype": self.dtype,
        }

    def expected_dispatch(self, scale: float = 1) -> list[reference.Received]:
        xs = [(x * np.array(scale, x.dtype)) for x in self.xs]
        return reference.dispatch(xs, self.topk_idx, self.topk_weights, num_experts=self.num_experts)

    def expected_combine(self, ys: list[Any], *, weighted: bool) -> list[Any]:
        weights = self.topk_weights if weighted else None
        return reference.combine(ys, self.topk_idx, weights, num_experts=self.num_experts)


def make_case(
    seed: int, *, world_size: int | None = None, dtype: str | None = None, max_tokens: int | None = None
) -> Case:
    """Shapes and routing from the seed: any top_k, -1s, empty ranks, experts that every token wants."""
    rng = np.random.default_rng(seed)
    world_size = world_size or int(rng.choice([1, 2, 3, 4, 8]))
    num_experts = world_size * int(rng.integers(1, 6))
    top_k = int(rng.integers(1, num_experts + 1)) if rng.random() < 0.5 else min(num_experts, int(rng.integers(1, 5)))
    dtype = dtype or str(rng.choice(["bfloat16", "float32"]))
    hidden = int(rng.integers(1, 20)) * (8 if dtype == "bfloat16" else 4)
    if rng.random() < 0.1:
        hidden = 2048  # several rounds of the loop over a row
    max_tokens = max_tokens or int(rng.integers(1, 80))
    popularity = rng.random(num_experts) ** rng.choice([0.0, 3.0, 20.0])  # even, skewed, very skewed
    xs, idx, weights = [], [], []
    for _ in range(world_size):
        tokens = 0 if rng.random() < 0.15 else int(rng.integers(0, max_tokens + 1))
        scores = rng.random((tokens, num_experts)) * popularity
        chosen = np.argsort(-scores, axis=1)[:, :top_k].astype(rng.choice([np.int32, np.int64]))
        chosen[rng.random(chosen.shape) < rng.choice([0.0, 0.2, 0.9])] = -1
        xs.append(
            rng.standard_normal((tokens, hidden))
            .astype(np.float32)
            .astype(np.dtype(BF16 if dtype == "bfloat16" else dtype))
        )
        idx.append(chosen)
        weights.append(rng.standard_normal((tokens, top_k)).astype(np.float32))
    return Case(num_experts, top_k, hidden, max_tokens, dtype, xs, idx, weights)


def to_input(rank: Rank, array: Any, kind: str = "native") -> Any:
    """A NumPy array as a rank's kernels can take it: NumPy or CuPy ("native"), or torch."""
    if rank.backend == "emulator":
        return like("torch", array.copy()) if kind == "torch" else array.copy()
    bits = array.view(np.uint16) if array.dtype == BFLOAT16 else array
    on_device = rank.to_device(bits)
    if kind == "native":
        return on_device
    import torch

    tensor = like("torch", on_device)
    return tensor.view(torch.bfloat16) if array.dtype == BFLOAT16 else tensor


def to_numpy(array: Any, dtype: str | None = None) -> Any:
    """Any array as NumPy, bits of bfloat16 viewed as such if ``dtype`` says so."""
    if type(array).__module__.startswith("torch"):
        import torch

        bits = array.view(torch.int16) if array.dtype == torch.bfloat16 else array
        array = bits.cpu().numpy()
    elif hasattr(array, "get"):
        array = array.get()
    array = array.copy()
    return array.view(BF16) if dtype == "bfloat16" else array


def unpack(recv: Received, dtype: str) -> dict[str, Any]:
    """A Received as NumPy arrays that can travel between processes."""
    return {
        "x": to_numpy(recv.x, dtype),
        "topk_idx": to_numpy(recv.topk_idx),
        "topk_weights": None if recv.topk_weights is None else to_numpy(recv.topk_weights),
        "tokens_per_expert": recv.tokens_per_expert,
        "src_rank": to_numpy(recv.src_rank),
        "src_token": to_numpy(recv.src_token),
    }


def expert_output(rank: Rank, recv_x: Any) -> Any:
    """Something that differs for every rank and row, in NumPy."""
    rows = recv_x.astype(np.float32) * np.float32(rank.rank + 1) + np.arange(len(recv_x), dtype=np.float32)[:, None]
    return rows.astype(recv_x.dtype)


def assert_same(got: Any, want: Any, what: str) -> None:
    """Equal shape, dtype and bits; NaNs with equal bits too."""
    assert got.dtype == want.dtype, f"{what}: {got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"{what}: {got.shape} instead of {want.shape}"
    if got.tobytes() != want.tobytes():
        raise AssertionError(f"{what} differs:\n{got}\ninstead of\n{want}")


def assert_received(got: dict[str, Any], want: reference.Received, what: str) -> None:
    for name, value in got.items():
        expected = getattr(want, name)
        if value is None or expected is None:
            assert value is None and expected is None, f"{what}: {name}"
        else:
            assert_same(value, expected, f"{what}: {name}")
