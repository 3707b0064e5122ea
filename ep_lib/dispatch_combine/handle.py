"""The handle: one batch of tokens on its way to the experts and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ep_lib.dispatch_combine.context import WAYS, DispatchCombineContext
from ep_lib.errors import ArgumentError, HandleError
from ep_lib.memory.arrays import Array, ArrayInfo, describe, is_array
from ep_lib.moe.handle import Received
from ep_lib.require import instance, show, whole_number


class DispatchCombineHandle:
    """Runs batches through a context, one after the other: prepare, dispatch, combine, take the output.

    Any number of handles may use a context; they share its registered memory, so making one costs nothing and is not
    collective. All ranks must launch in the same order.
    """

    def __init__(self, context: DispatchCombineContext) -> None:
        """Raises BufferClosedError if the context is not initialized."""
        instance("context", context, DispatchCombineContext, "a DispatchCombineContext")
        self._config, self._ways, self._buffer = context.config, context.ways, context.buffer
        self._input: tuple[Array, Array, Array] | None = None
        self._received: Received | None = None
        self._output: Any = None

    def prepare_inference(self, tokens: Any, expert_ids: Array, weights: Array, num_tokens: int | None = None) -> None:
        """Sets the next batch of this rank. Nothing is copied or sent: do not change the arrays until the combine.

        ``tokens``: ``[>= num_tokens, hidden_dim]`` in the config's dtype; ``expert_ids``: ``[>= num_tokens,
        num_experts_per_token]`` int64 or int32, numbers of experts among all ranks', -1: none; ``weights``: the same
        shape, float32. ``num_tokens``: the number of rows, from 0 to max_tokens_per_rank, different on each rank; None:
        all rows of tokens. Contiguous NumPy, torch or CuPy arrays, on this rank's device.

        Raises ArgumentError. Not collective: a refused batch is forgotten, and another may be prepared.
        """
        self._input = self._received = self._output = None
        config, columns = self._config, self._config.num_experts_per_token
        infos = [
            _table("tokens", tokens, config.hidden_dim, "hidden_dim"),
            _table("expert_ids", expert_ids, columns, "num_experts_per_token"),
            _table("weights", weights, columns, "num_experts_per_token"),
        ]
        most = config.max_tokens_per_rank
        if num_tokens is None:
            num_tokens = infos[0].shape[0]
        num_tokens = whole_number("num_tokens", num_tokens, 0, most)
        for name, info in zip(("tokens", "expert_ids", "weights"), infos, strict=True):
            if info.shape[0] < num_tokens:
                raise ArgumentError(f"{name} has {info.shape[0]} rows, fewer than num_tokens={num_tokens}: pass more")
        _require_type("tokens", infos[0], [config.dtype])
        _require_type("expert_ids", infos[1], [np.dtype(np.int32), np.dtype(np.int64)])
        _require_type("weights", infos[2], [np.dtype(np.float32)])
        self._input = tokens[:num_tokens], expert_ids[:num_tokens], weights[:num_tokens]

    def launch_dispatch(self) -> None:
        """Collective: send each token to the ranks of its experts, once to each; then :attr:`received` is there.

        Kernels run in the caller's current stream (torch's where tokens are a torch tensor, else CuPy's). The host
        waits for the number of arriving rows, not for the rows; with rings (see the context) it waits for the rows too.

        Raises HandleError if no batch was prepared, ArgumentError for invalid values (the Buffer's messages name the
        arrays x, topk_idx and topk_weights), before sending: prepare another batch, since the other ranks wait.
        PeerTimeout or RankFailed if a rank does not come: finalize the context.
        """
        if self._input is None:
            raise HandleError("there is no batch to dispatch: call prepare_inference() first")
        self._received = self._output = None
        self._received = self._buffer.dispatch(*self._input)

    @property
    def received(self) -> Received:
        """The rows that the dispatch brought to this rank's experts (:class:`ep_lib.moe.Received`): rows ``x`` ``[N,
        hidden_dim]``, sorted by source rank and token, ``topk_idx`` and ``topk_weights`` ``[N, num_experts_per_token]``
        of this rank's experts (numbered from 0; -1 and 0 for those elsewhere), and more. Raises HandleError before the
        dispatch."""
        if self._received is None:
            raise HandleError("nothing was received yet: call launch_dispatch() first")
        return self._received

    def launch_combine(self, expert_outputs: Any = None) -> None:
        """Collective: bring the experts' outputs back to their tokens' ranks and add them up, weighted.

        Without ``expert_outputs`` each expert returns its token unchanged, and a token's result is that token times its
        weights: each rank's row times the token's weight there (the float32 sum of the weights of its experts there),
        added in ascending order of ranks in float32, rounded once. With it, ``[N, hidden_dim]`` in the order of
        ``received.x``: for each row the sum of ``received.topk_weights[:, k]`` times the output of expert
        ``received.topk_idx[:, k]``, and these are summed unweighted. Both equal :func:`ep_lib.reference.combine`, bit
        for bit.

        Raises HandleError before the dispatch, ArgumentError, PeerTimeout and RankFailed.
        """
        received = self.received
        assert self._input is not None
        if expert_outputs is None:
            self._output = self._buffer.combine(received.x, received.handle, self._input[2])
        else:
            self._output = self._buffer.combine(expert_outputs, received.handle)

    def get_output_buffer(self) -> Any:
        """``[num_tokens, hidden_dim]`` in the config's dtype, an array of the same kind as tokens, owned by the caller:
        this rank's tokens after the combine, valid in stream order (``context.rank.synchronize()`` waits for it).
        Raises HandleError before the combine."""
        if self._output is None:
            raise HandleError("there is no output yet: call launch_combine() first")
        return self._output

    @property
    def rows_received(self) -> dict[str, int]:
        """The number of the dispatch's rows by path: "own" (this rank's own tokens), "p2p" and "network". The combine
        sends as many back. Raises HandleError before the dispatch."""
        rows = dict.fromkeys(WAYS, 0)
        for way, count in zip(self._ways, self.received.handle.recv_tokens_per_rank, strict=True):
            rows[way] += int(count)
        return rows


def _table(name: str, array: Any, columns: int, meaning: str) -> ArrayInfo:
    """The checked description of an array ``[rows, columns]``. Raises ArgumentError."""
    if not is_array(array):
        raise ArgumentError(f"{name} is {show(array)}; it must be a NumPy, torch or CuPy array")
    info = describe(array)
    if len(info.shape) != 2 or info.shape[1] != columns:
        raise ArgumentError(f"{name} has shape {info.shape}; it must be [num_tokens, {columns}], Config's {meaning}")
    return info


def _require_type(name: str, info: ArrayInfo, wanted: Sequence[np.dtype[Any]]) -> None:
    as_bits = info.kind == "cupy" and info.dtype == np.uint16 and wanted[0].name == "bfloat16"  # CuPy has no bfloat16
    if info.dtype not in wanted and not as_bits:
        names = " or ".join(dtype.name for dtype in wanted)
        raise ArgumentError(f"{name} has dtype {info.dtype.name}; it must be {names}: convert it")
