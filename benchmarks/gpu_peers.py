"""The alternatives: NCCL's all-to-all with torch's indexing, and torch's symmetric memory over NVSHMEM.

Both get what a cached handle knows: which row goes where, and how many come from each rank. So no peer counts or sorts
while it is timed. What they cannot leave out is timed: gathering rows into send order, and adding up.
"""

from __future__ import annotations

import os
import socket
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
        self.idx = [gpu_inputs.routing(shape, source, routing, "cuda") for source in range(shape.ranks)]
        self.goes = [gpu_inputs.goes_to(shape, idx) for idx in self.idx]
        self.sets = [gpu_inputs.rows(shape, self.me, turn, dtype, "cuda") for turn in range(SETS)]

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


class Nccl(Peer):
    """``all_to_all_single`` of rows that ``index_select`` put into the order of their ranks; a token once per rank."""

    by, note = "NCCL", "all_to_all_single, torch indexing"

    def __init__(self, rank: ep_lib.Rank, shape: Shape, dtype: str, routing: str = "random") -> None:
        import torch

        super().__init__(rank, shape, dtype, routing)
        goes = self.goes[self.me]
        self.order = torch.cat([goes[:, r].nonzero()[:, 0] for r in range(shape.ranks)])
        self.sends = [int(n) for n in goes.sum(0)]
        self.receives = [int(g[:, self.me].sum()) for g in self.goes]
        self.recv: list[Any] = []
        # Where each rank's row of a token is in what comes back; the last row is zeros.
        position = torch.full((shape.tokens, shape.ranks), len(self.order), device="cuda")
        place = torch.arange(len(self.order), device="cuda")
        owner = torch.repeat_interleave(torch.arange(shape.ranks, device="cuda"), goes.sum(0))
        position[self.order, owner] = place
        self.position = position.flatten()
        self.back = torch.zeros(len(self.order) + 1, shape.hidden, dtype=torch.bfloat16, device="cuda")

    def parts(self, turn: int) -> list[Any]:
        """Tensors that travel: rows, as bytes if NCCL does not know their type, and scales."""
        import torch

        x, scales = self.sets[turn]
        return [x] if scales is None else [x.view(torch.uint8), scales]

    def dispatch(self, turn: int) -> None:
        import torch.distributed as dist

        self.recv = []
        for part in self.parts(turn):
            self.recv.append(part.new_empty(sum(self.receives), part.shape[1]))
            dist.all_to_all_single(self.recv[-1], part.index_select(0, self.order), self.receives, self.sends)

    def combine(self) -> Any:
        import torch.distributed as dist

        dist.all_to_all_single(self.back[:-1], self.recv[0], self.sends, self.receives)
        picked = self.back.index_select(0, self.position)
        return picked.view(self.shape.tokens, self.shape.ranks, self.shape.hidden).sum(1)

    def check_dispatch(self, rows: Rows) -> None:
        import torch

        start = 0
        for source, goes in enumerate(self.goes):
            token = goes[:, self.me].nonzero()[:, 0]
            x, scales = gpu_inputs.rows(self.shape, source, 0, self.dtype, "cuda")
            for part, recv in zip([x.view(torch.uint8), scales], self.recv, strict=False):
                got = recv[start : start + len(token)]
                want = part[token]
                rows.check(torch.equal(got.view(torch.uint8), want.view(torch.uint8)), f"{self.by}: dispatch differs")
            start += len(token)


class Symmetric(Peer):
    """``torch.ops.symm_mem.all_to_all_vdev_2d``: a row per (token, group of neighbouring experts), sorted by group."""

    by, note = "torch symmetric memory", f"all_to_all_vdev_2d, {SYMMETRIC_GROUPS} groups of experts a rank"

    def __init__(self, rank: ep_lib.Rank, shape: Shape, dtype: str, routing: str = "random") -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem

        super().__init__(rank, shape, dtype, routing)
        self.group = dist.group.WORLD.group_name
        self.groups = min(SYMMETRIC_GROUPS, shape.experts_per_rank)
        splits = shape.ranks * self.groups
        self.pairs = [self.group_pairs(idx) for idx in self.idx]  # of every source: [tokens, splits] bool
        mine = self.pairs[self.me]
        self.order = torch.cat([mine[:, g].nonzero()[:, 0] for g in range(splits)])
        of_rank = [slice(r * self.groups, (r + 1) * self.groups) for r in range(shape.ranks)]
        self.arriving = [pairs[:, of_rank[self.me]] for pairs in self.pairs]
        sent = [int(pairs.sum()) for pairs in self.pairs]
        received = [sum(int(pairs[:, columns].sum()) for pairs in self.pairs) for columns in of_rank]
        most, self.received = max(sent + received), received[self.me]

        def symmetric(*size: int, like: Any) -> Any:
            made = symm_mem.empty(*size, dtype=like.dtype, device=like.device)
            symm_mem.rendezvous(made, group=self.group)
            return made

        parts = self.parts(0)
        self.send = [symmetric(most, part.shape[1], like=part) for part in parts]
        self.recv = [symmetric(most, part.shape[1], like=part) for part in parts]
        self.in_splits = symmetric(splits, like=self.order)
        self.in_splits.copy_(mine.sum(0))
        # One for each part: a rank that is ahead writes to those of its next operation.
        self.out_splits = [symmetric(2, splits, like=self.order) for _ in parts]
        self.back_splits = symmetric(2, splits, like=self.order)
        torch.cuda.synchronize()
        rank.barrier()
        position = torch.full((shape.tokens, splits), len(self.order), device="cuda")
        owner = torch.repeat_interleave(torch.arange(splits, device="cuda"), mine.sum(0))
        position[self.order, owner] = torch.arange(len(self.order), device="cuda")
        # At most top_k of a token's positions are in use: the smallest numbers.
        self.position = position.sort(1).values[:, : shape.top_k].flatten()
        self.back = None
        if dtype == "bf16":
            self.back = symmetric(most + 1, shape.hidden, like=parts[0])
            self.back.zero_()

    def group_pairs(self, idx: Any) -> Any:
        """``[tokens, ranks * groups]`` bool: whether a token has an expert in a group."""
        import torch

        shape = self.shape
        found = torch.zeros(shape.tokens, shape.ranks * self.groups, dtype=torch.bool, device="cuda")
        return found.scatter_(1, idx * (shape.ranks * self.groups) // shape.experts, True)

    def parts(self, turn: int) -> list[Any]:
        import torch

        x, scales = self.sets[turn]
        return [x] if scales is None else [x.view(torch.uint8), scales]

    def sent(self) -> dict[str, int]:
        mine, each = self.pairs[self.me], self.shape.row_bytes(self.dtype)
        own = int(mine[:, self.me * self.groups : (self.me + 1) * self.groups].sum())
        return {"logical_bytes": int(mine.sum()) * each, "wire_bytes": (int(mine.sum()) - own) * each}

    def times_added(self) -> Any:
        return self.pairs[self.me].sum(1).float()

    def dispatch(self, turn: int) -> None:
        import torch

        parts = zip(self.parts(turn), self.send, self.recv, self.out_splits, strict=True)
        for part, send, recv, out_splits in parts:
            torch.index_select(part, 0, self.order, out=send[: len(self.order)])
            torch.ops.symm_mem.all_to_all_vdev_2d(send, recv, self.in_splits, out_splits, self.group)

    def combine(self) -> Any:
        import torch

        operation = torch.ops.symm_mem.all_to_all_vdev_2d_offset
        operation(self.recv[0], self.back, self.out_splits[0], self.back_splits, self.group)
        picked = self.back.index_select(0, self.position)
        return picked.view(self.shape.tokens, self.shape.top_k, self.shape.hidden).sum(1)

    def check_dispatch(self, rows: Rows) -> None:
        import torch

        x = [gpu_inputs.rows(self.shape, source, 0, self.dtype, "cuda") for source in range(self.shape.ranks)]
        start = 0
        for group in range(self.groups):  # expert-major, then by source
            for source in range(self.shape.ranks):
                token = self.arriving[source][:, group].nonzero()[:, 0]
                for part, recv in zip((x[source][0].view(torch.uint8), x[source][1]), self.recv, strict=False):
                    got = recv[start : start + len(token)].view(torch.uint8)
                    rows.check(torch.equal(got, part[token].view(torch.uint8)), f"{self.by}: dispatch differs")
                start += len(token)


class SymmetricOnce(Symmetric):
    """The same operation, but each token once per rank: a rank's "experts" are pieces of each source's tokens."""

    note = "all_to_all_vdev_2d, a token once a rank"

    def group_pairs(self, idx: Any) -> Any:
        import torch

        shape, groups = self.shape, self.groups
        piece = torch.arange(shape.tokens, device="cuda")[:, None] * groups // shape.tokens
        found = torch.zeros(shape.tokens, shape.ranks * groups, dtype=torch.bool, device="cuda")
        return found.scatter_(1, idx // shape.experts_per_rank * groups + piece, True)
