"""The trials of ``ep-lib doctor``: probes in processes of their own, nvidia-smi, and commands for next steps."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ep_lib import processes

Facts = dict[str, Any]

# A probe's limits: CPU time (the first one may compile the emulator), and idle time
PROBE_CPU_S, PROBE_IDLE_S = 900.0, 60.0
# As a file, not as a module of ep_lib: half of the probes never need the library, whose import costs 0.2 s of CPU.
_PROBES = f"import runpy; runpy.run_path({str(Path(__file__).with_name('probes.py'))!r}, run_name='__main__')"

REFUSED_ROOT = "Open MPI's mpiexec refuses to start programs as root"


@dataclass(frozen=True)
class Probe:
    """The result of a probe: its facts, or why it failed; never both."""

    facts: Facts = field(default_factory=dict)
    error: str = ""

    @property
    def missing(self) -> str:
        return str(self.facts.get("missing", ""))


def probe(launcher: list[str], name: str, idle_s: float = PROBE_IDLE_S) -> Probe:
    """Run one of :mod:`ep_lib.commands.doctor.probes`, with a ``launcher`` such as mpiexec before it."""
    line = [*launcher, *processes.python("-c", _PROBES, name)]
    try:
        done = processes.run(line, cpu_s=PROBE_CPU_S, idle_s=idle_s)
    except processes.TookTooLong as error:
        return Probe(error=f"gave no answer: it {error}")
    except OSError as error:
        return Probe(error=f"{line[0]} cannot be started: {error}")
    if done.returncode < 0:
        return Probe(error=f"crashed with signal {-done.returncode}")
    answers = [text for text in done.stdout.splitlines() if text.startswith("{")]
    if done.returncode != 0 or not answers:
        said = _refused_root(done.stderr) or _exception(done.stderr) or _last_line(done.stderr)
        return Probe(error=said or f"ended with exit code {done.returncode} and said nothing")
    try:
        return Probe(facts=json.loads(answers[-1]))
    except json.JSONDecodeError:
        return Probe(error=f"gave an answer that is not JSON: {answers[-1][:100]}")


def probe_mpi() -> Probe:
    if installed("mpi4py") is None:
        return Probe(facts={"missing": "mpi4py"})
    mpiexec = find_program("mpiexec")
    if mpiexec is None:
        return Probe(facts={"missing": "mpiexec"})
    return probe([mpiexec, "-n", "2"], "mpi")


@dataclass(frozen=True)
class Smi:
    """The output of nvidia-smi: no GPUs without a driver, ``error`` if it fails."""

    gpus: tuple[str, ...] = ()
    driver: str = ""
    error: str = ""
    cuda_major: int = 13  # the version to install, unless the driver is too old for it


def nvidia_smi() -> Smi:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Smi()
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = processes.run(query, cpu_s=60.0, idle_s=20.0)
    except (OSError, processes.TookTooLong) as error:
        return Smi(error=str(error))
    if done.returncode != 0:  # for example a driver that was upgraded and not reloaded
        return Smi(error=_last_line(done.stdout + done.stderr) or f"exit code {done.returncode}")
    rows = [row.rsplit(",", 1) for row in done.stdout.splitlines() if "," in row]
    driver = rows[0][1].strip() if rows else ""
    branch = driver.split(".")[0]
    # CUDA 13 needs a driver of branch 580 or newer; 12 runs on everything since 525.
    major = 12 if branch.isdigit() and int(branch) < 580 else 13
    return Smi(tuple(row[0].strip() for row in rows), driver, cuda_major=major)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_program(name: str) -> str | None:
    """``name`` beside this Python (in a virtual environment that need not be active), else on the PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def pip(*words: str) -> str:
    return python_m("pip", "install", *words)


def python_m(*words: str) -> str:
    return " ".join([shlex.quote(sys.executable), "-m", *words])


def install_system(apt: str, dnf: str) -> str:
    sudo = "" if os.geteuid() == 0 else "sudo "
    if shutil.which("apt-get"):
        return f"{sudo}apt-get install {apt}"
    if shutil.which("dnf"):
        return f"{sudo}dnf install {dnf}"
    return f"install {apt} with this system's package manager"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _exception(text: str) -> str:
    """The line of a traceback that names the exception; "" if there is no traceback."""
    _, found, after = text.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in after.splitlines() if line and not line.startswith(" ")]
    return lines[0].removeprefix("ep_lib.errors.")[:300] if found and lines else ""


def _refused_root(text: str) -> str:
    return REFUSED_ROOT if "attempt to run as root" in text else ""


def _last_line(text: str) -> str:
    """The last line with letters or digits: Open MPI, for example, frames its messages with dashes."""
    lines = [line.strip() for line in text.splitlines() if any(letter.isalnum() for letter in line)]
    return lines[-1][:300] if lines else ""
