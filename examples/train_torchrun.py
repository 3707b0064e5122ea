"""Train a Mixture-of-Experts layer whose experts are spread over ranks, with the rows grouped for a grouped GEMM.

torchrun --nproc-per-node 2 examples/train_torchrun.py      # on GPUs where there are some, else on the emulator
"""

import os
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ep_lib import Buffer
from ep_lib.moe import ExpertRows, combine, dispatch

HIDDEN, FFN, EXPERTS, TOP_K, TOKENS, STEPS, RATE = 32, 64, 4, 2, 32, 8, 2.0

has_gpus = torch.cuda.is_available() and os.environ.get("EP_LIB_BACKEND", "cuda") == "cuda"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else torch.device("cpu")
if has_gpus:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if has_gpus else "gloo")
ranks, me = dist.get_world_size(), dist.get_rank()


class Experts(nn.Module):
    """This rank's own. Each group of rows is one matrix: what a grouped GEMM takes, here one product for each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS // ranks, HIDDEN, FFN) / 6)
        self.down = nn.Parameter(torch.randn(EXPERTS // ranks, FFN, HIDDEN) / 8)

    def forward(self, rows: ExpertRows) -> Tensor:
        bounds = rows.offsets.tolist()
        groups = [rows.x[begin:end] for begin, end in pairwise(bounds)]
        made = [torch.relu(x @ up) @ down for x, up, down in zip(groups, self.up, self.down, strict=True)]
        return torch.cat(made) * rows.weights.unsqueeze(1)


torch.manual_seed(0)
gate = nn.Linear(HIDDEN, EXPERTS, bias=False).to(device)  # the same on every rank
torch.manual_seed(1 + me)
experts = Experts().to(device)
parameters = [*gate.parameters(), *experts.parameters()]
shape = {
    "num_experts": EXPERTS,
    "top_k": TOP_K,
    "hidden": HIDDEN,
    "max_tokens": TOKENS,
    "dtype": "float32",
    "num_sms": 4,
}
backend = "cuda" if has_gpus else "emulator"
losses = []
with Buffer.open(dist.group.WORLD, backend=backend, **shape) as buffer:  # its heap is as large as it needs
    x = torch.randn(TOKENS, HIDDEN, device=device)  # every rank has its own tokens
    for _ in range(STEPS):
        weights, chosen = gate(x).softmax(dim=1).topk(TOP_K, dim=1)
        came = dispatch(buffer, x, chosen, weights, sorted_by_expert=True, expert_alignment=8)
        y = combine(buffer, experts(came.by_expert), came.handle, sorted_by_expert=True)
        loss = (y - x.roll(1, dims=1)).pow(2).mean()
        loss.backward()  # collective, as forward is
        for parameter in gate.parameters():
            dist.all_reduce(parameter.grad)
        with torch.no_grad():
            for parameter in parameters:  # gradients of experts are sums over all ranks' tokens already
                parameter -= RATE * parameter.grad / ranks
                parameter.grad = None
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / ranks)
dist.destroy_process_group()

assert losses[-1] < 0.8 * losses[0], losses
