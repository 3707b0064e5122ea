"""benchmarks/fuzz.py: random expressions on the emulator, compared with a GPU, or with Python where there is none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import fuzz
import fuzz_cases
import numpy as np
import pytest
from fuzz_cases import F16, F32, I8, I32, U8, U64, Op

from ep_lib.jit import gxx

pytestmark = [pytest.mark.cuda_rules, pytest.mark.slow]


def test_a_hundred_random_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    """With NVRTC, which must take them all, where it is installed."""
    assert fuzz.main(["--count", str(fuzz.BATCH), "--workers", "1"]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.startswith(f"{fuzz.BATCH} of {fuzz.BATCH} cases, the emulator and ")


def test_a_difference_is_told_with_its_smallest_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here of a Python that takes an intrinsic inside of an expression for another one."""
    monkeypatch.setattr(fuzz.devices, "architecture", _no_gpu)
    seed, wrong = next(found for seed in range(10_000) for found in _intrinsics_inside(seed))
    code = fuzz_cases.case(seed).code
    families = fuzz_cases.OPERATIONS[wrong.gives]
    planted = [op._replace(value=lambda *_: 54321) if op is wrong else op for op in families["intrinsic"]]
    monkeypatch.setitem(families, "intrinsic", planted)
    assert fuzz.main(["--only", str(seed), "--workers", "1"]) == 1
    told = capsys.readouterr().out
    assert told.startswith(f"--only {seed}: ")
    smallest = told.partition("smallest part:\n")[2].splitlines()[0].strip()
    assert smallest.startswith(f"put(o, 0, {wrong.text.partition('{')[0]}")
    assert len(smallest) < len(code)
    assert "1 unexplained differences" in told


def _no_gpu(device: int) -> str:
    raise fuzz.BackendUnavailable("none")


def _intrinsics_inside(seed: int) -> list[tuple[int, Op]]:
    """Of a case of which Python knows all operations: what is there once."""
    case = fuzz_cases.case(seed)
    ops = [e.op for e in case.roots[0].parts() if e.op is not None]
    if not case.is_expression or case.open is not None or not all(op.value for op in ops):
        return []
    inside = [op for op in ops[1:] if op in fuzz_cases.OPERATIONS[op.gives].get("intrinsic", []) and ops.count(op) == 1]
    return [(seed, op) for op in inside if case.results[0] == op.gives]


def test_an_open_cast_is_explained_by_a_warning_and_its_value() -> None:
    seed = next(s for s in range(10_000) if fuzz_cases.case(s).code.startswith("put(o, 0, (u8)v.f32"))
    case = fuzz_cases.case(seed)
    operands = np.array([300.0, -1.0, np.nan, 7.0] * (fuzz_cases.LANES // 4), np.float32).view(np.uint32)
    ours = [np.full(fuzz_cases.LANES, 7, np.uint64), *(operands.astype(np.uint64),) * 2]
    gpu = [np.array([44, 0, 0, 7] * (fuzz_cases.LANES // 4), np.uint64), *ours[1:]]
    (found,) = fuzz.differences([case], fuzz.Ran(ours, frozenset([0])), gpu)
    assert found.explained
    (found,) = fuzz.differences([case], fuzz.Ran(ours, frozenset()), gpu)
    assert not found.explained
    gpu[0] = gpu[0] + np.uint64(1)
    (found,) = fuzz.differences([case], fuzz.Ran(ours, frozenset([0])), gpu)
    assert list(found.lanes[:4]) == [0, 1, 2, 3]
    assert not found.explained


def test_a_nan_equals_another_one() -> None:
    bits = np.array([0x7FC00000, 0xFFFFFFFF, 0x7F800000, 0x80000000], np.uint64)
    assert fuzz_cases.canonical(F32, bits).tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0x7F800000, 0x80000000]
    assert fuzz_cases.canonical(F16, np.array([0xFE01, 0x7C00], np.uint64)).tolist() == [0x7FFF, 0x7C00]
    assert fuzz_cases.canonical(U64, bits).tolist() == bits.tolist()


def test_a_product_is_joined_with_one_sum_at_most() -> None:
    """Elsewhere it says how it is rounded; and signed sums wrap around where more is computed with them."""
    x, y = (fuzz_cases.Expr(F32, None, leaf=f"v.f32{name}") for name in "ab")
    plus = next(op for op in fuzz_cases.OPERATIONS[F32]["arithmetic"] if op.text == "({0} + {1})")
    times = next(op for op in fuzz_cases.OPERATIONS[F32]["arithmetic"] if op.product)
    product = fuzz_cases.Expr(F32, times, (x, y))
    assert fuzz_cases.expression(0, product).code == "put(o, 0, MUL(v.f32a, v.f32b));"
    total = fuzz_cases.Expr(F32, plus, (product, x))
    assert fuzz_cases.expression(0, total).code == "put(o, 0, (__fmul_rn(v.f32a, v.f32b) + v.f32a));"
    i, b = (fuzz_cases.Expr(t, None, leaf=f"v.{t.name}a") for t in (I32, I8))
    add = next(op for op in fuzz_cases.OPERATIONS[I32]["arithmetic"] if op.takes == (I32, I8) and "+" in op.text)
    cast = next(op for op in fuzz_cases.OPERATIONS[U8]["cast"] if op.takes == (I32,))
    total = fuzz_cases.Expr(I32, add, (i, b))
    assert fuzz_cases.expression(0, total).code == "put(o, 0, (v.i32a + v.i8a));"
    low = fuzz_cases.Expr(U8, cast, (total,))
    assert fuzz_cases.expression(0, low).code == "put(o, 0, (u8)i32(u32(v.i32a) + u32(v.i8a)));"


def test_a_product_joined_otherwise_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side rounds twice here, as NVRTC does in ``c - (-a) * b``."""
    if gxx._contraction(is_clang=False) == ("-ffp-contract=off",):
        pytest.skip("this processor has no fused multiply-add")
    x, y, z = (fuzz_cases.Expr(F32, None, leaf=f"v.f32{name}") for name in "abc")
    op = next(op for op in fuzz_cases.OPERATIONS[F32]["fused"] if op.text == "(MUL({0}, {1}) + {2})")
    case = fuzz_cases.expression(0, fuzz_cases.Expr(F32, op, (x, y, z)))
    twice = fuzz.emulated(fuzz.batch_of([case], rounded=True), "").values
    wrong = [twice[0] ^ np.uint64(1)]
    for there, told in ((twice, {0}), (wrong, set())):
        monkeypatch.setattr(fuzz.Comparison, "there", lambda *_, there=there, **__: [there])
        with ThreadPoolExecutor(1) as pool:
            both = fuzz.Comparison(pool, "")
            found = both.differences([[case]], list(both.emulated([[case]])))
            assert len(found) == 1
            assert both.joined_otherwise(found) == told
