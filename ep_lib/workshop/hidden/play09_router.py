"""The other half of ex09_router.py, in the child: tensors around the learner's functions. It judges nothing."""

from __future__ import annotations

from typing import Any

import torch


def _shown(tensor: Any) -> dict[str, Any]:
    values = tensor.detach()
    if values.is_floating_point():
        values = values.double().round(decimals=6)  # a reply has room for so many digits
    return {"type": str(tensor.dtype).removeprefix("torch."), "values": values.tolist()}


def _routing(piece: Any, logits: torch.Tensor, idx: Any, weights: Any = None) -> Any:
    idx = torch.tensor(idx, dtype=torch.int64)
    weights = torch.ones(idx.shape) if weights is None else torch.tensor(weights)
    return piece.Routing(idx, weights, logits.softmax(dim=-1))


def routes(piece: Any, logits: Any, top_k: int, dtype: str) -> list[dict[str, Any]]:
    """route() of logits of a type."""
    return [_shown(part) for part in piece.route(torch.tensor(logits, dtype=getattr(torch, dtype)), top_k)]


def loads(piece: Any, idx: Any, num_experts: int) -> dict[str, Any]:
    return _shown(piece.load_per_expert(torch.tensor(idx, dtype=torch.int64), num_experts))


def balance(piece: Any, logits: Any, idx: Any) -> dict[str, Any]:
    """load_balancing_loss() and its gradient with respect to the logits."""
    leaf = torch.tensor(logits, requires_grad=True)
    loss = piece.load_balancing_loss(_routing(piece, leaf, idx))
    seen = {"loss": _shown(loss), "has_gradient": bool(loss.requires_grad)}
    if loss.requires_grad:
        loss.backward()
        seen["gradient"] = _shown(leaf.grad)
    return seen


def limits(piece: Any, logits: Any, idx: Any, weights: Any, capacity: int) -> dict[str, Any]:
    """What limit_load() returned, and what the routing that it was given holds afterwards."""
    given = _routing(piece, torch.tensor(logits), idx, weights)
    limited = piece.limit_load(given, capacity)
    names = ("idx", "weights", "probabilities")
    after = {f"given_{name}": _shown(part) for name, part in zip(names, given, strict=True)}
    return {name: _shown(part) for name, part in zip(names, limited, strict=True)} | after
