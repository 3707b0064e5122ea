"""``ep-lib doctor``: what this machine can do, and the next step for each missing part.

Every finding is from a trial: the emulator runs a two-rank kernel, NVRTC compiles one, mpiexec starts two ranks. Each
trial is a process of its own with a time limit, so a library that crashes while loading becomes a finding and does not
end the doctor: probes.py runs in that process, trials.py starts it and writes the next steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from ep_lib import processes
from ep_lib.commands import efa_environment
from ep_lib.commands.doctor import trials
from ep_lib.commands.doctor.trials import (
    Facts,
    Probe,
    Smi,
    count,
    install_system,
    installed,
    nvidia_smi,
    pip,
    probe_mpi,
    python_m,
)
from ep_lib.errors import EpError
from ep_lib.jit import runtime_library, toolkit
from ep_lib.processes import home_folder
from ep_lib.transports.nixl import build as nixl
from ep_lib.transports.nvshmem import nics

Status = Literal["ok", "missing", "broken"]

_NO_STEP = ("nothing", "none")  # first words of a next step that needs no action on this machine
NO_GPU = "nothing to do for the workshop, which needs no GPU; on a host with an NVIDIA driver run this again"


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``next_step`` is empty exactly if ``status`` is "ok"."""

    name: str
    status: Status
    detail: str
    next_step: str = ""
    needed: bool = False  # the workshop does not work without it
    facts: Facts = field(default_factory=dict)
    explained: tuple[str, ...] = ()  # lines below the finding


@dataclass(frozen=True)
class Report:
    findings: tuple[Finding, ...]

    @property
    def workshop_works(self) -> bool:
        return all(finding.status == "ok" for finding in self.findings if finding.needed)

    def as_json(self) -> str:
        return json.dumps(
            {"workshop_works": self.workshop_works, "findings": [asdict(f) for f in self.findings]}, indent=2
        )

    def as_text(self) -> str:
        width = max(len(finding.name) for finding in self.findings)
        optional = [f for f in self.findings if f.status == "missing" and not f.needed and len(self.findings) > 1]
        lines = []
        for f in self.findings:
            if f in optional:
                continue
            lines.append(f"{f.status:>8}  {f.name:<{width}}  {f.detail}")
            if f.next_step:
                lines.append(f"{'':>8}  {'':<{width}}  -> {f.next_step}")
            lines.extend(f"{'':>8}  {'':<{width}}  * {line}" for line in f.explained)
        ok = "The workshop works on this machine." if self.workshop_works else "The workshop does not work here yet."
        missing = [f.name for f in self.findings if f.needed and f.status != "ok"]
        tail = f" To fix: {', '.join(missing)} (see the arrows above)." if missing else ""
        if optional:
            of_use = not all(f.next_step.startswith(_NO_STEP) for f in optional)
            arrow = " An arrow stands where installing it is of use on this machine:" if of_use else ""
            lines += ["", f"Optional, and not here.{arrow}"]
        for f in optional:
            lines.append(f"  {f.name:<{width}}  {f.detail}")
            if not f.next_step.startswith(_NO_STEP):
                lines.append(f"  {'':<{width}}  -> {f.next_step}")
        return "\n".join([*lines, "", ok + tail])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")
    parser.add_argument("--efa", action="store_true", help="only the variables of NVSHMEM over EFA; tries nothing")


def run(args: argparse.Namespace) -> int:
    report = Report((_efa_environment(os.environ),)) if args.efa else examine()
    print(report.as_json() if args.json else report.as_text())
    return 0 if report.workshop_works else 1


def examine() -> Report:
    """Runs all trials concurrently, in a few processes, and reports in a fixed order. Takes seconds; raises nothing.

    Compiles the emulator first, once for this version, so that its progress bar is visible.
    """
    with contextlib.suppress(EpError):  # the emulator's own probe reports it
        runtime_library.build_runtime()
    jobs: dict[str, Callable[[], Probe]] = {
        name: lambda name=name: trials.probe([], name)  # type: ignore[misc]
        for name in ("emulator", "nvrtc", "cupy", "torch", "nixl", "jupyter")
    }
    jobs["mpi"] = probe_mpi
    with processes.stoppable_threads(max(2, os.cpu_count() or 2)) as pool:
        running = {name: pool.submit(job) for name, job in jobs.items()}
        smi = nvidia_smi()
        with tqdm(total=len(running), desc="Trying what there is", delay=1, leave=False, disable=None, unit="") as bar:
            for _ in as_completed(running.values()):
                bar.update()
        result = {name: future.result() for name, future in running.items()}
    gpus = _gpus(result["cupy"], smi)
    has_gpu = bool(gpus.facts.get("gpus"))
    mps = trials.probe([], "mps") if has_gpu else Probe(facts={"missing": "a GPU"})
    return Report(
        (
            _python(),
            _compiler(),
            _emulator(result["emulator"]),
            _jupyter(result["jupyter"]),
            _torch(result["torch"]),
            _cupy(result["cupy"], smi),
            _nvrtc(result["nvrtc"]),
            gpus,
            _p2p(gpus),
            _mps(has_gpu, mps),
            _nvshmem(has_gpu, smi),
            _nixl(result["nixl"], smi),
            _mpi(result["mpi"]),
            _nics(),
            _efa_environment(os.environ),
        )
    )


# Findings, in the order of the report


def _python() -> Finding:
    detail = f"{platform.python_version()} at {sys.executable}, {os.cpu_count()} CPUs, {platform.machine()}"
    facts: Facts = {
        "version": platform.python_version(),
        "executable": sys.executable,
        "cpus": os.cpu_count(),
        "ep_lib": installed("ep-lib"),
        "numpy": installed("numpy"),
        "system": platform.platform(),
    }
    if sys.platform != "linux":
        step = "run it on Linux, in WSL 2, or in a Linux container"
        return Finding("Python", "broken", f"{detail}: the emulator runs on Linux only", step, needed=True, facts=facts)
    homeless = (
        "this user has no home: set HOME to a folder of your own first, since JupyterLab and CuPy keep files there"
    )
    explained = (homeless,) if home_folder() is None else ()
    return Finding("Python", "ok", detail, needed=True, facts=facts, explained=explained)


def _compiler() -> Finding:
    try:
        found = toolkit.find_compiler()
    except (EpError, OSError) as error:  # OSError: a cache directory that cannot be written
        return Finding("C++ compiler", "missing", str(error), install_system("g++", "gcc-c++"), needed=True)
    first = found.identity.splitlines()[0] if found.identity else "version unknown"
    facts = {"path": found.path, "version": first}
    return Finding("C++ compiler", "ok", f"{found.path}: {first}", needed=True, facts=facts)


def _emulator(tried: Probe) -> Finding:
    name = "emulator"
    if tried.error:
        step = f"see the whole error: {python_m('ep_lib.commands.doctor.probes', 'emulator')}"
        return Finding(name, "broken", tried.error, step, needed=True)
    detail = "compiled a CUDA kernel for the CPU and ran it on two ranks, which wrote into each other's memory"
    return Finding(name, "ok", detail, needed=True, facts=tried.facts)


def _jupyter(tried: Probe) -> Finding:
    name = "JupyterLab"
    install = pip("'jupyterlab>=4.2,<5'", "'ipywidgets>=8.1,<9'", "ipykernel", "matplotlib")
    if tried.missing:
        return Finding(name, "missing", f"{tried.missing} is not installed; the notebooks need it", install)
    if tried.error:
        return Finding(name, "broken", tried.error, f"{install} --force-reinstall")
    if not tried.facts.get("same_python", True):
        step = python_m("ipykernel", "install", "--sys-prefix")
        detail = f"its Python kernel is another Python: {tried.facts['kernel']}"
        return Finding(name, "broken", detail, step, facts=tried.facts)
    return Finding(name, "ok", f"{tried.facts['version']}, kernels run this Python", facts=tried.facts)


def _torch(tried: Probe) -> Finding:
    if tried.missing:
        return Finding("torch", "missing", "the demo's language model needs it", pip("'torch>=2.6,<3'"))
    if tried.error:
        return Finding("torch", "broken", tried.error, pip("--force-reinstall", "'torch>=2.6,<3'"))
    cuda = tried.facts["cuda"]
    built = f"built for CUDA {cuda}, {count(tried.facts['gpus'], 'GPU')} usable" if cuda else "CPU build"
    return Finding("torch", "ok", f"{tried.facts['version']}, {built}", facts=tried.facts)


def _on_a_gpu_host(smi: Smi, step: str) -> str:
    """``step`` if there is a GPU; otherwise there is nothing to do here."""
    return step if smi.gpus or smi.error else f"nothing here, where no GPU is; on a GPU host: {step}"


def _cupy(tried: Probe, smi: Smi) -> Finding:
    package = f"'cupy-cuda{smi.cuda_major}x>=14,<15'"
    if tried.missing:
        detail = "the cuda backend and the compile check for GPUs need it"
        return Finding("CuPy", "missing", detail, _on_a_gpu_host(smi, pip(package)))
    if tried.error:
        step = f"remove every CuPy and install one: {python_m('pip', 'list')} shows them, then {pip(package)}"
        return Finding("CuPy", "broken", tried.error, step)
    detail = f"{tried.facts['version']}, for CUDA {tried.facts['runtime']}"
    return Finding("CuPy", "ok", detail, facts={k: tried.facts[k] for k in ("version", "runtime")})


def _nvrtc(tried: Probe) -> Finding:
    name = "NVRTC"
    major = "12" if installed("cupy-cuda12x") else "13"
    package = "nvidia-cuda-nvrtc-cu12" if major == "12" else "'nvidia-cuda-nvrtc>=13.0,<14'"
    if tried.missing:
        detail = (
            "compiles kernels for GPUs, and says what of a kernel is not CUDA: on the emulator that is unchecked now"
        )
        return Finding(name, "missing", detail, pip(package))
    if tried.error:
        step = f"see the whole error: {python_m('ep_lib.commands.doctor.probes', 'nvrtc')}"
        return Finding(name, "broken", tried.error, step)
    detail = f"{tried.facts['version']}, compiled a kernel for {', '.join(tried.facts['targets'])}"
    return Finding(name, "ok", detail, facts=tried.facts)


def _gpus(tried: Probe, smi: Smi) -> Finding:
    gpus = tried.facts.get("gpus", [])
    facts: Facts = {"driver": smi.driver or tried.facts.get("driver", ""), "gpus": gpus, "p2p": tried.facts.get("p2p")}
    if gpus:
        names = sorted({gpu["name"] for gpu in gpus})
        detail = ", ".join(f"{sum(gpu['name'] == name for gpu in gpus)} x {name}" for name in names)
        return Finding("GPUs", "ok", f"{detail}, driver {facts['driver'] or 'unknown'}", facts=facts)
    if smi.error:
        step = "the driver itself does not work: make `nvidia-smi` work first (after an upgrade, often by a reboot)"
        return Finding("GPUs", "broken", f"nvidia-smi fails: {smi.error}", step, facts=facts)
    if smi.gpus:
        facts["gpus"] = [{"name": name} for name in smi.gpus]
        why = tried.error or tried.facts.get("reason") or "CuPy is missing"
        detail = f"{count(len(smi.gpus), 'GPU')} ({smi.gpus[0]}), which CuPy cannot use: {why}"
        step = pip(f"'cupy-cuda{smi.cuda_major}x>=14,<15'")
        return Finding("GPUs", "broken", detail, step, facts=facts)
    return Finding("GPUs", "missing", "no NVIDIA GPU or driver; kernels run on the emulator", NO_GPU, facts=facts)


def _p2p(gpus: Finding) -> Finding:
    name = "peer access"
    matrix = gpus.facts.get("p2p") or []
    if len(matrix) < 2:
        return Finding(
            name, "missing", f"at least two GPUs are needed to write to each other; {len(matrix)} usable", NO_GPU
        )
    apart = [(a, b) for a, row in enumerate(matrix) for b, yes in enumerate(row) if not yes]
    if apart:
        pairs = ", ".join(f"{a}->{b}" for a, b in apart[:8]) + (" ..." if len(apart) > 8 else "")
        detail = f"no direct access for {len(apart)} of {len(matrix) * (len(matrix) - 1)} pairs: {pairs}"
        step = "`nvidia-smi topo -m` shows why; pick GPUs of one group with CUDA_VISIBLE_DEVICES"
        return Finding(name, "broken", detail, step, facts={"matrix": matrix})
    return Finding(name, "ok", f"all {len(matrix)} GPUs reach each other directly", facts={"matrix": matrix})


def _mps(has_gpu: bool, tried: Probe) -> Finding:
    name, use = "MPS (gpus=)", "ranks that share a GPU need it: spawn(..., gpus=1), EP_LIB_GPUS=1"
    if not has_gpu:
        return Finding(name, "missing", use, NO_GPU, facts=tried.facts)
    if tried.missing:
        step = "it comes with the driver; start a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return Finding(name, "missing", f"{tried.missing} is not on the PATH; {use}", step, facts=tried.facts)
    if tried.error:
        step = f"see the whole error: {python_m('ep_lib.commands.doctor.probes', 'mps')}"
        return Finding(name, "broken", tried.error, step)
    return Finding(name, "ok", "starts, so several ranks can share a GPU: spawn(..., gpus=1)", facts=tried.facts)


def _nvshmem(has_gpu: bool, smi: Smi) -> Finding:
    for package in ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"):
        found = installed(package)
        if found is None:
            continue
        libraries = [f for f in distribution(package).files or [] if f.name.startswith("libnvshmem_host.so")]
        if not any(Path(str(f.locate())).exists() for f in libraries):
            detail = f"{package} {found} is installed, but its libnvshmem_host.so is gone"
            return Finding("NVSHMEM", "broken", detail, pip("--force-reinstall", "--no-deps", package))
        return Finding("NVSHMEM", "ok", f"{found} ({package})", facts={"version": found, "package": package})
    install = pip(f"'nvidia-nvshmem-cu{smi.cuda_major}>=3.4.5,<4'")
    step = install if has_gpu else f"none here, since it needs a GPU; on a GPU host: {install}"
    return Finding("NVSHMEM", "missing", "not installed", step)


def _nixl(tried: Probe, smi: Smi) -> Finding:
    # --no-deps: the package depends on torch, whose newest release may be for another CUDA version.
    install = pip("--no-deps", f"'nixl-cu{smi.cuda_major}>=1.5,<2'")
    if tried.missing:
        return Finding("NIXL", "missing", "not installed", install)
    if tried.error:
        return Finding("NIXL", "broken", tried.error, install + " --force-reinstall")
    plugins = ", ".join(tried.facts["plugins"]) or "none"
    lacks = nixl.missing(smi.cuda_major)
    kernels = f"spawn(transport='nixl') needs more: {lacks}" if lacks else "spawn(transport='nixl'): kernels compile"
    detail = f"{tried.facts['version']} ({tried.facts['package']}), plugins: {plugins}"
    is_of_use = bool(smi.gpus) or not lacks  # kernels post through NIXL only on GPUs
    return Finding("NIXL", "ok", detail, facts=tried.facts, explained=(kernels,) if is_of_use else ())


def _mpi(tried: Probe) -> Finding:
    if tried.missing == "mpiexec":
        return Finding("MPI", "missing", "mpi4py is there, mpiexec is not", pip("mpich"))
    if tried.missing:
        return Finding("MPI", "missing", f"{tried.missing} is not installed", pip("mpi4py", "mpich"))
    one_mpi = pip("--force-reinstall", "--no-cache-dir", "mpi4py", "mpich")
    if tried.error == trials.REFUSED_ROOT:
        allow = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        return Finding("MPI", "broken", tried.error, f"{allow}, or use MPICH, which runs as root: {one_mpi}")
    if tried.error or tried.facts["ranks"] != 2:
        detail = tried.error or "mpiexec started ranks that do not see each other: it is not the MPI of mpi4py"
        return Finding("MPI", "broken", detail, f"use one MPI for both: {one_mpi}", facts=tried.facts)
    return Finding("MPI", "ok", f"mpiexec started two ranks; {tried.facts['library']}", facts=tried.facts)


def _nics() -> Finding:
    """The NICs between hosts, and ep_lib's settings of NVSHMEM for them."""
    found = nics.rdma_devices()
    facts: Facts = {"devices": {nic.name: nic.driver for nic in found}}
    if not found:
        step = "none needed for the emulator or P2P; in a container, pass the devices in: --device /dev/infiniband"
        return Finding("RDMA NICs", "missing", "this system shows none in /sys/class/infiniband", step, facts=facts)
    settings = " ".join(f"{name}={value}" for name, value in nics.nvshmem_settings(found).items())
    explained = [f"for GPUs that do not reach each other, transport='nvshmem' sets, unless you do: {settings}"]
    if nics.can_be_driven_by_gpus(found):
        explained.append(
            "NVSHMEM_IB_ENABLE_IBGDA=1 lets GPU threads drive them (IBGDA); kernels are then built with nvcc, and with "
            "NVSHMEM_DEBUG=INFO NVSHMEM says what else it needs"
        )
    return Finding("RDMA NICs", "ok", ", ".join(map(str, found)), facts=facts, explained=tuple(explained))


def _efa_environment(environment: Mapping[str, str]) -> Finding:
    name = "EFA environment"
    variables = efa_environment.VARIABLES
    explained = tuple(efa_environment.explain(variable, environment) for variable in variables)
    states: Facts = {variable.name: variable.state(environment) for variable in variables}
    wrong = [variable.name for variable in variables if states[variable.name] == "differs"]
    faulty = efa_environment.faulty(environment)
    export = f"`export {' '.join(variable.export() for variable in faulty)}`"
    if wrong:
        detail = f"{', '.join(wrong)} set to a value that cannot work with NVSHMEM over EFA"
        return Finding(name, "broken", detail, export, facts=states, explained=explained)
    if faulty:
        detail = f"{len(faulty)} of the variables that NVSHMEM over EFA needs are not set"
        step = f"none needed for the emulator or P2P; on a host with EFA: {export}"
        return Finding(name, "missing", detail, step, facts=states, explained=explained)
    return Finding(name, "ok", "everything that NVSHMEM over EFA needs is set", facts=states, explained=explained)
