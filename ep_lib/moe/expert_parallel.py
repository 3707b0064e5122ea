"""`ExpertParallel`: a Mixture-of-Experts layer whose experts live on many ranks, as a torch module that trains."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ep_lib.errors import ArgumentError
from ep_lib.moe.autograd import run_experts
from ep_lib.moe.buffer import Buffer
from ep_lib.moe.layer import Routing, route
from ep_lib.runtime.rank import Rank


class ExpertParallel(nn.Module):
    """Route tokens, send them to the ranks of their experts, run the experts there, and add up what comes back.

    Every rank makes one with its own ``experts``, and every rank calls it, and its backward, the same number of times,
    with any number of tokens, also none. The state_dict is this rank's: its gate and its own experts.

    A rank's loss is of its own tokens. What all ranks hold (the gate, the rest of the model) gets gradients of these
    only: sum or average them over ranks, as data parallelism does. An expert has seen the tokens of all ranks: its
    gradient is the sum over ranks already. So where the others are *averaged*, divide those of
    :meth:`expert_parameters` by the number of ranks; and keep them out of DistributedDataParallel.
    """

    def __init__(
        self,
        where: Rank | Buffer,
        experts: nn.Module,
        *,
        gate: nn.Module | None = None,
        num_worst_tokens: int = 0,
        **buffer_arguments: Any,
    ) -> None:
        """Collective where it makes its Buffer: ``where`` is a Rank, and ``buffer_arguments`` are those of
        :class:`ep_lib.Buffer` (num_experts, top_k, hidden, max_tokens, dtype, ...); or ``where`` is a Buffer, which
        several layers may share.

        ``experts(x, topk_idx, topk_weights)``: this rank's experts. ``x`` ``[N, hidden]`` received rows, ``topk_idx``
        ``[N, top_k]`` which of them to run (from 0; -1: one elsewhere), ``topk_weights`` float32 ``[N, top_k]``;
        returns ``[N, hidden]``, the sum of the experts' outputs times their weights, whatever N is, 0 too
        (:class:`ep_lib.moe.layer.Experts` is one). ``gate(x)``: logits ``[T, num_experts]``, routed as in
        :func:`ep_lib.moe.layer.route`. ``num_worst_tokens``: as many rows N always; then nothing waits for the host.

        Raises what Buffer raises; ArgumentError if Buffer arguments come with a Buffer.
        """
        super().__init__()
        if isinstance(where, Buffer):
            if buffer_arguments:
                raise ArgumentError(
                    f"ExpertParallel got a Buffer and {', '.join(sorted(buffer_arguments))}, which only make a new "
                    "one: pass a Rank with them, or the Buffer alone"
                )
            self.buffer, self._owns_buffer = where, False
        else:
            self.buffer, self._owns_buffer = Buffer(where, **buffer_arguments), True
        self.experts = experts
        self.gate = gate
        self.num_worst_tokens = num_worst_tokens
        self._top_k = self.buffer.config.top_k
        self._dtype: torch.dtype = getattr(torch, self.buffer.config.dtype.name)

    def route(self, x: Tensor) -> Routing:
        """Where the own gate sends tokens ``x`` ``[..., hidden]``, for a load-balancing loss or to look at; pass its
        ``topk_idx`` and ``topk_weights`` on to :meth:`forward`. Raises ArgumentError without a gate."""
        if self.gate is None:
            raise ArgumentError("without a gate=, pass topk_idx and topk_weights")
        return route(self.gate(x.reshape(-1, x.shape[-1])), self._top_k)

    def forward(self, x: Tensor, topk_idx: Tensor | None = None, topk_weights: Tensor | None = None) -> Tensor:
        """``x`` ``[..., hidden]``, T tokens of any floating type -> the same shape and type. Collective.

        ``topk_idx`` int64 or int32 ``[T, top_k]``, -1: not routed; ``topk_weights`` float32 ``[T, top_k]``; both, or
        none of them: then the own gate routes. Rows travel in the Buffer's dtype. Raises ArgumentError, and what
        :func:`ep_lib.moe.dispatch` and :func:`ep_lib.moe.combine` raise.
        """
        if (topk_idx is None) != (topk_weights is None):
            raise ArgumentError("pass both topk_idx and topk_weights, or none of them")
        if topk_idx is None or topk_weights is None:
            routing = self.route(x)
            topk_idx, topk_weights = routing.topk_idx, routing.topk_weights
        tokens = x.reshape(-1, x.shape[-1]).to(self._dtype)
        out = run_experts(
            self.buffer, self.experts, tokens, topk_idx, topk_weights, num_worst_tokens=self.num_worst_tokens
        )
        return out.to(x.dtype).view(x.shape)

    def expert_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank's own experts: other ranks have other ones."""
        return self.experts.parameters()

    def replicated_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that every rank has: the gate's."""
        return iter(()) if self.gate is None else self.gate.parameters()

    def close(self) -> None:
        """Close the Buffer, if this module made it. All ranks must."""
        if self._owns_buffer:
            self.buffer.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertParallel:
        """A copy with weights of its own, for averaging them, say; it shares the Buffer and does not own it."""
        memo[id(self.buffer)] = self.buffer
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        twin._owns_buffer = False
        return twin

    def __getstate__(self) -> Any:
        raise ArgumentError(
            "ExpertParallel cannot be pickled: its Buffer is memory that ranks share; save its state_dict() and make a "
            "new one"
        )

    def extra_repr(self) -> str:
        return f"buffer={self.buffer!r}"
