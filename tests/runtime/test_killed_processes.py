"""SIGSTOP, SIGTERM, SIGKILL of every process of a run, at any time: no orphan, no leftover, and the next run is right.

A run is a Python process that compiles a kernel and runs it; its processes are itself, the compiler's, and the shell
that cleans up. `make nightly` does 50 rounds each.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tagged import tagged
from support.waiting import ENOUGH, wait_until

from ep_lib.jit import cache
from ep_lib.jit.kernel import Kernel

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import numpy as np
import ep_lib
kernel = ep_lib.Kernel.from_source(f'extern "C" __global__ void k(int* x) {{ *x = {sys.argv[1]}; }}', "k")
def main(rank):
    x = rank.to_device(np.zeros(1, np.int32))
    kernel.launch(rank, 1, 1, x)
    return int(rank.to_host(x)[0])
try:
    print(ep_lib.spawn(main, 2, "emulator"))
except ep_lib.errors.EpError as error:
    sys.exit(f"told: {error}")
"""


@pytest.fixture
def own_cache(tmp_path: Path) -> Path:
    """A cache that has the emulator and its headers, and nothing else."""
    Kernel.from_source('extern "C" __global__ void k(int* x) { *x = 1; }', "k").compile()
    folder = tmp_path / "cache"
    for kind in ("runtime", "prelude", "support"):
        for entry in (cache.cache_dir() / kind).glob("[!.]*"):
            shutil.copytree(entry, folder / kind / entry.name, copy_function=os.link)
    return folder


def start(number: int, folder: Path, tag: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "EP_LIB_CACHE_DIR": str(folder), "EP_LIB_TEST_RUN": tag, "TMPDIR": str(folder.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(number)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _has_gone(tag: str) -> bool:
    return tagged(f"EP_LIB_TEST_RUN={tag}") == []


def signal_one(rng: random.Random, run: subprocess.Popen[str], tag: str, how: signal.Signals) -> int | None:
    """Sends a signal to one of the run's processes at a random time; None if it was over before."""
    at = time.monotonic() + rng.uniform(0.1, 1.5)
    while time.monotonic() < at and run.poll() is None:
        time.sleep(0.005)
    alive = tagged(f"EP_LIB_TEST_RUN={tag}")
    if not alive:
        return None
    victim = rng.choice(alive)
    try:
        os.kill(victim, how)
    except ProcessLookupError:
        return None
    return victim


@pytest.mark.extended
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda how: how.name)
def test_a_signal_to_any_process_of_a_run(how: signal.Signals, own_cache: Path, rounds: int) -> None:
    rng = random.Random(f"{how}")
    for number in range(rounds):
        tag = f"{os.getpid()}-{how:d}-{number}"
        run = start(number, own_cache, tag)
        victim = signal_one(rng, run, tag, how)
        if how == signal.SIGSTOP and victim is not None:
            time.sleep(0.3)  # a machine that pauses, such as a laptop that sleeps
            os.kill(victim, signal.SIGCONT)
        out, err = run.communicate(timeout=ENOUGH)
        right = f"[{number}, {number}]\n"
        if how == signal.SIGSTOP or victim is None:
            assert (run.returncode, out) == (0, right), err
        elif victim == run.pid:
            assert run.returncode in (-how, 0)
        else:
            assert out == right or "told: " in err, err
        assert wait_until(functools.partial(_has_gone, tag))
        assert not [path for path in own_cache.glob("*/.*") if path.is_dir()], "half-made entries stay"
        assert not [path for path in own_cache.parent.iterdir() if path != own_cache and path.is_dir()]
        again, _ = start(number, own_cache, tag).communicate(timeout=ENOUGH)
        assert again == right
