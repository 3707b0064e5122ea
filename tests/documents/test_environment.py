"""environment.yml and pyproject.toml say the same, and what a wheel must carry is in the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENVIRONMENT: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text())
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
CONDA_EXTRAS = ("lab", "cuda12", "nixl-cu12", "mpi")


def conda_specs() -> list[str]:
    return [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]


def pip_lines() -> list[str]:
    (section,) = (entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict))
    return list(section)


def pip_requirements() -> list[Requirement]:
    return [Requirement(line) for line in pip_lines() if not line.startswith("-")]


def by_name(requirements: list[Requirement]) -> dict[str, Requirement]:
    named = {canonicalize_name(requirement.name): requirement for requirement in requirements}
    assert len(named) == len(requirements), "a package is listed twice"
    return named


def test_pip_section_equals_pyproject() -> None:
    wanted = list(PYPROJECT["project"]["dependencies"])
    for extra in CONDA_EXTRAS:
        wanted += EXTRAS[extra]
    in_pyproject = [Requirement(line) for line in wanted]  # of a package that two ask for, the later one is narrower
    assert by_name(pip_requirements()) == {canonicalize_name(each.name): each for each in in_pyproject}


def test_pip_section_installs_ep_lib_itself() -> None:
    assert [line for line in pip_lines() if line.startswith("-")] == ["--editable ."]


def match_spec(text: str) -> Any:
    from rattler import MatchSpec  # here, so that a GPU machine without it still collects this file

    return MatchSpec(text)


def test_conda_entries_are_valid_and_minimal() -> None:
    names = {}
    for spec in conda_specs():
        match = match_spec(spec)  # raises for what conda would refuse
        assert match.name is not None
        names[match.name.normalized] = match
    assert set(names) == {"python", "pip", "gxx", "make", "git"}
    assert ENVIRONMENT["name"] == "ep-lib"
    assert ENVIRONMENT["channels"][0] == "conda-forge"


def test_conda_python_is_one_that_pyproject_allows() -> None:
    (spec,) = (match_spec(s) for s in conda_specs() if s.startswith("python"))
    floor = PYPROJECT["project"]["requires-python"]
    assert floor.startswith(">=") and str(spec.version).startswith(floor)


def test_every_package_that_the_user_named_has_its_place() -> None:
    named = {"jupyterlab", "cupy", "torch", "nixl", "nvidia-nvshmem-cu12", "ipywidgets", "matplotlib", "mpi4py"}
    have = set(by_name(pip_requirements()))
    assert {name for name in named if not any(h == name or h.startswith(f"{name}-") for h in have)} == set()


def test_the_lock_holds_what_make_installs_within_the_ranges() -> None:
    def pins(name: str) -> list[Requirement]:
        lines = (ROOT / ".ci" / name).read_text().splitlines()
        return [Requirement(line) for line in lines if line and not line.startswith("#")]

    locked: dict[str, list[Requirement]] = {}
    for pin in pins("constraints.txt"):
        locked.setdefault(canonicalize_name(pin.name), []).append(pin)
    assert [str(pin) for pin in pins("constraints.in")] == [str(pin) for pin in locked["torch"]]
    extras = [line for extra, lines in EXTRAS.items() if extra not in ("cuda12", "nixl-cu12") for line in lines]
    for line in [*PYPROJECT["project"]["dependencies"], *extras]:
        wanted = Requirement(line)
        for pin in locked[canonicalize_name(wanted.name)]:
            (exact,) = pin.specifier
            assert exact.operator == "==" and exact.version in wanted.specifier, f"{line} and {pin}: make lock"
    # The build that a rented GPU host brings must satisfy the range too, or pip would replace it.
    assert "2.11.0+cu130" in by_name([Requirement(line) for line in EXTRAS["lab"]])["torch"].specifier


@pytest.mark.extended
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_for_one_cuda(extra: str) -> None:
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    assert uv is not None
    command = [uv, "pip", "compile", "--no-header", "--no-annotate", "--extra", extra, "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "Failed to fetch" in done.stderr:
        pytest.skip("needs a package index")
    pins = by_name([Requirement(line) for line in done.stdout.splitlines()])
    of_their_names = {found[1] for name in pins if (found := re.search(r"-cu(?:da)?(1\d)x?$", name))}
    of_torch = {str(pins[name].specifier)[2:4] for name in ("cuda-toolkit", "nvidia-cublas") if name in pins}
    assert done.returncode == 0 and len(of_their_names | of_torch) <= 1, done.stdout + done.stderr


def test_both_cuda_variants_offer_the_same() -> None:
    def families(extra: str) -> set[str]:
        return {re.sub(r"-?(cu|cuda)1[23]x?$", "", Requirement(line).name) for line in EXTRAS[extra]}

    # The headers of CUDA 13 are in the base already: the emulator needs them.
    assert families("cuda12") - {"nvidia-cuda-cccl", "nvidia-cuda-runtime"} == families("cuda13")


def test_upper_bounds_where_the_next_major_release_breaks() -> None:
    capped = {"numpy", "torch", "jupyterlab", "ipywidgets", "mpi4py", "nixl"}
    extras = [line for extra, lines in EXTRAS.items() if extra not in ("cuda12", "nixl-cu12") for line in lines]
    for line in [*PYPROJECT["project"]["dependencies"], *extras]:
        requirement = Requirement(line)
        operators = {part.operator for part in requirement.specifier}
        assert operators & {">=", "=="}, f"{line} has no lower bound"
        if requirement.name in capped or requirement.name.startswith(("nvidia-", "cupy-", "nixl-")):
            assert "<" in operators, f"{line} has no upper bound"


def test_package_data_covers_every_source_file() -> None:
    package = ROOT / "ep_lib"
    carried: set[Path] = set()
    for pattern in PYPROJECT["tool"]["setuptools"]["package-data"]["ep_lib"]:
        carried.update(package.glob(pattern))
    left_out = [
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"} and path not in carried
    ]
    assert left_out == []


def test_no_paths_or_hosts_of_one_machine_in_git() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    banned = re.compile(r"(?<![\w.])/(?:work|root|home|opt)/\w|https?://\S*(?:pypi|/simple\b|/whl\b)", re.IGNORECASE)
    hits = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path == Path(__file__).resolve() or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        hits += [f"{name}: {line.strip()[:120]}" for line in text.splitlines() if banned.search(line)]
    assert hits == []


def run_preflight(
    tmp_path: Path, *programs: str, python: str = "python3", first: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The check before `make` installs anything, on a machine that has only ``programs``, and those in ``first``."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in ("sh", "id", "uname", *programs):
        found = sys.executable if name == "python3" else shutil.which(name)
        (bin_dir / name).symlink_to(found or "/bin/true")
    return subprocess.run(
        [str(bin_dir / "sh"), str(ROOT / ".ci/preflight.sh"), python],
        env={"PATH": f"{first or bin_dir}:{bin_dir}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("programs", "wanted"),
    [
        (("python3", "apt-get"), r"no C\+\+ compiler.*apt-get install g\+\+$"),
        (("python3", "dnf"), r"no C\+\+ compiler.*dnf install gcc-c\+\+$"),
        (("g++", "apt-get"), r"no python3 here.*apt-get install python3 python3-venv$"),
        (("g++",), r"no python3 here.*package manager$"),
    ],
)
def test_a_missing_tool_is_one_line_with_the_package(tmp_path: Path, programs: tuple[str, ...], wanted: str) -> None:
    done = run_preflight(tmp_path, *programs)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert re.search(wanted, done.stderr.strip())


def test_an_old_python_is_one_line_too(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\ncase "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac\n')
    old.chmod(0o755)
    done = run_preflight(tmp_path, "g++", "apt-get", python=str(old))
    assert done.returncode == 1
    assert "Python 3.9.2 is too old" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("machine", "python", "status", "says"),
    [
        ("riscv64", "exit 0", 1, "the emulator runs on x86-64 and aarch64, and this is riscv64"),
        ("x86_64", 'case "$2" in *musl*) exit 1;; esac', 1, "linked to musl.*a system with glibc"),
        ("aarch64", "exit 0", 0, "this is aarch64, .* not tested"),
    ],
)
def test_machines_that_are_not_tested_are_named(
    tmp_path: Path, machine: str, python: str, status: int, says: str
) -> None:
    first = tmp_path / "machine"
    first.mkdir()
    for name, text in (("uname", f'case "$1" in -m) echo {machine};; *) echo Linux;; esac'), ("python-here", python)):
        (first / name).write_text(f"#!/bin/sh\n{text}\n")
        (first / name).chmod(0o755)
    done = run_preflight(tmp_path, "g++", python="python-here", first=first)
    assert done.returncode == status and len(done.stderr.splitlines()) == 1
    assert re.search(says, done.stderr)


def test_a_complete_machine_passes(tmp_path: Path) -> None:
    done = run_preflight(tmp_path, "python3", "g++")
    assert (done.returncode, done.stderr) == (0, "")


def test_make_lab_stops_at_a_missing_compiler_before_installing(tmp_path: Path) -> None:
    make = shutil.which("make")
    assert make is not None, "the tests run under make"
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in ("sh", "id", "uname", "sed", "apt-get", "touch", "rm"):
        (bin_dir / name).symlink_to(shutil.which(name) or "/bin/true")
    (bin_dir / "python3").symlink_to(sys.executable)
    environment = {"PATH": str(bin_dir), "HOME": os.environ.get("HOME", "/")}
    venv = tmp_path / "venv"
    command = [make, "-C", str(ROOT), "lab", "LAB=0", f"VENV={venv}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "there is no C++ compiler here" in done.stderr
    assert not venv.exists()
