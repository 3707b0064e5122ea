"""ExpertParallel: it trains as the layer with all experts in one place does, with any tokens on any rank."""

# ruff: noqa: E402 (imports come after the check that torch is there)

from __future__ import annotations

import copy
import io
import json
import os
import re
import runpy
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

from support import ROOT, TESTS
from support.refusals import refused
from support.torch_cases import device_of, gather, sum_gradients
from support.torchrun import as_torchrun
from torch import nn
from torch.utils.checkpoint import checkpoint

import ep_lib
from ep_lib.errors import ArgumentError
from ep_lib.moe import Buffer, ExpertParallel
from ep_lib.moe.layer import MoELayer

HIDDEN, EXPERTS, TOP_K, TOKENS = 8, 4, 2, 12
SHAPE: dict[str, Any] = {
    "num_experts": EXPERTS,
    "top_k": TOP_K,
    "hidden": HIDDEN,
    "max_tokens": TOKENS,
    "dtype": "float32",
}
PROGRAM = TESTS / "programs" / "torch_program.py"
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def whole_layer() -> MoELayer:
    return MoELayer.create(HIDDEN, 16, EXPERTS, TOP_K, torch.Generator().manual_seed(1))


def gate_of(layer: MoELayer) -> nn.Linear:
    gate = nn.Linear(HIDDEN, layer.num_experts, bias=False)
    gate.weight = nn.Parameter(layer.router.detach().clone())
    return gate


def spread(rank: ep_lib.Rank, where: Any = None, **options: Any) -> ExpertParallel:
    """This rank's part of the whole layer."""
    layer = whole_layer()
    mine = layer.shard(rank.rank, rank.world_size)
    shape = SHAPE if where is None else {}
    module = ExpertParallel(rank if where is None else where, mine.experts, gate=gate_of(layer), **shape, **options)
    return module.to(device_of(rank))


def data(step: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(TOKENS, HIDDEN, generator=generator), torch.randn(TOKENS, HIDDEN, generator=generator)


def share(rank: ep_lib.Rank, tensor: Any) -> Any:
    """The tokens of one rank: none on the last one (of several), the others have different numbers."""
    ends = [0, TOKENS] if rank.world_size == 1 else [0, 5, TOKENS, TOKENS, TOKENS]
    return tensor[ends[rank.rank] : ends[rank.rank + 1]].to(device_of(rank))


def train_here(steps: int) -> tuple[list[float], dict[str, Any]]:
    layer = whole_layer()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        x, target = data(step)
        y, _ = layer(x)
        loss = (x + y - target).pow(2).sum() / TOKENS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {"gate.weight": layer.router.detach(), **dict(layer.experts.named_parameters())}


def train_spread(rank: ep_lib.Rank, steps: int) -> tuple[list[float], dict[str, Any]]:
    module = spread(rank)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        x, target = (share(rank, part) for part in data(step))
        loss = (x + module(x) - target).pow(2).sum() / TOKENS
        optimizer.zero_grad()
        loss.backward()
        sum_gradients(rank, module.replicated_parameters())
        optimizer.step()
        losses.append(float(torch.stack(gather(rank, loss)).sum()))
    module.close()
    return losses, {name: value.detach().cpu().numpy() for name, value in module.state_dict().items()}


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_spread_equals_training_here(ranks: int) -> None:
    check_training(ranks, "emulator")


def check_training(ranks: int, backend: str) -> None:
    """Losses and, after ten steps, all weights."""
    expected, weights = train_here(10)
    results = ep_lib.spawn(train_spread, ranks, backend, args=(10,))
    assert expected[-1] < 0.9 * expected[0]
    for rank, (losses, found) in enumerate(results):
        assert losses == pytest.approx(expected, rel=1e-4)
        held = slice(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
        for name, value in found.items():
            wanted = weights["gate.weight"] if name == "gate.weight" else weights[name.removeprefix("experts.")][held]
            torch.testing.assert_close(torch.from_numpy(value), wanted.detach(), atol=1e-4, rtol=1e-3, msg=name)


def the_demo_layer_trains(rank: ep_lib.Rank) -> None:
    """MoELayer with a Buffer is the same thing."""
    whole = whole_layer()
    x, target = data()
    (whole(x)[0] - target).pow(2).sum().backward()
    layer = whole_layer().shard(rank.rank, rank.world_size).to(device_of(rank))
    with Buffer(rank, **SHAPE) as buffer:
        y, _ = layer(share(rank, x), buffer)
        (y - share(rank, target)).pow(2).sum().backward()
    sum_gradients(rank, [layer.router])
    held = slice(rank.rank * 2, rank.rank * 2 + 2)
    for got, wanted in ((layer.router, whole.router.grad), (layer.experts.w_in, whole.experts.w_in.grad[held])):
        torch.testing.assert_close(got.grad.cpu(), wanted, **CLOSE)


def test_the_demo_layer_trains() -> None:
    ep_lib.spawn(the_demo_layer_trains, 2, "emulator")


class OneMatrix(nn.Module):
    """The least of an expert: makes its result of nothing where no row came, and that has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(HIDDEN) * 2)

    def forward(self, x: Any, topk_idx: Any, topk_weights: Any) -> Any:
        if x.shape[0] == 0:
            return torch.zeros(0, HIDDEN, device=x.device)
        return x @ self.weight * topk_weights.sum(dim=1, keepdim=True)


def all_tokens_on_one_rank(rank: ep_lib.Rank) -> None:
    """Rank 0 has all the tokens, rank 1 all the experts that are chosen; neither x nor weights want gradients."""
    device = device_of(rank)
    module = ExpertParallel(rank, OneMatrix(), **SHAPE).to(device)
    tokens = 3 if rank.rank == 0 else 0
    x = torch.ones(tokens, HIDDEN, device=device)
    idx = torch.tensor([[2, 3], [3, 2], [2, -1]], dtype=torch.int32, device=device)[:tokens]
    weights = torch.full((tokens, TOP_K), 0.5, device=device)
    y = module(x, idx, weights)
    y.sum().backward()
    if rank.rank == 0:
        torch.testing.assert_close(y, torch.tensor([[2.0], [2.0], [1.0]], device=device).expand(3, HIDDEN))
        assert module.experts.weight.grad is None  # its expert had no rows
    else:
        assert torch.equal(module.experts.weight.grad, torch.full((HIDDEN, HIDDEN), 2.5, device=device))
    module.eval()
    with torch.no_grad():
        assert not module(x, idx, weights).requires_grad
    with torch.inference_mode():
        assert torch.equal(module(x, idx, weights), y.detach())
    module.close()


def test_ranks_without_tokens_or_without_rows() -> None:
    ep_lib.spawn(all_tokens_on_one_rank, 2, "emulator")


def two_before_backward(rank: ep_lib.Rank) -> None:
    """Two layers on one Buffer, run twice before the first backward: every dispatch keeps its own way back."""
    with Buffer(rank, **SHAPE) as buffer:
        layers = [spread(rank, buffer), spread(rank, buffer)]

        def run(x: Any) -> Any:
            for layer in layers:
                x = x + layer(x)
            return x.pow(2).sum()

        def gradients() -> list[Any]:
            found = [p.grad.clone() for layer in layers for p in layer.parameters()]
            for layer in layers:
                layer.zero_grad()
            return found

        first, second = (share(rank, part) for part in data())
        run(first).backward()
        apart = gradients()
        run(second).backward()
        apart = [a + b for a, b in zip(apart, gradients(), strict=True)]
        both = [run(first), run(second)]
        both[0].backward()
        both[1].backward()
        for together, alone in zip(gradients(), apart, strict=True):
            torch.testing.assert_close(together, alone, **CLOSE)


def test_a_second_forward_before_backward() -> None:
    ep_lib.spawn(two_before_backward, 2, "emulator")


def checkpointed(rank: ep_lib.Rank) -> None:
    """Recomputing is collective too: also on a rank whose experts saved nothing, all ranks come to the same end."""
    device = device_of(rank)
    for experts in (OneMatrix(), None):
        module = spread(rank) if experts is None else ExpertParallel(rank, experts, **SHAPE).to(device)
        tokens = 3 if rank.rank == 0 else 0
        routing = [torch.full((tokens, TOP_K), 3, device=device), torch.ones(tokens, TOP_K, device=device) / TOP_K]
        args = [] if experts is None else routing
        found = []
        for way in (None, False, True):
            x = torch.linspace(-1, 1, tokens * HIDDEN, device=device).view(tokens, HIDDEN).requires_grad_()
            module.zero_grad()
            y = module(x, *args) if way is None else checkpoint(module, x, *args, use_reentrant=way)
            y.pow(2).sum().backward()
            found.append([x.grad, *(p.grad for p in module.parameters() if p.grad is not None)])
        for again in found[1:]:
            torch.testing.assert_close(again, found[0], **CLOSE)
        module.close()


def test_activation_checkpointing() -> None:
    ep_lib.spawn(checkpointed, 2, "emulator")


def shapes_and_types(rank: ep_lib.Rank) -> None:
    """bfloat16 on the way, float32 around it; a batch dimension; state in and out; who owns what."""
    module = spread(rank)
    thin = ExpertParallel(rank, module.experts, gate=module.gate, **(SHAPE | {"dtype": torch.bfloat16, "num_sms": 2}))
    x = data()[0].view(3, 4, HIDDEN).to(device_of(rank))
    y = thin(x)
    assert y.shape == x.shape and y.dtype == torch.float32
    torch.testing.assert_close(y, module(x), atol=0.05, rtol=0.05)
    y.sum().backward()
    routing = module.route(x)
    assert torch.equal(module(x, routing.topk_idx, routing.topk_weights), module(x))

    assert sorted(module.state_dict()) == ["experts.w_in", "experts.w_out", "gate.weight"]
    assert [p.shape[0] for p in module.expert_parameters()] == [EXPERTS // rank.world_size] * 2
    assert [tuple(p.shape) for p in module.replicated_parameters()] == [(EXPERTS, HIDDEN)]
    stored = io.BytesIO()
    torch.save(module.state_dict(), stored)
    other = spread(rank, module.buffer)
    nn.init.zeros_(other.gate.weight)
    stored.seek(0)
    other.load_state_dict(torch.load(stored))
    assert torch.equal(other(x), module(x))
    other.close()  # the Buffer is not its own
    twin = copy.deepcopy(nn.ModuleList([module]))[0]
    twin.close()
    nn.init.zeros_(twin.gate.weight)
    assert twin.buffer is module.buffer and not torch.equal(twin(x), module(x))
    with pytest.raises(ArgumentError, match=r"save its state_dict\(\)"):
        torch.save(module, io.BytesIO())
    assert module(x).shape == x.shape
    assert "Buffer(rank" in repr(module)
    module.close()
    thin.close()


def test_shapes_types_and_state() -> None:
    ep_lib.spawn(shapes_and_types, 2, "emulator")


def all_of_it(rank: ep_lib.Rank) -> None:
    """In one world: a new one takes seconds on GPUs."""
    for check in (the_demo_layer_trains, all_tokens_on_one_rank, two_before_backward, checkpointed, shapes_and_types):
        check(rank)


@pytest.mark.gpu(count=2)
def test_all_of_it_on_gpus() -> None:
    ep_lib.spawn(all_of_it, 2, "cuda")


@pytest.mark.gpu(count=4)
def test_training_on_gpus() -> None:
    check_training(4, "cuda")


def wrong_use(rank: ep_lib.Rank) -> None:
    with Buffer(rank, **SHAPE) as buffer:
        module, x = ExpertParallel(buffer, OneMatrix()), torch.zeros(1, HIDDEN)
        sizes = {"hidden": 4, "top_k": 1}
        twice = "got a Buffer and hidden, top_k"
        refused(lambda: ExpertParallel(buffer, OneMatrix(), **sizes), ArgumentError, twice)
        refused(lambda: module(x), ArgumentError, "without a gate=, pass topk_idx and topk_weights")
        refused(lambda: module(x, torch.zeros(1, 2)), ArgumentError, "pass both")


def test_wrong_use_is_refused() -> None:
    ep_lib.spawn(wrong_use, 1, "emulator")


@pytest.mark.extended
def test_the_example_of_the_documentation_trains(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(import torch\n.*?)```", text, flags=re.DOTALL)
    exec(compile(program, "docs/torch.md", "exec"), {"__name__": "__main__"})
    losses = [float(number) for number in re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)]
    assert len(losses) >= 3 and losses[-1] < 0.7 * losses[0]


def check_torchrun(processes: int, *words: str, backend: str) -> None:
    """Trains under torchrun, beside the program's own process group, as all in one place does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += [str(PROGRAM), *words]
    root = ROOT
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"EP_LIB_BACKEND": backend, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    check_reports(processes, done.stdout)


def check_reports(processes: int, printed: str) -> None:
    reports = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert sorted(report["rank"] for report in reports) == list(range(processes))
    for report in reports:
        assert report["losses"] == pytest.approx(report["expected"], rel=1e-3)
        assert report["losses"][-1] < report["losses"][0]


@pytest.mark.extended
def test_one_process_under_torchrun_beside_gloo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), "gloo"])
    with as_torchrun(1) as (variables,):
        for variable, value in {**variables, "EP_LIB_BACKEND": "emulator"}.items():
            monkeypatch.setenv(variable, value)
        runpy.run_path(str(PROGRAM), run_name="__main__")
    check_reports(1, capsys.readouterr().out)


@pytest.mark.gpu(count=2, own=True)
@pytest.mark.parametrize("order", ["first", "second"])
def test_torchrun_beside_nccl(order: str) -> None:
    check_torchrun(2, "nccl", order, backend="cuda")
