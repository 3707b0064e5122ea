"""Dispatch and combine under torch.compile: operators in one graph, with the results and gradients of eager code."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

from support.torch_cases import device_of
from torch import nn

import ep_lib
from ep_lib.errors import BufferClosedError, HandleError
from ep_lib.moe import Buffer, ExpertParallel, autograd, combine, dispatch
from ep_lib.moe.layer import MoELayer
from ep_lib.workshop.lessons.moe_model import AdamW

SHAPE: dict[str, Any] = {"num_experts": 4, "top_k": 2, "hidden": 8, "max_tokens": 4, "dtype": "float32"}
CHOICES = [[0, 2], [1, -1], [3, 3], [2, 1]]


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """torch compiles a function for so many cases only, all of a process together."""
    torch._dynamo.reset()


def layer(buffer: Any, x: Any, idx: Any, weights: Any, matrix: Any, num_worst_tokens: int = 0) -> Any:
    """Both ways of weighing: at the experts (all choices), and in combine (once more)."""
    came = dispatch(buffer, x, idx, weights, num_worst_tokens=num_worst_tokens)
    rows = torch.tanh(came.x @ matrix) * came.topk_weights.sum(dim=1, keepdim=True)
    return combine(buffer, rows, came.handle) + combine(buffer, came.x, came.handle, weights)


def inputs_of(rank: ep_lib.Rank, tokens: int) -> tuple[Any, ...]:
    generator, device = torch.Generator().manual_seed(rank.rank), device_of(rank)
    x, weights = torch.randn(tokens, 8, generator=generator), torch.rand(tokens, 2, generator=generator)
    matrix = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))
    idx = torch.tensor(CHOICES)[:tokens].to(device)
    return x.to(device).requires_grad_(), idx, weights.to(device).requires_grad_(), matrix.to(device).requires_grad_()


def compare(rank: ep_lib.Rank, how: str, token_counts: tuple[int, ...]) -> None:
    with Buffer(rank, **SHAPE) as buffer:
        fast = torch.compile(layer, fullgraph=True, backend=how)
        for tokens in token_counts:
            args = inputs_of(rank, tokens if rank.rank else min(tokens, 3))
            found = []
            for run in (layer, fast):
                y = run(buffer, *args)
                found.append((y, *torch.autograd.grad(y.sin().sum(), (args[0], args[2], args[3]))))
            for wanted, got in zip(*found, strict=True):
                torch.testing.assert_close(got, wanted)
            with torch.no_grad():
                torch.testing.assert_close(fast(buffer, *args), found[0][0])


@pytest.mark.extended
def test_one_graph_equals_eager() -> None:
    """Different numbers of tokens, none among them, and two ranks that compile at the same time."""
    ep_lib.spawn(compare, 2, "emulator", args=("aot_eager", (4, 0, 3)))


@pytest.mark.extended
@pytest.mark.slow
def test_one_graph_equals_eager_with_inductor() -> None:
    ep_lib.spawn(compare, 1, "emulator", args=("inductor", (4,)))


def static_shapes(rank: ep_lib.Rank) -> None:
    """With num_worst_tokens: the same, and memory past the received rows, whatever it holds, changes nothing."""
    many = 4 * rank.world_size
    with Buffer(rank, **SHAPE) as buffer:
        poison = torch.full((many, 8), float("nan"), device=device_of(rank))
        every = torch.arange(4, device=device_of(rank)).view(2, 2).repeat(2, 1)
        buffer.dispatch(poison[:4], every)  # fills the receive area
        del poison
        fast = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=False)
        args = inputs_of(rank, 4 - rank.rank)
        found = []
        for run, worst in ((layer, 0), (layer, many), (fast, many)):
            y = run(buffer, *args, num_worst_tokens=worst)
            found.append((y, *torch.autograd.grad(y.sin().sum(), (args[0], args[2], args[3]))))
        for other in found[1:]:
            torch.testing.assert_close(other, found[0])
        came = dispatch(buffer, *args[:3], num_worst_tokens=many)
        empty = (came.topk_idx < 0).all(dim=1)
        assert came.x.shape == (many, 8) and came.tokens_per_expert.device == came.x.device
        assert bool(empty.any()) and not came.x[empty].any() and not came.topk_weights[empty].any()
        again = dispatch(buffer, args[0], handle=came.handle)
        torch.testing.assert_close(again.x, came.x)


@pytest.mark.extended
def test_num_worst_tokens_makes_shapes_static() -> None:
    ep_lib.spawn(static_shapes, 2, "emulator")


def in_a_cuda_graph(rank: ep_lib.Rank) -> None:
    """Forward and backward captured once, and replayed with other tokens that go elsewhere."""
    many = 4 * rank.world_size
    with Buffer(rank, **SHAPE) as buffer:
        x, idx, weights, matrix = inputs_of(rank, 4)

        def step() -> Any:
            y = layer(buffer, x, idx, weights, matrix, many)
            return (y, *torch.autograd.grad(y.sin().sum(), (x, weights, matrix)))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        rank.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        for turn in range(3):
            with torch.no_grad():
                x.mul_(-0.5 * turn)
                idx.copy_(idx.roll(1, 0))
            rank.barrier()
            graph.replay()
            rank.synchronize()
            torch.cuda.synchronize()
            found = [t.clone() for t in captured]
            torch.testing.assert_close(found, list(step()))


def all_of_it(rank: ep_lib.Rank) -> None:
    """In one world: a new one takes seconds on GPUs."""
    compare(rank, "aot_eager", (4, 0, 3))
    for check in (static_shapes, in_a_cuda_graph, compile_module):
        torch._dynamo.reset()
        check(rank)


@pytest.mark.gpu(count=2)
def test_all_of_it_on_gpus() -> None:
    ep_lib.spawn(all_of_it, 2, "cuda")


@pytest.mark.gpu
def test_inductor_on_a_gpu() -> None:
    ep_lib.spawn(compare, 1, "cuda", args=("inductor", (4,)))


def graph_of(rank: ep_lib.Rank) -> list[str]:
    """What the compiler is given: every function called, forward and backward."""
    seen: list[str] = []

    def look(graph: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    back_end = aot_autograd(fw_compiler=lambda g, a: make_boxed_func(look(g, a)))
    with Buffer(rank, **SHAPE) as buffer:
        args = inputs_of(rank, 4)
        torch.compile(layer, fullgraph=True, backend=back_end)(buffer, *args).sum().backward()
    return seen


def test_the_graph_holds_four_operators_and_nothing_of_their_inside() -> None:
    (seen,) = ep_lib.spawn(graph_of, 1, "emulator")
    ours = [name for name in seen if name.startswith("ep_lib.")]
    assert sorted(ours) == sorted(
        ["ep_lib.dispatch.default", "ep_lib.dispatch_backward.default"]
        + 2 * ["ep_lib.combine.default", "ep_lib.combine_backward.default"]
    )


def check_operators(rank: ep_lib.Rank) -> None:
    """torch's own checks: schema, fake implementation against the real one, autograd registration, tracing."""
    with Buffer(rank, **SHAPE) as buffer:
        x, idx, weights, _ = inputs_of(rank, 4)
        for given in (weights, None):
            came = autograd.dispatch_operator(x.detach(), idx, given, buffer.key, 4, 0)
            rows, token = torch.randn_like(came[0]).requires_grad_(), came[4]
            count = rows.shape[0]
            samples: list[tuple[Any, tuple[Any, ...]]] = [
                (autograd.dispatch_operator, (x, idx, given, buffer.key, 4, 0)),
                (autograd.combine_operator, (rows, token, given, buffer.key, 4, 0)),
                (
                    autograd.combine_backward_operator,
                    (x.detach(), token, None if given is None else rows.detach(), given, buffer.key, count, 0),
                ),
                (
                    autograd.dispatch_backward_operator,
                    (rows.detach(), None if given is None else came[2], came[1], token, buffer.key, 4),
                ),
            ]
            for operator, arguments in samples:
                # Every dispatch gives another token: comparing outputs bit by bit is for the others.
                tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
                if operator is not autograd.dispatch_operator:
                    tests.append("test_aot_dispatch_dynamic")
                arguments = tuple(a.detach() if operator in _NOT_RECORDED and _is(a) else a for a in arguments)
                torch.library.opcheck(operator, arguments, test_utils=tests)


_NOT_RECORDED = (autograd.combine_backward_operator, autograd.dispatch_backward_operator)


def _is(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor)


def test_operators_pass_torchs_own_checks() -> None:
    ep_lib.spawn(check_operators, 1, "emulator")


class Dense(nn.Module):
    """Experts of static shapes: each runs on all rows."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, 8, 8, generator=torch.Generator().manual_seed(2)) / 3)

    def forward(self, x: Any, topk_idx: Any, topk_weights: Any) -> Any:
        total = torch.zeros_like(x)
        for e, matrix in enumerate(self.weight):
            share = (topk_weights * (topk_idx == e)).sum(dim=1, keepdim=True)
            total = total + torch.tanh(x @ matrix) * share
        return total


def compile_module(rank: ep_lib.Rank) -> None:
    """The module: whole with experts that compile, in pieces around those that read counts."""
    gate = nn.Linear(8, 4, bias=False)
    nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(4))
    sparse = MoELayer.create(8, 8, 4, 2, torch.Generator().manual_seed(1)).shard(rank.rank, rank.world_size).experts
    for experts, whole in ((Dense(4 // rank.world_size), True), (sparse, False)):
        module = ExpertParallel(rank, experts, gate=gate, **SHAPE).to(device_of(rank))
        fast = torch.compile(module, fullgraph=whole, backend="aot_eager")
        x = inputs_of(rank, 4 - rank.rank)[0]
        found = []
        for run in (module, fast):
            module.zero_grad()
            y = run(x)
            y.pow(2).sum().backward()
            found.append([y, *(p.grad for p in module.parameters())])
        torch.testing.assert_close(found[1], found[0])
        module.close()


def test_the_module_compiles() -> None:
    ep_lib.spawn(compile_module, 2, "emulator")


def tokens_of_handles(rank: ep_lib.Rank) -> list[str]:
    """A handle may leave a compiled function, not enter it; its tensor keeps it alive, and only so long."""
    buffer = Buffer(rank, **SHAPE)
    x, idx, weights, _ = (a.detach() for a in inputs_of(rank, 4))

    def there(x: Any) -> Any:
        return dispatch(buffer, x, idx, weights)

    came = torch.compile(there, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(combine(buffer, came.x, came.handle), x * 1.0)
    alive = weakref.ref(autograd.handle_of(came.handle.handle))
    number = came.handle.handle.clone()
    assert alive() is not None
    del came
    gc.collect()
    assert alive() is None
    key = buffer.key
    ticket = dispatch(buffer, x, idx, weights).handle
    said = []
    for wrong in (
        lambda: autograd.handle_of(number),
        lambda: autograd.handle_of(torch.zeros(2)),
        lambda: torch.compile(lambda x: combine(buffer, x, ticket), backend="eager", fullgraph=True)(x),
        buffer.close,
        lambda: autograd.dispatch_operator(x, idx, weights, key, 4, 0),
    ):
        try:
            wrong()
            said.append("")
        except (HandleError, BufferClosedError, torch._dynamo.exc.Unsupported) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_handles_in_compiled_code() -> None:
    (said,) = ep_lib.spawn(tokens_of_handles, 1, "emulator")
    patterns = [
        "BufferClosedError: the Buffer or handle with number .* does not exist any more",
        "HandleError: a handle in compiled code is an int64 tensor",
        "this handle comes from outside of the compiled function",
        "^$",
        "BufferClosedError: this Buffer cannot be used: it was closed",
    ]
    for message, pattern in zip(said, patterns, strict=True):
        assert re.search(pattern, message), message


def test_the_demos_optimizer_is_torchs() -> None:
    """Here, where torch's compiler has been imported: making its optimizer does that."""
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(7, 5, generator=generator), torch.randn(9, generator=generator), torch.randn(3)]
    own, torchs = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
    options: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.01}
    mine, theirs = AdamW(own, **options), torch.optim.AdamW(torchs, **options)
    for step in range(20):
        for one, other in zip(own[:2], torchs, strict=False):  # the last has no gradient
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        theirs.param_groups[0]["lr"] = 0.01 * step
        mine.step(0.01 * step)
        theirs.step()
        assert all(torch.equal(one, other) for one, other in zip(own, torchs, strict=True))
