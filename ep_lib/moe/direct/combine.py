"""A direct combine: the ways in which rows come back, and what each launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ep_lib.jit.operation import Launch, Made, Operation, Struct, struct
from ep_lib.memory.arrays import Array, ArrayInfo, describe
from ep_lib.moe.agreement import Tag
from ep_lib.moe.config import FLOAT32, VECTOR_BYTES, WARP
from ep_lib.moe.direct.dispatch import DirectRouting
from ep_lib.moe.direct.tuning import Tuning, combine_shared, for_packed_rows, most_ranks
from ep_lib.moe.direct.workspace import Workspace, kernel
from ep_lib.moe.mode import ExpertRows

# How a combine brings rows back: kernel, and template arguments behind the type. Its number is in the tag.
_WAYS = {
    "push": ("combine_push", ""),
    "pull": ("combine_pull", ", ep::direct::kInPlace"),
    "stage": ("combine_pull", ", ep::direct::kElsewhere"),
    "packed": ("combine_push", ", true"),
    "by expert": ("combine_pull", ", ep::direct::kByExpert"),
}
_NUMBER_OF_WAY = {way: number for number, way in enumerate(_WAYS)}


class _Combining(NamedTuple):
    """One way to bring rows back."""

    operation: Operation
    most_warps: int  # the most warps of a block that send
    rows_a_warp: int  # at least: few rows leave faster by a few warps of each block than by all of a few blocks


class Combines(Workspace):
    """Combines of direct mode."""

    def combine(
        self,
        x: ArrayInfo,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        tag: Tag,
        *,
        bias: Sequence[ArrayInfo],
        async_finish: bool,
        by_expert: ExpertRows | None = None,
        as_fp8: bool = False,
        by_choice: bool = False,
    ) -> Array:
        """Bring rows back and add them up: ``[num_tokens, columns of x]``; then :meth:`mismatched_ranks`."""
        config = self._config
        if as_fp8:
            way = "packed"
        elif by_expert is not None:
            way = "by expert"
        elif x.address == self._at["returned"]:
            way = "pull"
        elif self._tuning_of(config.row_bytes).push or self._spare_blocks < 1:
            way = "push"
        else:
            way = "stage"
        (rows, columns), slot = x.shape, None if by_expert is None else describe(by_expert.slot)
        # The tag has the dispatch and the way, so that ranks notice if they disagree about either.
        number = Tag(tag.epoch, _NUMBER_OF_WAY[way], tag.row_vectors).number
        how = self._operations.get((way, x.kind))
        if how is None:
            how = self._operations[way, x.kind] = self._declare_combine(way, x.kind)
        with self._streams.begin(x.kind, async_finish):
            (out,) = how.operation.run(
                x,
                weights,
                routing.info,
                *(*bias, None, None)[:2],
                slot,
                0 if slot is None else slot.shape[0],
                number,
                routing.num_tokens,
                columns,
                columns * config.dtype.itemsize // VECTOR_BYTES,
                min(how.most_warps, max(1, -(-rows // how.rows_a_warp))),
                int(by_choice),
            )
        self._finish(async_finish)
        return out

    def combine_input(self, like: Array, num_rows: int) -> Array:
        """Symmetric memory for experts' results, from which a combine reads them in place: ``[num_rows, hidden]`` of
        the Buffer's dtype, an array of the kind of ``like``."""
        return self._view("returned", describe(like).kind, self._config.dtype, self._config.hidden)[:num_rows]

    def is_combine_input(self, x: ArrayInfo) -> bool:
        """Whether these rows are :meth:`combine_input`'s."""
        return x.address == self._at["returned"] and x.nbytes > 0

    def _declare_combine(self, way: str, kind: str) -> _Combining:
        """``way``: "push"; "packed" (push as FP8); "pull" (rows are in symmetric memory); "stage" (copy rows there,
        then pull them); "by expert" (sum a received row's choices there, then pull the sums)."""
        config, parts, tuning = self._config, self._parts, self._tuning_of(self._config.row_bytes)
        if way == "packed":
            tuning = for_packed_rows(tuning, config, self._rank.shared_bytes)
        name, template = _WAYS[way]
        more_blocks = max(0, self._spare_blocks) if way in ("stage", "by expert") else 0
        share = 1 if way == "by expert" else tuning.push_share  # of the blocks, where no further ones are free
        send_blocks = max(1, more_blocks or round(share * self.num_sms))
        element = "float" if config.dtype == FLOAT32 else "__nv_bfloat16"
        launch = Launch(
            kernel(name, f"<{element}{template}>"),
            self.num_sms + more_blocks,
            tuning.add_warps * WARP,
            (
                self._combine_args(tuning, send_blocks, is_push=name == "combine_push"),
                "out",
                "x",
                parts.topk,
                "weights",
                parts.send_index,
                parts.plan,
                self._differs_address,
            ),
            combine_shared(tuning, config, config.row_vectors),
        )
        given = ("x", "weights", "routing", "bias", "more_bias", "slot", "capacity", "tag", "tokens", "columns")
        out = Made("out", kind, ("tokens", "columns"), config.dtype)
        operation = Operation(self._rank, (*given, "row_vectors", "warps", "by_choice"), [launch], [out])
        return _Combining(operation, tuning.send_warps, tuning.group_rows * send_blocks)

    def _combine_args(self, tuning: Tuning, send_blocks: int, is_push: bool) -> Struct:
        config = self._config
        inside: dict[str, Any] = {"workspace": self._workspace, "tag": "tag"}
        inside["add"] = struct(
            "moe/direct/combine_add.cuh",
            "AddArgs",
            bias=("bias", "more_bias"),
            num_tokens="tokens",
            row_vectors="row_vectors",
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            piece_vectors=tuning.add_vectors,
            most_ranks=most_ranks(config),
            stages=tuning.add_stages,
            by_choice="by_choice",
        )
        inside["send"] = struct(
            "moe/direct/combine_send.cuh",
            "SendArgs",
            returned=self._at["returned"],
            arrived=self._at["arrived"],
            max_tokens=config.max_tokens,
            max_groups=-(-config.max_tokens // tuning.group_rows),
            group_rows=tuning.group_rows,
            blocks=send_blocks,
            warps="warps",
            stages=tuning.send_stages,
        )
        if is_push:
            shares = int(config.receive_areas == 0)
            return struct("moe/direct/combine_push.cu", "PushCombineArgs", **inside, shares_area=shares)
        inside |= {"slot": "slot", "capacity": "capacity", "pull_blocks": self.num_sms}
        return struct("moe/direct/combine_pull.cu", "PullCombineArgs", **inside)
