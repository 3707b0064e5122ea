"""What the tests of torch need on every rank: a device, a world seen as one function, sums over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ep_lib import Rank


def device_of(rank: Rank) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if rank.backend == "cuda" else torch.device("cpu")


def gather(rank: Rank, tensor: Tensor) -> list[Tensor]:
    """Every rank's tensor, on this rank's device."""
    return [torch.from_numpy(a).to(tensor.device) for a in rank.all_gather(tensor.detach().cpu().numpy())]


def sum_gradients(rank: Rank, parameters: Any) -> None:
    """What data parallelism does with parameters that all ranks hold."""
    for parameter in parameters:
        parameter.grad = torch.stack(gather(rank, parameter.grad)).sum(dim=0)


class _Mine(torch.autograd.Function):
    """Of every rank's inputs, known everywhere: its own. The gradient of each is where it was used."""

    @staticmethod
    def forward(ctx: Any, rank: Rank, *inputs: Tensor) -> Tensor:
        ctx.rank = rank
        return inputs[rank.rank].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, *gather(ctx.rank, grad)


class _All(torch.autograd.Function):
    """Every rank's result, known everywhere. All ranks differentiate the same function of it."""

    @staticmethod
    def forward(ctx: Any, rank: Rank, mine: Tensor) -> tuple[Tensor, ...]:
        ctx.rank = rank.rank
        return tuple(gather(rank, mine))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, grads[ctx.rank].contiguous()


def whole_world(rank: Rank, function: Callable[..., tuple[Tensor, ...]], kinds: int) -> Callable[..., Any]:
    """``function`` of this rank's ``kinds`` inputs as one function of all ranks' inputs and results, evaluated by all
    ranks together: what ``torch.autograd.gradcheck`` can look at. Inputs: kind by kind, rank by rank."""
    size = rank.world_size

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        mine = [_Mine.apply(rank, *inputs[k * size : (k + 1) * size]) for k in range(kinds)]
        return tuple(part for result in function(*mine) for part in _All.apply(rank, result))

    return run
