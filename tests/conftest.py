"""Fixtures for all tests: the same SPMD test runs on the emulator and, where there are GPUs, on CUDA."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

# A shell that starts a command in the background has it ignore interrupts, and the tests of interrupts would wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["EP_LIB_CUDA_RULES"] = "0"  # of fixtures; for tests see below

# The tests use all cores by themselves: threads of torch and NumPy would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("support", "wrong_variants")
pytest_plugins = ["support.cpu_seconds", "support.crashes"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--seeds N``: how many schedules and random inputs the tests of that kind try. ``--rounds N``: random times.
    ``--until T``: no test begins after that second of the clock, and what is left out is told. ``--order TEXT``: the
    tests in an order of this text's own, so that what is left out is not the same each time. ``--first NAME``: those
    that have this in their own names before all others."""
    parser.addoption("--seeds", type=int, default=6, help="schedules and random inputs (default 6)")
    parser.addoption("--rounds", type=int, default=3, help="repetitions of tests with random times (default 3)")
    parser.addoption("--until", type=float, help="no test begins later (seconds since 1970)")
    parser.addoption("--order", help="shuffle the tests by this text")
    parser.addoption("--first", action="append", default=[], help="tests with this in their names come first")


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> int:
    """How many schedules to try."""
    return int(request.config.getoption("--seeds"))


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a test with random times is repeated."""
    return int(request.config.getoption("--rounds"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: looking through it for garbage, again and again, takes a quarter longer."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Markers before ``-m`` looks at them. Slow tests first: the short ones fill the gaps at the end, however many
    workers there are."""
    seen: Counter[object] = Counter()
    for item in items:
        marker = item.get_closest_marker("extended")
        if marker is None:
            continue
        on_gpu = item.get_closest_marker("gpu") is not None
        test = item.path, item.name.split("[", 1)[0]
        seen[test] += not on_gpu
        if on_gpu or seen[test] <= marker.kwargs.get("after", 0):
            item.own_markers.remove(marker)
    yield
    if (order := config.getoption("--order")) is not None:
        items.sort(key=lambda item: hashlib.sha256(f"{order} {item.nodeid}".encode()).digest())
    else:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    items.sort(key=lambda item: not any(name in item.name for name in config.getoption("--first")))


def pytest_collection_finish() -> None:
    """Five thousand tests and torch stay as long as the process: no collection of garbage need look at them again, and
    processes that are forked do not copy them."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``@pytest.mark.gpu`` and ``@pytest.mark.gpu(count=2)``: skip where this machine has too few GPUs. EP_LIB_GPUS=1
    lets the ranks of all tests share one, over P2P; ``own=True``: not in this test, nor where ``transport`` is another
    one or a launcher starts the ranks, since these want a GPU for each rank. Skip all that begins after ``--until``."""
    # NVRTC is asked where users meet it. What the emulator does with C++ that no GPU takes is looked at, too, and many
    # kernels here call the emulator itself.
    os.environ["EP_LIB_CUDA_RULES"] = "01"[item.get_closest_marker("cuda_rules") is not None]
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip("left out: the time of --until is over")
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if params.get("kind") == "torch":  # of arrays
        pytest.importorskip("torch", reason="needs torch: pip install torch")
    for marker in item.iter_markers("gpu"):
        _need_gpus(
            int(marker.kwargs.get("count", 1)), own=marker.kwargs.get("own", params.get("transport", "p2p") != "p2p")
        )


def _need_gpus(count: int, own: bool = False) -> None:
    from ep_lib.cuda.devices import gpu_count, unusable_reason

    reason = unusable_reason(count)
    if reason is None and own and gpu_count() < count:
        reason = "each rank wants a GPU of its own"
    if reason is not None:
        pytest.skip(f"needs {count} GPU{'s' if count > 1 else ''}: {reason}")


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend: a test that takes it runs once on each."""
    return str(request.param)


@pytest.fixture
def spmd(backend: str) -> Callable[..., list[Any]]:
    """``spmd(main, ranks, *args, **options)``: ``main(rank, *args)`` on so many ranks of ``backend``.

    Returns the results in rank order. ``options`` go to ``ep_lib.spawn`` (seed, heap_bytes, timeout). Skips on a
    machine with fewer GPUs than ranks.
    """
    from ep_lib.runtime.spawn import spawn

    def run(main: Callable[..., Any], ranks: int = 2, *args: Any, **options: Any) -> list[Any]:
        if backend == "cuda":
            _need_gpus(ranks)
        return spawn(main, ranks=ranks, backend=backend, args=args, **options)

    return run


@pytest.fixture(scope="module")  # it runs an event loop, which other modules' tests may not have
def chromium() -> Iterator[Any]:
    """Debian's Chromium, through Playwright."""
    from support.browser import CHROMIUM

    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of this test's own."""
    from support.browser import page_of

    with page_of(chromium, request.node.name) as opened:
        yield opened
