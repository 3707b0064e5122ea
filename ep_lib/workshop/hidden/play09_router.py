"""The other half of ex09_router.py, in the child: tensors around the learner's functions. It judges nothing."""

from __future__ import annotations

from typing import Any

import torch

from ep_lib.workshop.seal import unchanged


def _shown(tensor: Any) -> dict[str, Any]:
    values = tensor.detach()
    if values.is_floating_point():
        values = values.double().round(decimals=6)  # a reply has room for so many digits
    return {"type": str(tensor.dtype).removeprefix("torch."), "values": values.tolist()}


def _routing(piece: Any, logits: torch.Tensor, idx: Any, weights: Any = None) -> Any:
    idx = torch.tensor(idx, dtype=torch.int64)
    return piece.Routing(idx, torch.ones(idx.shape) if weights is None else weights, logits.softmax(dim=-1))


def routes(piece: Any, logits: Any, top_k: int, dtype: str) -> list[dict[str, Any]]:
    """route() of logits of a type."""
    given = torch.tensor(logits, dtype=getattr(torch, dtype))
    with unchanged(logits=given):
        chosen = piece.route(given, top_k)
    return [_shown(part) for part in chosen]


def loads(piece: Any, idx: Any, num_experts: int) -> dict[str, Any]:
    given = torch.tensor(idx, dtype=torch.int64)
    with unchanged(topk_idx=given):
        load = piece.load_per_expert(given, num_experts)
    return _shown(load)


def balance(piece: Any, logits: Any, idx: Any) -> dict[str, Any]:
    """load_balancing_loss() and its gradient with respect to the logits."""
    leaf = torch.tensor(logits, requires_grad=True)
    given = _routing(piece, leaf, idx)
    with unchanged(routing=given):
        loss = piece.load_balancing_loss(given)
    seen = {"loss": _shown(loss), "has_gradient": bool(loss.requires_grad)}
    if loss.requires_grad:
        loss.backward()
        seen["gradient"] = _shown(leaf.grad)
    return seen


def limits(piece: Any, logits: Any, idx: Any, weights: Any, capacity: int, by: Any) -> dict[str, Any]:
    """What limit_load() returned, whether it passes gradients on to what it was given, and the gradient of the weights,
    each times ``by``, with respect to those before."""
    leaves = [torch.tensor(each, requires_grad=True) for each in (logits, weights)]
    given = _routing(piece, leaves[0], idx, leaves[1] * 1)  # a leaf itself could not be changed
    with unchanged(routing=given):
        limited = piece.limit_load(given, capacity)
    names = ("idx", "weights", "probabilities")
    seen: dict[str, Any] = {name: _shown(part) for name, part in zip(names, limited, strict=True)}
    seen["has_gradients"] = [bool(part.requires_grad) for part in limited[1:]]
    if limited[1].requires_grad:
        (limited[1] * torch.tensor(by)).sum().backward()
        seen["gradient"] = _shown(leaves[1].grad)
    return seen
