"""Differentiable dispatch and combine: gradients against finite differences and against the formula, and refusals."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import functools
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.refusals import refused
from support.torch_cases import device_of, whole_world

import ep_lib
from ep_lib.errors import ArgumentError, BufferClosedError, HandleError
from ep_lib.moe import Buffer, autograd, combine, dispatch

SHAPE: dict[str, Any] = {"num_experts": 4, "top_k": 2, "hidden": 8, "max_tokens": 4, "dtype": "float32"}
# A token to two ranks, one with half a choice, one with one expert twice, one that goes nowhere.
CHOICES = [[0, 2], [1, -1], [3, 3], [-1, -1]]
# dispatch and combine are linear in rows and in weights: a wide step costs no accuracy, and a narrow one would
STEP = {"eps": 0.125, "atol": 1e-4, "rtol": 1e-4}


def inputs_of(rank: ep_lib.Rank, number: int, tokens: int = 4, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    """x, topk_idx and topk_weights of rank ``number``; the first two tokens less on odd ranks."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(tokens, SHAPE["hidden"], generator=generator).to(dtype)
    weights = torch.rand(tokens, SHAPE["top_k"], generator=generator)
    idx = torch.tensor(CHOICES).roll(number, 0)[:tokens].contiguous()
    device = device_of(rank)
    return x.to(device).requires_grad_(), idx.to(device), weights.to(device).requires_grad_()


def check_dispatch(rank: ep_lib.Rank) -> bool:
    idx = torch.tensor(CHOICES[:2]).roll(rank.rank, 0).to(device_of(rank))
    args = [inputs_of(rank, r, tokens=2) for r in range(rank.world_size)]
    with Buffer(rank, **(SHAPE | {"hidden": 4})) as buffer:

        def run(x: Any, weights: Any) -> tuple[Any, ...]:
            came = dispatch(buffer, x, idx, weights)
            return came.x, came.topk_weights

        xs = [a[0].detach()[:, :4].clone().requires_grad_() for a in args]
        return torch.autograd.gradcheck(whole_world(rank, run, 2), (*xs, *(a[2] for a in args)), **STEP)


def check_combine(rank: ep_lib.Rank) -> bool:
    """With weights: their gradient needs the rows, and goes back over ranks."""
    idx = torch.tensor([[0, 2], [3, 3]]).roll(rank.rank, 0).to(device_of(rank))
    args = [inputs_of(rank, r, tokens=2) for r in range(rank.world_size)]
    with Buffer(rank, **(SHAPE | {"hidden": 4})) as buffer:
        ticket = dispatch(buffer, args[rank.rank][0].detach()[:, :4].clone(), idx).handle

        def run(rows: Any, weights: Any) -> tuple[Any, ...]:
            return (combine(buffer, rows, ticket, weights),)

        generator = torch.Generator().manual_seed(5)
        rows = [
            torch.randn(n, 4, generator=generator).to(device_of(rank)).requires_grad_()
            for n in rank.all_gather(ticket.handle.num_recv_tokens)
        ]
        return torch.autograd.gradcheck(whole_world(rank, run, 2), (*rows, *(a[2] for a in args)), **STEP)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Input #.*requires gradient and is not a double precision")
@pytest.mark.parametrize("check", [check_dispatch, check_combine])
def test_gradcheck_of_the_whole_world(check: Callable[..., bool]) -> None:
    assert ep_lib.spawn(check, 2, "emulator") == [True, True]


def formula(rank: ep_lib.Rank, dtype_name: str, **ways: Any) -> None:
    """Experts that multiply by 2: gradients are known in closed form. By handle as well, and with odd layouts."""
    dtype = getattr(torch, dtype_name)
    tokens = 4 - 2 * (rank.rank % 2)
    x, idx, weights = inputs_of(rank, rank.rank, tokens, dtype)
    with Buffer(rank, **(SHAPE | {"dtype": dtype, **ways})) as buffer:
        came = dispatch(buffer, x.t().contiguous().t(), idx, weights)
        rows = 2 * came.x.float() * came.topk_weights.sum(dim=1, keepdim=True)
        out = combine(buffer, rows.to(dtype), came.handle)
        again = dispatch(buffer, x, handle=came.handle, topk_weights=weights)
        doubled = combine(buffer, again.x, again.handle, weights)
        factor = torch.randn(tokens, SHAPE["hidden"], generator=torch.Generator().manual_seed(9)).to(x.device)
        chosen = (idx >= 0).float()
        total = (weights * chosen).sum(dim=1, keepdim=True).detach()
        close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.05}
        torch.testing.assert_close(out.float(), 2 * x.float() * total, **close)
        torch.testing.assert_close(doubled.float(), x.float() * total, **close)
        # A gradient of one number in all places has strides of 0: kernels cannot read it as it is.
        for result, gain in ((out, 2.0), (doubled, 1.0)):
            for seed in (factor.to(dtype), torch.ones(1, 1, device=x.device, dtype=dtype).expand_as(factor)):
                gradient = torch.autograd.grad(result, (x, weights), seed, retain_graph=True)
                torch.testing.assert_close(gradient[0].float(), gain * seed.float() * total, **close)
                products = (gain * seed.float() * x.float()).sum(dim=1, keepdim=True) * chosen
                torch.testing.assert_close(gradient[1], products.detach(), **close)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_those_of_the_formula(dtype: str) -> None:
    ep_lib.spawn(formula, 2, "emulator", args=(dtype,))


def grouped(rank: ep_lib.Rank) -> None:
    """Rows grouped by expert: what they give, and the gradients, are those of rows as they came, and of both added."""
    x, idx, weights = inputs_of(rank, rank.rank, 4 - 2 * (rank.rank % 2), torch.float32)
    chosen = (idx >= 0).float()
    total = (weights * chosen).sum(dim=1, keepdim=True).detach()
    with Buffer(rank, **SHAPE) as buffer:
        for worst in (0, 8):
            beside = {} if worst else {"async_finish": True}
            came = dispatch(
                buffer, x, idx, weights, sorted_by_expert=True, expert_alignment=3, num_worst_tokens=worst, **beside
            )
            if came.event is not None:
                came.event.current_stream_wait()
                came.event.synchronize()
            sorted_rows = came.by_expert
            counts = (sorted_rows.offsets[1:] - sorted_rows.offsets[:-1]).tolist()
            assert counts == came.tokens_per_expert.tolist() and all(count % 3 == 0 for count in counts)
            by_expert = combine(
                buffer, 2 * sorted_rows.x * sorted_rows.weights.unsqueeze(1), came.handle, sorted_by_expert=True
            )
            as_came = combine(buffer, came.x * came.topk_weights.sum(dim=1, keepdim=True), came.handle)
            torch.testing.assert_close(by_expert, 2 * x * total)
            torch.testing.assert_close(as_came, x * total)
            seed = torch.randn(x.shape, generator=torch.Generator().manual_seed(9)).to(x.device)
            for result, gain in ((by_expert, 2.0), (by_expert + as_came, 3.0)):
                gradient = torch.autograd.grad(result, (x, weights), seed, retain_graph=True)
                torch.testing.assert_close(gradient[0], gain * seed * total)
                wanted = (gain * seed * x).sum(dim=1, keepdim=True) * chosen
                torch.testing.assert_close(gradient[1], wanted.detach(), atol=1e-5, rtol=1e-5)
        with pytest.raises(ArgumentError, match="exclude each other"):
            dispatch(buffer, x, idx, weights, async_finish=True, num_worst_tokens=8)
        with pytest.raises(ArgumentError, match="topk_weights cannot be given"):
            combine(buffer, sorted_rows.x, came.handle, weights, sorted_by_expert=True)


def test_gradients_of_rows_grouped_by_expert() -> None:
    ep_lib.spawn(grouped, 2, "emulator")


@pytest.mark.extended
def test_gradients_in_pcie_mode() -> None:
    ways = {"allow_nvlink_for_normal_mode": False, "num_sms": 4}
    ep_lib.spawn(functools.partial(formula, **ways), 2, "emulator", args=("float32",))


def test_gradients_where_rows_stay_where_they_arrived() -> None:
    ep_lib.spawn(functools.partial(formula, receive_areas=3), 2, "emulator", args=("bfloat16",))


def weights_come_back_exactly(rank: ep_lib.Rank) -> None:
    """Through a bfloat16 Buffer, whose rows are narrower than what has to travel."""
    shape = {"num_experts": 8, "top_k": 5, "hidden": 8, "max_tokens": 3}
    idx = torch.tensor([[0, 4, 1, 7, -1], [5, 5, 2, 0, 3], [6, -1, -1, -1, 6]]).to(device_of(rank))
    wanted = torch.randn(3, 5, generator=torch.Generator().manual_seed(rank.rank)).exp().to(idx.device) / 3
    wanted[0, 0], wanted[1, 0] = float("inf"), 1e-30
    with Buffer(rank, **shape) as buffer:
        came = dispatch(buffer, torch.zeros(3, 8, dtype=torch.bfloat16, device=idx.device), idx, wanted.nan_to_num(3.0))
        values = came.topk_weights.clone()
        values[values == 3.0] = float("inf")
        got = autograd.return_weights(buffer, came.handle.handle, values)
    wanted.masked_fill_(idx < 0, 0)
    finite = wanted.isfinite()
    assert torch.equal(got[finite], wanted[finite]) and not got[~finite].isfinite().any() and not finite.all()


def test_weights_come_back_exactly() -> None:
    ep_lib.spawn(weights_come_back_exactly, 2, "emulator")


def nothing_to_do(rank: ep_lib.Rank) -> None:
    """Rank 0 sends nothing, rank 1 receives nothing, no expert touches its rows: backward still runs everywhere."""
    device = device_of(rank)
    with Buffer(rank, **SHAPE) as buffer:
        tokens = 2 * rank.rank
        x = torch.ones(tokens, SHAPE["hidden"], device=device, requires_grad=True)
        idx = torch.tensor([[0, 1], [1, 0]], device=device)[:tokens]
        weights = torch.ones(tokens, 2, device=device, requires_grad=True)
        came = dispatch(buffer, x, idx, weights)
        assert came.x.shape[0] == 2 * (1 - rank.rank)
        out = combine(buffer, torch.ones_like(came.x), came.handle)
        out.sum().backward()
        assert x.grad is not None and not x.grad.any() and x.grad.shape == x.shape
        assert weights.grad is not None and not weights.grad.any()


def test_ranks_without_work_take_part_in_backward() -> None:
    ep_lib.spawn(nothing_to_do, 2, "emulator")


def fp8_with_weights(rank: ep_lib.Rank) -> None:
    """FP8 rows have no gradient; the weights that travel with them do."""
    x = torch.ones(2, 128, device=device_of(rank))
    idx = torch.tensor([[0, 2], [1, -1]], device=x.device)
    weights = torch.rand(2, 2, device=x.device, requires_grad=True)
    pair = (x.to(torch.float8_e4m3fn), torch.ones(2, 1, device=x.device))
    with Buffer(rank, **(SHAPE | {"hidden": 128})) as buffer:
        came = dispatch(buffer, pair, idx, weights)
        assert came.x[0].dtype == torch.float8_e4m3fn and not came.x[0].requires_grad
        rows = came.x[0].float() * came.x[1] * came.topk_weights.sum(dim=1, keepdim=True)
        combine(buffer, rows, came.handle).sum().backward()
        torch.testing.assert_close(weights.grad, 128.0 * (idx >= 0))
        for part in (0, 1):
            wrong = [pair[0].clone(), pair[1].clone()]
            wrong[part].requires_grad_()
            with pytest.raises(ArgumentError, match="x is FP8 and requires a gradient"):
                dispatch(buffer, tuple(wrong), idx, weights)
            with torch.no_grad():
                dispatch(buffer, tuple(wrong), idx, weights)


def test_fp8_has_no_gradient_and_says_so() -> None:
    ep_lib.spawn(fp8_with_weights, 2, "emulator")


def bad_calls(rank: ep_lib.Rank) -> None:
    x, idx, weights = inputs_of(rank, rank.rank)
    buffer, other = Buffer(rank, **SHAPE), Buffer(rank, **SHAPE)
    came = dispatch(buffer, x, idx, weights)
    foreign = dispatch(other, x, idx, weights)
    elsewhere = "this handle belongs to another Buffer"
    refused(lambda: combine(buffer, came.x, foreign.handle), HandleError, elsewhere)
    refused(lambda: dispatch(buffer, x, handle=foreign.handle), HandleError, elsewhere)
    raw = buffer.dispatch(x.detach(), idx)
    of_ours = "handle is a DispatchHandle; this combine takes the one that ep_lib.moe.dispatch gave"
    refused(lambda: combine(buffer, raw.x, raw.handle), HandleError, of_ours)
    no_memory = "x: need a dense tensor on a CPU or CUDA device, got layout torch.strided on meta"
    refused(lambda: dispatch(buffer, x.to("meta"), idx, weights), ArgumentError, no_memory)
    doubles = "x has dtype float64; this Buffer carries float32"
    refused(lambda: dispatch(buffer, x.double(), idx, weights), ArgumentError, doubles)
    if rank.backend == "cuda":
        on_cpu = "x is on cpu; this rank's kernels run on cuda"
        refused(lambda: dispatch(buffer, x.cpu(), idx, weights), ArgumentError, on_cpu)
    out = combine(buffer, came.x * came.topk_weights.sum(dim=1, keepdim=True), came.handle)
    (first,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
    refused(lambda: first.sum().backward(), ArgumentError, "dispatch and combine were differentiated twice")
    late = combine(buffer, came.x, came.handle)
    buffer.close()
    refused(lambda: late.sum().backward(), BufferClosedError, "this Buffer cannot be used: it was closed")
    other.close()


def test_bad_calls_are_refused_clearly() -> None:
    ep_lib.spawn(bad_calls, 2, "emulator")


def no_copies(rank: ep_lib.Rank) -> None:
    """What Buffer takes and gives passes through as it is."""
    seen: dict[str, Any] = {}

    class Spy:
        def __init__(self, buffer: Any) -> None:
            self.buffer = buffer

        def dispatch(self, x: Any, idx: Any, weights: Any) -> Any:
            seen["x"], seen["recv"] = x, self.buffer.dispatch(x, idx, weights)
            return seen["recv"]

        def combine(self, x: Any, handle: Any) -> Any:
            seen["rows"], seen["out"] = x, self.buffer.combine(x, handle)
            return seen["out"]

    x, idx, weights = inputs_of(rank, rank.rank)
    with Buffer(rank, **SHAPE) as buffer:
        came = dispatch(Spy(buffer), x, idx, weights)
        out = combine(Spy(buffer), came.x, came.handle)
    pairs = [(x, seen["x"]), (came.x, seen["recv"].x), (came.topk_idx, seen["recv"].topk_idx)]
    pairs += [(came.topk_weights, seen["recv"].topk_weights), (came.x, seen["rows"]), (out, seen["out"])]
    for ours, buffers in pairs:
        assert ours.data_ptr() == buffers.data_ptr()


def test_nothing_is_copied_on_our_side() -> None:
    ep_lib.spawn(no_copies, 2, "emulator")


def handles_are_let_go(rank: ep_lib.Rank) -> bool:
    import weakref

    x, idx, weights = inputs_of(rank, rank.rank)
    with Buffer(rank, **SHAPE) as buffer:
        came = dispatch(buffer, x, idx, weights)
        out = combine(buffer, came.x, came.handle)
        handle = weakref.ref(came.handle.handle)
        out.sum().backward()
        del came, out
        gc.collect()
        return handle() is None


def test_handles_are_let_go() -> None:
    assert ep_lib.spawn(handles_are_let_go, 2, "emulator") == [True, True]


def all_of_it(rank: ep_lib.Rank) -> None:
    """In one world: a new one takes seconds on GPUs."""
    assert check_dispatch(rank) and check_combine(rank)
    for dtype in ("float32", "bfloat16"):
        formula(rank, dtype)
    for check in (weights_come_back_exactly, nothing_to_do, no_copies, fp8_with_weights, bad_calls):
        check(rank)


@pytest.mark.gpu(count=2)
def test_all_of_it_on_gpus() -> None:
    ep_lib.spawn(all_of_it, 2, "cuda")


@pytest.mark.slow
def test_importing_ep_lib_and_its_moe_loads_no_torch() -> None:
    code = (
        "import ep_lib, ep_lib.moe, sys; assert 'torch' not in sys.modules\n"
        "from ep_lib.moe import dispatch, combine, ExpertParallel; assert 'torch' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'gather'"):
        _ = ep_lib.moe.gather
