"""Send FP8 rows with a scale for every 128 elements: half the bytes of bfloat16, and what FP8 GEMMs take.

python examples/fp8_experts.py                        # two ranks on the emulator
EP_LIB_BACKEND=cuda python examples/fp8_experts.py    # two GPUs
"""

from itertools import pairwise

import torch
from torch import Tensor

import ep_lib

EXPERTS, TOP_K, HIDDEN, TOKENS, GROUP = 4, 2, 256, 24, 128


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn ``[T, hidden]`` and float32 scales ``[T, hidden / 128]``; 448 is the largest FP8 number."""
    groups = x.float().unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(dim=2).clamp(min=1e-4) / 448
    return (groups / scales.unsqueeze(2)).to(torch.float8_e4m3fn).flatten(1), scales


def multiply(rows: Tensor, scales: Tensor, weight: Tensor) -> Tensor:
    """What an FP8 GEMM with block scales computes."""
    return (rows.float().unflatten(1, (-1, GROUP)) * scales.unsqueeze(2)).flatten(1) @ weight


def main(rank: ep_lib.Rank) -> float:
    device = torch.device("cuda", torch.cuda.current_device()) if rank.backend == "cuda" else torch.device("cpu")
    generator = torch.Generator().manual_seed(7)
    every_weight = (torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5).to(device)
    first = rank.rank * EXPERTS // rank.world_size
    generator.manual_seed(rank.rank)
    x = torch.randn(TOKENS, HIDDEN, generator=generator).to(device)
    chosen = torch.rand(TOKENS, EXPERTS, generator=generator).topk(TOP_K, dim=1).indices.to(device)
    weights = torch.full((TOKENS, TOP_K), 1 / TOP_K, device=device)
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS}
    with ep_lib.Buffer(rank, **shape) as buffer:
        came = buffer.dispatch(quantize(x), chosen, weights, sorted_by_expert=True)
        rows, scales = came.by_expert.x
        bounds = came.by_expert.offsets.tolist()
        made = [
            multiply(rows[begin:end], scales[begin:end], every_weight[first + e])
            for e, (begin, end) in enumerate(pairwise(bounds))
        ]
        weighted = torch.cat(made) * came.by_expert.weights.unsqueeze(1)
        out = buffer.combine(weighted.bfloat16(), came.handle, sorted_by_expert=True)
        rank.synchronize()
    expected = torch.einsum("th,tkhf,tk->tf", x, every_weight[chosen], weights)
    return float((out.float() - expected).norm() / expected.norm())


if __name__ == "__main__":
    errors = ep_lib.spawn(main, ranks=2)
    assert max(errors) < 0.04, errors  # three bits of mantissa
