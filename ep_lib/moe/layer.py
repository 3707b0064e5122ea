"""A Mixture-of-Experts layer in torch: route, run the experts, add up; all here, or spread over ranks.

The same :class:`MoELayer` runs in two ways. Without a buffer all experts are on this rank; this is how the demo trains.
With one (:class:`ep_lib.Buffer`, or anything that fits :class:`ExpertBuffer`) every token goes to the ranks that hold
its experts and comes back summed. ``MoELayer.shard`` gives the layer of one rank, which has only its own experts.

The router is in :mod:`ep_lib.moe.routing`; a model may bring another one that fits :class:`ep_lib.moe.routing.Router`.

Both ways train. Spread out, every rank must run backward, and gradients of replicated parameters (the router) cover
only a rank's own tokens: see :class:`ExpertParallel`, which puts experts of any kind behind a Buffer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ep_lib.errors import ArgumentError
from ep_lib.moe import routing
from ep_lib.moe.autograd import require_tensor, run_experts
from ep_lib.moe.buffer import Buffer
from ep_lib.moe.routing import Router, Routing, load_per_expert, require_ids, route
from ep_lib.require import index, instance, refuse, show, whole_number
from ep_lib.runtime.rank import Rank

_OUTPUT_GAIN = 0.3  # new experts initially add little to the stream, which trains faster


class ExpertBuffer(Protocol):
    """The part of :class:`ep_lib.Buffer` that the layer needs; both calls are collective."""

    def dispatch(self, x: Any, topk_idx: Any, topk_weights: Any) -> Any: ...  # -> Received
    def combine(self, x: Any, handle: Any) -> Any: ...  # -> [tokens, hidden]


@dataclass(frozen=True)
class ExpertRange:
    """The experts of one rank: ``first <= expert < first + count``, the same block partition that Buffer uses."""

    first: int
    count: int

    @classmethod
    def of_rank(cls, num_experts: int, rank: int, world_size: int) -> ExpertRange:
        """The block of ``rank``; raises :class:`ArgumentError` if experts do not divide evenly."""
        num_experts = whole_number("num_experts", num_experts, 1, 2**31 - 1)
        world_size = whole_number("world_size", world_size, 1, 2**31 - 1)
        number = index(rank)
        if number is None:
            refuse("rank", rank, "a whole number")
        rank = number
        if num_experts % world_size != 0:
            raise ArgumentError(
                f"{num_experts} experts cannot be divided evenly over {world_size} ranks; "
                f"use a number of ranks that divides {num_experts}"
            )
        if not 0 <= rank < world_size:
            raise ArgumentError(f"rank {rank} is outside 0 .. {world_size - 1}")
        count = num_experts // world_size
        return cls(rank * count, count)


class Experts(nn.Module):
    """``num_experts`` feed-forward networks ``gelu(x @ w_in) @ w_out`` with stacked weights.

    ``w_in`` is ``[num_experts, hidden, ffn]``, ``w_out`` ``[num_experts, ffn, hidden]``; no biases.
    """

    def __init__(self, w_in: Tensor, w_out: Tensor) -> None:
        super().__init__()
        for name, weights in (("w_in", w_in), ("w_out", w_out)):
            if require_tensor(name, weights).dim() != 3 or not weights.is_floating_point():
                refuse(name, weights, "floating-point weights [experts, rows, columns]")
        if w_in.shape != (w_out.shape[0], w_out.shape[2], w_out.shape[1]) or w_in.dtype != w_out.dtype:
            raise ArgumentError(
                f"w_in is {show(w_in)} and w_out {show(w_out)}; they must be [num_experts, hidden, ffn] and "
                "[num_experts, ffn, hidden] of one type"
            )
        self.w_in = nn.Parameter(w_in)
        self.w_out = nn.Parameter(w_out)

    @property
    def num_experts(self) -> int:
        return int(self.w_in.shape[0])

    def forward(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        """``sum_k topk_weights[:, k] * expert_{topk_idx[:, k]}(x)``, choices of -1 left out.

        ``x`` ``[rows, hidden]``, ``topk_idx`` an integer type and ``topk_weights`` float32, both ``[rows, top_k]`` ->
        float32 ``[rows, hidden]``. The sum runs over k in order, so that the same input gives the same bits.
        """
        if not torch.compiler.is_compiling():
            self._check(x, topk_idx, topk_weights)
        rows, top_k = topk_idx.shape
        hidden = x.shape[1]
        choice = topk_idx.reshape(-1).long()
        order = choice.argsort(stable=True)  # by expert, then by row; the choices of -1 come first
        load = load_per_expert(choice, self.num_experts).tolist()
        if len(load) > self.num_experts:
            raise ArgumentError(f"topk_idx has {len(load) - 1}; these experts go from 0 to {self.num_experts - 1}")
        order = order[order.numel() - sum(load) :]
        inputs = x.to(self.w_in.dtype).index_select(0, order // top_k)
        # If no expert has work, one runs on zero rows, so that all weights have a gradient (zeros).
        busy = [e for e, count in enumerate(load) if count] or [0]
        parts, w_in, w_out = torch.split(inputs, load), self.w_in.unbind(), self.w_out.unbind()
        outputs = torch.cat([functional.gelu(parts[e] @ w_in[e]) @ w_out[e] for e in busy])
        pairs = x.new_zeros(rows * top_k, hidden, dtype=torch.float32).index_copy(0, order, outputs.float())
        weights = topk_weights.float().masked_fill(topk_idx < 0, 0.0)
        return (pairs.view(rows, top_k, hidden) * weights.unsqueeze(-1)).sum(dim=1)

    def _check(self, x: Any, topk_idx: Any, topk_weights: Any) -> None:
        """Raises ArgumentError for input that these experts cannot process."""
        if require_tensor("x", x).dim() != 2 or x.shape[1] != self.w_in.shape[1] or not x.is_floating_point():
            refuse("x", x, f"floating-point rows [rows, hidden={self.w_in.shape[1]}]")
        require_ids(topk_idx)
        if topk_idx.dim() != 2 or topk_idx.shape[0] != x.shape[0]:
            refuse("topk_idx", topk_idx, f"[{x.shape[0]}, top_k], a row for each row of x")
        if require_tensor("topk_weights", topk_weights).shape != topk_idx.shape or topk_weights.is_complex():
            refuse("topk_weights", topk_weights, f"floating-point, of the shape {tuple(topk_idx.shape)} of topk_idx")

    def shard(self, held: ExpertRange) -> Experts:
        """A copy of the ``held`` experts only."""
        chosen = slice(held.first, held.first + held.count)
        return Experts(self.w_in[chosen].detach().clone(), self.w_out[chosen].detach().clone())


class MoELayer(nn.Module):
    """Router and experts. ``router`` is a ``[num_experts, hidden]`` weight, present on every rank.

    ``forward(x)`` with ``x`` ``[tokens, hidden]`` runs all experts here; ``forward(x, buffer)`` sends every token to
    the ranks of its experts. Both return ``(y float32 [tokens, hidden], Routing)`` with global expert numbers.
    ``router`` decides: :mod:`ep_lib.moe.routing`, or another module with its functions.
    """

    def __init__(self, router: Tensor, experts: Experts, top_k: int) -> None:
        super().__init__()
        if require_tensor("router", router).dim() != 2 or not router.is_floating_point():
            refuse("router", router, "a floating-point weight [num_experts, hidden]")
        instance("experts", experts, Experts, "an Experts")
        self.router = nn.Parameter(router)
        self.experts = experts
        self.top_k = top_k

    @classmethod
    def create(cls, hidden: int, ffn: int, num_experts: int, top_k: int, generator: torch.Generator) -> MoELayer:
        """A layer with random weights drawn from ``generator``."""
        for name, number in (("hidden", hidden), ("ffn", ffn), ("num_experts", num_experts), ("top_k", top_k)):
            whole_number(name, number, 1, 1 << 20)
        instance("generator", generator, torch.Generator, "a torch.Generator")

        def normal(*shape: int, fan_in: int) -> Tensor:
            return torch.randn(*shape, generator=generator).mul_(fan_in**-0.5)

        experts = Experts(
            normal(num_experts, hidden, ffn, fan_in=hidden),
            _OUTPUT_GAIN * normal(num_experts, ffn, hidden, fan_in=ffn),
        )
        return cls(normal(num_experts, hidden, fan_in=hidden), experts, top_k)

    @property
    def num_experts(self) -> int:
        """The number of experts on all ranks together."""
        return int(self.router.shape[0])

    def forward(
        self, x: Tensor, buffer: ExpertBuffer | None = None, router: Router = routing
    ) -> tuple[Tensor, Routing]:
        if not torch.compiler.is_compiling():
            device = require_tensor("x", x).device.type
            casts = x.dtype == self.router.dtype or torch.is_autocast_enabled(device)
            if x.dim() != 2 or x.shape[1] != self.router.shape[1] or not casts:
                refuse("x", x, f"[tokens, {self.router.shape[1]}] of type {self.router.dtype}, as the router is")
        choice = router.route(functional.linear(x, self.router), self.top_k)
        if buffer is not None:
            return run_experts(buffer, self.experts, x, choice.topk_idx, choice.topk_weights).float(), choice
        if self.experts.num_experts != self.num_experts:
            raise ArgumentError(
                f"this layer holds {self.experts.num_experts} of {self.num_experts} experts; pass the Buffer that "
                "connects it with the other ranks"
            )
        return self.experts(x, choice.topk_idx, choice.topk_weights), choice

    def shard(self, rank: int, world_size: int) -> MoELayer:
        """The layer of one rank: the router, and a copy of that rank's own experts."""
        held = ExpertRange.of_rank(self.num_experts, rank, world_size)
        return MoELayer(self.router.detach().clone(), self.experts.shard(held), self.top_k)


class ExpertParallel(nn.Module):
    """Route tokens, send them to the ranks of their experts, run the experts there, and sum the results.

    Every rank makes one with its own ``experts``, and every rank calls it, and its backward, the same number of times,
    with any number of tokens, even none. The state_dict is this rank's: its gate and its own experts.

    A rank's loss covers its own tokens. Replicated parameters (the gate, the rest of the model) get gradients of these
    only: sum or average them over ranks, as in data parallelism. An expert has seen the tokens of all ranks: its
    gradient is already the sum over ranks. So if the others are *averaged*, divide those of :meth:`expert_parameters`
    by the number of ranks; and keep them out of DistributedDataParallel.
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
        """Collective if it makes its Buffer: ``where`` is a Rank, and ``buffer_arguments`` are those of
        :class:`ep_lib.Buffer` (num_experts, top_k, hidden, max_tokens, dtype, ...); or ``where`` is a Buffer, which
        several layers may share.

        ``experts(x, topk_idx, topk_weights)``: this rank's experts. ``x`` ``[N, hidden]`` received rows, ``topk_idx``
        ``[N, top_k]`` the ones to run (from 0; -1: an expert elsewhere), ``topk_weights`` float32 ``[N, top_k]``;
        returns ``[N, hidden]``, the sum of the experts' outputs times their weights, for any N, even 0 (such as
        :class:`Experts`). ``gate(x)``: logits ``[T, num_experts]``, routed as in :func:`route`. ``num_worst_tokens``:
        always that many rows N; then the host does not wait.

        Raises the errors of Buffer; ArgumentError if Buffer arguments come with a Buffer.
        """
        super().__init__()
        if not isinstance(where, (Buffer, Rank)):
            refuse("where", where, "a Rank, with the arguments of a new Buffer, or an ep_lib.Buffer")
        if not callable(experts):
            refuse("experts", experts, "a module: experts(x, topk_idx, topk_weights)")
        if gate is not None and not callable(gate):
            refuse("gate", gate, "a module: gate(x), or None")
        num_worst_tokens = whole_number("num_worst_tokens", num_worst_tokens, 0, 2**31 - 1)
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
        """The own gate's routing of tokens ``x`` ``[..., hidden]``, for a load-balancing loss or for inspection; pass
        its ``topk_idx`` and ``topk_weights`` on to :meth:`forward`. Raises ArgumentError without a gate."""
        if self.gate is None:
            raise ArgumentError("without a gate=, pass topk_idx and topk_weights")
        self._require_rows(x)
        return route(self.gate(x.reshape(-1, x.shape[-1])), self._top_k)

    def forward(self, x: Tensor, topk_idx: Tensor | None = None, topk_weights: Tensor | None = None) -> Tensor:
        """``x`` ``[..., hidden]``, T tokens of any floating type -> the same shape and type. Collective.

        ``topk_idx`` int64 or int32 ``[T, top_k]``, -1: not routed; ``topk_weights`` float32 ``[T, top_k]``; both or
        neither: without them the own gate routes. Rows are sent in the Buffer's dtype. Raises ArgumentError, and the
        errors of :func:`ep_lib.moe.dispatch` and :func:`ep_lib.moe.combine`.
        """
        self._require_rows(x)
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

    def _require_rows(self, x: Any) -> None:
        """Raises ArgumentError unless ``x`` is ``[..., hidden]`` of a floating type."""
        if torch.compiler.is_compiling():
            return
        hidden = self.buffer.config.hidden
        if not require_tensor("x", x).dim() or x.shape[-1] != hidden or not x.is_floating_point():
            refuse("x", x, f"a floating-point tensor [..., hidden={hidden}]")

    def expert_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank's own experts, different on every rank."""
        return self.experts.parameters()

    def replicated_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that every rank has: the gate's."""
        return iter(()) if self.gate is None else self.gate.parameters()

    def close(self) -> None:
        """Close the Buffer, if this module made it. All ranks must."""
        if self._owns_buffer:
            self.buffer.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertParallel:
        """A copy with its own weights, for example for averaging; it shares the Buffer but does not own it."""
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
        """What torch prints of this module: its Buffer."""
        return f"buffer={self.buffer!r}"
