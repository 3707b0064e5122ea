"""The demo: its text, its model, its losses with local and with spread experts, and what the command says."""

# ruff: noqa: E402 (imports come after the check that torch and matplotlib are there)

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from support import ROOT

from ep_lib.callers import short_path
from ep_lib.commands.demo import PICTURE_NAME, DemoOptions, run_demo
from ep_lib.commands.demo.report import Listener
from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.moe.layer import ExpertRange, Experts, MoELayer
from ep_lib.moe.routing import load_balancing_loss, load_per_expert, route
from ep_lib.workshop.course.mine import find_pieces
from ep_lib.workshop.lessons import moe_spread as demo_spread
from ep_lib.workshop.lessons.moe_model import (
    ByteMoE,
    ModelConfig,
    evaluate,
    generate,
    load_text,
    printable,
    random_windows,
    train,
    windows,
)
from ep_lib.workshop.lessons.moe_own import run_ways
from ep_lib.workshop.lessons.moe_runs import LOSS_TOLERANCE, Traffic
from ep_lib.workshop.lessons.moe_spread import run_spread

SMALL = ModelConfig(hidden=16, ffn=16, num_experts=8, context=16, conv_width=3)


def generator(seed: int = 0):
    return torch.Generator().manual_seed(seed)


# Text


def test_no_held_out_paragraph_is_trained_on() -> None:
    text = load_text()
    held_out = {" ".join(part.split()) for part in text.held_out.tobytes().decode().split("\n\n")}
    train_part = {" ".join(part.split()) for part in text.train.tobytes().decode().split("\n\n")}
    assert not held_out & train_part
    assert text.train.size > 5 * text.held_out.size > 5 * 10_000


def test_the_split_depends_on_names_only() -> None:
    topics = {f"topic{i:02}": f"words of topic {i} " * 300 for i in range(16)}
    backwards = dict(reversed(topics.items()))
    first, second = load_text(topics), load_text(backwards)
    assert first.held_out_topics == second.held_out_topics == ("topic03", "topic11")
    assert np.array_equal(first.train, second.train)


def test_too_little_text_is_said_with_numbers() -> None:
    with pytest.raises(ArgumentError, match=r"too little text: \d+ bytes to train on and 0 held out from 2 topics"):
        load_text({"a": "x", "b": "y"})


def test_windows_come_from_the_text() -> None:
    text = np.arange(100, dtype=np.uint8)
    cut = windows(text, 4, 10)
    assert cut.shape == (4, 10)
    assert cut[0, 0] == 0
    assert cut[-1, -1] == 99
    drawn = random_windows(text, 5, 10, np.random.default_rng(1))
    assert (np.diff(drawn.astype(int), axis=1) == 1).all()
    with pytest.raises(ArgumentError, match="101 bytes from a text of 100"):
        windows(text, 1, 101)
    assert printable(b"a\x00\xff\n") == "a\u00b7\ufffd\n"


# Layer


@pytest.mark.extended
def test_experts_add_up_weighted_choices_and_skip_minus_one() -> None:
    experts = Experts(torch.randn(3, 4, 5, generator=generator()), torch.randn(3, 5, 4, generator=generator(1)))
    x = torch.randn(4, 4, generator=generator(2))
    idx = torch.tensor([[0, 2], [1, -1], [-1, -1], [2, 2]])
    weights = torch.tensor([[0.25, 0.75], [1.0, float("nan")], [0.0, 0.0], [0.5, 0.5]])
    got = experts(x, idx, weights)
    one = lambda e, row: torch.nn.functional.gelu(row @ experts.w_in[e]) @ experts.w_out[e]  # noqa: E731
    expected = [0.25 * one(0, x[0]) + 0.75 * one(2, x[0]), one(1, x[1]), torch.zeros(4), one(2, x[3])]
    torch.testing.assert_close(got, torch.stack(expected))
    assert experts(x[:0], idx[:0], weights[:0]).shape == (0, 4)


def test_shards_add_up_to_the_whole_layer() -> None:
    layer = MoELayer.create(8, 8, 6, 3, generator())
    x = torch.randn(10, 8, generator=generator(3))
    whole, routing = layer(x)
    total = torch.zeros_like(whole)
    for rank in range(3):
        shard = layer.shard(rank, 3)
        assert shard.experts.w_in.shape == (2, 8, 8)
        held = ExpertRange.of_rank(6, rank, 3)
        local = routing.topk_idx - held.first
        local = local.masked_fill((local < 0) | (local >= held.count), -1)
        total += shard.experts(x, local, routing.topk_weights)
    torch.testing.assert_close(total, whole)
    with pytest.raises(ArgumentError, match="holds 2 of 6 experts"):
        layer.shard(0, 3)(x)


def test_routing_weights_sum_to_one_and_balance_is_one_when_even() -> None:
    routing = route(torch.randn(50, 8, generator=generator()), 2)
    torch.testing.assert_close(routing.topk_weights.sum(dim=1), torch.ones(50))
    assert int(load_per_expert(routing.topk_idx, 8).sum()) == 100
    even = route(torch.eye(4).repeat(3, 1) * 5, 1)
    assert float(load_balancing_loss(even)) == pytest.approx(1.0)
    with pytest.raises(ArgumentError, match="top_k 5"):
        route(torch.zeros(2, 4), 5)


def test_experts_must_divide() -> None:
    with pytest.raises(ArgumentError, match="6 experts cannot be divided evenly over 4 ranks"):
        ExpertRange.of_rank(6, 0, 4)
    with pytest.raises(ArgumentError, match=re.escape("rank 2 is outside 0 .. 1")):
        ExpertRange.of_rank(6, 2, 2)


def test_experts_without_rows_have_gradients_of_zeros() -> None:
    experts = MoELayer.create(4, 8, 3, 2, generator()).experts
    x = torch.zeros(2, 4, requires_grad=True)
    experts(x, torch.full((2, 2), -1), torch.ones(2, 2)).sum().backward()
    assert [p.grad is not None and not p.grad.any() for p in (experts.w_in, experts.w_out, x)] == [True] * 3


# Model


def test_model_sees_nothing_of_the_future() -> None:
    model = ByteMoE(SMALL, generator())
    torch.nn.init.normal_(model.head, generator=generator(4))
    text = torch.randint(0, 256, (1, 16), generator=generator(5))
    changed = text.clone()
    changed[0, 9:] = 7
    with torch.no_grad():
        before, after = model(text)[0], model(changed)[0]
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_training_learns_and_repeats_bit_for_bit() -> None:
    text = np.frombuffer(b"abcdefgh" * 400, dtype=np.uint8)

    def trained(steps):
        model = ByteMoE(SMALL, generator(1))
        history = train(model, text, steps=steps, batch=4, seed=2)
        return [step.loss for step in history], generate(model, b"abc", 5, seed=0)

    losses, sample = trained(60)
    assert losses[0] == pytest.approx(np.log(256), abs=0.01)
    assert losses[-1] < 0.5
    assert sample.startswith(b"abcde")
    assert trained(8) == trained(8)


# Spread over ranks


@pytest.fixture(scope="module")
def trained_small():
    text = load_text()
    model = ByteMoE(SMALL, generator())
    train(model, text.train, steps=5, batch=4, seed=0)
    return model, windows(text.held_out, 6, SMALL.context + 1)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])  # 8 ranks, 6 sequences: two ranks have no token
def test_spread_loss_equals_local_loss(trained_small, backend: str, ranks: int) -> None:
    if backend == "cuda":
        from ep_lib.cuda.devices import unusable_reason

        if reason := unusable_reason(ranks):
            pytest.skip(reason)
    model, data = trained_small
    loss, routings = evaluate(model, data)
    run = run_spread(model, data, ranks=ranks, backend=backend, seed=ranks, loss_local=loss)
    assert run.equal, run.explain_difference()
    assert run.difference < LOSS_TOLERANCE / 10
    assert run.tokens == 6 * SMALL.context
    if backend == "emulator":
        assert [list(layer) for layer in run.load] == [
            load_per_expert(routing.topk_idx, 8).tolist() for routing in routings
        ]
    experts_per_rank = 8 // ranks
    rows = sum(len(set(token)) for r in routings for token in (r.topk_idx // experts_per_rank).tolist())
    assert run.combine.logical_bytes == rows * SMALL.hidden * 4
    assert run.dispatch.logical_bytes == rows * (SMALL.hidden * 4 + 2 * 8 + 8)
    assert (run.dispatch.wire_bytes == 0) == (ranks == 1)


def test_what_the_ranks_get_travels_to_other_processes(trained_small) -> None:
    model, data = trained_small
    main, sent, sent_data = cloudpickle.loads(cloudpickle.dumps((demo_spread.run_rank, model, data)))
    assert main is demo_spread.run_rank
    assert evaluate(sent, sent_data)[0] == evaluate(model, data)[0]


def test_bytes_are_counted_from_source_to_destination() -> None:
    traffic = Traffic(((1, 20), (300, 4000)))
    assert (traffic.logical_bytes, traffic.wire_bytes) == (4321, 320)


class _LosesARank(demo_spread.Buffer):
    """A combine that forgets what the last rank computed."""

    def combine(self, x, handle, topk_weights=None):
        if self._rank.rank == self._rank.world_size - 1:
            x = torch.zeros_like(x)
        return super().combine(x, handle, topk_weights)


class _SendsElsewhere(demo_spread.Buffer):
    """A dispatch that sends everything one expert further."""

    def dispatch(self, x, topk_idx=None, topk_weights=None, *, handle=None):
        return super().dispatch(x, (topk_idx + 1) % self._config.num_experts, topk_weights, handle=handle)


def spread_with(monkeypatch: pytest.MonkeyPatch, buffer: type, trained_small):
    model, data = trained_small
    monkeypatch.setattr(demo_spread, "Buffer", buffer)
    loss, _ = evaluate(model, data)
    return run_spread(model, data, ranks=2, backend="emulator", seed=0, loss_local=loss)


def test_a_wrong_combine_is_explained(monkeypatch: pytest.MonkeyPatch, trained_small) -> None:
    run = spread_with(monkeypatch, _LosesARank, trained_small)
    assert not run.equal
    assert run.misplaced == 0
    assert "combine" in run.explain_difference()
    assert f"{run.loss:.6f}" in run.explain_difference()


def test_a_wrong_dispatch_is_explained(monkeypatch: pytest.MonkeyPatch, trained_small) -> None:
    run = spread_with(monkeypatch, _SendsElsewhere, trained_small)
    assert not run.equal
    assert run.misplaced > 0
    assert "dispatch lost, doubled or misplaced" in run.explain_difference()


# The learner's own pieces


def mine_with(tmp_path: Path, wrong: tuple[str, str] | None = None) -> Path:
    """Three whole pieces; ``wrong``: a mistake in the ring."""
    folder = tmp_path / "mine"
    for name in ("01_write_signal", "05_ring", "08_packets"):
        shutil.copytree(ROOT / "solutions" / name, folder / name)
    if wrong:
        ring = folder / "05_ring" / "ep" / "ring.cuh"
        ring.write_text(ring.read_text().replace(*wrong))
    return folder


def run_own(trained_small, folder: Path):
    model, data = trained_small
    loss, _ = evaluate(model, data)
    return run_ways(model, data, find_pieces(folder), ranks=2, backend="emulator", seed=1, loss_local=loss)


def test_the_model_runs_on_a_learners_pieces(trained_small, tmp_path: Path) -> None:
    runs, problems = run_own(trained_small, mine_with(tmp_path))
    assert problems == [] and [run.way for run in runs] == ["direct", "pcie", "low latency"]
    assert all(run.equal and run.tolerance == LOSS_TOLERANCE for run in runs)
    carried = [{data["piece"]: data["carried"] for _, data in run.carried} for run in runs]
    assert [set(pieces) for pieces in carried] == [{"write and signal"}, {"ring"}, {"packets"}]
    row_bytes = SMALL.hidden * 4
    crossed = runs[1].combine.wire_bytes // row_bytes
    assert carried[0]["write and signal"] == 2 * 2 * SMALL.layers  # a table for each rank from each, per layer
    assert carried[1]["ring"] == 2 * crossed > 0  # there, and back


def test_a_wrong_piece_is_named_and_the_library_is_not(
    trained_small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ep_lib.workshop.lessons.moe_own.WAYS", ("pcie",))
    wrong = ("return message < slots ? 0 : message - slots + 1;", "return message + 1;")  # it waits for its own credit
    folder = mine_with(tmp_path, wrong)
    line = (folder / "05_ring" / "ep" / "ring.cuh").read_text().partition("EXERCISE-BEGIN 1a")[0].count("\n") + 1
    runs, (problem,) = run_own(trained_small, folder)
    assert runs == [] and problem.startswith("pcie: ") and "With the library's pieces it is right" in problem
    place = f"{short_path(folder / '05_ring' / 'ep' / 'ring.cuh')}:{line}"
    assert f"The mistake is in:\n{place} and " in problem and "your task 1, when is a slot free?" in problem
    assert "(`ep-lib grade 05_ring` says more)" in problem


# The command


@pytest.fixture
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less held-out text, where its amount does not matter."""
    monkeypatch.setattr("ep_lib.commands.demo._HELD_OUT_WINDOWS", 8)


class _Told(Listener):
    def __init__(self) -> None:
        self.words: list[str] = []

    def prepared(self, report, ranks) -> None:
        self.words.append(f"prepared {tuple(ranks)}")

    def trained_step(self, step, steps, loss) -> None:
        self.words.append(f"step {step}/{steps}")

    def trained(self, report) -> None:
        self.words.append("trained")

    def spreading(self, done, parts) -> None:
        self.words.append(f"part {done}/{parts}")

    def spread(self, run) -> None:
        self.words.append(f"spread {run.ranks} {run.dtype}")

    def finished(self, report) -> None:
        self.words.append("finished")


@pytest.mark.extended
@pytest.mark.usefixtures("little_text")
def test_run_demo_tells_and_reports(tmp_path: Path) -> None:
    told = _Told()
    threads = torch.get_num_threads()
    report = run_demo(DemoOptions(ranks=(2,), steps=2, seed=5, out=tmp_path / "new" / "folder"), told)
    assert torch.get_num_threads() == threads
    assert report.ok
    assert report.problems == ()
    assert told.words == [
        "prepared (2,)",
        "step 1/2",
        "step 2/2",
        "trained",
        *(f"part {part}/4" for part in range(5)),
        "spread 2 float32",
        *(f"part {part}/4" for part in range(5)),
        "spread 2 bfloat16",
        "finished",
    ]
    assert report.picture == tmp_path / "new" / "folder" / PICTURE_NAME
    assert report.picture.read_bytes().startswith(b"\x89PNG")
    assert report.loss_local < report.loss_untrained
    assert report.sample.startswith("The class ")
    assert report.bfloat16 is not None
    assert report.bfloat16.combine.wire_bytes * 2 == pytest.approx(report.spread[0].combine.wire_bytes, rel=0.05)


def demo(*words: object) -> subprocess.CompletedProcess[str]:
    little_text = "from ep_lib.commands import demo; demo._HELD_OUT_WINDOWS = 8; "
    code = f"{little_text}import sys; from ep_lib import cli; sys.exit(cli.main(['demo', *sys.argv[1:]]))"
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.extended
def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    done = demo("--json", "--steps", 1, "--ranks", 1, 2, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["ok"] is True
    assert [run["ranks"] for run in found["spread"]] == [1, 2]
    for run in found["spread"]:
        assert run["equal"] is True
        assert abs(run["loss_spread"] - found["loss_local"]) <= 1e-4
        assert sum(run["load_per_expert"][0]) == run["tokens"] * found["model"]["top_k"]
    assert found["spread"][0]["dispatch"]["wire_bytes"] == 0
    assert Path(found["picture"]).is_file()


@pytest.mark.usefixtures("little_text")
def test_people_read_losses_bytes_load_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ep_lib.cli import main

    assert main(["demo", "--steps", "1", "--ranks", "2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"local \d\.\d{6}, spread \d\.\d{6}: equal", out)
    assert re.search(r"dispatch [\d,]+ bytes crossed ranks; [\d,]+ received, own rows included", out)
    assert re.search(r"layer 2, tokens of experts 0 to 15:( +\d+)+", out)
    assert f"{tmp_path}/{PICTURE_NAME}" in out.replace("\n           ", "")
    assert max(map(len, out.splitlines())) <= 110 + len(str(tmp_path))


@pytest.mark.usefixtures("little_text")
def test_different_losses_end_with_1_and_an_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ep_lib.cli import main

    monkeypatch.setattr(demo_spread, "Buffer", _LosesARank)
    assert main(["demo", "--json", "--steps", "1", "--ranks", "2", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["ok"] is False
    assert "they differ by" in said.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (DemoOptions(ranks=(4, 3)), "--ranks 3 .* do not divide evenly; choose from 1, 2, 4, 8, 16"),
        (DemoOptions(ranks=(32,)), "--ranks 32 .* more ranks than experts"),
        (DemoOptions(ranks=(0,)), "--ranks 0 .* at least one rank"),
        (DemoOptions(steps=0), "--steps is 0"),
        (DemoOptions(seed=-1), "--seed is -1"),
        (DemoOptions(backend="tpu"), "--backend is 'tpu'"),
        (DemoOptions(out=Path("/proc/no/such")), "--out /proc/no/such cannot be written"),
    ],
)
def test_bad_options_are_refused_with_their_value(options: DemoOptions, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        run_demo(options)


def test_a_file_in_the_way_of_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be written"):
        run_demo(DemoOptions(out=tmp_path / "file"))


def test_cuda_without_gpus_is_said(tmp_path: Path) -> None:
    from ep_lib.cuda.devices import unusable_reason

    if unusable_reason(1) is None and torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    with pytest.raises(BackendUnavailable, match="--backend cuda cannot run here"):
        run_demo(DemoOptions(backend="cuda", out=tmp_path))


@pytest.mark.gpu(count=2)
def test_demo_on_gpus(tmp_path: Path) -> None:
    report = run_demo(DemoOptions(backend="cuda", steps=5, out=tmp_path))
    assert report.ok, report.problems
    assert all(run.ranks > 1 for run in report.spread)
