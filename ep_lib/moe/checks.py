"""Checks that refuse bad input before any kernel runs, and before any data is sent."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ep_lib.errors import ArgumentError, HandleError
from ep_lib.memory.arrays import BFLOAT16, Array, ArrayInfo, describe, is_array, like
from ep_lib.moe.config import FLOAT32, VECTOR_BYTES, WARP, BufferConfig
from ep_lib.moe.formats import (
    CASTS,
    FP8,
    FP8_FLOAT32,
    FP8_GROUP,
    FP8_UE8M0,
    MXFP8_GROUP,
    NVFP4,
    PLAIN,
    UINT8,
    RowFormat,
    row_formats,
)
from ep_lib.moe.handle import DispatchHandle
from ep_lib.moe.mode import ExpertRows, Payload
from ep_lib.require import at_least_one, flag, index, refuse, show

UINT16 = np.dtype(np.uint16)
INDEX_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


class InputChecks:
    """Checks arrays against a Buffer's config and the device its kernels run on ("cpu" or "cuda:N")."""

    def __init__(self, config: BufferConfig, device: str) -> None:
        self._config = config
        self._device, self._kind = device, "numpy" if device == "cpu" else "cupy"
        self.forms = row_formats(config)
        self.form_names = ["" if form is None else form.name for form in self.forms]

    def payload(self, x: Any, quantize: Any = None) -> Payload:
        """Rows of the Buffer's dtype, or rows of few bits and their scales; up to max_tokens. ``quantize``: the cast
        before sending, if any."""
        if quantize is not None:
            return self._cast_payload(x, quantize)
        if isinstance(x, tuple):
            return self._scaled_payload(x)
        info = self.rows("x", x, None)
        if info.shape[0] > self._config.max_tokens:
            self._refuse_tokens("x", info.shape[0])
        return Payload(info, None)

    def rows(self, name: str, array: Array, num_rows: int | None, *, narrow: bool = False) -> ArrayInfo:
        """``[num_rows, hidden]`` (any number of rows if None) of the Buffer's dtype, 16-byte aligned; if ``narrow``, of
        hidden or fewer columns that fill whole vectors."""
        info = describe_here(name, array, self._device)
        hidden, wanted = self._config.hidden, self._config.dtype
        vector = VECTOR_BYTES // wanted.itemsize
        columns = info.shape[1] if len(info.shape) == 2 else 0
        if columns != hidden and not (narrow and 0 < columns < hidden and columns % vector == 0):
            rows = "T" if num_rows is None else str(num_rows)
            fewer = f", or fewer columns, a multiple of {vector}" if narrow else ""
            raise ArgumentError(f"{name} has shape {info.shape}; it must be ({rows}, {hidden}): [rows, hidden]{fewer}")
        as_bits = info.kind == "cupy" and wanted == BFLOAT16 and info.dtype == UINT16
        if info.dtype != wanted and not as_bits:
            hint = " (CuPy has no bfloat16: view it as uint16)" if info.kind == "cupy" else ""
            if info.dtype == FP8:
                hint = ", or FP8 with its scales: (x, scales)"
            elif info.dtype == UINT8:
                hint = ", or NVFP4 with its scales: (x, scales)"
            raise ArgumentError(
                f"{name} has dtype {info.dtype.name}; this Buffer carries {self._config.dtype.name}{hint}: convert it, "
                "or make the Buffer with another dtype="
            )
        if info.strides_bytes is not None or (info.shape[0] and info.address % VECTOR_BYTES):
            _refuse_vectors(name, info)
        return info

    def _cast_payload(self, x: Any, quantize: Any) -> Payload:
        config = self._config
        if not isinstance(quantize, str) or quantize not in CASTS:
            refuse("quantize", quantize, f"None or one of {', '.join(map(repr, CASTS))}")
        if isinstance(x, tuple):
            raise ArgumentError(f"quantize={quantize!r} casts rows of bfloat16, and x is cast already: leave it out")
        if config.dtype != BFLOAT16:
            raise ArgumentError(f"quantize casts rows of bfloat16, and this Buffer carries {config.dtype.name}")
        code, name = CASTS[quantize]
        form = self.forms[code]
        if form is None:
            group = FP8_GROUP if code <= FP8_UE8M0 else MXFP8_GROUP
            raise ArgumentError(
                f"quantize={quantize!r} takes rows of a multiple of {group} elements; hidden is {config.hidden}"
            )
        return Payload(self.payload(x).x, None, form, cast=name)

    def _scaled_payload(self, x: tuple[Any, ...]) -> Payload:
        hidden = self._config.hidden
        if len(x) not in (2, 3):
            raise ArgumentError(f"x is a tuple of {len(x)}; FP8 input is a pair: (x float8, scales)")
        info, scales = describe_here("x[0]", x[0], self._device), describe_here("the scales of x", x[1], self._device)
        columns = info.shape[1] if len(info.shape) == 2 else 0
        is_fp4 = info.dtype == UINT8 and columns == hidden // 2
        if len(x) == 3 and not is_fp4:
            raise ArgumentError("x is a tuple of 3; FP8 input is a pair: (x float8, scales)")
        if info.dtype != FP8 and not is_fp4 and not (info.kind == "cupy" and info.dtype == UINT8):
            hint = " (CuPy has no float8: view it as uint8)" if info.kind == "cupy" else ""
            raise ArgumentError(
                f"x[0] has dtype {info.dtype.name}; FP8 input is float8_e4m3fn{hint}, (T, {hidden}), and NVFP4 input "
                f"uint8, (T, {hidden // 2}) with two numbers in each; its shape is {info.shape}"
            )
        if columns != hidden and not is_fp4:
            raise ArgumentError(f"x[0] has shape {info.shape}; it must be (T, {hidden}): [rows, hidden]")
        form = self._form_of(info, scales, is_fp4, has_row_scale=len(x) == 3)
        if info.strides_bytes is not None or (info.shape[0] and info.address % VECTOR_BYTES):
            _refuse_vectors("x[0]", info)
        if scales.strides_bytes is not None:
            _refuse_strides("the scales of x", scales)
        row_scale = None
        if form.has_row_scale:
            row_scale = describe_here("the row scales of x", x[2], self._device)
            if row_scale.dtype != FLOAT32 or row_scale.shape != info.shape[:1]:
                raise ArgumentError(
                    f"the row scales of x are {row_scale.dtype.name} {row_scale.shape}; they must be float32 "
                    f"{info.shape[:1]}: one for each row"
                )
            if row_scale.strides_bytes is not None:
                _refuse_strides("the row scales of x", row_scale)
        if info.shape[0] > self._config.max_tokens:
            self._refuse_tokens("x[0]", info.shape[0])
        return Payload(info, scales, form, row_scale)

    def _form_of(self, info: ArrayInfo, scales: ArrayInfo, is_fp4: bool, *, has_row_scale: bool) -> RowFormat:
        """The form of rows with these types and shapes of numbers and scales. Raises ArgumentError."""
        hidden, tokens = self._config.hidden, info.shape[0]
        for form in self.forms[FP8_FLOAT32:]:
            if (
                form is not None
                and (form.code >= NVFP4) is is_fp4
                and form.has_row_scale is has_row_scale
                and scales.dtype in form.scale_dtypes
                and scales.shape == (tokens, form.scale_columns)
            ):
                return form
        got = f"the scales of x are {scales.dtype.name} {scales.shape}"
        if is_fp4 and (form := self.forms[NVFP4]) is not None:
            wanted = (tokens, form.scale_columns)
            raise ArgumentError(f"{got}; they must be float8_e4m3fn {wanted}: one for every 16 elements of a row")
        if self.forms[FP8_FLOAT32] is None:
            raise ArgumentError(
                f"FP8 input needs a scale for every {FP8_GROUP} elements, and hidden is {hidden}, which is not a "
                f"multiple (MXFP8: for every {MXFP8_GROUP}); make the Buffer with "
                f"hidden={-(-hidden // FP8_GROUP) * FP8_GROUP}, or pass {self._config.dtype.name}"
            )
        first, *others = [form for form in self.forms[FP8_FLOAT32:NVFP4] if form is not None]
        more = [f"{form.scale_dtypes[0].name} {(tokens, form.scale_columns)}" for form in others]
        raise ArgumentError(
            f"{got}; they must be float32 {(tokens, first.scale_columns)}: one for every {FP8_GROUP} elements of a row,"
            f" or as UE8M0 or MXFP8 {', '.join(more)}"
        )

    def _refuse_tokens(self, name: str, num_tokens: int) -> NoReturn:
        raise ArgumentError(
            f"{name} has {num_tokens} tokens, but this Buffer was made for at most "
            f"max_tokens={self._config.max_tokens} a rank; send fewer, or make a larger Buffer"
        )

    def topk_idx(self, array: Array, num_tokens: int, *, values: bool) -> ArrayInfo:
        """``[T, top_k]`` expert ids; with ``values`` also their range, -1 to num_experts - 1."""
        info = describe_here("topk_idx", array, self._device)
        if info.dtype not in INDEX_TYPES:
            raise ArgumentError(f"topk_idx has dtype {info.dtype.name}; expert ids must be int64 or int32")
        if info.shape != (num_tokens, self._config.top_k) or info.strides_bytes is not None:
            self._refuse_topk("topk_idx", info, num_tokens)
        if values:
            refuse_choices(self.view(info), self._config.num_experts)
        return info

    def topk_weights(self, array: Array, num_tokens: int, *, values: bool) -> ArrayInfo:
        """``[T, top_k]`` float32; with ``values`` also that all are finite, even where topk_idx is -1."""
        info = describe_here("topk_weights", array, self._device)
        if info.dtype != FLOAT32:
            raise ArgumentError(f"topk_weights has dtype {info.dtype.name}; weights must be float32")
        if info.shape != (num_tokens, self._config.top_k) or info.strides_bytes is not None:
            self._refuse_topk("topk_weights", info, num_tokens)
        if values:
            refuse_weights(self.view(info))
        return info

    def view(self, array: ArrayInfo) -> Array:
        """A NumPy or CuPy array on this rank's device."""
        return array.owner if array.kind == self._kind else like(self._kind, array.owner)

    def _refuse_topk(self, name: str, info: ArrayInfo, num_tokens: int) -> NoReturn:
        if info.shape != (num_tokens, self._config.top_k):
            raise ArgumentError(
                f"{name} has shape {info.shape}; it must be ({num_tokens}, {self._config.top_k}): "
                f"a row for each token that this rank sends, and the Buffer's top_k={self._config.top_k}"
            )
        _refuse_strides(name, info)

    @staticmethod
    def expert_rows(handle: DispatchHandle, topk_weights: Any) -> ExpertRows:
        """The part of the handle for a combine of rows by expert. Raises HandleError and ArgumentError."""
        if handle._by_expert is None:
            raise HandleError("sorted_by_expert takes the handle of a dispatch that had it as well")
        if topk_weights is not None:
            raise ArgumentError(
                "topk_weights cannot be given with sorted_by_expert: a row's weights are at its experts, multiply by "
                "recv.by_expert.weights there"
            )
        return handle._by_expert

    def options(
        self,
        num_worst_tokens: int,
        expert_alignment: int,
        sorted_by_expert: bool,
        async_finish: bool,
        copy: bool,
        column_major_scales: bool,
        form: RowFormat | None,
    ) -> tuple[int, int]:
        """Checks the other options of a dispatch; returns num_worst_tokens and expert_alignment as whole numbers."""
        if not type(sorted_by_expert) is type(async_finish) is type(copy) is type(column_major_scales) is bool:
            require_flags(
                sorted_by_expert=sorted_by_expert,
                async_finish=async_finish,
                copy=copy,
                column_major_scales=column_major_scales,
            )
        if column_major_scales:
            self._require_columns(form)
        if not copy and self._config.receive_areas == 0:
            raise ArgumentError(
                "copy=False: with receive_areas=0 rows arrive where the next combine's come back, so a view of them "
                "would not last; leave copy out, or make the Buffer with receive_areas=1"
            )
        if type(num_worst_tokens) is not int or type(expert_alignment) is not int:
            if num_worst_tokens is not None and index(num_worst_tokens) is None:
                refuse("num_worst_tokens", num_worst_tokens, "a whole number")
            num_worst_tokens = index(num_worst_tokens) or 0
            expert_alignment = at_least_one("expert_alignment", expert_alignment)
        if not 1 <= expert_alignment < 2**31:
            at_least_one("expert_alignment", expert_alignment)
        if not num_worst_tokens:
            return 0, expert_alignment
        if not 1 <= num_worst_tokens <= self._config.max_rows:
            raise ArgumentError(
                f"num_worst_tokens is {num_worst_tokens}; this Buffer receives 1 to world_size * max_tokens = "
                f"{self._config.max_rows} rows"
            )
        return num_worst_tokens, expert_alignment

    def _require_columns(self, form: RowFormat | None) -> None:
        if form is None or form.code == PLAIN:
            raise ArgumentError("column_major_scales: x has no scales; pass (x, scales)")
        if form.code >= NVFP4:
            raise ArgumentError("column_major_scales: scales of NVFP4 only come by rows; leave it out")

    def as_fp8(self, quantize: Any, x: ArrayInfo, in_place: bool, sorted_by_expert: bool) -> bool:
        """Whether a combine sends rows as FP8. ``in_place``: x is combine_input's. Raises ArgumentError."""
        if quantize is None:
            return False
        config = self._config
        if not isinstance(quantize, str) or quantize != "ue8m0":
            refuse("quantize", quantize, "None or 'ue8m0'")
        if config.dtype != BFLOAT16:
            raise ArgumentError(f"quantize casts rows of bfloat16, and this Buffer carries {config.dtype.name}")
        if x.shape[1] % FP8_GROUP:
            raise ArgumentError(f"quantize takes rows of a multiple of {FP8_GROUP} elements; x has {x.shape[1]}")
        if sorted_by_expert:
            raise ArgumentError("quantize: not with sorted_by_expert, whose sums are read from where they are made")
        if in_place:
            raise ArgumentError("quantize: rows in combine_input are read from there as they are; pass other memory")
        return True

    def sum_order(self, order: Any) -> bool:
        """Whether combine sums in the order of choices, in which a warp sorts a token's ranks."""
        if order == "ranks":
            return False
        if order != "choices":
            refuse("sum_order", order, "'ranks' or 'choices'")
        most = min(self._config.top_k, self._config.world_size)
        if most > WARP:
            raise ArgumentError(
                f"sum_order='choices': a token goes to {most} ranks here, and a warp sorts {WARP}: leave it out"
            )
        return True

    def bias(self, bias: Any, num_tokens: int, width: int) -> list[ArrayInfo]:
        """None, one array or a pair of them, each ``[num_tokens, width]``: as a list."""
        biases = () if bias is None else tuple(bias) if isinstance(bias, tuple) else (bias,)
        if len(biases) > 2:
            raise ArgumentError(f"bias is a tuple of {len(biases)}; pass one array or a pair")
        found = []
        for array in biases:
            info = self.rows("bias", array, num_tokens, narrow=True)
            if info.shape[0] != num_tokens:
                raise ArgumentError(f"bias has {info.shape[0]} rows; the handle's dispatch sent {num_tokens} tokens")
            if info.shape[1] != width:
                raise ArgumentError(f"bias has {info.shape[1]} columns, x {width}; they are added up: pass as many")
            found.append(info)
        return found


def require_flags(**flags: Any) -> None:
    """Raises ArgumentError for an option that is no bool: a text such as "False" would be true."""
    for name, value in flags.items():
        if type(value) is not bool:
            flag(name, value)


def _refuse_strides(name: str, info: ArrayInfo) -> NoReturn:
    raise ArgumentError(
        f"{name} is not contiguous: shape {info.shape}, strides {info.strides_bytes} bytes; pass "
        f"{name}.contiguous() (torch) or numpy.ascontiguousarray({name})"
    )


def _refuse_vectors(name: str, info: ArrayInfo) -> NoReturn:
    if info.strides_bytes is not None:
        _refuse_strides(name, info)
    raise ArgumentError(
        f"{name} begins at address 0x{info.address:x}, which is not a multiple of {VECTOR_BYTES} bytes; "
        "pass a copy of it"
    )


def refuse_choices(ids: Array, num_experts: int) -> None:
    """Raises ArgumentError with the first id that is neither an expert's nor -1. Waits for CuPy's kernels."""
    bad = (ids < -1) | (ids >= num_experts)
    if bool(bad.any()):
        token, k, value = _first(bad, ids)
        raise ArgumentError(
            f"topk_idx[{token}, {k}] is {value}; expert ids go from 0 to {num_experts - 1}, and -1 means not routed"
        )


def refuse_weights(weights: Array) -> None:
    """Raises ArgumentError with the first weight that is not finite. Waits for CuPy's kernels."""
    bad = ~np.isfinite(weights)
    if bool(bad.any()):
        token, k, value = _first(bad, weights)
        raise ArgumentError(
            f"topk_weights[{token}, {k}] is {value}; weights must be finite, also where topk_idx is -1: use 0 there"
        )


def _first(bad: Array, values: Array) -> tuple[int, int, Any]:
    """Row, column and value of the first True of ``bad`` ``[T, K]``."""
    index = int(bad.ravel().argmax())
    row, column = divmod(index, bad.shape[1])
    return row, column, values[row, column].item()


def describe_here(name: str, array: Array, device: str) -> ArrayInfo:
    """The ArrayInfo of ``array``. Raises ArgumentError if it is no array, or not on the kernels' device ("cpu" or
    "cuda:N")."""
    try:
        info = describe(array)
    except ArgumentError as error:
        if not is_array(array):
            raise ArgumentError(f"{name} is {show(array)}; it must be a NumPy, torch or CuPy array") from None
        raise ArgumentError(f"{name}: {error}") from error
    if info.device != device:
        place = "the CPU (the emulator runs there)" if device == "cpu" else device
        raise ArgumentError(f"{name} is on {info.device}; this rank's kernels run on {place}: copy it there first")
    return info
