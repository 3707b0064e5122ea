"""The heap in NCCL's symmetric memory, against a libnccl that needs no GPU; GPUs have it in test_nvshmem_gpu."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import TESTS
from support.stand_ins import FakeCuda, Two

from ep_lib.bootstrap import SingleBootstrap
from ep_lib.errors import BackendUnavailable, EpError
from ep_lib.jit import nvrtc, toolkit
from ep_lib.transports import base, registry
from ep_lib.transports.base import GRANULE, GpuSetup
from ep_lib.transports.nccl import heap as nccl_heap
from ep_lib.transports.nccl import library

FAKE = TESTS / "support" / "fake_nccl.cpp"
SetUp = Callable[..., nccl_heap.NcclHeap]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "lib").mkdir()
    compiler = toolkit.find_compiler().path
    subprocess.run([compiler, "-shared", "-fPIC", str(FAKE), "-o", str(folder / "lib" / "libnccl.so.2")], check=True)
    return folder


@pytest.fixture
def set_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> SetUp:
    """``set_up(different)``: a heap of rank 0 of two, where one thing of libnccl is different."""
    monkeypatch.setenv("NCCL_HOME", str(home))
    cuda = FakeCuda()
    monkeypatch.setattr(base, "import_cupy", lambda: cuda)

    def run(different: str = "", heap_bytes: int = 100, bootstrap: SingleBootstrap | None = None) -> Any:
        monkeypatch.setenv("FAKE_NCCL", different)
        heap = nccl_heap.NcclHeap(GpuSetup(bootstrap or Two(), 0, heap_bytes, 5.0))
        assert cuda.zeroed == [GRANULE]
        return heap

    return run


def test_peers_lie_where_nccl_says(set_up: SetUp) -> None:
    heap = set_up()
    own, peer = heap.addresses
    assert (heap.name, heap.bytes) == ("nccl", 100) and own and peer == own + (2 << 40)
    heap.close(orderly=True)
    heap.close(orderly=True)  # nothing is left to give back


def test_a_world_of_one_rank(set_up: SetUp) -> None:
    heap = set_up(bootstrap=SingleBootstrap())
    assert len(heap.addresses) == 1
    heap.close(orderly=False)  # waits for nobody


@pytest.mark.parametrize(
    ("different", "told"),
    [
        ("old", r"found NCCL 2\.28\.9 in .*; ep_lib needs NCCL 2\.29\.2 or later: pip install 'nvidia-nccl-cu13>="),
        ("no symmetric memory", r"NCCL 2\.30\.7 in .* has no symmetric memory here: .*NCCL_CUMEM_ENABLE must not be 0"),
        ("a network to rank 1", r"NCCL joins rank 0 with rank 1 by a network only, .* take transport='nvshmem'"),
        *(
            (call, rf"{call} of NCCL 2\.30\.7 in .* failed: internal error \(the fake was told to fail\); NCCL_DEBUG")
            for call in ("ncclGetUniqueId", "ncclCommInitRank", "ncclMemAlloc", "ncclCommWindowRegister")
        ),
    ],
)  # fmt: skip
def test_what_nccl_lacks_is_told(set_up: SetUp, different: str, told: str) -> None:
    def abandoned() -> int:
        return int(ctypes.CDLL(library.find()).fake_nccl_abandoned())

    before = abandoned()
    with pytest.raises(BackendUnavailable, match=told):
        set_up(different)
    has_started = different not in ("old", "ncclGetUniqueId")
    assert abandoned() == before + has_started, "a communicator that was made is given up"


def test_a_peer_that_cannot_start_is_told_here(set_up: SetUp) -> None:
    with pytest.raises(EpError, match=r"rank 1 could not set up the cuda backend: found NCCL 2\.28\.9"):
        set_up(bootstrap=Two(("found NCCL 2.28.9", None)))


def test_a_start_without_the_others_has_a_limit(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_heap, "within", lambda timeout, step: None)  # nobody came
    with pytest.raises(BackendUnavailable, match=r"did not start within 5 s: .* NCCL_SOCKET_IFNAME names the network"):
        set_up()


def test_which_library_is_taken(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_HOME", str(home))
    assert library.find() == str(home / "lib" / "libnccl.so.2") and library.unusable_reason() is None
    monkeypatch.setenv("NCCL_HOME", str(tmp_path))
    assert "has no lib/libnccl.so.2: correct it, or unset it" in str(library.unusable_reason())
    monkeypatch.setattr(library, "find", lambda: str(tmp_path / "libnccl.so.2"))
    assert str(library.unusable_reason()).startswith("NCCL is not installed (")


@pytest.mark.parametrize("name", ["nccl", "p2p", "nvshmem:link", "auto"])
def test_who_may_have_ranks_on_several_hosts(name: str) -> None:
    assert registry.spans_hosts(name) == (name in ("nccl", "nvshmem:link"))


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC or CuPy is not installed")
def test_its_kernels_are_those_of_p2p(set_up: SetUp) -> None:
    from ep_lib import Kernel

    kernel = Kernel.from_source(
        '#include <ep/net.cuh>\nextern "C" __global__ void k(char* b) { ep::net_put_nbi(b, b, 8, 0); }', "k"
    )
    heap = set_up()
    assert heap.compile(kernel, "sm_90").cubin == nvrtc.compile_cubin(kernel, "sm_90").cubin
    heap.close(orderly=True)
