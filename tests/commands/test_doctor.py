"""`ep-lib doctor`: on this machine, and on machines that are stranger than it."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ep_lib import processes
from ep_lib.commands import doctor, efa_environment
from ep_lib.commands.doctor import trials
from ep_lib.commands.doctor.trials import Probe, Smi
from ep_lib.errors import BackendUnavailable
from ep_lib.jit import runtime_library, toolkit

pytestmark = pytest.mark.slow

GPU = {"name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 150_754_820_096}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What the command did, in an empty folder. It takes seconds."""
    folder = tmp_path_factory.mktemp("doctor")
    command = [sys.executable, "-m", "ep_lib", "doctor", "--json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert list(folder.iterdir()) == [], "it writes no file"
    return result


@pytest.fixture(scope="module")
def report(done: subprocess.CompletedProcess[str]) -> doctor.Report:
    findings = json.loads(done.stdout)["findings"]
    return doctor.Report(tuple(doctor.Finding(**{**each, "explained": tuple(each["explained"])}) for each in findings))


def finding(report: doctor.Report, name: str) -> doctor.Finding:
    (found,) = (f for f in report.findings if f.name == name)
    return found


def test_the_workshop_works_here(report: doctor.Report) -> None:
    assert report.workshop_works, report.as_text()
    emulator = finding(report, "emulator")
    assert emulator.status == "ok" and emulator.facts["values"] == [101, 100]


def test_every_finding_has_exactly_the_next_step_it_needs(report: doctor.Report) -> None:
    assert len(report.findings) >= 12
    for f in report.findings:
        assert f.status in ("ok", "missing", "broken")
        assert f.detail
        assert bool(f.next_step) == (f.status != "ok"), f


def test_text_and_json_say_the_same(report: doctor.Report) -> None:
    data = json.loads(report.as_json())
    assert data["workshop_works"] is True
    text = report.as_text()
    for f in data["findings"]:
        assert f["name"] in text and f["detail"] in text
        assert (f["next_step"] in text) is not f["next_step"].startswith(("nothing", "none"))


def test_what_is_optional_is_one_short_block(report: doctor.Report) -> None:
    above, _, block = report.as_text().partition("Optional, and not here.")
    assert " missing  " not in above and "NVSHMEM_" not in block
    assert all(f.name in block for f in report.findings if f.status == "missing")


def test_nixl_is_found_where_notebook_02_finds_it(report: doctor.Report) -> None:
    has_wheel = any(importlib.util.find_spec(f"nixl_cu{major}") for major in (12, 13))
    assert (finding(report, "NIXL").status == "ok") is has_wheel


def test_nvrtc_compiled_for_three_architectures(report: doctor.Report) -> None:
    nvrtc = finding(report, "NVRTC")
    if nvrtc.status == "missing":
        pytest.skip("no CuPy or NVRTC in this environment")
    assert nvrtc.status == "ok", nvrtc
    assert nvrtc.facts["targets"] == ["sm_80", "sm_90", "sm_100"]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EP_LIB_CXX", raising=False)
    found = doctor._compiler()
    assert found.status == "missing" and "g++" in found.next_step and found.needed


def test_the_variables_of_efa_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: pytest.fail("nothing is tried"))
    assert doctor.run(type("Args", (), {"json": True, "efa": True})()) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["name"] == "EFA environment" and len(finding["explained"]) > 5


def test_a_report_without_a_compiler_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> toolkit.Compiler:
        raise BackendUnavailable("neither g++ nor clang++ is on the PATH")

    monkeypatch.setattr(toolkit, "find_compiler", none)
    monkeypatch.setattr(trials, "probe", lambda *_: Probe(error="no compiler"))
    monkeypatch.setattr(doctor, "probe_mpi", lambda: Probe(facts={"missing": "mpi4py"}))
    args = type("Args", (), {"json": False, "efa": False})()
    assert doctor.run(args) == 1
    out = capsys.readouterr().out
    assert "To fix: C++ compiler, emulator" in out


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import os; os.abort()", "crashed with signal 6"),
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12"),
        ("import sys; sys.exit(3)", "ended with exit code 3 and said nothing"),
        ("print('{broken')", "not JSON"),
        ("import time; time.sleep(30)", "no answer: it did nothing for 1 s"),
    ],
)
def test_a_library_that_crashes_is_a_finding(tmp_path: Path, program: str, error: str) -> None:
    # A stand-in for Python: it takes the code that runs a probe, and its name, and does something terrible.
    stand_in = tmp_path / "stand-in"
    stand_in.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(program)}\n")
    stand_in.chmod(0o755)
    tried = trials.probe([str(stand_in)], "torch", idle_s=1.0 if "sleep" in program else 60.0)
    assert error in tried.error and tried.facts == {}


def test_a_program_that_cannot_start_is_a_finding() -> None:
    assert "cannot be started" in trials.probe(["/proc/self/no-such/python"], "torch").error


def test_an_interrupt_ends_all_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Semaphore(0), []

    def endless(*_: object) -> Probe:
        begun.release()
        try:
            processes.run(["sleep", "1e9"], cpu_s=1e9, idle_s=60)
        except processes.Stopped as stopped:
            ended.append(stopped)
            raise
        return Probe()

    def interrupted() -> Smi:
        for _ in range(2):
            assert begun.acquire(timeout=60)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # so that the other probes wait for a thread
    monkeypatch.setattr(runtime_library, "build_runtime", lambda: None)
    monkeypatch.setattr(trials, "probe", endless)
    monkeypatch.setattr(doctor, "nvidia_smi", interrupted)
    with pytest.raises(KeyboardInterrupt):
        doctor.examine()
    assert len(ended) == 2 and not begun.acquire(blocking=False)


def nvidia_smi_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Smi:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return trials.nvidia_smi()


@pytest.mark.parametrize(
    ("driver", "major"), [("580.65.06", 13), ("595.1", 13), ("570.124.06", 12), ("535.183.01", 12)]
)
def test_the_driver_decides_which_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, major: int
) -> None:
    smi = nvidia_smi_that(tmp_path, monkeypatch, f"echo 'NVIDIA H200, {driver}'; echo 'NVIDIA H200, {driver}'")
    assert smi == Smi(("NVIDIA H200", "NVIDIA H200"), driver, cuda_major=major)
    missing = doctor._cupy(Probe(facts={"missing": "cupy"}), smi)
    assert f"cupy-cuda{major}x" in missing.next_step


def test_a_driver_that_needs_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    smi = nvidia_smi_that(tmp_path, monkeypatch, f"echo '{said}'; exit 18")
    found = doctor._gpus(Probe(facts={"missing": "cupy"}), smi)
    assert found.status == "broken" and said in found.detail and "nvidia-smi" in found.next_step


def test_gpus_without_cupy() -> None:
    smi = Smi(("NVIDIA H200",) * 2, "535.1", cuda_major=12)
    found = doctor._gpus(Probe(facts={"missing": "cupy"}), smi)
    assert found.status == "broken" and "2 GPUs" in found.detail and "cupy-cuda12x" in found.next_step
    assert doctor._p2p(found).status == "missing"


def test_gpus_and_peer_access() -> None:
    facts: dict[str, Any] = {"gpus": [GPU, GPU], "driver": "13.0", "p2p": [[True, True], [True, True]]}
    gpus = doctor._gpus(Probe(facts=facts), Smi(("NVIDIA H200",) * 2, "580.65.06"))
    assert (gpus.status, gpus.detail) == ("ok", "2 x NVIDIA H200, driver 580.65.06")
    assert doctor._p2p(gpus).status == "ok"

    facts["p2p"] = [[True, False], [False, True]]
    apart = doctor._p2p(doctor._gpus(Probe(facts=facts), Smi()))
    assert apart.status == "broken" and "0->1, 1->0" in apart.detail and "topo" in apart.next_step


@pytest.mark.parametrize(
    ("has_gpu", "tried", "status", "told"),
    [
        (False, Probe(facts={"missing": "a GPU"}), "missing", "spawn(..., gpus=1)"),
        (True, Probe(facts={"missing": "nvidia-cuda-mps-control"}), "missing", "NVIDIA_DRIVER_CAPABILITIES"),
        (True, Probe(error="nvidia-cuda-mps-control did not start: why"), "broken", "did not start: why"),
        (True, Probe(facts={"control": "/usr/bin/nvidia-cuda-mps-control"}), "ok", "spawn(..., gpus=1)"),
    ],
)
def test_what_ranks_need_to_share_a_gpu(has_gpu: bool, tried: Probe, status: str, told: str) -> None:
    found = doctor._mps(has_gpu, tried)
    assert (found.name, found.status) == ("MPS (gpus=)", status)
    assert told in f"{found.detail} {found.next_step}" and bool(found.next_step) == (status != "ok")


def test_two_mpis_that_do_not_know_each_other() -> None:
    found = doctor._mpi(Probe(facts={"ranks": 1, "sum": 1, "library": "MPICH"}))
    assert found.status == "broken" and "not the MPI of mpi4py" in found.detail


DASHES = "-" * 74
AS_ROOT = f"""{DASHES}
{{program}} has detected an attempt to run as root.

Running as root is *strongly* discouraged as any mistake (e.g., in
defining TMPDIR) or bug can result in catastrophic damage to the OS
file system, leaving your system in an unusable state.

You can override this protection by adding the --allow-run-as-root option
to the cmd line or by setting two environment variables in the following way:
the variable OMPI_ALLOW_RUN_AS_ROOT=1 to indicate the desire to override this
protection, and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 to confirm the choice and
add one more layer of certainty that you want to do so.
We reiterate our advice against doing so - please proceed at your own risk.
{DASHES}"""


@pytest.mark.parametrize("program", ["mpiexec", "mpirun", "prterun"])
def test_an_open_mpi_that_does_not_run_as_root(tmp_path: Path, program: str) -> None:
    mpiexec = program_that_fails(tmp_path, AS_ROOT.format(program=program))
    found = doctor._mpi(trials.probe([mpiexec, "-n", "2"], "mpi"))
    assert found.status == "broken" and found.detail == "Open MPI's mpiexec refuses to start programs as root"
    assert "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in found.next_step and "mpich" in found.next_step


def test_a_frame_of_dashes_is_not_quoted(tmp_path: Path) -> None:
    said = f"{DASHES}\nThere are not enough slots available in the system.\n{DASHES}\n"
    tried = trials.probe([program_that_fails(tmp_path, said), "-n", "2"], "mpi")
    assert tried.error == "There are not enough slots available in the system."


def program_that_fails(tmp_path: Path, said: str) -> str:
    (tmp_path / "said").write_text(said)
    program = tmp_path / "mpiexec"
    program.write_text(f"#!/bin/sh\ncat {shlex.quote(str(tmp_path / 'said'))} >&2\nexit 213\n")
    program.chmod(0o755)
    return str(program)


def test_a_jupyter_kernel_of_another_python() -> None:
    found = doctor._jupyter(Probe(facts={"version": "4.6", "kernel": "/usr/bin/python3", "same_python": False}))
    assert found.status == "broken" and "ipykernel install" in found.next_step


@pytest.mark.parametrize("name", ["emulator", "NVRTC", "CuPy", "torch", "JupyterLab", "MPI"])
def test_every_probe_answers(name: str, report: doctor.Report) -> None:
    found = finding(report, name)
    assert found.facts or found.status == "missing", found


@pytest.mark.parametrize("name", ["mps", "nixl"])
def test_a_probe_that_needs_a_gpu_answers_without_one(name: str) -> None:
    tried = trials.probe([], name)
    assert tried.error == "" and tried.facts


def test_the_exit_code_is_what_the_json_says(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == (0 if json.loads(done.stdout)["workshop_works"] else 1)


# ---- the EFA environment -----------------------------------------------------------------------------------------
RIGHT = {
    "NVSHMEM_BOOTSTRAP": "mpi",
    "NVSHMEM_DISABLE_IB": "1",
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "NVSHMEM_DEBUG": "INFO",
    "NVSHMEM_SYMMETRIC_SIZE": "2G",
}


def test_an_efa_environment_that_is_complete() -> None:
    found = doctor._efa_environment(RIGHT)
    assert found.status == "ok" and found.next_step == "" and not found.needed
    assert found.facts["FI_EFA_TX_SIZE"] == "not set" and found.facts["FI_PROVIDER"] == "set"
    assert [line.split()[0] for line in found.explained] == [v.name for v in efa_environment.VARIABLES]


def test_an_efa_environment_that_is_not_set() -> None:
    found = doctor._efa_environment({"FI_PROVIDER": "efa", "NVSHMEM_DISABLE_IB": "  "})
    assert found.status == "missing" and "3 of the variables" in found.detail
    assert "NVSHMEM_BOOTSTRAP=MPI NVSHMEM_DISABLE_IB=1 FI_EFA_USE_DEVICE_RDMA=1" in found.next_step
    text = doctor.Report((found,)).as_text()
    assert all(line in text for line in found.explained)


@pytest.mark.parametrize(
    ("name", "value"),
    [("FI_PROVIDER", "tcp"), ("NVSHMEM_DISABLE_IB", "0"), ("FI_EFA_TX_SIZE", "many"), ("FI_EFA_RX_SIZE", "0")],
)
def test_an_efa_variable_that_cannot_work(name: str, value: str) -> None:
    found = doctor._efa_environment({**RIGHT, name: value})
    assert found.status == "broken" and name in found.detail and f"{name}=" in found.next_step
    assert any(f"is {value!r}" in line for line in found.explained)
