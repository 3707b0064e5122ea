"""Serve decode batches in low-latency mode; on GPUs a step is a CUDA graph, captured once and replayed.

python examples/serve_low_latency.py                        # two ranks on the emulator
EP_LIB_BACKEND=cuda python examples/serve_low_latency.py    # two GPUs
"""

from collections.abc import Callable

import torch
from torch import Tensor

import ep_lib

EXPERTS, TOP_K, HIDDEN, BATCH, STEPS = 8, 2, 256, 16, 4


def main(rank: ep_lib.Rank) -> bool:
    on_gpu = rank.backend == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": BATCH}
    buffer = ep_lib.Buffer(rank, **shape, num_max_dispatch_tokens_per_rank=BATCH)
    local = EXPERTS // rank.world_size
    factors = (
        torch.arange(1, local + 1, device=device).add(rank.rank * local).bfloat16()
    )  # expert e multiplies by e + 1
    x = torch.zeros(BATCH, HIDDEN, dtype=torch.bfloat16, device=device)
    chosen = torch.zeros(BATCH, TOP_K, dtype=torch.int64, device=device)
    weights = torch.full((BATCH, TOP_K), 1 / TOP_K, device=device)

    def step() -> Tensor:
        came = buffer.low_latency_dispatch(x, chosen, use_fp8=False)
        if not on_gpu:
            rank.synchronize()  # torch knows nothing of the emulator's kernels
        made = came.recv_x * factors.view(-1, 1, 1)
        return buffer.low_latency_combine(made, chosen, weights, came.handle).out

    def fill(number: int) -> None:
        """The next batch, in place: a graph reads the same memory every time."""
        generator = torch.Generator().manual_seed(100 * number + rank.rank)
        x.copy_(torch.randint(-8, 8, x.shape, generator=generator))
        chosen.copy_(torch.rand(BATCH, EXPERTS, generator=generator).topk(TOP_K, dim=1).indices)

    fill(0)
    out = step()  # compiles the kernels; a capture cannot
    rank.synchronize()
    replay: Callable[[], object] | None = None
    if on_gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        replay = graph.replay
    right = True
    for number in range(STEPS):
        fill(number)
        if replay is None:
            out = step()
        else:
            replay()
        rank.synchronize()  # raises what went wrong, PeerTimeout for example
        expected = x.float() * ((chosen + 1) * weights).sum(dim=1, keepdim=True)
        right = right and torch.allclose(out.float(), expected, rtol=0.02)
    buffer.close()
    return right


if __name__ == "__main__":
    assert all(ep_lib.spawn(main, ranks=2))
