"""Every kernel compiles for GPUs: NVRTC needs none.

One kernel brings all of its file to the compiler, but for templates: of these the library's instances are asked for.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT, TESTS

from ep_lib.jit import nvrtc
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.names import find_global_functions
from ep_lib.transports.proxy import gpu_heap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed"),
]

# Of one transport, whose headers the others do not have, or of the emulator.
APART = re.compile(r"\bepemu_|#include <(?:ep_emulator/|nvshmem\.h|ucp/)|\btransport::proxy::|\bring_of\(")
BEHIND = [f"ep::direct::Behind{row}<{side}>" for row in ("", "WithRowScale") for side in ("float", "unsigned char")]
CAST_TO = [f"ep::direct::CastTo<ep::Cast::{cast}, float>" for cast in ("kFp8", "kUe8m0", "kMxfp8", "kNvfp4")]
INSTANCES = {  # of the templates of a file
    "ep_lib/moe/direct/combine_pull.cu": ["ep_combine_pull<__nv_bfloat16, ep::direct::kByExpert>"],
    "ep_lib/moe/direct/combine_push.cu": ["ep_combine_push<__nv_bfloat16, true>"],
    "ep_lib/moe/direct/copy_epilogue.cu": [
        "ep_copy_epilogue<int, unsigned char>", "ep_copy_by_expert<long long, unsigned char>",
    ],
    "ep_lib/moe/direct/dispatch_bulk.cu": [
        f"ep_dispatch_bulk<ep::direct::{how}, {rows}>"
        for how, rows in [
            ("kByTma, 3", CAST_TO[3]), ("kByLanes, 2", BEHIND[3]), ("kByTma, 3", CAST_TO[1]),
            ("kByLanes, 2", CAST_TO[0]), ("kByLanes, 2", CAST_TO[2]), *(("kByLanes, 2", rows) for rows in BEHIND[:3]),
        ]
    ],
    "ep_lib/moe/direct/notify_dispatch.cu": ["ep_notify_dispatch<int>"],
    "ep_lib/moe/direct/scales_by_column.cu": [
        "ep_scales_by_column<unsigned int>", "ep_scales_by_column<unsigned char>",
    ],
    "ep_lib/moe/hierarchical/combine.cu": [
        "ep_hierarchical_combine<float>", "ep_hierarchical_combine<__nv_bfloat16>",
    ],
    "ep_lib/moe/low_latency/combine.cu": ["ep::low_latency::combine<true, int>"],
    "ep_lib/moe/low_latency/dispatch.cu": ["ep::low_latency::dispatch<true, true, int>"],
    "ep_lib/moe/pcie/combine.cu": ["ep_pcie_combine<float>", "ep_pcie_combine<__nv_bfloat16>"],
}  # fmt: skip
USUAL = 2  # instances in a file that `make test` compiles


def names(path: Path) -> list[str]:
    """A kernel that is no template, or the instances of those that are."""
    found = find_global_functions([path.read_text()])
    plain = [name for name in found.names if name not in found.templates]
    return INSTANCES.get(str(path.relative_to(ROOT)), plain[-1:])


def files(*places: str) -> list[Path]:
    """Those with kernels for GPUs by any transport."""
    found = sorted(path for place in places for path in (ROOT / place).rglob("*.cu"))
    return [path for path in found if "__global__" in (text := path.read_text()) and not APART.search(text)]


LIBRARY = [
    str(path.relative_to(ROOT / "ep_lib")) for path in files("ep_lib/commands", "ep_lib/moe", "ep_lib/transports")
]
TUTORIALS = files("tutorial_kernels")
BROKEN = [path for path in TUTORIALS if "_broken" in path.name]


def test_every_file_of_the_library_is_compiled() -> None:
    assert [file for file in LIBRARY if not names(ROOT / "ep_lib" / file)] == [], "INSTANCES has none of its templates"


@pytest.mark.parametrize("file", LIBRARY)
def test_kernels_of_the_library(file: str) -> None:
    for name in names(ROOT / "ep_lib" / file)[:USUAL]:
        library_kernel(file, name).compile("sm_90")


@pytest.mark.extended
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120"])
def test_kernels_of_the_library_for_old_and_new_gpus(arch: str) -> None:
    """GPUs before sm_90 have no TMA, so lanes copy; before sm_80 more is missing."""
    for file in LIBRARY:
        for name in names(ROOT / "ep_lib" / file):
            library_kernel(file, name).compile(arch)


@pytest.mark.parametrize("path", [path for path in TUTORIALS if path not in BROKEN], ids=lambda path: path.stem)
def test_kernels_of_the_tutorials(path: Path) -> None:
    for name in names(path):
        Kernel.from_file(path, name).compile("sm_80")


@pytest.mark.extended
@pytest.mark.parametrize(
    "path", [*BROKEN, *files("tests/kernels", "benchmarks")], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_kernels_of_tests_and_measurements(path: Path) -> None:
    for name in names(path):
        Kernel.from_file(path, name).compile("sm_90")


PUSH = """
#include <ep/proxy_operations.cuh>
#include <ep/proxy_ring.cuh>
extern "C" __global__ void push_to(ep::ProxyRing ring, uint64_t* inbox, uint64_t* outbox, int peer) {
    ep::proxy_push(ring, ep::proxy_write_signal(inbox, outbox, sizeof(uint64_t), inbox + 1, 1, false, peer));
    ep::proxy_push_warp(ring, ep::proxy_read(outbox, inbox, sizeof(uint64_t), peer), 32);
    ep::proxy_flush(ring);
}
"""


def test_operations_of_networks_by_the_proxys_transport() -> None:
    files = [
        (ROOT / "tutorial_kernels" / "03_ibgda_shim.cu", "send_batched"),
        (TESTS / "kernels" / "proxy_ring.cu", "send"),
        (TESTS / "kernels" / "proxy_gpu.cu", "all_wait"),
        (ROOT / "benchmarks" / "proxy_gpu.cu", "push_writes"),
    ]
    for kernel in (Kernel.from_source(PUSH, "push_to"), *(Kernel.from_file(*each) for each in files)):
        nvrtc.compile_cubin(kernel, "sm_100", Path(gpu_heap.__file__).parent)


# ---- pieces of exercises: but for their holes, the library's and the tutorials' --------------------------------------
@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "source", "kernel"),
    [
        ("00_first_kernel", "tutorial_kernels/00_start_here.cu", "pass_on"),
        ("01_write_signal", "tutorial_kernels/01_write_signal.cu", "pipelined_send"),
        ("03_batches", "{folder}/03_batches/03_ibgda_shim.cu", "channel_send"),
        ("03_shim", "tutorial_kernels/03_ibgda_shim.cu", "channel_send"),
        ("05_pipeline", "{folder}/05_pipeline/05_bounce_buffer.cu", "exchange_merged"),
        ("05_ring", "tutorial_kernels/05_bounce_buffer.cu", "exchange_by_rings"),
        ("06_slots", "tutorial_kernels/06_dispatch.cu", "dispatch"),
        ("06_arrivals", "tutorial_kernels/06_dispatch.cu", "dispatch_exact"),
        ("07_sums", "tutorial_kernels/07_combine.cu", "combine<__nv_bfloat16>"),
        ("07_groups", "tutorial_kernels/07_combine.cu", "experts_and_combine"),
        ("08_fp8", "ep_lib/moe/low_latency/dispatch.cu", "ep::low_latency::dispatch<true, false, int64_t>"),
        ("08_packets", "ep_lib/commands/bench/p2p_stores.cu", "ping_pong_packets"),
    ],
)
@pytest.mark.parametrize("folder", ["solutions", "exercises"])
def test_a_solution_and_what_a_learner_begins_with(folder: str, name: str, source: str, kernel: str) -> None:
    path = ROOT / source.format(folder=folder)
    beside = [ROOT / folder / name, ROOT / "exercises" / name]  # the latter for what a piece includes from beside it
    assert Kernel.from_file(path, kernel, include=beside).compile("sm_90")
