"""``init()``: which launcher started this process, and what a world of one can do."""

from __future__ import annotations

import numpy as np
import pytest

from ep_lib.cuda import devices as cuda_devices
from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime import launcher
from ep_lib.runtime.launcher import Placement, detect, init

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
SLURM_BATCH = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
SRUN = {**SLURM_BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "3"}


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        ({}, Placement("single", 0, 1, 0)),
        (TORCHRUN, Placement("torchrun", 3, 4, 1)),
        (OPEN_MPI, Placement("mpi", 2, 8, 0)),
        (MPICH, Placement("mpi", 1, 2, 1)),
        (SRUN, Placement("srun", 3, 4, 3)),
        ({**SRUN, **TORCHRUN}, Placement("torchrun", 3, 4, 1)),  # torchrun inside srun
        ({**SRUN, **OPEN_MPI}, Placement("mpi", 2, 8, 0)),  # mpirun inside a step
        (SLURM_BATCH, Placement("single", 0, 1, 0)),  # the batch script itself: no srun
        ({"RANK": "0", "WORLD_SIZE": "1"}, Placement("single", 0, 1, 0)),
        ({**OPEN_MPI, "RANK": "3", "WORLD_SIZE": "4"}, Placement("mpi", 2, 8, 0)),  # without an address: not torchrun's
    ],
)
def test_the_environment_tells_the_launcher(environment: dict[str, str], world: Placement) -> None:
    assert detect(environment) == world


def test_a_variable_that_is_no_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="banana"):
        detect({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "banana"})


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({**TORCHRUN, "MASTER_PORT": "abc"}, "MASTER_PORT.*'abc'.*whole number"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT is 70000.*1 to 65535"),
        ({**TORCHRUN, "RANK": "4"}, "torchrun's rank 4; ranks are 0 to 3"),
        ({**TORCHRUN, "RANK": "-1"}, "torchrun's rank -1"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "started 0 ranks"),
        ({**TORCHRUN, "LOCAL_RANK": "-2"}, "local rank -2"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "RANK is set to 3, .* MASTER_ADDR not: start the ranks by torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "MASTER_ADDR, MASTER_PORT not"),
        ({"RANK": "2"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT not"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "8"}, "mpi's rank 8; ranks are 0 to 7"),
        ({**MPICH, "PMI_RANK": "one"}, "PMI_RANK.*'one'"),
        ({**SRUN, "SLURM_PROCID": "9"}, "srun's rank 9"),
    ],
)
def test_impossible_environments_are_refused(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        detect(environment)


@pytest.fixture
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without a launcher's or ep_lib's variables."""
    for name in (*TORCHRUN, *OPEN_MPI, *MPICH, *SRUN, "PMIX_RANK", "EP_LIB_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_several_processes_take_the_emulator_with_a_warning(without_launcher: pytest.MonkeyPatch) -> None:
    config, world = launcher.Config.from_environment({}), Placement("torchrun", 0, 4, 0)
    without_launcher.setattr(cuda_devices, "unusable_reason", lambda wanted=1: "no GPU here")
    with pytest.warns(RuntimeWarning, match="run on the emulator, since there is no GPU to use here: no GPU here"):
        assert launcher.choose_backend(None, config, world) == "emulator"
    assert launcher.choose_backend("emulator", config, world) == "emulator"
    with pytest.raises(ArgumentError, match="tpu"):
        init("tpu")


def test_init_alone_runs_kernels_on_the_emulator(without_launcher: pytest.MonkeyPatch) -> None:
    without_launcher.setattr(cuda_devices, "unusable_reason", lambda wanted=1: "no GPU here")
    source = 'extern "C" __global__ void twice(int* x) { x[threadIdx.x] *= 2; }'
    with init(heap_bytes=1 << 20) as rank:
        assert (rank.backend, rank.rank, rank.world_size) == ("emulator", 0, 1)
        x = rank.symmetric(4, np.int32, fill=21)
        Kernel.from_source(source, "twice").launch(rank, 1, 4, x)
        assert rank.to_host(x).tolist() == [42] * 4
        assert rank.all_gather({"a": 1}) == [{"a": 1}]
        rank.barrier()
    assert rank.is_closed


def test_the_backend_follows_the_variable_then_the_machine(without_launcher: pytest.MonkeyPatch) -> None:
    config = launcher.Config.from_environment({"EP_LIB_BACKEND": "cuda"})
    alone = Placement("single", 0, 1, 0)
    without_launcher.setattr(cuda_devices, "unusable_reason", lambda wanted=1: None)
    assert launcher.choose_backend(None, config, alone) == "cuda"
    assert launcher.choose_backend("emulator", config, alone) == "emulator"
    without_launcher.setenv("EP_LIB_BACKEND", "emulator")
    assert launcher.choose_backend(None, launcher.Config.from_environment(), alone) == "emulator"
