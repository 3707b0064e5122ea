"""Several ranks on one GPU, each on its own SMs: everything that runs on a GPU each runs here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import buffer_cases, low_latency_cases, pcie_cases
from support.dispatch_combine_cases import make_case
from support.rank_programs import atomics, in_the_background, ping_pong
from support.tagged import tagged
from support.waiting import wait_until

import ep_lib
from ep_lib import Kernel, Rank
from ep_lib.cuda import devices as cuda_devices
from ep_lib.cuda import mps, partition
from ep_lib.errors import ArgumentError, BackendUnavailable, KernelFault, KernelLaunchError
from ep_lib.moe.config import most_sms

SEEDS = 50
SOURCE = """
#include <ep/wait.cuh>
extern "C" __global__ void all_meet(uint64_t* here) {
    if (threadIdx.x != 0) return;
    uint64_t* there = ep::peer_ptr(here, 0);
    ep::red_add_release_sys_u64(there, 1);
    ep::wait_until_ge(there, uint64_t(gridDim.x) * ep::num_ranks(), {ep::kPhaseSignal, 0, 0});
}
extern "C" __global__ void trap() { __trap(); }
"""
FILL = 'extern "C" __global__ void fill(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x; }'


def kernel(name: str) -> Kernel:
    return Kernel.from_source(SOURCE, name)


def everybody_meets(rank: Rank) -> int:
    """Blocks that leave no room for another on their SM, on all SMs of all ranks, wait for each other."""
    here = rank.symmetric(1, np.uint64)
    sms = rank.sm_count or 0
    rank.barrier()
    kernel("all_meet").launch(rank, sms, 32, here, shared_bytes=rank._backend.shared_bytes - 1024)
    rank.barrier()
    return sms


ON_TWO = pytest.param(8, 2, marks=pytest.mark.gpu(count=2, own=True), id="8-on-2")


@pytest.mark.gpu
@pytest.mark.parametrize(("ranks", "gpus"), [(2, 1), (3, 1), (8, 1), ON_TWO])
def test_all_blocks_of_all_ranks_are_resident(ranks: int, gpus: int) -> None:
    (sms,) = set(ep_lib.spawn(everybody_meets, ranks, "cuda", gpus=gpus, timeout=20))
    assert sms > 0


@pytest.mark.gpu
@pytest.mark.parametrize(("ranks", "gpus"), [(2, 1), (8, 1), ON_TWO])
def test_small_programs(ranks: int, gpus: int) -> None:
    assert ep_lib.spawn(ping_pong, ranks, "cuda", gpus=gpus) == [0] * ranks
    assert ep_lib.spawn(in_the_background, ranks, "cuda", gpus=gpus) == [True] * ranks
    total, parts, most, _ = ep_lib.spawn(atomics, ranks, "cuda", gpus=gpus)[0]
    assert (total, parts, most) == (ranks * 192, ranks * 96.0, [ranks * 1000 - 1000 + 63, 2 * ranks * 192])


def buffers(rank: Rank, seeds: int) -> Any:
    size = rank.world_size
    direct = [buffer_cases.run_case(rank, make_case(seed, world_size=size)) for seed in range(seeds)]
    pcie = [pcie_cases.run_case(rank, make_case(seed, world_size=size), seed) for seed in range(2)]
    low = [
        low_latency_cases.run_case(rank, low_latency_cases.low_latency_case(seed, fp8=fp8, world_size=size), fp8)
        for seed, fp8 in enumerate((False, True))
    ]
    return direct, pcie, low


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("ranks", "gpus", "seeds"), [(8, 1, SEEDS), (3, 1, 4), pytest.param(*ON_TWO.values, 4, marks=ON_TWO.marks)]
)
def test_a_buffer_equals_the_oracle(ranks: int, gpus: int, seeds: int) -> None:
    results = ep_lib.spawn(buffers, ranks, "cuda", gpus=gpus, args=(seeds,), heap_bytes=128 << 20)
    for seed in range(seeds):
        buffer_cases.check_case(make_case(seed, world_size=ranks), [result[0][seed] for result in results])
    for seed in range(2):
        buffer_cases.check_case(make_case(seed, world_size=ranks), [result[1][seed] for result in results])
    for seed, fp8 in enumerate((False, True)):
        case = low_latency_cases.low_latency_case(seed, fp8=fp8, world_size=ranks)
        low_latency_cases.check_case(case, fp8, [result[2][seed] for result in results])


def in_a_graph(rank: Rank) -> bool:
    """A kernel in a CUDA graph keeps to the rank's part: all ranks wait for each other in it."""
    here, stream = rank.symmetric(1, np.uint64), rank.xp.cuda.Stream(non_blocking=True)
    everybody = kernel("all_meet")
    shared = rank._backend.shared_bytes - 1024
    with stream:
        everybody.launch(rank, rank.sm_count or 0, 32, here, shared_bytes=shared)
        rank.barrier()
        here[:] = 0
        rank.barrier()
        stream.begin_capture()
        everybody.launch(rank, rank.sm_count or 0, 32, here, shared_bytes=shared)
        graph = stream.end_capture()
        rank.barrier()
        graph.launch(stream)
        rank.barrier()
        return rank.rank != 0 or int(here[0]) == rank.world_size * (rank.sm_count or 0)


@pytest.mark.gpu
def test_a_graph_keeps_to_its_part() -> None:
    assert ep_lib.spawn(in_a_graph, 4, "cuda", gpus=1, timeout=20) == [True] * 4


def too_many_blocks(rank: Rank) -> tuple[str, int]:
    x = rank.symmetric(1 << 20, np.int32)
    Kernel.from_source(FILL, "fill").launch(rank, 1 << 10, 1 << 10, x)  # waits for nobody: as many blocks as one likes
    rank.synchronize()
    try:
        kernel("all_meet").launch(rank, 1 << 12, 1 << 10, rank.symmetric(1, np.uint64))
    except KernelLaunchError as error:
        return str(error), int(x[-1])
    return "", 0


@pytest.mark.gpu
def test_a_grid_that_does_not_fit_is_refused_with_the_numbers() -> None:
    for said, last in ep_lib.spawn(too_many_blocks, 8, "cuda", gpus=1):
        assert "4096 blocks of 1024 threads" in said and "'s part of the GPU runs " in said, said
        assert last == 1023


def one_traps(rank: Rank) -> None:
    rank.barrier()
    if rank == 1:
        kernel("trap").launch(rank, 1, 1)
    rank.barrier()


@pytest.mark.gpu
def test_a_rank_that_faults_ends_the_program_and_the_next_one_runs() -> None:
    with pytest.raises(KernelFault):
        ep_lib.spawn(one_traps, 4, "cuda", gpus=1, timeout=20)
    assert ep_lib.spawn(ping_pong, 2, "cuda", gpus=1) == [0, 0]


# ---- without a GPU -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"backend": "emulator", "gpus": 1}, "gpus is 1; the emulator needs none"),
        ({"backend": "cuda", "gpus": 0}, "gpus is 0"),
        ({"backend": "cuda", "gpus": "all"}, "gpus is 'all'"),
        ({"backend": "cuda", "gpus": 1, "transport": "nvshmem"}, "have p2p only"),
    ],
)
def test_bad_numbers_of_gpus_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        ep_lib.spawn(ping_pong, 2, **more)


def test_which_gpu_a_rank_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "gpu_count", lambda: 2)
    assert [cuda_devices.device_for(rank, 8, 1) for rank in range(3)] == [0, 0, 0]
    assert [cuda_devices.device_for(rank, 8, 2) for rank in range(4)] == [0, 1, 0, 1]
    with pytest.raises(BackendUnavailable, match=r"gpus is 3, and .* shows 2"):
        cuda_devices.device_for(0, 8, 3)


def test_a_small_part_has_fewer_blocks_by_default() -> None:
    assert [most_sms(sms) for sms in (None, 132, 16, 5, 1)] == [24, 24, 16, 4, 1]


def test_a_part_is_as_large_as_the_driver_allows() -> None:
    def split(parts: int, whole: object, flags: int, wanted: int) -> tuple[Any, list[int], int, None]:
        """An H100's: parts of 8, 16, ... SMs, 132 in all."""
        size = -(-wanted // 8) * 8
        found = min(parts, 132 // size)
        return SimpleNamespace(value=0), [size] * found, found, None

    driver = SimpleNamespace(cuDevSmResourceSplitByCount=split)
    assert partition._split(driver, None, 3, 43) == [40] * 3
    assert partition._split(driver, None, 17, 7) is None


def test_an_absent_package_and_an_old_driver_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(BackendUnavailable, match="pip install cuda-bindings"):
        partition.Partition(0, 0, 2)

    def absent(*arguments: object) -> None:
        raise RuntimeError('Function "cuDeviceGetDevResource" not found')

    kinds = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    old = SimpleNamespace(cuDeviceGetDevResource=absent, CUdevResourceType=kinds)
    monkeypatch.setattr(partition, "_load_driver", lambda: old)
    with pytest.raises(BackendUnavailable, match="driver 550"):
        partition.Partition(0, 0, 2)


# A program in place of NVIDIA's: it answers once its "control" file is there.
DAEMON = """#!{python}
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    {start}
    (folder / "control").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    if os.fork() == 0:
        (folder / "server").write_text(str(os.getpid()))
    time.sleep(600)
sys.exit(not (folder / "server").exists())
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(mps, "is_active", lambda: False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(start: str = "pass") -> None:
        program = tmp_path / mps.CONTROL
        program.write_text(DAEMON.format(python=sys.executable, start=start))
        program.chmod(0o755)

    return make


def test_a_daemon_lasts_as_long_as_the_ranks(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with mps.service() as environment:
        folder = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert (folder / "control").read_text() == "4,7" and environment["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert len(tagged(f"CUDA_MPS_PIPE_DIRECTORY={folder}")) == 2
    assert not folder.exists()
    # They were killed, and nobody waits for the daemon's own children.
    assert wait_until(lambda: tagged(f"CUDA_MPS_PIPE_DIRECTORY={folder}") == [], seconds=60.0)


def test_a_daemon_that_does_not_start_says_why(daemon: Any) -> None:
    daemon("print('no such device'); sys.exit(1)")
    with pytest.raises(BackendUnavailable, match=r"did not start: no such device\. EP_LIB_SHARE_GPUS=1"), mps.service():
        pass


def test_where_there_is_no_mps_is_said(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailable, match="nvidia-cuda-mps-control is not on the PATH"), mps.service():
        pass


def test_a_daemon_that_has_the_gpu_for_itself_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "is_active", lambda: True)
    monkeypatch.setattr(mps, "_compute_mode", lambda: 3)
    with mps.service() as environment:
        assert environment == dict(os.environ)


KILLED = """
import os, signal
from ep_lib.cuda import mps
mps.is_active = lambda: False
with mps.service() as environment:
    print(environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_leaves_no_daemon(daemon: Any) -> None:
    daemon()
    done = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    folder = Path(done.stdout.strip())
    while tagged(f"CUDA_MPS_PIPE_DIRECTORY={folder}") or folder.exists():  # the guard is about to
        pass
