"""The cuda backend: what needs GPUs is marked so; the rest is checked with NVRTC alone or with a stand-in for CUDA."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ep_lib.backends import cuda as cuda_backend
from ep_lib.backends.base import Backend
from ep_lib.bootstrap import SingleBootstrap
from ep_lib.cuda import devices as cuda_devices
from ep_lib.cuda import errors as cuda_errors
from ep_lib.cuda.devices import DeviceIdentity
from ep_lib.errors import (
    ArgumentError,
    BackendUnavailable,
    BufferClosedError,
    KernelFault,
    KernelLaunchError,
    KernelTimeout,
    OutOfSymmetricMemory,
    PeerTimeout,
    RankFailed,
    RankMismatchError,
)
from ep_lib.jit import device_state, nvrtc
from ep_lib.jit.kernel import Kernel
from ep_lib.memory.arrays import describe
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn
from ep_lib.transports import base

SOURCE = """
#include <ep/put.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

struct Numbers { double a; int b; long long c[9]; };

extern "C" __global__ void exchange(int* inbox, const int* data, size_t count, uint64_t* flag, int peer, int* ok) {
    ep::put_block(inbox, data, count * sizeof(int), peer);
    __syncthreads();
    if (threadIdx.x == 0) ep::signal_set(flag, 1, peer);
    const bool arrived = ep::wait_until_ge_block(flag, 1, {ep::kPhaseSignal, peer, 0});
    if (threadIdx.x == 0) *ok = arrived && ep::rank() != peer && ep::num_ranks() == 2 && ep::in_heap(flag);
}
extern "C" __global__ void wait_for(uint64_t* flag, uint64_t expected, int peer) {
    ep::wait_until_ge_block(flag, expected, {ep::kPhaseCredit, peer, 5});
}
extern "C" __global__ void arguments(signed char a, unsigned b, long long c, float d, double e, bool f, Numbers n,
                                     const int* p, const int* null, double* out) {
    out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f;
    out[6] = n.a + n.b + n.c[8]; out[7] = p[1]; out[8] = null == nullptr;
}
extern "C" __global__ void dynamic(int* out, int words) {
    extern __shared__ int area[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) area[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) *out = area[words - 1];
}
extern "C" __global__ void __launch_bounds__(128) bounded(int* out) { *out = threadIdx.x; }
extern "C" __global__ void read_through(const int* address, int* out) { *out = *address; }
extern "C" __global__ void wild() { *reinterpret_cast<volatile int*>(0x123450) = 1; }
extern "C" __global__ void trap() { __trap(); }
extern "C" __global__ void forever(volatile int* never) { while (*never == 0) {} }
"""
ADD_ONE = """extern "C" __global__ void add_one(float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1.0f;
}
"""

NUMBERS = np.dtype([("a", "f8"), ("b", "i4"), ("pad", "i4"), ("c", "i8", (9,))])
two_gpus = pytest.mark.gpu(count=2)
one_gpu = pytest.mark.gpu


def kernel(name: str) -> Kernel:
    return Kernel.from_source(SOURCE, name, filename="test_cuda_backend.cu")


def on_gpus(main: Callable[..., Any], ranks: int = 2, **options: Any) -> list[Any]:
    return spawn(main, ranks=ranks, backend="cuda", heap_bytes=8 << 20, **options)


# ---- without a GPU -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not nvrtc.available(), reason="needs CuPy and NVRTC: pip install -e '.[nvrtc]'")
def test_kernels_compile_and_carry_the_device_state() -> None:
    from ep_lib.jit.elf import Elf

    image = nvrtc.compile_cubin(kernel("exchange"), "sm_90")
    assert image.lowered_name == "exchange"
    assert len(image.params) == 6
    (symbol,) = [symbol for symbol in Elf(image.cubin).symbols if symbol.name == "ep_device_state"]
    assert symbol.size == device_state.DEVICE_STATE.size


def test_importing_the_backend_loads_no_cuda_library() -> None:
    code = "import sys, ep_lib.backends.cuda, ep_lib.runtime.launcher; assert 'cupy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_too_many_ranks_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "gpu_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert [cuda_devices.device_for(rank, 2) for rank in range(2)] == [0, 1]
    with pytest.raises(BackendUnavailable, match=r"3 ranks on .* 2 GPUs.*CUDA_VISIBLE_DEVICES='4,7'"):
        cuda_devices.device_for(0, 3)
    monkeypatch.setenv("EP_LIB_SHARE_GPUS", "1")
    assert [cuda_devices.device_for(rank, 3) for rank in range(3)] == [0, 1, 0]
    monkeypatch.setattr(cuda_devices, "gpu_count", lambda: 0)
    with pytest.raises(BackendUnavailable, match="no GPU"):
        cuda_devices.device_for(0, 1)


class NoRoute(Exception):
    """Stands for CUDARuntimeError."""


def _runtime(reachable: set[tuple[int, int]]) -> Any:
    def device_of(bus: str) -> int:
        if bus == "hidden":
            raise NoRoute
        return int(bus)

    runtime = SimpleNamespace(
        CUDARuntimeError=NoRoute,
        deviceGetByPCIBusId=device_of,
        deviceCanAccessPeer=lambda mine, theirs: int((mine, theirs) in reachable),
    )
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


def test_pairs_without_peer_access_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu(device: int, host: str = "a", bus: str | None = None) -> DeviceIdentity:
        return DeviceIdentity(host, f"host-{host}", device, str(device) if bus is None else bus, "GPU")

    monkeypatch.setattr(cuda_devices, "import_cupy", lambda: _runtime({(0, 1), (1, 0)}))
    assert cuda_devices.peer_problems(0, [gpu(0), gpu(1)]) == []
    (problem,) = cuda_devices.peer_problems(1, [gpu(0), gpu(1), gpu(2)])
    assert problem.startswith("rank 1 (GPU 1, GPU) cannot access rank 2 (GPU 2, GPU)")
    assert "host-b" in cuda_devices.peer_problems(0, [gpu(0), gpu(1, "b")])[0]
    assert "CUDA_VISIBLE_DEVICES" in cuda_devices.peer_problems(0, [gpu(0), gpu(0, bus="hidden")])[0]


def test_what_fails_on_one_rank_fails_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "import_cupy", lambda: _runtime(set()))

    class Two(SingleBootstrap):
        """The other rank failed."""

        def all_gather(self, obj: object, timeout: float | None = None) -> list[Any]:
            return [obj, ("no memory", None)]

    with pytest.raises(BackendUnavailable, match="rank 1 could not set up the cuda backend: no memory"):
        base.agree(Two(), lambda: 5, 1.0)

    def fail() -> None:
        raise OutOfSymmetricMemory("too small", requested=2, available=1)

    with pytest.raises(OutOfSymmetricMemory):
        base.agree(Two(), fail, 1.0)
    assert base.agree(SingleBootstrap(), lambda: 5, 1.0) == [5]


def test_cuda_errors_become_sentences() -> None:
    fault = cuda_errors.to_error(700, "cudaErrorIllegalAddress", 3, {"copy": 2})
    assert isinstance(fault, KernelFault)
    assert fault.kernel == "copy"
    for words in ("rank 3", "copy x 2", "compute-sanitizer", "emulator"):
        assert words in str(fault)
    refused = cuda_errors.launch_error(701, "too many resources", 0, "big", "<<<1, 1024>>>", 255)
    assert isinstance(refused, KernelLaunchError)
    assert "255 registers" in str(refused)


def stops_before_a_barrier(rank: Rank) -> None:
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    rank.barrier()


@pytest.mark.gpu(count=2)
def test_a_stopped_rank_is_named_by_who_waits_in_a_barrier() -> None:
    with pytest.raises(PeerTimeout, match=r"rank 0 waited 2 s in .*barrier.* for rank 1, whose process \d+ is stopped"):
        spawn(stops_before_a_barrier, 2, "cuda", timeout=2)


def test_a_process_that_was_stopped_looks_again_before_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = cuda_backend.CudaBackend.__new__(cuda_backend.CudaBackend)
    backend.rank, backend.kernel_timeout, backend._lost, backend._pending = 0, 1.0, None, {"exchange": 1}
    backend._hint_from_record = lambda: ""

    def wait(times: list[float], ready_after: int) -> None:
        clock, looks = iter(times), iter([cuda_errors.NOT_READY] * ready_after + [0])
        backend._query = lambda event: next(looks)
        monkeypatch.setattr(cuda_backend, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
        backend._wait_for(5, 1.0)

    wait([0.0, 5.0, 5.05], ready_after=2)  # SIGSTOP for five seconds: the kernel has ended meanwhile
    with pytest.raises(KernelTimeout, match="kernels still run after 1 s"):
        wait([0.05 * i for i in range(99)], ready_after=99)
    assert isinstance(backend._lost, KernelTimeout)


# ---- on GPUs -----------------------------------------------------------------------------------------------------


@two_gpus
def test_write_and_signal_both_directions() -> None:
    def main(rank: Rank) -> Any:
        peer = 1 - rank.rank
        inbox = rank.symmetric(100_000, np.int32)
        flag = rank.symmetric(1, np.uint64)
        ok = rank.to_device(np.zeros(1, np.int32))
        data = rank.to_device(np.arange(100_000, dtype=np.int32) * (rank.rank + 1))
        rank.barrier()
        kernel("exchange").launch(rank, 1, 512, inbox, data, 100_000, flag, peer, ok)
        return rank.to_host(inbox), rank.to_host(ok)[0], isinstance(rank._backend, Backend)

    results = on_gpus(main)
    for rank, (inbox, ok, is_backend) in enumerate(results):
        assert ok and is_backend
        np.testing.assert_array_equal(inbox, np.arange(100_000) * (2 - rank))


@two_gpus
def test_peer_address_is_the_peers_memory() -> None:
    def main(rank: Rank) -> int:
        mine = rank.symmetric(4, np.int32, fill=70 + rank.rank)
        out = rank.to_device(np.zeros(1, np.int32))
        kernel("read_through").launch(rank, 1, 1, rank.peer_address(mine, 1 - rank.rank), out)
        return int(rank.to_host(out)[0])

    assert on_gpus(main) == [71, 70]


@one_gpu
def test_arguments_of_every_kind() -> None:
    def main(rank: Rank) -> Any:
        numbers = np.zeros((), NUMBERS)
        numbers["a"], numbers["b"], numbers["c"][8] = 0.5, 2, 1000
        out = rank.to_device(np.zeros(9))
        p = rank.to_device(np.array([4, 5], np.int32))
        kernel("arguments").launch(
            rank, 1, 1, -7, 2**32 - 1, -(2**40), 1.5, np.float64(2.25), True, numbers, p, None, out
        )
        return rank.to_host(out).tolist()

    (out,) = on_gpus(main, 1)
    assert out == [-7, 2**32 - 1, -(2**40), 1.5, 2.25, 1, 1002.5, 5, 1]


@one_gpu
def test_shared_memory_above_48_kib_and_refused_launches() -> None:
    def main(rank: Rank) -> Any:
        out = rank.to_device(np.zeros(1, np.int32))
        dynamic = kernel("dynamic")
        seen = []
        for words in (10, 16 * 1024, 5_000, 24 * 1024):  # 40 B, 64 KiB, 20 KB, 96 KiB
            dynamic.launch(rank, 1, 256, out, words, shared_bytes=4 * words)
            seen.append(int(rank.to_host(out)[0]))
        refused = []
        for launch in (
            lambda: dynamic.launch(rank, 1, 256, out, 10, shared_bytes=300_000),
            lambda: kernel("bounded").launch(rank, 1, 256, out),
            lambda: kernel("bounded").launch(rank, 1, 2048, out),
            lambda: kernel("bounded").launch(rank, 0, 32, out),
            lambda: kernel("bounded").launch(rank, 1, 32, np.zeros(1, np.int32)),
            lambda: kernel("bounded").launch(rank, 1, 32, out, 5),
        ):
            try:
                launch()
                refused.append("accepted")
            except KernelLaunchError as error:
                refused.append(str(error))
        kernel("bounded").launch(rank, 1, 1, out)
        return seen, refused, int(rank.to_host(out)[0])

    ((seen, refused, last),) = on_gpus(main, 1)
    assert seen == [9, 16 * 1024 - 1, 4999, 24 * 1024 - 1]
    assert last == 0
    for text, words in zip(
        refused, ("300000 bytes", "at most 128", "2048", "0", "to_device", "1 argument"), strict=True
    ):
        assert words in text


@one_gpu
def test_extension_types_are_viewed_as_integers() -> None:
    def main(rank: Rank) -> Any:
        arrays = [rank.symmetric(3, t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float16)]
        return [(str(a.dtype), describe(a).device) for a in arrays]

    assert on_gpus(main, 1) == [[("uint16", "cuda:0"), ("uint8", "cuda:0"), ("float16", "cuda:0")]]


@two_gpus
def test_kernels_follow_torchs_stream() -> None:
    pytest.importorskip("torch")

    def main(rank: Rank) -> Any:
        import torch  # after the backend has chosen the GPU: torch must land on the same one

        x = torch.zeros(1 << 20, device="cuda")
        add_one = Kernel.from_source(ADD_ONE, "add_one")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(20):
                x *= 2
                add_one.launch(rank, 1 << 10, 1 << 10, x, x.numel())
        rank.synchronize()
        return float(x.min()), float(x.max()), x.device.index == rank.xp.cuda.Device().id

    assert on_gpus(main) == [(2.0**20 - 1, 2.0**20 - 1, True)] * 2


@two_gpus
def test_a_wait_past_its_limit_names_the_peer_and_the_rank_works_on() -> None:
    def main(rank: Rank) -> Any:
        flag = rank.symmetric(1, np.uint64, fill=3)
        start = time.monotonic()
        text = ""
        if rank.rank == 0:
            kernel("wait_for").launch(rank, 1, 32, flag, 9, 1)
            try:
                rank.synchronize()
            except PeerTimeout as error:
                text = f"{error.rank} {error.peer} {error.phase} {error.slot} {error.seen} {error.expected}"
        seconds = time.monotonic() - start
        kernel("wait_for").launch(rank, 1, 32, flag, 3, 1 - rank.rank)
        rank.barrier()
        return text, seconds

    (text, seconds), _ = on_gpus(main, timeout=2)
    assert text == "0 1 credit 5 3 9"
    assert seconds > 0.9  # half the limit of a kernel


@two_gpus
def test_a_crash_is_a_fault_with_advice_and_ends_the_world() -> None:
    def main(rank: Rank) -> None:
        if rank.rank == 1:
            kernel("wild").launch(rank, 1, 1)
        rank.barrier()

    with pytest.raises(KernelFault, match=r"(?s)rank 1: .*illegal memory access.*wild.*compute-sanitizer"):
        on_gpus(main)

    def trapped(rank: Rank) -> None:
        kernel("trap").launch(rank, 1, 1)
        try:
            rank.synchronize()
        except KernelFault:
            kernel("trap").launch(rank, 1, 1)  # the context is lost: the same error again

    with pytest.raises(KernelFault, match="__trap"):
        on_gpus(trapped, 1)


@one_gpu
def test_a_kernel_that_never_ends_is_given_up() -> None:
    def main(rank: Rank) -> None:
        never = rank.to_device(np.zeros(1, np.int32))
        kernel("forever").launch(rank, 1, 1, never)
        rank.synchronize()

    with pytest.raises(KernelTimeout, match=r"still run after 2 s.*forever"):
        on_gpus(main, 1, timeout=2)


@two_gpus
def test_a_killed_rank_ends_the_one_that_waits_in_a_kernel() -> None:
    def main(rank: Rank) -> None:
        flag = rank.symmetric(1, np.uint64)
        rank.barrier()
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        kernel("wait_for").launch(rank, 1, 32, flag, 1, 1)
        rank.synchronize()

    with pytest.raises(RankFailed, match="rank 1's process was killed by SIGKILL"):
        on_gpus(main)


@two_gpus
def test_ranks_that_disagree_or_are_closed() -> None:
    def main(rank: Rank) -> Any:
        texts = []
        for size in (100 + rank.rank, 1 << 30):
            try:
                rank.symmetric(size, np.uint8)
            except (RankMismatchError, OutOfSymmetricMemory) as error:
                texts.append(type(error).__name__)
        rank.close()
        try:
            rank.synchronize()
        except BufferClosedError:
            texts.append("closed")
        return texts

    assert on_gpus(main) == [["RankMismatchError", "OutOfSymmetricMemory", "closed"]] * 2


PROGRAM = """
import os
import numpy as np
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.launcher import init

SOURCE = '''
extern "C" __global__ void read_through(const int* address, int* out) { *out = *address; }
'''
with init("cuda", heap_bytes=4 << 20) as rank:
    mine = rank.symmetric(4, np.int32, fill=70 + rank.rank)
    out = rank.to_device(np.zeros(1, np.int32))
    peer = rank.peer_address(mine, 1 - rank.rank)
    Kernel.from_source(SOURCE, "read_through").launch(rank, 1, 1, peer, out)
    line = f"rank {rank.rank} of {rank.world_size} sees {int(rank.to_host(out)[0])}\\n"
    os.write(1, line.encode())  # at once: pieces of two ranks' lines could mix
"""


def _command(launcher: str) -> list[str]:
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("needs mpiexec on the PATH")
    return [mpiexec, "-n", "2", sys.executable]


@pytest.mark.gpu(count=2, own=True)  # spawn starts what lets ranks share one, launchers do not
@pytest.mark.parametrize("launcher", ["torchrun", "mpi"])
def test_init_under_a_launcher(launcher: str, tmp_path: Path) -> None:
    pytest.importorskip("torch" if launcher == "torchrun" else "mpi4py")
    # Open MPI refuses to run as root, which is what containers most often are.
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [*_command(launcher), str(program)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    lines = sorted(line for line in result.stdout.splitlines() if line.startswith("rank"))
    assert lines == ["rank 0 of 2 sees 71", "rank 1 of 2 sees 70"], result.stdout + result.stderr


def test_arrays_that_cupy_cannot_make_are_refused() -> None:
    def make(dtype: str, error: Exception) -> None:
        def fail() -> Any:
            raise error

        cuda_backend.CudaBackend._made((1, 2), np.dtype(dtype), fail)

    with pytest.raises(ArgumentError, match=r"CuPy has no float8_e4m3fn: use its bits, uint8 \(array.view"):
        make("float8_e4m3fn", ValueError("Unsupported dtype"))
    with pytest.raises(ValueError, match="Unsupported"):
        make("float32", ValueError("Unsupported dtype"))
    with pytest.raises(ArgumentError, match=r"shape is \(1, 2\), and there is no memory for it: 8 bytes; ask for less"):
        make("float32", MemoryError("8 bytes"))
