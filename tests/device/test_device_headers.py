"""The device headers: they compile alone and everywhere, keep to their rules, and mean the same on both backends."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import ROOT

from ep_lib import Kernel, Rank
from ep_lib.jit import device_state

Spmd = Callable[..., list[Any]]
DEVICE = ROOT / "ep_lib" / "device" / "ep"
MOE = ROOT / "ep_lib" / "moe"
HEADERS = ("platform", "device_state", "memory", "peer", "wait", "put", "signal", "net", "ibgda_shim", "nixl_device")
TARGETS = ("emulator", "sm_90", "sm_80", "sm_100")
DIRECTIVE = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else)\b.*", re.MULTILINE)


@pytest.mark.extended(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_header_compiles_alone(target: str) -> None:
    for header in HEADERS:
        source = f'#include <ep/{header}.cuh>\nextern "C" __global__ void k(int* out) {{ *out = 1; }}\n'
        Kernel.from_source(source, "k").compile(target)


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "target"), [(1, "emulator"), (-1, "emulator"), (1, "sm_90")], ids=["forwards", "backwards", "for GPUs"]
)
def test_all_headers_and_kernels_in_one_source(step: int, target: str) -> None:
    """Both orders of every pair: names of one mode never meet those of another."""
    files = [path.relative_to(DEVICE.parent) for path in sorted(DEVICE.glob("*.cuh"))]
    files += [path.relative_to(MOE.parent) for path in sorted(MOE.rglob("*.cu*"))]
    includes = "".join(f"#include <{file.as_posix()}>\n" for file in files[::step])
    Kernel.from_source(f'{includes}extern "C" __global__ void k(int* out) {{ *out = 1; }}\n', "k").compile(target)


def test_only_platform_decides_what_we_run_on() -> None:
    allowed = {
        "ep/platform.cuh": ["#if defined(EP_EMULATOR)", "#else"],
        "ep/nixl_device.cuh": ["#ifndef WARP_SIZE"],
        # GPUs before sm_80 lack some instructions
        "gpu/primitives.cuh": ["#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800", "#else"],
        "gpu/tma.cuh": ["#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900", "#else"],  # does the GPU have TMA?
    }
    for path in sorted([*DEVICE.rglob("*.cuh"), *MOE.rglob("*.cu*")]):
        if path.parent.name == "detail":  # the compiler's side of launching, not for kernels
            continue
        found = [match.group().strip() for match in DIRECTIVE.finditer(path.read_text())]
        assert found == allowed.get(f"{path.parent.name}/{path.name}", []), path


def test_headers_include_with_angle_brackets_only() -> None:
    """A learner's own piece replaces the library's by standing first among the include roots."""
    for path in [*DEVICE.rglob("*.cuh"), *MOE.rglob("*.cu*")]:
        assert not re.search(r'#\s*include\s*"', path.read_text()), path


# ---- device_state.cuh: tests/jit/test_jit_structs.py compares its layouts with the compiler's ---
def test_names_of_phases_and_faults_are_the_headers() -> None:
    assert device_state.PHASE_NAMES[:3] == ("none", "signal", "credit") and device_state.PHASE_NAMES[-1] == "user"
    assert (device_state.FAULT_NONE, device_state.FAULT_TIMEOUT, device_state.FAULT_RANGE) == (0, 1, 2)
    assert (device_state.FAULT_HANDLE, device_state.FAULT_IBGDA_STATE, device_state.FAULT_TRANSPORT) == (3, 4, 5)
    assert (device_state.FAULT_INPUT, device_state.FAULT_OPTIONS, device_state.FAULT_ROOM) == (6, 7, 8)
    assert (device_state.MAX_RANKS, device_state.DEFAULT_TIMEOUT_NS) == (64, 30_000_000_000)


# ---- the primitives: every name of memory.cuh, on every target -----------------------------------------------
def primitive_calls() -> list[str]:
    """One statement a primitive, run in this order on `w`, a word that starts at 0, with results in `out[i]`."""
    calls = []
    for width in ("u32", "u64"):
        word = f"w{width[1:]}"
        for scope in ("gpu", "sys"):
            calls += [f"st_{order}_{scope}_{width}({word}, 5)" for order in ("relaxed", "release")]
            calls += [f"ld_{order}_{scope}_{width}({word})" for order in ("relaxed", "acquire")]
            calls += [f"red_add_{order}_{scope}_{width}({word}, 2)" for order in ("relaxed", "release")]
            for order in ("relaxed", "acquire", "release", "acq_rel"):
                calls.append(f"atom_add_{order}_{scope}_{width}({word}, 10)")
                calls.append(f"atom_exch_{order}_{scope}_{width}({word}, 7)")
                calls.append(f"atom_cas_{order}_{scope}_{width}({word}, 7, 9)")
                calls.append(f"atom_cas_{order}_{scope}_{width}({word}, 1, 2)")
        calls += [f"st_volatile_{width}({word}, 4)", f"ld_volatile_{width}({word})"]
    return calls


def primitives_source() -> str:
    body = []
    for i, call in enumerate(primitive_calls()):
        returns = not call.startswith(("st_", "red_"))
        body.append(f"out[{i}] = ep::{call};" if returns else f"ep::{call}; out[{i}] = *w{call.split('(w')[1][:2]};")
    body.append("ep::fence_sys(); ep::fence_gpu(); ep::sleep_ns(100);")
    body.append("const uint64_t start = ep::globaltimer_ns(); while (ep::globaltimer_ns() == start) {}")
    body.append("out[-1] = ep::clock_cycles() != 0;")
    body.append("ep::st_na_v4(v4, ep::ld_nc_v4(v4 + 1)); ep::st_na_v4(v4 + 2, ep::ld_na_v4(v4));")
    return (
        "#include <ep/memory.cuh>\n"
        'extern "C" __global__ void k(uint32_t* w32, uint64_t* w64, int4* v4, uint64_t* out) {'
        + "\n".join(body)
        + "}\n"
    )


def expected_results() -> list[int]:
    words = {"w32": 0, "w64": 0}
    results = []
    for call in primitive_calls():
        name = "w32" if "w32" in call else "w64"
        word = words[name]
        operands = [int(n) for n in re.findall(r", (\d+)", call)]
        old = word
        if call.startswith("st_"):
            word = old = operands[0]
        elif call.startswith("red_"):
            word = old = word + operands[0]
        elif call.startswith("atom_add"):
            word += operands[0]
        elif call.startswith("atom_exch"):
            word = operands[0]
        elif call.startswith("atom_cas"):
            word = operands[1] if word == operands[0] else word
        words[name] = word
        results.append(old)
    return results


@pytest.mark.extended(after=2)
@pytest.mark.parametrize("target", TARGETS)
def test_every_primitive_compiles(target: str) -> None:
    Kernel.from_source(primitives_source(), "k").compile(target)


def run_primitives(rank: Rank) -> tuple[list[int], list[list[int]]]:
    w32, w64 = rank.symmetric(1, np.uint32), rank.symmetric(1, np.uint64)
    v4 = rank.to_device(np.arange(12, dtype=np.int32))
    out = rank.to_device(np.zeros(len(primitive_calls()) + 1, np.uint64))
    Kernel.from_source(primitives_source(), "k").launch(rank, 1, 1, w32, w64, v4, out[1:])
    return rank.to_host(out)[1:].tolist(), rank.to_host(v4).reshape(3, 4).tolist()


def test_every_primitive_does_what_its_name_says(spmd: Spmd) -> None:
    results, vectors = spmd(run_primitives, 1)[0]
    wrong = [(c, r, e) for c, r, e in zip(primitive_calls(), results, expected_results(), strict=True) if r != e]
    assert wrong == []
    assert vectors == [[4, 5, 6, 7], [4, 5, 6, 7], [4, 5, 6, 7]]


# ---- where am I ----------------------------------------------------------------------------------------------------
WHERE = """
#include <ep/peer.cuh>
extern "C" __global__ void where(char* mine, const char* other, uint64_t* out) {
    if (ep::thread_in_block() == 0) {
        out[0] = ep::rank();
        out[1] = ep::num_ranks();
        out[2] = ep::in_heap(mine) && !ep::in_heap(other) && !ep::in_heap(nullptr);
        out[3] = ep::threads_in_block();
        out[4] = ep::warps_in_block();
        for (int peer = 0; peer < ep::num_ranks(); ++peer) {
            out[5 + peer] = reinterpret_cast<uint64_t>(ep::peer_ptr(mine + 3, peer));
            ep::peer_ptr(mine, peer)[ep::rank()] = 10 + ep::rank();
        }
    }
    if (ep::thread_in_block() == 37) out[15] = ep::warp_id() * 100 + ep::lane_id();
}
"""


def where(rank: Rank) -> Any:
    mine, other = rank.symmetric(rank.world_size, np.uint8), rank.to_device(np.zeros(4, np.uint8))
    out = rank.to_device(np.zeros(16, np.uint64))
    Kernel.from_source(WHERE, "where").launch(rank, 1, (5, 4, 2), mine, other, out)
    rank.barrier()
    addresses = [rank.peer_address(mine, peer) + 3 for peer in range(rank.world_size)]
    return rank.to_host(out).tolist(), addresses, rank.to_host(mine).tolist()


def test_ranks_and_peer_pointers(spmd: Spmd, backend: str) -> None:
    ranks = 2 if backend == "cuda" else 5
    for rank, (out, addresses, mine) in enumerate(spmd(where, ranks)):
        assert out[:5] == [rank, ranks, 1, 40, 2]
        assert out[5 : 5 + ranks] == addresses
        assert mine == [10 + source for source in range(ranks)]
        assert out[15] == 105
