"""transport="nvshmem" without a GPU: every route compiles every kernel, and the host side does things in order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT, stand_ins
from support.stand_ins import GLOBAL, FakeCuda, Two

from ep_lib import Kernel, spawn
from ep_lib.bootstrap import SingleBootstrap
from ep_lib.cuda import devices as cuda_devices
from ep_lib.cuda.devices import DeviceIdentity
from ep_lib.cuda.module import CudaModule
from ep_lib.errors import ArgumentError, BackendUnavailable, OutOfSymmetricMemory, RankMismatchError
from ep_lib.jit import nvrtc, toolkit
from ep_lib.jit.elf import Elf
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.runtime.rank import Rank
from ep_lib.transports import base, choose
from ep_lib.transports.nvshmem import build as nvshmem
from ep_lib.transports.nvshmem import heap as nvshmem_heap
from ep_lib.transports.nvshmem import library as nvshmem_library
from ep_lib.transports.nvshmem import nics
from ep_lib.transports.nvshmem.library import NvshmemLibrary

pytestmark = pytest.mark.slow

opened = stand_ins.opened  # a fixture


def kernels_over_networks() -> list[Path]:
    """Kernel files that reach <ep/net.cuh>, and so change with the transport."""
    from ep_lib.jit import digest

    found = []
    for file in sorted([*(ROOT / "tutorial_kernels").glob("*.cu"), *(ROOT / "ep_lib" / "moe").rglob("*.cu")]):
        roots = [file.parent, nvshmem.TRANSPORT_INCLUDE, *toolkit.DEVICE_ROOTS]
        reached = digest.scan(file.read_text(encoding="utf-8"), roots).files
        if any(Path(header).is_relative_to(nvshmem.TRANSPORT_INCLUDE) for header in reached):
            found.append(file)
    return found


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


def needs(route: str) -> None:
    if reason := nvshmem.unusable_reason(route):
        pytest.skip(reason)


# ---- build routes ----------------------------------------------------------------------------------------------------
# Of the others only the usual route, for time.
BY_EVERY_ROUTE = ("tutorial_kernels/03_ibgda_shim", "tutorial_kernels/05_bounce_buffer", "pcie/dispatch")
FILES_AND_ROUTES = [
    pytest.param(file, route, id=f"{name_of(file)}-{route}")
    for file in kernels_over_networks()
    for route in nvshmem.ROUTES
    if route == "whole" or name_of(file) in BY_EVERY_ROUTE
]


@pytest.mark.parametrize(("file", "route"), FILES_AND_ROUTES)
def test_kernels_over_networks_compile_by_every_route(file: Path, route: str) -> None:
    needs(route)
    template, name = GLOBAL.findall(file.read_text(encoding="utf-8"))[0]  # one brings all of its file to the compiler
    name += "<float>" if template else ""
    image = nvshmem.compile_cubin(Kernel.from_file(file, name), "sm_90", route)
    symbols = {symbol.name for symbol in Elf(image.cubin).symbols}
    assert {image.lowered_name, "ep_device_state", nvshmem.STATE_SYMBOL} <= symbols


def test_there_are_kernels_to_compile() -> None:
    assert {*BY_EVERY_ROUTE, "tutorial_kernels/03_ibgda_shim_debug"} <= set(map(name_of, kernels_over_networks()))


@pytest.mark.parametrize("route", nvshmem.ROUTES)
def test_templates_and_the_cache(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(route)
    source = (
        "#include <ep/net.cuh>\n"
        "template <typename T, int N> __global__ void k(T* to, T* from, int peer) {\n"
        "    ep::net_put_nbi(to, from, N * sizeof(T), peer); ep::net_quiet(peer); }\n"
    )
    first = nvshmem.compile_cubin(Kernel.from_source(source, "k<float, 4>"), "sm_90", route)
    assert [param.kind for param in first.params] == ["pointer", "pointer", "int"]
    monkeypatch.setattr(nvshmem._Build, "run", None)  # the second time it comes from the cache
    assert nvshmem.compile_cubin(Kernel.from_source(source, "k<float, 4>"), "sm_90", route) == first
    with pytest.raises(TypeError):
        nvshmem.compile_cubin(Kernel.from_source(source, "k<float, 5>"), "sm_90", route)


def test_a_kernel_without_network_is_the_same_with_and_without_nvshmem() -> None:
    needs("whole")
    kernel = Kernel.from_file(ROOT / "tutorial_kernels" / "01_write_signal.cu", "write_signal_warp")
    assert nvshmem.compile_cubin(kernel, "sm_90", "whole") == nvrtc.compile_cubin(kernel, "sm_90")


def test_the_route_that_needs_least_unless_ibgda_is_asked_for() -> None:
    assert nvshmem.choose_route(None, {}) == nvshmem.choose_route(None, {"NVSHMEM_IB_ENABLE_IBGDA": "0"}) == "whole"
    assert nvshmem.choose_route(None, {"NVSHMEM_IB_ENABLE_IBGDA": "1"}) == "nvcc"
    assert nvshmem.choose_route("link", {}) == "link"
    with pytest.raises(ArgumentError, match="'whole' leaves NVSHMEM's IBGDA code out"):
        nvshmem.choose_route("whole", {"NVSHMEM_IB_ENABLE_IBGDA": "true"})
    with pytest.raises(ArgumentError, match="'fast'; it must be one of whole, link, nvcc"):
        nvshmem.choose_route("fast", {})


def fake_home(folder: Path, version: str = "3.4.5", *, libraries: bool = True) -> Path:
    for name in ("include/device", "include/non_abi", "lib"):
        (folder / name).mkdir(parents=True)
    (folder / "include/device/nvshmem_defines.h").touch()
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    text = "".join(f"#define NVSHMEM_VENDOR_{name}_VERSION {number}\n" for name, number in numbers)
    (folder / "include/non_abi/nvshmem_version.h").write_text(text)
    if libraries:
        (folder / "lib/libnvshmem_device.a").touch()
        (folder / "lib/libnvshmem_host.so.3").touch()
    return folder


@pytest.mark.parametrize(
    ("version", "libraries", "complaint"),
    [
        ("3.3.20", True, r"found NVSHMEM 3\.3\.20 in .*; ep_lib needs 3\.4\.5 or later, below 4: pip install"),
        ("4.0.0", True, r"found NVSHMEM 4\.0\.0 .* below 4"),
        ("3.5.1", False, r"lacks lib/libnvshmem_host\.so\.3 and lib/libnvshmem_device\.a"),
    ],
)
def test_a_version_that_does_not_fit_says_found_and_needed(
    version: str, libraries: bool, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVSHMEM_HOME", str(fake_home(tmp_path / "home", version, libraries=libraries)))
    with pytest.raises(BackendUnavailable, match=complaint):
        nvshmem.find()


def test_where_nvshmem_is_missing_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVSHMEM_HOME", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"NVSHMEM_HOME \(.*\) has no NVSHMEM.*nvidia-nvshmem-cu13"):
        nvshmem.find()


# ---- arguments -------------------------------------------------------------------------------------------------------
def nothing(rank: Rank) -> None:
    """A main."""


def test_transport_is_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="transport is 'nvshmem'; it is for GPUs"):
        spawn(nothing, 1, "emulator", transport="nvshmem")
    with pytest.raises(ArgumentError, match="transport is 'infiniband'; it must be one of 'auto', 'p2p'"):
        spawn(nothing, 1, "cuda", transport="infiniband")
    monkeypatch.setenv("EP_LIB_TRANSPORT", "nvshmem:link")
    assert spawn(nothing, 1, "emulator") == [None]  # the variable says nothing about emulated ranks


# ---- the host side, with stand-ins for CUDA and for NVSHMEM's library ------------------------------------------------
LIBRARY = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
static void say(const char* what) { FILE* f = fopen(getenv("FAKE_LOG"), "a"); fprintf(f, "%s\\n", what); fclose(f); }
struct Id { int version; char internal[124]; };
struct IdArguments { int version; Id* id; int rank, ranks; };
struct Attributes { int version; void* mpi; int args_version; IdArguments unique; char content[96]; };
static_assert(sizeof(Id) == 128 && sizeof(IdArguments) == 24 && sizeof(Attributes) == 144, "NVSHMEM 3.4");
extern "C" {
void nvshmemx_vendor_get_version_info(int* a, int* b, int* c) { *a = 3; *b = 4; *c = atoi(getenv("FAKE_PATCH")); }
int nvshmemx_init_status() { return getenv("FAKE_PES") ? 2 : 0; }
int nvshmem_my_pe() { return 0; }
int nvshmem_n_pes() { return atoi(getenv("FAKE_PES")); }
int nvshmemx_get_uniqueid(Id* id) {
    if (id->version != (1 << 16) + 128) return 7;
    strcpy(id->internal, "a unique id");
    return 0;
}
int nvshmemx_set_attr_uniqueid_args(int rank, int ranks, const Id* id, Attributes* attributes) {
    if (attributes->version != (1 << 16) + 144 || attributes->args_version != (1 << 16) + 128) return 8;
    if (attributes->unique.version != (1 << 16) + 24 || strcmp(id->internal, "a unique id")) return 9;
    attributes->unique = {attributes->unique.version, const_cast<Id*>(id), rank, ranks};
    return 0;
}
int nvshmemx_hostlib_init_attr(unsigned flags, Attributes* a) {
    if (getenv("FAKE_REFUSES")) return 1;
    say("start");
    return flags == 8 && a->unique.rank == 0 && a->unique.ranks == 1 ? 0 : 10;
}
void nvshmemx_hostlib_finalize() { say("stop"); }
int nvshmemx_cumodule_init(void* m) { say("register"); return m != (void*)0x77; }
int nvshmemx_cumodule_finalize(void* m) { say("forget"); return m != (void*)0x77; }
void* nvshmem_malloc(size_t n) { say("allocate"); return n > (1 << 30) ? nullptr : malloc(n); }
void nvshmem_free(void* p) { say("free"); free(p); }
void* nvshmem_ptr(void* p, int) { return p; }
}
"""


@pytest.fixture(scope="module")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvshmem")
    home = fake_home(folder / "home", libraries=False)
    (home / "lib/libnvshmem_device.a").touch()
    (folder / "fake.cpp").write_text(LIBRARY)
    library = str(home / "lib/libnvshmem_host.so.3")
    compiler = toolkit.find_compiler().path
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "fake.cpp"), "-o", library], check=True)
    return home


@pytest.fixture
def heap_of(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a NvshmemHeap over the stand-ins; ``.log()`` is what the library was called for."""
    cuda, log = FakeCuda(), tmp_path / "log"
    monkeypatch.setattr(base, "import_cupy", lambda: cuda)
    monkeypatch.setattr(nvshmem, "unusable_reason", lambda route: None)
    monkeypatch.setattr(os, "environ", {**os.environ})  # a heap sets variables for NVSHMEM
    monkeypatch.setenv("NVSHMEM_HOME", str(fake_library))
    libc = {"FAKE_LOG": str(log), "FAKE_PATCH": "5"}
    for name, value in libc.items():
        os.putenv(name, value)

    def make(heap_bytes: int = 4096, route: str | None = None, unreachable: tuple[str, ...] = ()) -> Any:
        return nvshmem_heap.NvshmemHeap(
            base.GpuSetup(SingleBootstrap(), 0, heap_bytes, 1.0, route or "", list(unreachable))
        )

    make.log = lambda: log.read_text().split() if log.exists() else []  # type: ignore[attr-defined]
    make.cuda = cuda  # type: ignore[attr-defined]
    yield make
    for name in (*libc, "FAKE_REFUSES", "FAKE_PES"):
        os.unsetenv(name)


def image(symbol: str) -> NvrtcImage:
    source = f'extern "C" __device__ int {symbol}[4];\n__global__ void k() {{ {symbol}[0] = 1; }}'
    return nvrtc.compile_cubin(Kernel.from_source(source, "k"), "sm_90")


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC or CuPy is not installed")
def test_everything_happens_in_order_and_is_undone_in_reverse(heap_of: Any) -> None:
    heap = heap_of()
    assert heap_of.cuda.zeroed == [4096] and len(heap.addresses) == 1 and heap.addresses[0]
    assert (heap.name, heap.route) == ("nvshmem", "whole")
    heap.register_module(CudaModule(0x77, None), image(nvshmem.STATE_SYMBOL))
    heap.register_module(CudaModule(0x78, None), image("other"))  # has nothing of NVSHMEM's
    heap.close(orderly=True)
    heap.close(orderly=True)
    assert heap_of.log() == ["start", "allocate", "register", "forget", "free", "stop"]


def test_an_nvshmem_that_the_program_has_started_is_used_and_left_running(heap_of: Any) -> None:
    os.putenv("FAKE_PES", "1")
    heap_of().close(orderly=True)
    assert heap_of.log() == ["allocate", "free"]
    os.putenv("FAKE_PES", "4")
    with pytest.raises(BackendUnavailable, match="with this process as PE 0 of 4, and it is rank 0 of 1"):
        heap_of()


def test_after_a_failure_nobody_is_waited_for(heap_of: Any) -> None:
    heap_of().close(orderly=False)
    assert heap_of.log() == ["start", "allocate"]


def test_the_environment_is_prepared_as_far_as_the_user_left_it(heap_of: Any) -> None:
    os.environ["NVSHMEM_SYMMETRIC_SIZE"] = "1G"
    os.environ.pop("NVSHMEM_REMOTE_TRANSPORT", None)
    heap_of()
    assert os.environ["NVSHMEM_SYMMETRIC_SIZE"] == "1G" and os.environ["NVSHMEM_DISABLE_NVLS"] == "1"
    assert os.environ["NVSHMEM_REMOTE_TRANSPORT"] == "none", "all GPUs reach each other: no NIC is looked for"


def fake_nics(folder: Path, **drivers: str) -> Path:
    """A /sys/class/infiniband with these devices."""
    for name, driver in drivers.items():
        (folder / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "class" / name / "device").mkdir(parents=True)
        (folder / "class" / name / "device" / "driver").symlink_to(folder / "drivers" / driver)
    return folder / "class"


OUT_OF_REACH = ("rank 0 (GPU 0) cannot access rank 1",)


@pytest.mark.parametrize(
    ("drivers", "settings"),
    [
        ({"mlx5_0": "mlx5_core", "mlx5_1": "mlx5_core"}, {"NVSHMEM_REMOTE_TRANSPORT": "ibrc"}),
        (
            {"rdmap16s27": "efa"},
            {
                "NVSHMEM_REMOTE_TRANSPORT": "libfabric",
                "NVSHMEM_LIBFABRIC_PROVIDER": "efa",
                "FI_PROVIDER": "efa",
                "FI_EFA_USE_DEVICE_RDMA": "1",
            },
        ),
    ],
)
def test_the_nic_of_a_host_chooses_what_drives_it(
    heap_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drivers: dict[str, str], settings: dict[str, str]
) -> None:
    found = nics.rdma_devices(fake_nics(tmp_path / "sys", **drivers))
    assert {nic.name: nic.driver for nic in found} == drivers
    monkeypatch.setattr(nics, "rdma_devices", lambda: found)
    names = ("NVSHMEM_REMOTE_TRANSPORT", "NVSHMEM_LIBFABRIC_PROVIDER", "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA")
    for name in names:
        os.environ.pop(name, None)
    heap_of(unreachable=OUT_OF_REACH)
    assert {name: os.environ[name] for name in names if name in os.environ} == settings
    os.environ["NVSHMEM_REMOTE_TRANSPORT"] = "ucx"
    heap_of(unreachable=OUT_OF_REACH)
    assert os.environ["NVSHMEM_REMOTE_TRANSPORT"] == "ucx", "the user's word counts"


def test_without_a_nic_that_would_do_the_pair_is_named(
    heap_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.environ.pop("NVSHMEM_REMOTE_TRANSPORT", None)
    assert nics.rdma_devices(tmp_path / "nowhere") == ()
    monkeypatch.setattr(nics, "rdma_devices", lambda: ())
    with pytest.raises(BackendUnavailable, match=r"(?s)shows no RDMA device.*rank 0 \(GPU 0\) cannot access rank 1"):
        heap_of(unreachable=OUT_OF_REACH)
    monkeypatch.setattr(nics, "rdma_devices", lambda: (nics.Nic("rdmap16s27", "efa"),))
    os.environ["NVSHMEM_IB_ENABLE_IBGDA"] = "1"
    with pytest.raises(BackendUnavailable, match=r"Mellanox NICs \(mlx5_core\) only; found rdmap16s27 \(efa\)"):
        heap_of(unreachable=OUT_OF_REACH)


def test_what_fails_says_what_to_do(heap_of: Any) -> None:
    with pytest.raises(OutOfSymmetricMemory, match="a symmetric heap of 2147483648 bytes does not fit"):
        heap_of(1 << 31)
    os.putenv("FAKE_REFUSES", "1")
    with pytest.raises(
        BackendUnavailable, match=r"nvshmemx_hostlib_init_attr of NVSHMEM 3\.4\.5 .* status 1.*NVSHMEM_DEBUG"
    ):
        heap_of()
    os.environ["NVSHMEM_REMOTE_TRANSPORT"] = "ibrc"
    with pytest.raises(BackendUnavailable, match=r"(?s)rank 0 cannot.*NVSHMEM_REMOTE_TRANSPORT.*libfabric.*efa"):
        heap_of(unreachable=("rank 0 cannot access rank 1",))
    with pytest.raises(ArgumentError, match="the build route is 'fast'"):
        heap_of(route="fast")


def test_another_version_in_the_process_is_refused(heap_of: Any) -> None:
    os.putenv("FAKE_PATCH", "9")
    with pytest.raises(BackendUnavailable, match=r"NVSHMEM 3\.4\.9 is loaded .* headers of 3\.4\.5"):
        NvshmemLibrary(nvshmem.find())


def test_a_wheel_for_another_cuda_is_refused(heap_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvshmem.find()
    other = nvshmem.Installation(found.home, found.version, 12)
    monkeypatch.setattr(nvshmem, "find", lambda: other)
    with pytest.raises(BackendUnavailable, match=r"found NVSHMEM 3\.4\.5 for CUDA 12, but CuPy is for CUDA 13"):
        heap_of()


def test_structs_have_the_sizes_of_nvshmem_3() -> None:
    import ctypes

    structs = ("_UniqueId", "_UniqueIdArguments", "_InitArguments", "_InitAttributes")
    assert [ctypes.sizeof(getattr(nvshmem_library, name)) for name in structs] == [128, 24, 128, 144]


# ---- which transport -------------------------------------------------------------------------------------------------


def test_auto_is_p2p_where_it_works_and_nvshmem_where_it_does_not(opened: dict[str, Any]) -> None:
    assert choose.open_transport("auto", Two(), 0, 64, 1.0) == ("p2p", 64, 1.0)
    assert choose.open_transport("nvshmem:link", Two(), 0, 64, 1.0) == ("nvshmem", 64, 1.0, "link", [])
    opened["problems"] = ["rank 0 cannot access rank 1"]
    with pytest.warns(RuntimeWarning, match="transport='auto' is 'nvshmem' here: rank 0 cannot access rank 1"):
        assert choose.open_transport("auto", Two(), 0, 64, 1.0)[0] == "nvshmem"  # type: ignore[index]
    with pytest.raises(BackendUnavailable, match=r"(?s)'p2p'.*rank 0 cannot access rank 1.*take transport='nvshmem'"):
        choose.open_transport("p2p", Two(), 0, 64, 1.0)
    opened["usable"] = "NVSHMEM is not installed"
    with pytest.raises(BackendUnavailable, match=r"(?s)cannot access rank 1.*\(not yet: NVSHMEM is not installed\)"):
        choose.open_transport("auto", Two(), 0, 64, 1.0)


class OneHost:
    """What peer_problems asks of CuPy: four GPUs, of which this process sees three."""

    CUDARuntimeError = ZeroDivisionError

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(runtime=self)

    def deviceGetByPCIBusId(self, bus: str) -> int:
        if bus == "3":
            raise ZeroDivisionError
        return int(bus)


def test_a_gpu_out_of_reach_is_named_with_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, "import_cupy", OneHost)
    gpus = [DeviceIdentity("boot", "here", device, str(device), "T4") for device in range(4)]
    elsewhere = DeviceIdentity("other boot", "there", 0, "0", "T4")
    asked = []

    def can_access(mine: int, theirs: int) -> bool:
        asked.append((mine, theirs))
        return theirs != 2

    assert cuda_devices.peer_problems(0, gpus[:2], can_access) == []
    problems = cuda_devices.peer_problems(0, [*gpus, elsewhere], can_access)
    assert problems == [
        "rank 0 (GPU 0, T4) cannot access rank 2 (GPU 2, T4) directly",
        "rank 0 does not see rank 3's GPU 3: give all ranks the same CUDA_VISIBLE_DEVICES (srun: --gpu-bind=none)",
        "rank 0 is on here, rank 4 on there",
    ]
    assert asked == [(0, 1), (0, 1), (0, 2)]


def test_a_driver_too_old_for_cupy_says_found_and_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise ZeroDivisionError("cudaErrorInsufficientDriver")

    versions = {"driverGetVersion": lambda: 12040, "runtimeGetVersion": lambda: 13000}
    runtime = SimpleNamespace(CUDARuntimeError=ZeroDivisionError, getDeviceCount=refuse, **versions)
    monkeypatch.setattr(cuda_devices, "import_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    with pytest.raises(BackendUnavailable, match=r"found a driver for CUDA 12\.4, .* needs CUDA 13\.0: .*cupy-cuda12x"):
        cuda_devices.gpu_count()


def test_ranks_must_agree_about_transport_and_size(opened: dict[str, Any]) -> None:
    identity = choose.identify(0)
    with pytest.raises(RankMismatchError, match=r"transport must be .*rank 0: p2p, rank 1: nvshmem"):
        choose.open_transport("p2p", Two((None, ("nvshmem", 64, identity))), 0, 64, 1.0)
    with pytest.raises(RankMismatchError, match=r"heap_bytes must be .*rank 0: 64, rank 1: 65"):
        choose.open_transport("p2p", Two((None, ("p2p", 65, identity))), 0, 64, 1.0)
