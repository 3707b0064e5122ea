"""The wheel is a whole workshop, and the source distribution makes the same wheel and runs its tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from support import ROOT

FOLDERS = ("notebooks", "exercises", "solutions", "tutorial_kernels", "docs")
LEFT_OUT = shutil.ignore_patterns(
    ".venv", ".git", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "mine", ".hypothesis"
)

pytestmark = pytest.mark.slow


def run(*words: str, cwd: Path, site: Path | None = None) -> str:
    """What this Python prints; ``site``: where ep_lib is installed."""
    environment = {**os.environ, "PYTHONPATH": str(site)} if site else None
    done = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked source distribution."""
    place = tmp_path_factory.mktemp("sdist")
    checkout = place / "checkout"
    shutil.copytree(ROOT, checkout, ignore=LEFT_OUT)
    name = run("-c", "from setuptools.build_meta import build_sdist; print(build_sdist('..'))", cwd=checkout).split()[
        -1
    ]
    with tarfile.open(place / name) as archive:
        archive.extractall(place, filter="data")
    return place / name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def site(sdist: Path) -> Path:
    """A folder with what the wheel installs."""
    name = run("-c", "from setuptools.build_meta import build_wheel; print(build_wheel('..'))", cwd=sdist).split()[-1]
    place = sdist.parent / "site"
    with zipfile.ZipFile(sdist.parent / name) as archive:
        archive.extractall(place)
    return place


def files(folder: Path) -> dict[str, bytes]:
    left_by_tools = {"__pycache__", ".ipynb_checkpoints", ".ruff_cache"}
    paths = (path for path in folder.rglob("*") if path.is_file() and not left_by_tools & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.extended
def test_the_wheel_carries_the_workshop_and_the_library(site: Path) -> None:
    for name in FOLDERS:
        assert files(site / "ep_lib" / "_workshop" / name) == files(ROOT / name)
    carried = {name: data for name, data in files(site / "ep_lib").items() if not name.startswith("_workshop/")}
    assert carried == files(ROOT / "ep_lib")


LAB = (
    "import os, sys; from ep_lib import cli\n"
    "os.execv = os.execve = lambda program, command, *_: sys.exit(print(*command, sep='\\n'))\n"
    "cli.main(['lab', '--no-browser'])\n"
)
FROM_A_NOTEBOOK = (
    "import ep_lib, pathlib, sys; from ep_lib import workshop; from ep_lib.workshop.notebook import find\n"
    "print(pathlib.Path(ep_lib.__file__).parent)\n"
    "print(find('tutorial_kernels/00_start_here.cu').resolve())\n"
    "print(workshop.start('01'))\n"
    "for name in sys.argv[1:]: find(name)\n"
    "workshop.python_piece('09_router').route\n"
)


@pytest.mark.extended
def test_lab_in_an_empty_folder_is_a_whole_workshop(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install jupyterlab")
    assert f"--ServerApp.root_dir={tmp_path}" in run("-c", LAB, cwd=tmp_path, site=site)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*FOLDERS, "benchmarks", "mine", "tests"])
    notebooks = "".join(path.read_text() for path in (ROOT / "notebooks").glob("*.ipynb"))
    shown = sorted(
        set(re.findall(r'\\"((?:benchmarks|docs|ep_lib|tests|tutorial_kernels)/[\w./]+\.\w+)\\"', notebooks))
    )
    assert "ep_lib/device/ep/proxy_command.cuh" in shown and "benchmarks/results/h200x4.json" in shown
    words = ("-c", FROM_A_NOTEBOOK, *shown, "tests/kernels/nixl_guide.cu")  # the last by tutorial_kernels/
    package, kernel, mine, *_ = run(*words, cwd=tmp_path / "mine" / "notebooks", site=site).splitlines()
    assert Path(package) == site / "ep_lib"
    assert Path(kernel) == tmp_path / "tutorial_kernels" / "00_start_here.cu"
    assert Path(mine) == tmp_path / "mine" / "01_write_signal" and any(Path(mine).iterdir())
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text("mine")
    run("-c", LAB, cwd=tmp_path, site=site)
    assert (tmp_path / "notebooks" / "00_start_here.ipynb").read_text() == "mine", "the second time nothing is copied"


@pytest.mark.extended
def test_lab_leaves_a_folder_with_files_alone(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install jupyterlab")
    (tmp_path / "thesis.txt").write_text("")
    assert f"--ServerApp.root_dir={tmp_path}/ep_lib_workshop" in run("-c", LAB, cwd=tmp_path, site=site)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ep_lib_workshop", "thesis.txt"]


def test_outside_of_a_workshop_the_commands_say_how_to_make_one(site: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "ep_lib", "grade", "01"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode != 0 and "run `ep-lib lab` in an empty folder" in " ".join(done.stderr.split())


@pytest.mark.extended
def test_the_sdist_runs_its_tests(sdist: Path) -> None:
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert " passed" in run(
        *options, "tests/documents/test_house.py", "tests/jit/test_jit_signature.py", cwd=sdist, site=sdist
    )
    assert files(sdist / "tests").keys() == files(ROOT / "tests").keys()


def test_the_licence_is_named_as_spdx_has_it(sdist: Path) -> None:
    annotation, _ = tomllib.loads((sdist / "REUSE.toml").read_text())["annotations"]
    project = tomllib.loads((sdist / "pyproject.toml").read_text())["project"]
    assert annotation["path"] == "**" and annotation["SPDX-License-Identifier"] == project["license"] == "Apache-2.0"
