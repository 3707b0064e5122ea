"""What the tests of PCIe mode run: everything a Buffer does, once, on any fabric, compared with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ep_lib import Buffer, Fabric, Rank, reference
from ep_lib.memory.arrays import like
from ep_lib.moe.pcie.memory import packet_bytes
from support import buffer_cases
from support.dispatch_combine_cases import BF16, Case, assert_same, make_case, to_input, to_numpy

FABRICS = ["rc", "srd", Fabric("rc", ranks_per_node=2), Fabric("srd", ranks_per_node=2, p2p=False, queue_depth=2)]
FABRIC_NAMES = ["rc", "srd", "rc-2", "srd-2-nop2p"]
at_the_edge = pytest.mark.parametrize(
    ("pattern", "tokens"),
    [([[2, -1]], 23), ([[-1, -1]], 9), ([[0, 1], [-1, -1], [3, 2]], 40), ([[1, 1]], 7), ([[0, 1]], 0), ([[3, 0]], 1)],
    ids=["all to one rank", "nobody", "some", "one expert twice", "no tokens", "one token"],
)


def smallest_bounce(case: Case) -> int:
    """Bytes of a ring for one token."""
    return packet_bytes(case.hidden * (2 if case.dtype == "bfloat16" else 4), 0, case.top_k)


def pcie_arguments(case: Case, variety: int) -> dict[str, Any]:
    """Arguments of a Buffer in PCIe mode; merged or not, and several sizes of rings, by ``variety``."""
    merged = variety % 2 == 1
    bounce = [None, smallest_bounce(case), 5 * smallest_bounce(case) + 7][variety // 2 % 3]
    sms = [1, 3, 2][variety // 6 % 3] if merged else [2, 6, 4][variety // 6 % 3]
    arguments = {"num_sms": sms, "bounce_bytes": bounce, "merge_sender_receiver": merged}
    return {**case.buffer_arguments(), "allow_nvlink_for_normal_mode": False, **arguments}


def run_case(rank: Rank, case: Case, variety: int, kind: str = "native") -> dict[str, Any]:
    """Everything a Buffer does, once, in PCIe mode."""
    return buffer_cases.run_case(rank, case, kind, pcie_arguments(case, variety))


def fp8_input(rank: Rank, array: Any, kind: str) -> Any:
    """FP8 rows or their scales as a rank's kernels can take them: CuPy knows FP8 as uint8."""
    if rank.backend == "emulator":
        return like(kind, array) if kind == "torch" else array
    on_device = rank.to_device(array.view(np.uint8) if array.dtype == reference.FP8 else array)
    if kind == "native":
        return on_device
    import torch

    tensor = like("torch", on_device)
    return tensor.view(torch.float8_e4m3fn) if array.dtype == reference.FP8 else tensor


def fp8_output(pair: Any) -> list[Any]:
    """recv.x of an FP8 dispatch as NumPy arrays: rows and scales."""
    rows, scales = pair
    if type(rows).__module__.startswith("torch"):
        import torch

        assert rows.dtype == torch.float8_e4m3fn
        rows = rows.view(torch.uint8)
    return [to_numpy(rows).view(reference.FP8), to_numpy(scales)]


def run_fp8(
    rank: Rank, case: Case, variety: int | None, kind: str = "native", arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    """FP8 rows there, BF16 rows back; with other ``arguments``, in PCIe mode, or by direct writes if ``variety`` is
    None."""
    x = tuple(fp8_input(rank, part, kind) for part in reference.quantize_fp8(case.xs[rank.rank]))
    idx, weights = (to_input(rank, a[rank.rank], kind) for a in (case.topk_idx, case.topk_weights))
    if arguments is None:
        arguments = case.buffer_arguments() if variety is None else pcie_arguments(case, variety)
    with Buffer(rank, **arguments) as buffer:
        recv = buffer.dispatch(x, idx, weights)
        again = fp8_output(buffer.dispatch(x, handle=recv.handle).x)
        q, scales = fp8_output(recv.x)
        y = np.nan_to_num(reference.dequantize_fp8(q, scales)).astype(case.xs[rank.rank].dtype)
        out = to_numpy(buffer.combine(to_input(rank, y, kind), recv.handle), case.dtype)
    found = {"q": q, "scales": scales, "again_q": again[0], "again_s": again[1], "y": y, "out": out}
    return {**found, "topk_idx": to_numpy(recv.topk_idx), "weights": to_numpy(recv.topk_weights)}


def check_fp8(case: Case, results: list[dict[str, Any]]) -> None:
    """All ranks' results against the oracle, bit for bit."""
    pairs = [reference.quantize_fp8(x) for x in case.xs]
    qs, scales = (
        reference.dispatch(list(part), case.topk_idx, case.topk_weights, num_experts=case.num_experts)
        for part in zip(*pairs, strict=True)
    )
    outs = case.expected_combine([r["y"] for r in results], weighted=False)
    for rank, result in enumerate(results):
        for name, want in (("q", qs), ("again_q", qs), ("scales", scales), ("again_s", scales)):
            assert_same(result[name], want[rank].x, f"rank {rank}, {name}")
        assert_same(result["topk_idx"], qs[rank].topk_idx, f"rank {rank}, topk_idx")
        assert_same(result["weights"], qs[rank].topk_weights, f"rank {rank}, weights")
        assert_same(result["out"], outs[rank], f"rank {rank}, combine")


def fp8_case(seed: int, ranks: int, dtype: str = "bfloat16") -> Case:
    """Rows of 128 or 384 elements, some of them zeros and NaN."""
    rng, case = np.random.default_rng(seed), make_case(seed, world_size=ranks, dtype=dtype)
    hidden = int(rng.choice([128, 384]))
    xs = [rng.standard_normal((len(x), hidden)).astype(x.dtype) for x in case.xs]
    for x in xs:
        x[: len(x) // 4, :128] = 0
        x[: len(x) // 8, 200:201] = np.nan
    return Case(**{**vars(case), "hidden": hidden, "xs": xs})


def routed(pattern: list[list[int]], ranks: int, tokens: int) -> Case:
    """Every rank sends ``tokens`` tokens with the choices of ``pattern`` in turn; one expert per rank."""
    rng = np.random.default_rng(3)
    idx = np.array([pattern[t % len(pattern)] for t in range(tokens)], np.int64).reshape(tokens, len(pattern[0]))
    return Case(
        ranks,
        idx.shape[1],
        128,
        max(tokens, 1),
        "bfloat16",
        [rng.standard_normal((tokens, 128)).astype(BF16) for _ in range(ranks)],
        [idx.copy() for _ in range(ranks)],
        [rng.standard_normal(idx.shape).astype(np.float32) for _ in range(ranks)],
    )


def heap_use(rank: Rank, arguments: dict[str, Any]) -> int:
    """Bytes that a Buffer takes of the symmetric heap."""

    def used() -> int:
        return rank.heap_bytes - sum(end - begin for begin, end in rank._heap._free)

    before = used()
    with Buffer(rank, **arguments):
        return used() - before
