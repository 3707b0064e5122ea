"""transport="nixl" without a GPU: what is missing is named, and the host side does things in order. Kernels compile
where the wheels and nvcc are."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support import ROOT, stand_ins

from ep_lib import Kernel, spawn
from ep_lib.bootstrap import SingleBootstrap
from ep_lib.cuda.module import CudaModule
from ep_lib.errors import ArgumentError, BackendUnavailable, OutOfSymmetricMemory, PeerTimeout
from ep_lib.jit import nvcc, nvrtc
from ep_lib.jit.elf import Elf
from ep_lib.transports import base, choose
from ep_lib.transports.nixl import build as nixl
from ep_lib.transports.nixl import heap as nixl_heap
from ep_lib.transports.nixl.agent import NixlAgent

opened = stand_ins.opened  # a fixture


# ---- what is installed -----------------------------------------------------------------------------------------------
def fake_ucx(folder: Path, version: str = "1.22", *, device: bool = True, nics: bool = False) -> Path:
    api = folder / "include" / "ucp" / "api"
    (api / "device").mkdir(parents=True)
    major, minor = version.split(".")
    (api / "ucp_version.h").write_text(f"#define UCP_API_MAJOR    {major}\n#define UCP_API_MINOR    {minor}\n")
    if device:
        (api / "device" / "ucp_device_impl.h").touch()
        (api / "device" / "ucp_device_types.h").write_text("#define UCP_DEVICE_MEM_LIST_VERSION_V1 2\n")
    if nics:
        (folder / "include/uct/ib/mlx5/gdaki").mkdir(parents=True)
        (folder / "include/uct/ib/mlx5/gdaki/gdaki.cuh").touch()
    return folder


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Installed distributions by name, and the folder of libucx (None: not installed)."""
    state: dict[str, Any] = {"nixl-cu13": "1.5.1", "libucx": fake_ucx(tmp_path / "libucx")}
    real = importlib.util.find_spec

    def version(name: str) -> str:
        if name not in state:
            raise importlib.metadata.PackageNotFoundError(name)
        return str(state[name])

    def find_spec(name: str, package: str | None = None) -> Any:
        if name != "libucx":
            return real(name, package)
        home = state["libucx"]
        return SimpleNamespace(submodule_search_locations=[str(home)]) if home else None

    monkeypatch.setattr(nixl.importlib.metadata, "version", version)
    monkeypatch.setattr(nixl.importlib.util, "find_spec", find_spec)
    monkeypatch.delenv("UCX_HOME", raising=False)
    return state


def test_wheels_are_found_without_importing_them(machine: dict[str, Any]) -> None:
    found = nixl.find(13)
    assert (found.package, found.version, found.ucx_version, found.list_version) == ("nixl_cu13", "1.5.1", "1.22", 2)
    assert found.include == machine["libucx"] / "include" and not found.has_nics
    assert nixl.find() == found


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"nixl-cu13": None}, r"NIXL is not installed; ep_lib needs 1\.5 or later, below 2: pip install --no-deps"),
        (
            {"nixl-cu13": None, "nixl-cu12": "1.5.1"},
            r"found NIXL 1\.5\.1 for CUDA 12, but CuPy is for CUDA 13 .*nixl-cu13>=1\.5.*libucx-cu13",
        ),
        ({"nixl-cu13": "0.9.0"}, r"found NIXL 0\.9\.0 \(nixl-cu13\); ep_lib needs 1\.5 or later, below 2: pip"),
        ({"nixl-cu13": "2.0.0"}, r"found NIXL 2\.0\.0"),
        ({"libucx": None}, r"libucx is not installed: found no device headers .*libucx-cu13>=1\.21.*UCX_HOME"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_one_sentence(
    machine: dict[str, Any], change: dict[str, Any], complaint: str
) -> None:
    machine.update(change)
    for name in [name for name, value in change.items() if value is None and name != "libucx"]:
        del machine[name]
    with pytest.raises(BackendUnavailable, match=complaint):
        nixl.find(13)


def test_ucx_without_device_headers_or_too_old(
    machine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine["libucx"] = fake_ucx(tmp_path / "old", "1.20")
    with pytest.raises(BackendUnavailable, match=r"found UCX 1\.20 in .*; ep_lib needs 1\.21 or later"):
        nixl.find(13)
    machine["libucx"] = fake_ucx(tmp_path / "plain", device=False)
    with pytest.raises(BackendUnavailable, match="found no device headers of UCX"):
        nixl.find(13)
    monkeypatch.setenv("UCX_HOME", str(fake_ucx(tmp_path / "built", nics=True)))
    assert nixl.find(13).has_nics
    monkeypatch.setenv("UCX_HOME", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"\$UCX_HOME \(.*\) has no device headers"):
        nixl.find(13)


def test_without_nvcc_it_says_so(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc.toolkit, "find_nvcc", lambda: None)
    assert "needs nvcc" in str(nixl.unusable_reason(13))


# ---- kernels ---------------------------------------------------------------------------------------------------------
def needs_wheels() -> None:
    if reason := nixl.unusable_reason():
        pytest.skip(reason)


@pytest.mark.parametrize("file", ["tutorial_kernels/03_ibgda_shim.cu", "ep_lib/moe/pcie/dispatch.cu"])
def test_kernels_stand_ins_compile_unchanged(file: str) -> None:
    needs_wheels()
    template, name = stand_ins.GLOBAL.findall((ROOT / file).read_text(encoding="utf-8"))[0]
    image = nixl.compile_cubin(Kernel.from_file(ROOT / file, name + ("<float>" if template else "")), "sm_90")
    symbols = {symbol.name for symbol in Elf(image.cubin).symbols}
    assert {image.lowered_name, "ep_device_state", nixl.STATE_SYMBOL} <= symbols
    assert any(symbol.name == "mapped_addresses" for symbol in Elf(nixl.mapped_addresses_cubin("sm_90")).symbols)


def test_a_kernel_without_network_is_the_same_with_and_without_nixl() -> None:
    needs_wheels()
    kernel = Kernel.from_file(ROOT / "tutorial_kernels" / "01_write_signal.cu", "write_signal_warp")
    assert nixl.compile_cubin(kernel, "sm_90") == nvrtc.compile_cubin(kernel, "sm_90")


# ---- the agent, over a stand-in for NIXL -----------------------------------------------------------------------------
class NixlFailure(Exception):
    """One of NIXL's own."""


class FakeAgents:
    """NIXL's module: agents that write down what they are asked, and whose peers answer at once."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.backends: dict[str, int] = {"UCX": 1}
        self.silent: set[str] = set()
        self.fails = ""

    def nixl_agent_config(self, **settings: Any) -> dict[str, Any]:
        return settings

    def nixl_agent(self, name: str, config: dict[str, Any]) -> Any:
        self.say(f"agent {name}")
        fake = self

        class Agent:
            backends = fake.backends
            plugin_list = ("POSIX",)
            notified: list[str] = []  # noqa: RUF012

            def get_reg_descs(self, regions: list[Any], mem_type: str) -> Any:
                return regions, mem_type

            get_xfer_descs = get_remote_descs = get_reg_descs

            def register_memory(self, descs: Any) -> str:
                fake.say(f"register {descs[0][0][1]} {descs[1]}")
                return "registered"

            def get_agent_metadata(self) -> bytes:
                return b"metadata"

            def add_remote_agent(self, metadata: bytes) -> bytes:
                fake.say(f"add {metadata.decode()}")
                return metadata

            def make_connection(self, name: str) -> None:
                fake.say(f"connect {name}")

            def send_notif(self, name: str, message: bytes) -> None:
                self.notified.append(name)

            def get_new_notifs(self) -> dict[str, list[bytes]]:
                return {name: [b"ep_lib: connect"] for name in self.notified if name not in fake.silent}

            def prep_mem_view(self, descs: Any, backends: list[str]) -> int:
                fake.say(f"view of {len(descs[0])} {descs[1]}")
                return 0x1000 + len(fake.log)

            def release_mem_view(self, view: int) -> None:
                fake.say("release")

            def remove_remote_agent(self, name: str) -> None:
                fake.say(f"remove {name}")

            def deregister_memory(self, registered: Any) -> None:
                fake.say("deregister")

        return Agent()

    def say(self, what: str) -> None:
        if self.fails and what.startswith(self.fails):
            raise NixlFailure("NIXL_ERR_BACKEND")
        self.log.append(what)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> FakeAgents:
    fake = FakeAgents()
    bindings: Any = ModuleType("nixl_cu13._bindings")
    bindings.HAVE_UCX_GPU_DEVICE_API, bindings.nixlBackendError = True, NixlFailure
    for name, module in (("nixl_cu13", ModuleType("nixl_cu13")), ("nixl_cu13._bindings", bindings)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "nixl_cu13._api", fake)  # type: ignore[arg-type]
    monkeypatch.setenv("NIXL_LOG_LEVEL", "WARN")
    return fake


def test_an_agent_goes_through_nixls_order_and_back(machine: dict[str, Any], agents: FakeAgents) -> None:
    agent = NixlAgent(nixl.find(13), 1)
    assert agent.register(0x10, 64, 1) == b"metadata"
    with agent.kept_going():
        agent.connect({0: b"ep_lib rank 0", 2: b"ep_lib rank 2"}, 1.0)
    agent.view_of_mine(0x10, 64, 1)
    agent.view_of_others([(0, 0x20, 64, 0), (2, 0x30, 64, 2)])
    agent.close()
    agent.close()
    peers = [f"{what} ep_lib rank {peer}" for peer in (0, 2) for what in ("add",)]
    connections = [f"connect ep_lib rank {peer}" for peer in (0, 2)]
    views = ["view of 1 VRAM", "view of 2 VRAM"]
    gone = ["release", "release", "remove ep_lib rank 0", "remove ep_lib rank 2", "deregister"]
    assert agents.log == ["agent ep_lib rank 1", "register 64 VRAM", *peers, *connections, *views, *gone]


def test_failures_of_nixl_say_what_was_done(machine: dict[str, Any], agents: FakeAgents) -> None:
    agents.fails = "register"
    agent = NixlAgent(nixl.find(13), 0)
    with pytest.raises(BackendUnavailable, match=r"rank 0: registering 64 bytes of GPU 0 failed .*NIXL_ERR_BACKEND"):
        agent.register(0x10, 64, 0)
    agents.silent = {"ep_lib rank 1"}
    waited = r"rank 0 waited 0\.01 s for NIXL's connection with rank 1"
    with pytest.raises(PeerTimeout, match=waited) as caught, agent.kept_going():
        agent.connect({1: b"ep_lib rank 1"}, 0.01)
    assert (caught.value.rank, caught.value.peer) == (0, 1)


def test_nixl_without_ucx_or_without_its_device_api(machine: dict[str, Any], agents: FakeAgents) -> None:
    agents.backends = {}
    with pytest.raises(BackendUnavailable, match=r"no UCX plugin that loads; it shows \('POSIX',\): pip install"):
        NixlAgent(nixl.find(13), 0)
    sys.modules["nixl_cu13._bindings"].HAVE_UCX_GPU_DEVICE_API = False  # type: ignore[attr-defined]
    with pytest.raises(BackendUnavailable, match=r"built with a UCX that has no device API.*pip install --no-deps"):
        NixlAgent(nixl.find(13), 0)


# ---- the heap, over a stand-in for CUDA too --------------------------------------------------------------------------
class CudaError(Exception):
    status = 2


class FakeCuda:
    """What NixlHeap asks of CuPy: memory is a bytearray a call, and memory views begin as UCX's do."""

    CUDARuntimeError = CUDADriverError = CudaError

    def __init__(self, view_version: int = 2) -> None:
        self.view_version, self.log = view_version, list[str]()
        self.cuda = SimpleNamespace(runtime=self, driver=self)
        self.entries = 1

    def runtimeGetVersion(self) -> int:
        return 13000

    def malloc(self, size: int) -> int:
        if size > 1 << 30:
            raise CudaError("out of memory")
        return 0x70000000 if size > 64 else 0x80000000

    def memcpy(self, to: int, source: int, size: int, direction: int) -> None:
        import ctypes

        if direction == 1:
            self.log.append(f"state {ctypes.string_at(source, size).hex()} at {to:x}")
        elif source == 0x80000000:  # what the kernel wrote
            ctypes.memmove(to, b"".join((0x5000 + 16 * i).to_bytes(8, "little") for i in range(size // 8)), size)
        else:
            head = self.view_version.to_bytes(2, "little") + b"\x01\x00" + self.entries.to_bytes(4, "little")
            ctypes.memmove(to, head, size)

    def moduleGetGlobal(self, module: int, name: str) -> int:
        if module != 0x77:
            error = CudaError(name)
            error.status = 500
            raise error
        return 0x99

    def memGetInfo(self) -> tuple[int, int]:
        return 1 << 20, 1 << 21

    def deviceGetAttribute(self, which: int, device: int) -> int:
        return {75: 9, 76: 0}[which]

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.log.append(name)


@pytest.fixture
def heap_of(machine: dict[str, Any], agents: FakeAgents, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(cuda: FakeCuda, heap_bytes: int = 4096, unreachable: tuple[str, ...] = (), ranks: int = 2) -> Any:
        monkeypatch.setattr(base, "import_cupy", lambda: cuda)
        monkeypatch.setattr(nixl, "unusable_reason", lambda major: None)
        monkeypatch.setattr(nixl, "mapped_addresses_cubin", lambda arch: arch.encode())
        theirs = (b"ep_lib rank 1", 0x1234, 1)  # answer to the second exchange: metadata, address, device
        world = stand_ins.Two((None, None), (None, theirs)) if ranks == 2 else SingleBootstrap()
        return nixl_heap.NixlHeap(base.GpuSetup(world, 0, heap_bytes, 1.0, "", list(unreachable)))

    return make


def test_a_heap_is_registered_viewed_and_given_back(heap_of: Any, agents: FakeAgents) -> None:
    cuda = FakeCuda()
    heap = heap_of(cuda)
    assert heap.name == "nixl" and heap.addresses == [0x70000000, 0x5000]
    assert agents.log[0] == "agent ep_lib rank 0" and agents.log[1] == "register 2097152 VRAM"
    heap.register_module(CudaModule(0x77, cuda), None)
    heap.register_module(CudaModule(0x78, cuda), None)  # has nothing of NIXL's
    views = [int.from_bytes(bytes.fromhex(line.split()[1])[:8], "little") for line in cuda.log if "state" in line]
    assert len(views) == 1 and views[0] >= 0x1000
    heap.close(orderly=True)
    heap.close(orderly=True)
    assert agents.log[-4:] == ["release", "release", "remove ep_lib rank 1", "deregister"]
    assert cuda.log[-1] == "free" and cuda.log.count("free") == 2  # the heap, and what the addresses were read into


def test_after_a_failure_memory_stays(heap_of: Any, agents: FakeAgents) -> None:
    cuda = FakeCuda()
    heap_of(cuda).close(orderly=False)
    assert "release" not in agents.log and cuda.log.count("free") == 1


def test_a_world_of_one_has_nobody_to_view(heap_of: Any, agents: FakeAgents) -> None:
    heap = heap_of(FakeCuda(), ranks=1)
    assert heap.addresses == [0x70000000] and not any("view" in line for line in agents.log)


def test_host_and_device_must_mean_the_same_view(heap_of: Any) -> None:
    with pytest.raises(
        BackendUnavailable, match=r"found memory views of version 3 .* UCX 1\.22's .* version 2 .*libucx"
    ):
        heap_of(FakeCuda(view_version=3))


def test_no_memory_and_no_way_to_a_peer(heap_of: Any, machine: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OutOfSymmetricMemory, match="a symmetric heap of 2147483648 bytes does not fit"):
        heap_of(FakeCuda(), 1 << 31)
    with pytest.raises(BackendUnavailable, match=r"(?s)no device code for NICs.*rank 0 cannot.*transport='nvshmem'"):
        heap_of(FakeCuda(), unreachable=("rank 0 cannot access rank 1",))
    machine["libucx"] = fake_ucx(tmp_path / "nics", nics=True)
    assert heap_of(FakeCuda(), unreachable=("rank 0 cannot access rank 1",)).name == "nixl"


# ---- choosing it -----------------------------------------------------------------------------------------------------
def nothing(rank: Any) -> None:
    """A main."""


def test_nixl_is_one_of_the_transports(opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_heap, "NixlHeap", lambda setup: ("nixl", setup.device, setup.unreachable))
    chosen = choose.open_transport("nixl", stand_ins.Two(), 3, 64, 1.0)
    assert chosen == ("nixl", 3, [])
    with pytest.raises(ArgumentError, match="transport is 'nixl'; it is for GPUs"):
        spawn(nothing, 1, "emulator", transport="nixl")
