"""Notebook 09: a small language model with experts, and its tokens through a dispatch that the learner has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import ep_lib
from ep_lib.jit.kernel import Kernel
from ep_lib.moe import routing as library_router
from ep_lib.moe.routing import Router, Routing
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.lessons import moe_model as lm
from ep_lib.workshop.lessons import of_the_tutorial
from ep_lib.workshop.lessons.moe_own import CountedRouter, pieces_of_a_model, router_of, run_ways, ways_in_words
from ep_lib.workshop.lessons.moe_spread import Came, LowLatencyWay
from ep_lib.workshop.notebook import find

__all__ = ["CountedRouter", "pieces_of_a_model", "router_of", "run_ways", "ways_in_words"]

KERNELS = "tutorial_kernels/09_own_dispatch.cu"
CONFIG = lm.ModelConfig(hidden=32, ffn=64, layers=1, heads=2, num_experts=8, top_k=2, context=48)
_BATCH, _HELD_OUT = 8, 16  # windows of a training step; of the text that is held out


# ---- the model -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Trained:
    """A model after training: ``losses`` of every step, ``loss`` on held-out text, ``load`` of each expert there."""

    model: lm.ByteMoE
    losses: list[float]
    loss: float
    load: list[int]
    routings: list[Routing]


def held_out() -> lm.Bytes:
    """Real text that no model here was trained on: uint8 [windows, context + 1]."""
    return lm.windows(lm.load_text().held_out, _HELD_OUT, CONFIG.context + 1)


def train(steps: int, balance: float = lm.BALANCE_WEIGHT, router: Router = library_router, seed: int = 0) -> Trained:
    """A byte-level language model, trained on Python's own help texts. ``balance``: weight of the balance loss."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in the same order everywhere
    try:
        model = lm.ByteMoE(CONFIG, torch.Generator().manual_seed(seed))
        history = lm.train(
            model, lm.load_text().train, steps=steps, batch=_BATCH, seed=seed, router=router, balance_weight=balance
        )
        loss, routings = lm.evaluate(model, held_out())
    finally:
        torch.set_num_threads(before)
    load = library_router.load_per_expert(routings[0].topk_idx, CONFIG.num_experts)
    return Trained(model, [step.loss for step in history], loss, load.tolist(), routings)


def dropped(routing: Routing, factor: float) -> float:
    """The share of choices whose expert is full, if each has room for ``factor`` times the mean load."""
    chosen = int((routing.topk_idx >= 0).sum())
    room = int(factor * chosen / CONFIG.num_experts)
    kept = int((library_router.limit_load(routing, room).topk_idx >= 0).sum())
    return 1 - kept / chosen


# ---- a dispatch of the learner's own ---------------------------------------------------------------------------------
class OwnBuffer:
    """The two calls that a MoE layer makes, on the kernels of tutorial_kernels/09_own_dispatch.cu. Collective.

    Rows are float32. Between two dispatches the ranks meet on the host, so that one set of slots is enough.
    """

    def __init__(
        self,
        rank: Rank,
        hidden: int,
        max_tokens: int,
        num_experts: int,
        top_k: int,
        kernel: str = "own_dispatch",
        blocks: int = 2,
        warps: int = 4,
    ) -> None:
        self.rank, self.hidden, self.max_tokens, self.top_k = rank, hidden, max_tokens, top_k
        self.experts_per_rank = num_experts // rank.world_size
        self.blocks, self.threads, self.epoch = blocks, 32 * warps, 0
        slots = rank.world_size * max_tokens
        self.rows = rank.symmetric((slots, hidden), np.float32)
        self.arrived = rank.symmetric(slots, np.uint64)
        self.routes = rank.symmetric((slots, 2), np.uint64)
        self.made = rank.symmetric((self.experts_per_rank, slots, hidden), np.float32)
        self.out = rank.empty((self.experts_per_rank, slots, hidden), np.float32)
        self.out[...] = 0
        self.wanted = rank.to_device(np.zeros(slots, np.uint64))
        self._dispatch = Kernel.from_file(find(KERNELS), kernel)
        self._combine = Kernel.from_file(find(KERNELS), "own_combine")

    def _struct(self, tokens: int) -> bytes:
        arrays = {name: getattr(self, name) for name in ("rows", "arrived", "routes", "out", "wanted")}
        numbers = {name: getattr(self, name) for name in ("epoch", "max_tokens", "top_k", "experts_per_rank")}
        sizes = {"num_tokens": tokens, "row_vectors": self.hidden // 4}
        return of_the_tutorial("09_own_dispatch.cuh", "Dispatch", **arrays, **numbers, **sizes)

    def launch_dispatch(self, x: Any, topk_idx: Any) -> None:
        """One kernel: x float32 [tokens, hidden], topk_idx int32 [tokens, top_k]."""
        self.rank.barrier()
        self.epoch += 1
        uses = (self.rows, self.arrived, self.routes, self.out, self.wanted)
        self._dispatch.launch(self.rank, self.blocks, self.threads, self._struct(len(x)), x, topk_idx, uses=uses)
        self.rank.synchronize()

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> Came:
        idx = topk_idx.to(torch.int32).contiguous()
        self.launch_dispatch(x.contiguous(), idx)
        bits = self.rank.to_host(self.wanted)
        numbers = np.arange(self.experts_per_rank, dtype=np.uint64)
        wanted = (bits[None, :] >> numbers[:, None] & np.uint64(1)).astype(bool)  # [experts_per_rank, slots]
        places = torch.from_numpy(np.flatnonzero(wanted)).to(x.device)
        rows = torch.as_tensor(self.out, device=x.device).reshape(-1, self.hidden)[places]
        expert = (places // len(bits)).unsqueeze(1)
        source = np.flatnonzero(bits) // self.max_tokens
        came = torch.from_numpy(np.bincount(source, minlength=self.rank.world_size))
        counts = torch.from_numpy(wanted.sum(axis=1).astype(np.int32))
        way = LowLatencyWay(idx, (0, 0, 0), places, idx, topk_weights.float().contiguous(), came)
        return Came(rows, expert, torch.ones(len(places), 1, device=x.device), counts, way)

    def combine(self, x: torch.Tensor, handle: LowLatencyWay) -> torch.Tensor:
        made = torch.as_tensor(self.made, device=x.device).reshape(-1, self.hidden)
        made[handle.places] = x.float()
        tokens = len(handle.topk_idx)
        sums = torch.empty(tokens, self.hidden, device=x.device)
        self.rank.barrier()
        arguments = (self.made, handle.topk_idx, handle.topk_weights, sums, self.hidden)
        self._combine.launch(self.rank, self.blocks, self.threads, self._struct(tokens), *arguments)
        self.rank.barrier()
        return sums


def _device(rank: Rank) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if rank.backend == "cuda" else torch.device("cpu")


@torch.no_grad()
def _evaluate_rank(rank: Rank, model: lm.ByteMoE, data: lm.Bytes) -> tuple[float, int]:
    share = np.array_split(data, rank.world_size)[rank.rank]
    most = -(-len(data) // rank.world_size) * CONFIG.context
    local = model.shard(rank.rank, rank.world_size).to(_device(rank))
    text = torch.from_numpy(share.astype(np.int64)).to(_device(rank))
    buffer = OwnBuffer(rank, CONFIG.hidden, most, CONFIG.num_experts, CONFIG.top_k)
    logits, _ = local(text[:, :-1], buffer)
    return float(lm.cross_entropy(logits, text[:, 1:], "sum").double()), text[:, 1:].numel()


def evaluate_on_own_dispatch(model: lm.ByteMoE, ranks: int, backend: str) -> float:
    """The loss on held-out text with the experts spread over ``ranks``, every token through own_dispatch."""
    sums, counts = zip(
        *ep_lib.spawn(_evaluate_rank, ranks=ranks, backend=backend, args=(model, held_out())), strict=True
    )
    loss: float = sum(sums) / sum(counts)
    return loss


@torch.no_grad()
def _serve_rank(rank: Rank, model: lm.ByteMoE, prompts: list[str], length: int) -> str:
    local = model.shard(rank.rank, rank.world_size).to(_device(rank))
    buffer = OwnBuffer(rank, CONFIG.hidden, CONFIG.context, CONFIG.num_experts, CONFIG.top_k)
    prompt = prompts[rank.rank].encode()
    return lm.printable(prompt + lm.generate(local, prompt, length, seed=rank.rank, buffer=buffer)[len(prompt) :])


def serve(model: lm.ByteMoE, prompts: list[str], length: int, backend: str) -> list[str]:
    """A rank for each prompt, all at the same time: ``length`` more bytes each, every token through own_dispatch."""
    return ep_lib.spawn(_serve_rank, ranks=len(prompts), backend=backend, args=(model, prompts, length))


# ---- on the virtual clock, and under the checker ---------------------------------------------------------------------
def exchange(
    kernel: str, blocks: int, warps: int, *, tokens: int, hidden: int, file: str = KERNELS
) -> Callable[..., bool]:
    """A program: one dispatch of ``tokens`` tokens per rank by a kernel; returns whether every expert got its rows."""

    def main(rank: Rank) -> bool:
        experts, top_k = 4 * rank.world_size, 4
        buffer = OwnBuffer(rank, hidden, tokens, experts, top_k, "own_dispatch", blocks, warps)
        buffer._dispatch = Kernel.from_file(find(file), kernel)
        routes = [
            np.random.default_rng(r).integers(0, experts, (tokens, top_k), np.int32) for r in range(rank.world_size)
        ]
        x = np.arange(tokens * hidden, dtype=np.float32).reshape(tokens, hidden)
        buffer.launch_dispatch(rank.to_device(x + rank.rank), rank.to_device(routes[rank.rank]))
        out = rank.to_host(buffer.out).reshape(4, rank.world_size, tokens, hidden)
        return all(
            np.array_equal(out[expert % 4, source, token], x[token] + source)
            for source in range(rank.world_size)
            for token, choices in enumerate(routes[source])
            for expert in choices
            if expert // 4 == rank.rank
        )

    return main
