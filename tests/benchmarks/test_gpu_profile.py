"""benchmarks/gpu_profile.py: the marks of notebook 06's dispatch, here by the emulator's clock, become a timeline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ep_lib import Kernel, viz
from ep_lib.jit import nvrtc
from ep_lib.workshop.lessons.dispatch_combine import PROFILED, clocked_dispatch, recorded_dispatch

gpu_profile = pytest.importorskip("gpu_profile")
pytestmark = pytest.mark.slow


def test_what_is_recorded_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(gpu_profile.profile("emulator")))
    report = json.loads(file.read_text())
    assert {"date", "commit", "machine", "marks"} <= set(report)
    whats = Counter(what for *_, what, _ in report["marks"])
    warps = PROFILED.ranks * PROFILED.blocks * PROFILED.threads // 32
    assert whats["token"] == PROFILED.ranks * PROFILED.tokens and whats["sent"] == warps
    of_one_block = PROFILED.ranks * PROFILED.threads // 32
    assert whats["signalled"] == whats["waited"] == of_one_block
    run = recorded_dispatch(file)
    assert Counter(span.kind for span in run.spans) == {
        "copy": whats["token"],
        "wait": of_one_block,
        "kernel": PROFILED.ranks * PROFILED.blocks,
    }
    assert all(0 <= span.begin_ns <= span.end_ns <= run.end_ns for span in run.spans)
    assert "rank 1 waits" in repr(viz.run_timeline(run))
    of_rank_0 = recorded_dispatch(file, 0)
    assert {span.rank for span in of_rank_0.spans} == {0} and len(of_rank_0.spans) == len(run.spans) // 2


def test_the_clock_begins_with_the_same_kernel() -> None:
    run = clocked_dispatch()
    kernels = [span for span in run.spans if span.kind == "kernel"]
    assert {span.name for span in kernels} == {"dispatch"} and min(span.begin_ns for span in run.spans) == 0
    assert len(kernels) == PROFILED.ranks * PROFILED.blocks


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC or CuPy is not installed")
def test_it_compiles_for_gpus() -> None:
    Kernel.from_file(gpu_profile.SOURCE, gpu_profile.RUNG).compile("sm_90")
