"""Hidden tests of exercise 09_router: choices, loads, a loss and its gradient, and full experts, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ep_lib.workshop.grader.scenario import Array
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import all_of, calling, one, several

PIECE = "routing.py"
IMPORTS = ("torch", "ep_lib.moe.autograd")
_CLOSE = 1e-5
_ROUNDED = 1e-7  # the relative rounding error of float32
_TYPES: Mapping[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _differs(got: Any, want: Array, close: float = _CLOSE) -> bool:
    found = np.array(got, dtype=np.float64)
    return found.shape != want.shape or not np.allclose(found, want, rtol=close, atol=close)


def _ids(rng: Rng, tokens: int, top_k: int, experts: int, missing: float = 0.2) -> Array:
    idx = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k]
    idx[rng.random(idx.shape) < missing] = -1
    return idx


# ---- task 1 ----------------------------------------------------------------------------------------------------------
def _routes(
    rng: Rng, tokens: int, experts: int, top_k: int, dtype: str = "float32", far: float = 0, most: float = 4
) -> Case:
    """Logits from -``most`` to ``most``, shifted for each token by up to ``far`` in either direction."""
    steps = rng.permuted(np.tile(np.linspace(-most, most, experts), (tokens, 1)), axis=1)
    away = rng.uniform(far / 4, far, (tokens, 1)) * rng.choice([-1, 1], (tokens, 1))
    logits = (steps + away).astype(np.float32).astype(_TYPES[dtype]).astype(np.float64)
    largest = np.argsort(-logits, axis=1)[:, :top_k]
    close = max(_CLOSE, far * _ROUNDED)  # exp(x - logsumexp(x)) is right, too

    def judge(seen: Any) -> str | None:
        idx, weights, probabilities = seen
        if [part["type"] for part in seen] != ["int64", "float32", "float32"]:
            types = ", ".join(part["type"] for part in seen)
            return f"of {dtype} logits it made {types}; it should be int64, float32, float32"
        chosen = np.array(idx["values"])  # choices may be in any order, each with its own weight
        if chosen.shape != largest.shape or np.any(np.sort(chosen, axis=1) != np.sort(largest, axis=1)):
            return f"the {top_k} experts of a token are not those of the {top_k} largest logits"
        if _differs(weights["values"], _softmax(np.take_along_axis(logits, chosen, axis=1)), close):
            total = np.array(weights["values"]).sum(axis=1)
            return f"the weights are no softmax over the chosen logits; those of the first token sum to {total[0]:.3f}"
        if _differs(probabilities["values"], _softmax(logits), close):
            return "the probabilities are no softmax over all experts"
        return None

    return calling("routes", judge, logits=logits.tolist(), top_k=top_k, dtype=dtype)


# ---- task 2 ----------------------------------------------------------------------------------------------------------
def _loads(idx: Array, experts: int) -> Case:
    want = np.bincount(idx[idx >= 0].ravel(), minlength=experts)

    def judge(seen: Any) -> str | None:
        got = np.array(seen["values"])
        if got.shape != want.shape:
            return f"of {experts} experts it gave {got.size} loads"
        if np.any(got != want):
            return f"{int((got != want).sum())} of {experts} loads are wrong; {int((idx < 0).sum())} choices were -1"
        return None if seen["type"] == "int64" else f"the loads are {seen['type']}, not int64"

    return calling("loads", judge, idx=idx.tolist(), num_experts=experts)


# ---- task 3 ----------------------------------------------------------------------------------------------------------
def _balance(rng: Rng, tokens: int, experts: int, idx: Array) -> Case:
    logits = rng.standard_normal((tokens, experts)).astype(np.float32)
    p = _softmax(logits.astype(np.float64))
    load = np.bincount(idx[idx >= 0].ravel(), minlength=experts)
    share = load / max(1, load.sum())
    loss = experts * float((share * p.mean(axis=0)).sum())
    # The gradient through the mean probabilities alone: shares are counts, which have none.
    gradient = p * (experts * share - (p * experts * share).sum(axis=1, keepdims=True)) / tokens

    def is_loss(value: float) -> bool:
        return abs(value - loss) <= _CLOSE * max(1.0, loss)

    def _why(got: float) -> str:
        if is_loss(got * experts):
            return f": so much times {experts}, the number of experts"
        if not load.sum():
            return ""
        if is_loss(got * tokens / load.sum()):
            return f": its shares sum to {load.sum() / tokens:g}, as those of {tokens} tokens do, and not to 1"
        if is_loss(got * idx.size / load.sum()):
            return f": its shares are of {idx.size} choices, and {load.sum()} were made; the others are -1"
        return ""

    def judge(seen: Any) -> str | None:
        got = float(seen["loss"]["values"])
        if not np.isfinite(got):
            return f"the loss is {got} where {load.sum()} choices were made and it should be {loss:g}"
        if not is_loss(got):
            return f"the loss is {got:.5f} where it should be {loss:.5f}{_why(got)}"
        if not seen["has_gradient"]:
            return "the loss has no gradient, so it trains nothing"
        if _differs(seen["gradient"]["values"], gradient):
            return "the gradient with respect to the logits is wrong"
        return None

    return calling("balance", judge, logits=logits.tolist(), idx=idx.tolist())


def _even(rng: Rng) -> Case:
    return _balance(rng, 8, 4, np.arange(16).reshape(8, 2) % 4)


# ---- task 4 ----------------------------------------------------------------------------------------------------------
def _limited(rng: Rng, idx: Array, experts: int, capacity: int) -> Case:
    weights = rng.random(idx.shape).astype(np.float32) + 0.1
    left = np.full(experts, capacity)
    want_idx = idx.copy()
    for token, k in np.ndindex(*idx.shape):
        expert = idx[token, k]
        if expert >= 0 and left[expert] > 0:
            left[expert] -= 1
        else:
            want_idx[token, k] = -1
    # Some weights become 0, as the softmax of a logit far below the others is, where a token keeps another choice.
    stays = want_idx >= 0
    weights[stays & (stays.cumsum(axis=1) > 1) & (rng.random(idx.shape) < 0.5)] = 0
    weights = np.where(idx >= 0, weights, 0)
    # The weights that a token keeps may be as small as a softmax makes them.
    weights = np.where(stays, weights * 10.0 ** rng.uniform(-20, 0, (len(idx), 1)), weights)
    weights = (weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)).astype(np.float32)
    want_weights = np.where(stays, weights, 0).astype(np.float64)
    logits = rng.standard_normal((len(idx), experts)).astype(np.float32)
    probabilities = _softmax(logits.astype(np.float64))
    total = want_weights.sum(axis=1, keepdims=True)
    want_weights = np.where(total > 0, want_weights / np.where(total > 0, total, 1), 0)
    by = rng.integers(1, 9, idx.shape).astype(np.float32)
    # the gradient of the new weights times `by`, multiplied by the old weights' sum, which may be very small
    gradient = np.where(stays, by - (by * want_weights).sum(axis=1, keepdims=True), 0)

    def judge(seen: Any) -> str | None:
        got = np.array(seen["idx"]["values"])
        loads = np.bincount(got[got >= 0].ravel(), minlength=experts)
        if got.shape == want_idx.shape and loads.max(initial=0) > capacity:
            return f"an expert got {loads.max()} tokens, and the capacity is {capacity}"
        if got.shape != want_idx.shape or np.any(got != want_idx):
            which = "the first of each expert, whatever their weights, in the order of tokens and of k"
            return f"other choices stay than {which}"
        if not np.all(np.isfinite(np.array(seen["weights"]["values"], dtype=np.float64))):
            return "a token that keeps no expert has a weight that is not finite"
        if _differs(seen["weights"]["values"], want_weights):
            return "the weights that stay of a token do not sum to 1, or those that go are not 0"
        if _differs(seen["probabilities"]["values"], probabilities):
            return "the probabilities of the routing are not what they were"
        if stays.any() and not all(seen["has_gradients"]):
            return (
                "weights and probabilities of the limited routing pass no gradients on, so behind it nothing is trained"
            )
        if stays.any():
            found = np.array(seen["gradient"]["values"]) * total
            if not np.allclose(found[total[:, 0] > 0], gradient[total[:, 0] > 0], rtol=1e-4, atol=1e-4):
                return "the gradient of the weights is another one than that of weights which are divided by their sum"
        return None

    arguments = {"idx": idx.tolist(), "weights": weights.tolist(), "capacity": capacity, "by": by.tolist()}
    return calling("limits", judge, logits=logits.tolist(), **arguments)


def _expert_twice(rng: Rng) -> Case:
    """Each token names one expert twice, and only one of the two choices has room."""
    tokens, experts = int(rng.integers(4, 9)), int(rng.integers(3, 7))
    twice, once = rng.permutation(experts)[:2]
    return _limited(rng, np.tile([twice, once, twice], (tokens, 1)), experts, 2 * int(rng.integers(1, tokens)) - 1)


# ---- what is asked --------------------------------------------------------------------------------------------------
def _some(rng: Rng, least: int, most: int, top_k: int, dtype: str = "float32") -> Case:
    return _routes(rng, int(rng.integers(least, most)), 9, top_k, dtype)


def _counts(rng: Rng) -> Iterator[Case]:
    experts = int(rng.integers(5, 40))
    yield _loads(_ids(rng, 40, 3, experts), experts)
    last = int(rng.integers(256, 400))
    yield _loads(np.append(np.zeros((70_000, 1), int), last), last + 1)


def _counts_of_none(rng: Rng) -> Iterator[Case]:
    yield _loads(_ids(rng, 9, 2, 3), 12)
    yield _loads(np.full((3, 2), -1), 5)


def _uneven(rng: Rng) -> Iterator[Case]:
    experts = int(rng.integers(5, 12))
    yield _balance(rng, 15, experts, _ids(rng, 15, 2, experts))
    yield _balance(rng, 300, 2, _ids(rng, 300, 2, 2, 0.1))


def _first_stay(rng: Rng) -> Iterator[Case]:
    yield _limited(rng, _ids(rng, 20, 3, 6), 6, 5)
    yield _limited(rng, _ids(rng, 270, 2, 2, 0), 2, int(rng.integers(256, 265)))
    yield _expert_twice(rng)


def _all_or_none(rng: Rng) -> Iterator[Case]:
    yield _limited(rng, _ids(rng, 8, 2, 4), 4, 99)
    yield _limited(rng, _ids(rng, 8, 2, 4), 4, 0)


_CHOOSE = "topk of the logits; a softmax over those chosen; a softmax over all."
_LARGE = "The softmax of logits of 1000 is finite, and exp(1000) is not: torch's softmax takes care of it."
_APART = "Far below the largest logit every probability is 0 in float32: the logits say who is the larger one."
_COUNT = "Leave the choices of -1 out, and give every expert its place with minlength."
_EVEN = "Experts times the sum of share * mean probability; the gradient goes through the probabilities."
_NOBODY = "Where no token chose anything every share is 0, and 0 / 0 is no number."
_FULL = "Number each expert's choices in order; divide what a token keeps by its sum."

_OF_TYPES = several(_some, *((5, 12, 4, dtype) for dtype in _TYPES))

BEHAVIOURS = (
    Behaviour(
        1, "the largest logits and their softmax", all_of(one(_some, 9, 20, 3), one(_routes, 3, 300, 8)), _CHOOSE
    ),
    Behaviour(1, "one expert, and all of them", several(_routes, (4, 5, 1), (4, 5, 5), (4, 1, 1)), _CHOOSE),
    Behaviour(1, "logits of another type, and a single token", all_of(_OF_TYPES, one(_routes, 1, 4, 2)), _CHOOSE),
    Behaviour(1, "logits far from 0", one(lambda r: _routes(r, 8, int(r.integers(5, 12)), 3, far=1000)), _LARGE),
    Behaviour(1, "logits far from each other", one(_routes, 8, 16, 4, most=500), _APART),
    Behaviour(2, "every choice counts once", _counts, _COUNT),
    Behaviour(2, "experts that nobody chose", _counts_of_none, _COUNT),
    Behaviour(3, "1 when the load is even", one(_even), _EVEN),
    Behaviour(3, "an uneven load", _uneven, _EVEN),
    Behaviour(3, "nobody chose anything", one(_balance, 3, 4, np.full((3, 2), -1)), _NOBODY),
    Behaviour(4, "the first choices of an expert stay", _first_stay, _FULL),
    Behaviour(4, "room for everybody, and for nobody", _all_or_none, _FULL),
    Behaviour(4, "all want the same expert", one(_limited, np.tile([2, 0], (6, 1)), 3, 4), _FULL),
)
