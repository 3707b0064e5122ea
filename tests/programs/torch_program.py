"""What test_expert_parallel.py starts under torchrun: ExpertParallel beside a torch.distributed group.

``torch_program.py gloo|nccl [first]``: which group, and whether it is made before ``ep_lib.init()`` or after. The gate
is wrapped in DistributedDataParallel; every rank prints the losses of all together, one line of JSON.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn

import ep_lib
from ep_lib.moe import ExpertParallel
from ep_lib.moe.layer import MoELayer

HIDDEN, EXPERTS, TOP_K, TOKENS, STEPS = 64, 8, 2, 32, 6


def tokens_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (y - x.roll(1, dims=1)).pow(2).mean()


def train_here(layer: MoELayer, ranks: int) -> list[float]:
    """All experts and all ranks' tokens in one place."""
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        x = torch.cat([tokens_of(step, rank) for rank in range(ranks)])
        loss = loss_of(layer(x)[0], x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    group, first = sys.argv[1], "first" in sys.argv
    if first:
        dist.init_process_group(group)
    rank = ep_lib.init()
    device = torch.device("cuda", torch.cuda.current_device()) if rank.backend == "cuda" else torch.device("cpu")
    if not first:
        dist.init_process_group(group)
    assert (dist.get_rank(), dist.get_world_size()) == (rank.rank, rank.world_size)
    layer = MoELayer.create(HIDDEN, 32, EXPERTS, TOP_K, torch.Generator().manual_seed(1))
    expected = train_here(layer.shard(0, 1), rank.world_size)
    gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
    gate.weight = nn.Parameter(layer.router.detach().clone())
    # DistributedDataParallel averages the gate's gradients over ranks while backward runs.
    replicated = nn.parallel.DistributedDataParallel(gate.to(device))
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "dtype": "float32"}
    experts = layer.shard(rank.rank, rank.world_size).experts
    moe = ExpertParallel(rank, experts, gate=replicated, **shape).to(device)
    optimizer = torch.optim.AdamW(moe.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        x = tokens_of(step, rank.rank).to(device)
        loss = loss_of(moe(x), x)
        optimizer.zero_grad()
        loss.backward()
        for parameter in moe.expert_parameters():
            parameter.grad /= rank.world_size
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / rank.world_size)
    moe.close()
    dist.barrier()
    rank.close()
    dist.destroy_process_group()
    sys.stdout.write(json.dumps({"rank": rank.rank, "losses": losses, "expected": expected}) + "\n")


main()
