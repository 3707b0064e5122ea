"""The other half of ex09_router.py, in the child: tensors around the learner's functions. It judges nothing.

Gradients are computed in the learner's process: of the functions' results, with respect to their arguments.
"""

from __future__ import annotations

from typing import Any

import torch

from ep_lib.workshop.grader.process.far import Far, Guest


def _shown(tensor: Any) -> dict[str, Any]:
    values = tensor.detach()
    if values.is_floating_point():
        values = values.double().round(decimals=6)  # a reply has no room for more digits
    return {"type": str(tensor.dtype).removeprefix("torch."), "values": values.tolist()}


def _leaf(piece: Guest, tensor: torch.Tensor) -> Far:
    """A leaf for gradients; functions get its product with 1, since a leaf itself cannot be changed in place."""
    return piece.make("torch:Tensor.requires_grad_", tensor)


def _gradient(piece: Guest, of: Far, to: Far) -> torch.Tensor:
    """The gradient of one number with respect to ``to``."""
    (found,) = piece.call("torch:autograd.grad", [of], [to], allow_unused=True)
    return torch.zeros(tuple(to.get("shape"))) if found is None else found


def routes(piece: Guest, logits: Any, top_k: int, dtype: str) -> list[dict[str, Any]]:
    """route() of logits of a type."""
    given = torch.tensor(logits, dtype=getattr(torch, dtype))
    return [_shown(part) for part in piece.call("route", given, top_k, unchanged="logits")]


def loads(piece: Guest, idx: Any, num_experts: int) -> dict[str, Any]:
    given = torch.tensor(idx, dtype=torch.int64)
    return _shown(piece.call("load_per_expert", given, num_experts, unchanged="topk_idx"))


def balance(piece: Guest, logits: Any, idx: Any) -> dict[str, Any]:
    """load_balancing_loss() and its gradient with respect to the logits."""
    leaf = torch.tensor(logits, requires_grad=True)
    probabilities, chosen = leaf.softmax(dim=-1), torch.tensor(idx, dtype=torch.int64)
    there = _leaf(piece, probabilities.detach())
    given = piece.make("Routing", chosen, torch.ones(chosen.shape), piece.make("torch:mul", there, 1))
    loss = piece.make("load_balancing_loss", given, unchanged="routing")
    seen = {"loss": _shown(loss.call("detach")), "has_gradient": bool(loss.get("requires_grad"))}
    if seen["has_gradient"]:
        torch.autograd.backward((probabilities * _gradient(piece, loss, there)).sum())
        seen["gradient"] = _shown(leaf.grad)
    return seen


def limits(piece: Guest, logits: Any, idx: Any, weights: Any, capacity: int, by: Any) -> dict[str, Any]:
    """The result of limit_load(), whether it passes gradients on to its arguments, and the gradient of its weights,
    times ``by``, with respect to the given weights."""
    leaves = [_leaf(piece, each) for each in (torch.tensor(weights), torch.tensor(logits).softmax(dim=-1))]
    parts = [piece.make("torch:mul", leaf, 1) for leaf in leaves]
    given = piece.make("Routing", torch.tensor(idx, dtype=torch.int64), *parts)
    limited = piece.make("limit_load", given, capacity, unchanged="routing")
    names = ("idx", "weights", "probabilities")
    made = {name: limited.make("__getitem__", place) for place, name in enumerate(names)}
    seen: dict[str, Any] = {name: _shown(each.call("detach")) for name, each in made.items()}
    seen["has_gradients"] = [bool(made[name].get("requires_grad")) for name in names[1:]]
    if seen["has_gradients"][0]:
        total = piece.make("torch:sum", piece.make("torch:mul", made["weights"], torch.tensor(by)))
        seen["gradient"] = _shown(_gradient(piece, total, leaves[0]))
    return seen
