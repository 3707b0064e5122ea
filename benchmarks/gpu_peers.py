"""The alternatives: NCCL's all-to-all with torch's indexing, and torch's symmetric memory over NVSHMEM.

Both get what a cached handle knows: which row goes where, and how many come from each rank. So no peer counts or sorts
while it is timed. What they cannot leave out is timed: gathering rows into send order, and adding up.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import gpu_inputs
from gpu_inputs import SETS, Shape
from gpu_rows import Rows

import ep_lib

# Multicast off: on a shared host it can put GPUs of others out of service.
NO_MULTICAST = {"NVSHMEM_DISABLE_NVLS": "1", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
SYMMETRIC_GROUPS = 16  # torch 2.11's all_to_all_vdev_2d takes at most 16 experts per rank, so neighbours share one


def free_port() -> int:
    """A free TCP port on this host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(rank: ep_lib.Rank, rows: Rows, shape: Shape, part: str, port: int) -> None:
    """Collective: adds rows of group "peer". ``part``: "nccl" or "symmetric"."""
    import torch
    import torch.distributed as dist

    os.environ.update(NO_MULTICAST | {"NVSHMEM_SYMMETRIC_SIZE": "6G"})
    device = torch.device("cuda", rank.rank)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=where, rank=rank.rank, world_size=rank.world_size, device_id=device)
    if part == "symmetric":
        import torch.distributed._symmetric_memory as symm_mem

        symm_mem.set_backend("NVSHMEM")
    kept = []  # freeing symmetric memory is collective in NVSHMEM, so it is left to the end of the process
    for dtype in ("fp8", "bf16"):
        for peer in (Nccl,) if part == "nccl" else (Symmetric, SymmetricOnce):
            kept.append(peer(rank, shape, dtype))
            kept[-1].add_rows(rows)
    torch.cuda.synchronize()
    rank.barrier()


class Peer:
    """Inputs, and what is checked and timed for every peer; a subclass moves the rows."""

    by, note = "", ""

    def __init__(self, rank: ep_lib.Rank, shape: Shape, dtype: str, routing: str = "random") -> None:
        self.rank, self.shape, self.dtype, self.me = rank, shape, dtype, rank.rank
        self.device = gpu_inputs.device_of(rank)
        self.idx = [gpu_inputs.routing(shape, source, routing, self.device) for source in range(shape.ranks)]
        self.goes = [gpu_inputs.goes_to(shape, idx) for idx in self.idx]
        self.sets = [gpu_inputs.rows(shape, self.me, turn, dtype, self.device) for turn in range(SETS)]

    def parts(self, turn: int) -> list[Any]:
        x, scales = self.sets[turn]
        return parts_of(x if scales is None else (x, scales))

    def dispatch(self, turn: int) -> None:
        raise NotImplementedError

    def combine(self) -> Any:
        raise NotImplementedError

    def sent(self) -> dict[str, int]:
        """Bytes of rows, and scales, that this rank sends."""
        return gpu_inputs.traffic(self.shape, self.goes[self.me], self.me, self.dtype)

    def times_added(self) -> Any:
        """[tokens] float32: how often a row comes back."""
        return self.goes[self.me].sum(1).float()

    def add_rows(self, rows: Rows) -> None:
        import torch

        row = {"group": "peer", "by": self.by, "dtype": self.dtype, "tokens": self.shape.tokens, "note": self.note}
        row |= {"routing": "random", **self.sent()}
        self.dispatch(1)
        self.dispatch(0)
        torch.cuda.synchronize()
        self.rank.barrier()
        self.check_dispatch(rows)
        turns = [lambda turn=turn: self.dispatch(turn) for turn in range(SETS)]
        rows.time(turns, what="dispatch", **row)
        if self.dtype == "bf16":
            self.rank.barrier()
            self.dispatch(0)
            torch.cuda.synchronize()
            self.rank.barrier()
            out = self.combine()
            torch.cuda.synchronize()
            expected = (self.sets[0][0].float() * self.times_added()[:, None]).bfloat16()
            rows.check(torch.equal(out, expected), f"{self.by}: combine differs")
            self.rank.barrier()
            rows.time([self.combine], what="combine", **row)

    def check_dispatch(self, rows: Rows) -> None:
        raise NotImplementedError


def parts_of(x: Any) -> list[Any]:
    """Tensors that travel: rows, as bytes if NCCL does not know their type, and the scales that a pair has."""
    import torch

    return [x[0].view(torch.uint8), x[1]] if isinstance(x, tuple) else [x]


def send_order(pairs: Any) -> tuple[Any, Any]:
    """Of ``[tokens, places]`` bool: tokens in the order of places, and where in it each is, -1 if it is not."""
    order = pairs.T.nonzero()[:, 1]
    number = pairs.T.flatten().cumsum(0).view(pairs.T.shape).T
    return order, number * pairs - 1


class Route:
    """A token once to each rank where it ``goes`` (``[tokens, ranks]`` bool), by ``all_to_all_single``."""

    def __init__(self, goes: Any, sends: list[int], receives: list[int]) -> None:
        self.order, position = send_order(goes)
        self.position = position.flatten() % (len(self.order) + 1)  # the last row of a room, if it is nowhere
        self.sends, self.receives = sends, receives

    def there(self, part: Any) -> Any:
        """The rows that come here, by rank."""
        import torch.distributed as dist

        recv = part.new_empty(sum(self.receives), part.shape[1])
        dist.all_to_all_single(recv, part.index_select(0, self.order), self.receives, self.sends)
        return recv

    def room(self, part: Any) -> Any:
        """Where rows like those of ``part`` come back; the last row is zeros."""
        room = part.new_empty(len(self.order) + 1, part.shape[1])
        room[-1] = 0
        return room

    def back(self, rows: Any, room: Any) -> Any:
        """The sums of what comes back."""
        import torch.distributed as dist

        dist.all_to_all_single(room[:-1], rows, self.sends, self.receives)
        return room.index_select(0, self.position).view(-1, len(self.sends), rows.shape[1]).sum(1)


class Nccl(Peer):
    """``all_to_all_single`` of rows that ``index_select`` put into the order of their ranks; a token once per rank."""

    by, note = "NCCL", "all_to_all_single, torch indexing"

    def __init__(self, rank: ep_lib.Rank, shape: Shape, dtype: str, routing: str = "random") -> None:
        super().__init__(rank, shape, dtype, routing)
        goes = self.goes[self.me]
        self.route = Route(goes, goes.sum(0).tolist(), [int(g[:, self.me].sum()) for g in self.goes])
        self.recv: list[Any] = []
        self.room = self.route.room(self.sets[0][0])

    def dispatch(self, turn: int) -> None:
        self.recv = [self.route.there(part) for part in self.parts(turn)]

    def combine(self) -> Any:
        return self.route.back(self.recv[0], self.room)

    def check_dispatch(self, rows: Rows) -> None:
        import torch

        start = 0
        for source, goes in enumerate(self.goes):
            token = goes[:, self.me].nonzero()[:, 0]
            x, scales = gpu_inputs.rows(self.shape, source, 0, self.dtype, self.device)
            for part, recv in zip([x.view(torch.uint8), scales], self.recv, strict=False):
                got = recv[start : start + len(token)]
                want = part[token]
                rows.check(torch.equal(got.view(torch.uint8), want.view(torch.uint8)), f"{self.by}: dispatch differs")
            start += len(token)


class Symmetric(Peer):
    """``torch.ops.symm_mem.all_to_all_vdev_2d``: a row per (token, group of neighbouring experts), sorted by group."""

    by, note = "torch symmetric memory", f"all_to_all_vdev_2d, {SYMMETRIC_GROUPS} groups of experts a rank"

    def __init__(
        self, rank: ep_lib.Rank, shape: Shape, dtype: str, routing: str = "random", most: int = 0, more: int = 0
    ) -> None:
        """``most``: rows of a later routing; ``more``: columns of int32 that can travel with the rows."""
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem

        super().__init__(rank, shape, dtype, routing)
        self.group = dist.group.WORLD.group_name
        self.groups = min(SYMMETRIC_GROUPS, shape.experts_per_rank)
        splits = shape.ranks * self.groups
        self.pairs = [self.group_pairs(idx) for idx in self.idx]  # of every source: [tokens, splits] bool
        of_rank = [slice(r * self.groups, (r + 1) * self.groups) for r in range(shape.ranks)]
        sent = [int(pairs.sum()) for pairs in self.pairs]
        received = [sum(int(pairs[:, columns].sum()) for pairs in self.pairs) for columns in of_rank]
        self.most, self.received = max([*sent, *received, most]), received[self.me]

        def symmetric(*size: int, like: Any) -> Any:
            made = symm_mem.empty(*size, dtype=like.dtype, device=like.device)
            symm_mem.rendezvous(made, group=self.group)
            return made

        parts = self.parts(0) + ([self.idx[0].new_empty(0, more, dtype=torch.int32)] if more else [])
        self.send = [symmetric(self.most, part.shape[1], like=part) for part in parts]
        self.recv = [symmetric(self.most, part.shape[1], like=part) for part in parts]
        self.in_splits = symmetric(splits, like=self.idx[0])
        # One for each part: a rank that is ahead writes to those of its next operation.
        self.out_splits = [symmetric(2, splits, like=self.in_splits) for _ in parts]
        self.back_splits = symmetric(2, splits, like=self.in_splits)
        self.kept_splits = symmetric(2, splits, like=self.in_splits)  # of an earlier dispatch
        self.take(*self.placed(self.pairs[self.me]))
        torch.cuda.synchronize()
        rank.barrier()
        self.back = None
        if dtype == "bf16":
            self.back = symmetric(self.most + 1, shape.hidden, like=parts[0])
            self.back.zero_()

    def placed(self, mine: Any) -> tuple[Any, Any, Any]:
        """Of ``group_pairs``: the order in which rows are sent, the places where they come back, rows per group."""
        order, position = send_order(mine)
        # At most top_k of a token's places are in use. What is nowhere is the last row of what comes back, of zeros.
        used = position.sort(1, descending=True).values[:, : self.shape.top_k].flatten()
        return order, used % (self.most + 1), mine.sum(0)

    def take(self, order: Any, position: Any, splits: Any) -> None:
        """The next operations are of this routing."""
        self.order, self.position = order, position
        self.in_splits.copy_(splits)

    def group_pairs(self, idx: Any) -> Any:
        """``[tokens, ranks * groups]`` bool: whether a token has an expert in a group."""
        import torch

        shape = self.shape
        found = torch.zeros(len(idx), shape.ranks * self.groups, dtype=torch.bool, device=idx.device)
        return found.scatter_(1, idx * (shape.ranks * self.groups) // shape.experts, True)

    def sent(self) -> dict[str, int]:
        mine, each = self.pairs[self.me], self.shape.row_bytes(self.dtype)
        own = int(mine[:, self.me * self.groups : (self.me + 1) * self.groups].sum())
        return {"logical_bytes": int(mine.sum()) * each, "wire_bytes": (int(mine.sum()) - own) * each}

    def times_added(self) -> Any:
        return self.pairs[self.me].sum(1).float()

    def dispatch(self, turn: int) -> None:
        self.move(self.parts(turn))

    def move(self, parts: list[Any]) -> None:
        """Rows of each part to where they belong in ``recv``."""
        import torch

        for part, send, recv, out_splits in zip(parts, self.send, self.recv, self.out_splits, strict=False):
            torch.index_select(part, 0, self.order, out=send[: len(self.order)])
            torch.ops.symm_mem.all_to_all_vdev_2d(send, recv, self.in_splits, out_splits, self.group)

    def combine(self) -> Any:
        return self.move_back(self.out_splits[0])

    def move_back(self, splits: Any) -> Any:
        """The sums of what comes back of ``recv``, where a dispatch left it with these ``out_splits``."""
        import torch

        operation = torch.ops.symm_mem.all_to_all_vdev_2d_offset
        operation(self.recv[0], self.back, splits, self.back_splits, self.group)
        picked = self.back.index_select(0, self.position)
        return picked.view(-1, self.shape.top_k, self.shape.hidden).sum(1)

    def in_order(self, every: Sequence[Any]) -> tuple[Any, Any]:
        """Source and token of the rows that arrive, of the experts that each source chose."""
        import torch

        mine = slice(self.me * self.groups, (self.me + 1) * self.groups)
        arriving = [self.group_pairs(idx)[:, mine] for idx in every]
        sources, tokens = [], []
        for group in range(self.groups):  # expert-major, then by source
            for source, pairs in enumerate(arriving):
                tokens.append(pairs[:, group].nonzero()[:, 0])
                sources.append(torch.full_like(tokens[-1], source))
        return torch.cat(sources), torch.cat(tokens)

    def check_dispatch(self, rows: Rows) -> None:
        import torch

        x = [gpu_inputs.rows(self.shape, source, 0, self.dtype, self.device) for source in range(self.shape.ranks)]
        source, token = self.in_order(self.idx)
        for number, (sent, scales) in enumerate(x):
            here = (source == number).nonzero()[:, 0]
            for part, recv in zip((sent.view(torch.uint8), scales), self.recv, strict=False):
                got, want = recv[here].view(torch.uint8), part[token[here]].view(torch.uint8)
                rows.check(torch.equal(got, want), f"{self.by}: dispatch differs")


class SymmetricOnce(Symmetric):
    """The same operation, but each token once per rank: a rank's "experts" are pieces of each source's tokens."""

    note = "all_to_all_vdev_2d, a token once a rank"

    def group_pairs(self, idx: Any) -> Any:
        import torch

        shape, groups = self.shape, self.groups
        piece = torch.arange(len(idx), device=idx.device)[:, None] * groups // len(idx)
        found = torch.zeros(len(idx), shape.ranks * groups, dtype=torch.bool, device=idx.device)
        return found.scatter_(1, idx // shape.experts_per_rank * groups + piece, True)
