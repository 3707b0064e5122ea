"""``ep-lib demo``: train a small mixture-of-experts model on real text, then run it with its experts spread over ranks.

The loss on held-out text must be the same, to 1e-4, whether all experts are in one place or every token travels through
ep_lib's dispatch and combine kernels. If not, the command explains that and returns 1. ``--mine`` runs it on the
learner's own pieces. ``--json`` prints only one object on stdout: the fields of ``DemoReport`` and ``SpreadRun`` in
ep_lib/workshop/lessons/moe_runs.py. In that folder moe_model.py trains, moe_spread.py runs the model across ranks
(begin there to see how a model uses ``Buffer``), and moe_own.py does so with the learner's pieces; picture.py draws.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_lib.commands.demo.report import Console, DemoReport, Listener, in_words
from ep_lib.config import BACKENDS
from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.require import at_least_one, installs, one_of, whole_number
from ep_lib.workshop.course.mine import find_pieces, names_aside
from ep_lib.workshop.lessons.moe_runs import SpreadRun, problems_of

if TYPE_CHECKING:
    from ep_lib.workshop.lessons.moe_model import ModelConfig

DEFAULT_STEPS = 240
DEFAULT_OUT = Path("build/demo")
PICTURE_NAME = "routing.png"
NUM_EXPERTS = 16
EMULATOR_RANKS = (4, 8)

_BATCH = 16  # windows per training step
_HELD_OUT_WINDOWS = 64  # of 128 bytes: 8192 tokens
_SAMPLE_BYTES = 160
_SAMPLE_PROMPT = b"The class "
_BFLOAT16_TOLERANCE = 1e-2  # nats; activations have eight bits of mantissa to the experts and back


@dataclass(frozen=True)
class DemoOptions:
    """The options of a demo. Default ``ranks``: 4 and 8 on the emulator, as many as the GPUs allow on cuda."""

    ranks: tuple[int, ...] = ()
    backend: str = "emulator"
    seed: int = 0
    steps: int = DEFAULT_STEPS
    out: Path = DEFAULT_OUT
    mine: Path | None = None  # the folder with the learner's exercises: run on their pieces


def run_demo(options: DemoOptions | None = None, listener: Listener | None = None) -> DemoReport:
    """Run the demo and return its report, with ``report.ok`` and ``report.problems``.

    ``seed`` and ``steps`` determine the result, except for times and, between kinds of CPU, the last digits. Raises
    :class:`ArgumentError` for invalid options, before the training, and :class:`BackendUnavailable` if torch,
    matplotlib or the requested GPUs are missing.
    """
    options = options or DemoOptions()
    listener = listener or Listener()
    ranks = _checked_ranks(options)
    picture_path = _writable(options.out) / PICTURE_NAME
    torch = _import_torch()
    with _one_thread(torch):
        return _run(options, listener, ranks, picture_path)


def _run(options: DemoOptions, listener: Listener, ranks: Sequence[int], picture_path: Path) -> DemoReport:
    started = time.perf_counter()
    import torch

    # Imported here, so that `ep-lib demo --help` works without torch and matplotlib.
    from ep_lib.commands.demo import picture as demo_picture
    from ep_lib.workshop.lessons import moe_model as demo_model
    from ep_lib.workshop.lessons import moe_own as demo_own
    from ep_lib.workshop.lessons import moe_spread as demo_spread

    found = () if options.mine is None else demo_own.pieces_of_a_model(options.mine)
    text = demo_model.load_text()
    config = model_config()
    model = demo_model.ByteMoE(config, torch.Generator().manual_seed(options.seed))
    held_out = demo_model.windows(text.held_out, _HELD_OUT_WINDOWS, config.context + 1)
    loss_untrained, _ = demo_model.evaluate(model, held_out)
    report = DemoReport(
        backend=options.backend,
        seed=options.seed,
        steps=options.steps,
        model=dict(vars(config)),
        parameters=sum(weight.numel() for weight in model.parameters()),
        train_bytes=int(text.train.size),
        held_out_bytes=int(text.held_out.size),
        held_out_topics=text.held_out_topics,
        loss_untrained=loss_untrained,
        loss_local=loss_untrained,
        train_seconds=0.0,
        spread=(),
        bfloat16=None,
        picture=picture_path,
        sample="",
        seconds=0.0,
        mine=None if options.mine is None else tuple(piece.to_json() for piece in found),
        aside=() if options.mine is None else names_aside(find_pieces(options.mine), found),
    )
    listener.prepared(report, ranks)

    router = demo_own.router_of(found)
    training = time.perf_counter()
    steps = options.steps
    demo_model.train(
        model,
        text.train,
        steps=steps,
        batch=_BATCH,
        seed=options.seed,
        on_step=lambda done: listener.trained_step(done.step, steps, done.loss),
        router=router,
    )
    train_seconds = time.perf_counter() - training
    loss_local, routings = demo_model.evaluate(model, held_out)
    report = replace(report, loss_local=loss_local, train_seconds=train_seconds, routed=router.tokens)
    listener.trained(report)

    def spread(count: int, **more: Any) -> SpreadRun:
        run = demo_spread.run_spread(
            model,
            held_out,
            ranks=count,
            backend=options.backend,
            seed=options.seed,
            loss_local=loss_local,
            on_part=listener.spreading,
            **more,
        )
        listener.spread(run)
        return run

    if options.mine is None:
        runs = [spread(count) for count in ranks]
        bfloat16 = spread(ranks[-1], dtype_name="bfloat16", tolerance=_BFLOAT16_TOLERANCE)
        problems = list(problems_of([*runs, bfloat16]))
    else:
        bfloat16 = None
        listener.mine(report)
        runs, problems = demo_own.run_ways(
            model,
            held_out,
            found,
            listener.spread,
            on_part=listener.spreading,
            ranks=ranks[-1],
            backend=options.backend,
            seed=options.seed,
            loss_local=loss_local,
        )
    drawn = [run for run in runs if run.way == "direct"]
    if drawn:
        demo_picture.save(demo_picture.draw_routing(held_out, routings, drawn, seed=options.seed), picture_path)
    sample = demo_model.generate(model, _SAMPLE_PROMPT, _SAMPLE_BYTES, seed=options.seed)
    report = replace(
        report,
        spread=tuple(runs),
        bfloat16=bfloat16,
        sample=demo_model.printable(sample),
        seconds=time.perf_counter() - started,
        problems=tuple(problems),
    )
    listener.finished(report)
    return report


@contextlib.contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    """Torch uses one thread inside this context.

    Sums then have the same order on every machine. Also, OpenMP's threads spin while they wait for each other: on two
    busy cores, training with two threads took ten times as long as with one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def model_config() -> ModelConfig:
    """The demo's model: two layers, top-2 of 16 experts."""
    from ep_lib.workshop.lessons.moe_model import ModelConfig

    return ModelConfig(num_experts=NUM_EXPERTS)


def _checked_ranks(options: DemoOptions) -> tuple[int, ...]:
    """The numbers of ranks to run on. Raises ArgumentError for bad options."""
    one_of("--backend", options.backend, BACKENDS)
    at_least_one("--steps", options.steps)
    whole_number("--seed", options.seed, 0, 2**63 - 1)
    fitting = [count for count in range(1, NUM_EXPERTS + 1) if NUM_EXPERTS % count == 0]
    for count in options.ranks:
        if count not in fitting:
            why = "more ranks than experts" if count > NUM_EXPERTS else "the experts do not divide evenly"
            raise ArgumentError(
                f"--ranks {count} does not work with {NUM_EXPERTS} experts: "
                f"{why if count >= 1 else 'at least one rank is needed'}; "
                f"choose from {', '.join(map(str, fitting))}"
            )
    if options.backend == "emulator":
        return options.ranks or (EMULATOR_RANKS if options.mine is None else EMULATOR_RANKS[:1])
    most = _room_on_gpus(max(options.ranks, default=1))
    return options.ranks or tuple(count for count in fitting if 1 < count <= most)[-2:] or (1,)


def _room_on_gpus(wanted: int) -> int:
    """The number of ranks that GPUs here have room for. Raises BackendUnavailable with the reason if ``wanted`` cannot
    run."""
    from ep_lib.cuda.devices import room_for_ranks, unusable_reason

    reason = unusable_reason(wanted)
    if reason is None and not _import_torch().cuda.is_available():
        reason = "the installed torch is a CPU build; install torch with CUDA from https://pytorch.org"
    if reason is not None:
        raise BackendUnavailable(
            f"--backend cuda cannot run here: {reason.rstrip('.')}. Without it the demo runs on the emulator"
        )
    return room_for_ranks()


def _import_torch() -> Any:
    try:
        import matplotlib
        import torch
    except ImportError as error:
        raise BackendUnavailable(
            f"the demo needs {error.name}, which is not installed: {installs('lab')} (in a clone: make lab)"
        ) from error
    del matplotlib
    return torch


def _writable(folder: Path) -> Path:
    """``folder``, created if necessary. Raises ArgumentError now, not after the training, if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(
            f"--out {folder} cannot be written: {error.strerror or error}; choose another folder"
        ) from error
    return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help=f"numbers of ranks to spread {NUM_EXPERTS} experts over; default: {in_words(EMULATOR_RANKS)} on the "
        "emulator, what the GPUs allow on cuda",
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, default="emulator", help="emulator needs no GPU; cuda: one process per GPU"
    )
    parser.add_argument("--seed", type=int, default=0, help="for weights, batches and the emulator's schedule")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="training steps; default: %(default)s")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="folder for the picture; default: %(default)s"
    )
    parser.add_argument(
        "--mine",
        type=Path,
        nargs="?",
        const=Path("mine"),
        metavar="DIR",
        help="run on your own pieces, the finished exercises in DIR (default: mine), and count what goes through each; "
        "the library's stand in for the others",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs, nothing else")


def run(args: argparse.Namespace) -> int:
    """Runs ``ep-lib demo``; returns 0 if the losses agree, 1 if they do not."""
    options = DemoOptions(tuple(args.ranks), args.backend, args.seed, args.steps, args.out, args.mine)
    if not args.json:
        print("A small language model is trained, then it runs with its experts on several ranks: about half a minute.")
    report = run_demo(options, None if args.json else Console())
    if args.json:
        print(json.dumps(report.to_json(), allow_nan=False))
    for problem in report.problems:
        print(f"ep-lib: {problem}", file=sys.stderr)
    return 0 if report.ok else 1
