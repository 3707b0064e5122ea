"""The other half of ex09_router.py, in the child: tensors around the learner's functions. It judges nothing."""

from __future__ import annotations

from typing import Any

import torch


def _shown(tensor: Any) -> dict[str, Any]:
    return {"type": str(tensor.dtype).removeprefix("torch."), "values": tensor.detach().tolist()}


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
    given = _routing(piece, torch.tensor(logits), idx, weights)
    limited = piece.limit_load(given, capacity)
    same = bool(torch.equal(limited[2], given[2]))
    return {"idx": _shown(limited[0]), "weights": _shown(limited[1]), "same_probabilities": same}
