"""The programs in examples/ end in an assert that holds, on the emulator and on GPUs, and documents' Python runs."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.mpi import mpiexec
from support.torchrun import as_torchrun
from support.waiting import said_by

EXAMPLES = ROOT / "examples"
ALONE = ["fp8_experts.py", "own_kernel.py", "serve_low_latency.py"]  # they spawn their ranks
STARTED = ["lost_rank.py", "mpi_ranks.py"]
BY_TORCHRUN = "train_torchrun.py"
pytestmark = [pytest.mark.cuda_rules, pytest.mark.slow]


def needs(name: str) -> None:
    if "torch" in (EXAMPLES / name).read_text(encoding="utf-8"):
        pytest.importorskip("torch")


def finish(processes: list[subprocess.Popen[str]]) -> None:
    try:
        said = said_by(processes)
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), said


def start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)} | environment
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(name: str, backend: str) -> None:
    file = str(EXAMPLES / name)
    if name == "mpi_ranks.py":
        finish([start([*mpiexec(4), "-m", "mpi4py", file], EP_LIB_BACKEND=backend)])
    elif name == BY_TORCHRUN:
        with as_torchrun(2) as environments:
            finish([start([sys.executable, file], EP_LIB_BACKEND=backend, **env) for env in environments])
    else:
        finish([start([sys.executable, file], EP_LIB_BACKEND=backend)])


def test_every_example_is_run_and_ends_in_an_assert() -> None:
    programs = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert programs == sorted([*ALONE, *STARTED, BY_TORCHRUN])
    for name in programs:
        tree = ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))
        last = tree.body[-1]
        inside = last.body[-1] if isinstance(last, ast.If) else last
        assert isinstance(inside, ast.Assert), f"{name} does not end in an assert"


@pytest.mark.parametrize("name", ALONE)
def test_an_example_that_spawns_on_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(name)
    monkeypatch.setenv("EP_LIB_BACKEND", "emulator")
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/learners.md", "docs/engineers.md"])
def test_the_python_of_a_document(document: str, tmp_path: Path) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for number, source in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
        script = tmp_path / f"example{number}.py"
        script.write_text(source, encoding="utf-8")
        finish([start([sys.executable, str(script)])])


def test_the_example_of_torchrun_with_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two need torch in two more processes: they run on GPUs below, and test_deep_ep.py has groups on the emulator."""
    needs(BY_TORCHRUN)
    with as_torchrun(1) as (variables,):
        for variable, value in {**variables, "EP_LIB_BACKEND": "emulator"}.items():
            monkeypatch.setenv(variable, value)
        runpy.run_path(str(EXAMPLES / BY_TORCHRUN), run_name="__main__")


@pytest.mark.extended
@pytest.mark.parametrize("name", STARTED)
def test_an_example_that_is_started_on_the_emulator(name: str) -> None:
    needs(name)
    run(name, "emulator")


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("name", [*ALONE, pytest.param(BY_TORCHRUN, marks=pytest.mark.gpu(count=2, own=True))])
def test_an_example_on_gpus(name: str) -> None:
    needs(name)
    run(name, "cuda")
