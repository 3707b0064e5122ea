"""What is dispatched: rows and routing that every rank can compute for all ranks, so that results can be checked."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import ep_lib
from ep_lib.errors import ArgumentError

SCALE_BLOCK = 128  # elements of an FP8 row that share a scale
ROUTINGS = ("random", "skewed", "zipf", "incast")
ZIPF = 1.2
SETS = 3  # of rows, used in turn: 3 x 29 MB of FP8 exceed an L2 cache


class Shape(NamedTuple):
    """The problem's sizes, the same on all ranks."""

    ranks: int
    tokens: int
    hidden: int
    experts: int
    top_k: int

    @property
    def experts_per_rank(self) -> int:
        return self.experts // self.ranks

    def row_bytes(self, dtype: str) -> int:
        """Bytes of one row of a dispatch, with its scales."""
        return 2 * self.hidden if dtype == "bf16" else self.hidden + 4 * (self.hidden // SCALE_BLOCK)


def most_experts(ranks: int) -> int:
    """256, or the largest number below that ``ranks`` divides: 255 for 3."""
    return max(1, 256 // ranks) * ranks


def device_of(rank: ep_lib.Rank) -> str:
    """Torch's name for the memory of this rank."""
    return "cuda" if rank.backend == "cuda" else "cpu"


def tokens_of(shape: Shape, source: int, turn: int) -> int:
    """How many tokens ``source`` has in call ``turn`` of a program whose number of tokens changes: half to all."""
    return random.Random(10_000 * turn + source).randint(shape.tokens // 2, shape.tokens)


def routing(shape: Shape, source: int, kind: str, device: str, turn: int = 0) -> Any:
    """``[tokens, top_k]`` int64: experts of ``source``'s tokens in call ``turn``, each of :data:`ROUTINGS`.

    "random": any. "skewed": half of the tokens choose expert 0 besides others; with 8 of 256 experts chosen at random,
    1 in 32 does. "zipf": the n-th most popular expert is chosen in proportion to n ** -1.2; where the popular ones
    live is random, the same for all ranks. "incast": all tokens choose experts of rank 0.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(1000 + source + 10_000 * turn)
    scores = torch.rand(shape.tokens, shape.experts, generator=generator, device=device)
    if kind == "skewed":
        scores[::2, 0] = 2.0
        scores[1::2, 0] = -1.0
    elif kind == "zipf":  # the largest of log(p) + Gumbel noise are a draw without replacement
        order = torch.randperm(shape.experts, generator=torch.Generator().manual_seed(7)).to(device)
        scores = -ZIPF * (order + 1).log() - (-scores.clamp_min(1e-12).log()).log()
    elif kind == "incast":
        scores[:, shape.experts_per_rank :] = -1.0
    elif kind != "random":
        raise ArgumentError(f"the routing is {kind!r}; take one of {', '.join(ROUTINGS)}")
    return torch.topk(scores, shape.top_k, dim=-1).indices


def weights(shape: Shape, source: int, device: str) -> Any:
    """``[tokens, top_k]`` float32."""
    import torch

    generator = torch.Generator(device=device).manual_seed(3000 + source)
    return torch.rand(shape.tokens, shape.top_k, generator=generator, device=device)


def rows(shape: Shape, source: int, turn: int, dtype: str, device: str) -> tuple[Any, Any]:
    """Rows of ``source`` and their scales (None for BF16): small integers, so that sums in any order are exact."""
    import torch

    generator = torch.Generator(device=device).manual_seed(2000 + 100 * turn + source)
    x = torch.randint(-8, 8, (shape.tokens, shape.hidden), generator=generator, device=device)
    if dtype == "bf16":
        return x.bfloat16(), None
    scales = torch.rand(shape.tokens, shape.hidden // SCALE_BLOCK, generator=generator, device=device)
    return x.float().to(torch.float8_e4m3fn), scales


def goes_to(shape: Shape, topk_idx: Any) -> Any:
    """``[tokens, ranks]`` bool: whether a token goes to a rank."""
    import torch

    found = torch.zeros(len(topk_idx), shape.ranks, dtype=torch.bool, device=topk_idx.device)
    return found.scatter_(1, topk_idx // shape.experts_per_rank, True)


def traffic(shape: Shape, goes: Any, rank: int, dtype: str) -> dict[str, int]:
    """Bytes of rows and scales that ``rank`` sends: all, and those that leave it."""
    total, own = int(goes.sum()), int(goes[:, rank].sum())
    each = shape.row_bytes(dtype)
    return {"logical_bytes": total * each, "wire_bytes": (total - own) * each}
