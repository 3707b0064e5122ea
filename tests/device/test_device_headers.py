"""The device headers: they compile alone and everywhere, keep to their rules, and mean the same on both backends."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT, Spmd
from support.write_signal import data_of

import ep_lib
from ep_lib import Kernel, Rank
from ep_lib.errors import KernelFault, PeerTimeout
from ep_lib.jit import device_state

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


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("target", TARGETS[1:])  # the next test compiles for the emulator
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


LEVELS = ("thread", "warp", "block")
PUTTING = 96
MARGIN = 64  # bytes before and behind the target that must stay as they are
FILL = 0xCC

PUTS = """
#include <ep/put.cuh>
extern "C" __global__ void put(int level, char* dst, const char* src, size_t bytes, int peer) {
    if (blockIdx.x != 0) return;
    if (level == 0 && threadIdx.x == 0) ep::put_thread(dst, src, bytes, peer);
    if (level == 1 && ep::warp_id() == 1) ep::put_warp(dst, src, bytes, peer);
    if (level == 2) ep::put_block(dst, src, bytes, peer);
}
"""


@functools.lru_cache(maxsize=1)
def kernel() -> Kernel:
    return Kernel.from_source(PUTS, "put")


def exchange(rank: Rank, cases: list[tuple[int, int, int, int, int]]) -> list[tuple[Any, Any]]:
    """Each rank puts to the rank ``distance`` ahead, case by case; returns (what arrived, what should have)."""
    results = []
    for level, size, dst_offset, src_offset, distance in cases:
        heap = rank.symmetric(size + 2 * MARGIN + 16, np.uint8, fill=FILL)
        data = rank.to_device(data_of(rank.rank, size + 16))
        peer = (rank.rank + distance) % rank.world_size
        kernel().launch(rank, 2, PUTTING, level, heap[MARGIN + dst_offset :], data[src_offset:], size, peer)
        rank.barrier()
        expected = np.full(len(heap), FILL, np.uint8)
        sender = (rank.rank - distance) % rank.world_size
        start = MARGIN + dst_offset
        expected[start : start + size] = data_of(sender, size + 16)[src_offset : src_offset + size]
        results.append((rank.to_host(heap), expected))
        rank.free(heap)
    return results


def check(results: list[list[tuple[Any, Any]]], cases: list[tuple[int, int, int, int, int]]) -> None:
    for rank, per_case in enumerate(results):
        for case, (found, expected) in zip(cases, per_case, strict=True):
            assert np.array_equal(found, expected), f"rank {rank}, (level, size, dst, src, distance) {case}"


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("level", range(3), ids=LEVELS)
def test_all_alignments_of_small_and_odd_sizes(spmd: Spmd, level: int) -> None:
    sizes = (0, 1, 2, 15, 16, 17, 31, 300)
    offsets = (0, 1, 2, 3, 4, 8, 15)
    cases = [(level, size, dst, src, 1) for size in sizes for dst in offsets for src in offsets]
    check(spmd(exchange, 2, cases), cases)


@pytest.mark.parametrize("level", range(3), ids=LEVELS)
def test_sizes_around_the_unrolled_rounds(spmd: Spmd, level: int) -> None:
    """Words a round: threads x words in flight, then half as many, ...; one byte and one word around each."""
    threads, unroll = ((1, 8), (32, 8), (PUTTING, 4))[level]
    rounds = [threads * k * 16 for k in (1, 2, unroll, 2 * unroll + 1)]
    cases = [(level, size + d, 16, 0, 1) for size in rounds for d in (-16, -1, 0, 1, 16)]
    check(spmd(exchange, 2, cases), cases)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    ranks=st.integers(1, 8),
    level=st.integers(0, 2),
    size=st.one_of(st.integers(0, 600), st.integers(0, 40000)),
    dst=st.integers(0, 15),
    src=st.integers(0, 15),
    distance=st.integers(0, 7),
    seed=st.integers(0, 2**32),
)
def test_any_put_on_the_emulator(
    ranks: int, level: int, size: int, dst: int, src: int, distance: int, seed: int
) -> None:
    """``distance`` 0 (or a multiple of ``ranks``) is a put to oneself."""
    cases = [(level, size, dst, src, distance)]
    check(ep_lib.spawn(exchange, ranks=ranks, backend="emulator", seed=seed, args=(cases,)), cases)


@pytest.mark.gpu(count=2)
def test_large_puts_on_gpus() -> None:
    cases = [
        (level, 1 << 20, dst, src, distance)
        for level in range(3)
        for dst in (0, 1, 4)
        for src in (0, 4)
        for distance in (0, 1)
    ]
    check(ep_lib.spawn(exchange, ranks=2, backend="cuda", args=(cases,)), cases)


WAITS = """
#include <ep/signal.cuh>
// Lets 3 x 32 threads wait at one of three levels; each notes what it got.
extern "C" __global__ void wait(int level, const uint64_t* flag, uint64_t expected, int peer, int64_t slot, int* got) {
    const ep::WaitInfo info{ep::kPhaseUser, peer, slot};
    bool ok = false;
    if (level == 0) ok = ep::wait_until_ge(flag, expected, info);
    if (level == 1) ok = ep::wait_until_ge_warp(flag, expected, info);
    if (level == 2) ok = ep::wait_until_ge_block(flag, expected, info);
    if (level == 3) ok = ep::wait_until_eq(flag, expected, info);
    if (level == 4) {
        uint64_t value = 0;
        ok = ep::wait_until_nonzero(flag, &value, info) && value == expected;
    }
    got[threadIdx.x] = ok ? 1 : -1;
}
extern "C" __global__ void signal(uint64_t* flag, uint64_t first, uint64_t second, int peer, int add) {
    if (threadIdx.x != 0) return;
    if (add) ep::signal_add(flag, first, peer);
    if (!add) ep::signal_set(flag, first, peer);
    ep::sleep_ns(1000);
    if (second != 0) ep::signal_add(flag, second, peer);
}
extern "C" __global__ void faults(int64_t first_slot) {
    ep::record_fault(ep::kFaultTimeout, {ep::kPhaseCredit, 1, first_slot + threadIdx.x}, 3, 4);
}
"""
WAITING = 96


def run(rank: Rank) -> Any:
    """Rank 0 signals twice; rank 1 waits for both, except at levels 3 and 4, where the first is what it waits for."""
    results = []
    for level, add in itertools.product(range(5), (0, 1)):
        flag = rank.symmetric(3, np.uint64)
        got = rank.to_device(np.zeros(WAITING, np.int32))
        first, second = (4, 0) if level >= 3 else (4, 2)
        if rank.rank == 0:
            Kernel.from_source(WAITS, "signal").launch(rank, 1, 32, flag[1:], first, second, 1, add)
        else:
            wait = Kernel.from_source(WAITS, "wait")
            wait.launch(rank, 1, WAITING, level, flag[1:], first + second, 0, 1, got)
            results.append(set(rank.to_host(got).tolist()))
    return results


@pytest.mark.extended
def test_waits_end_when_the_signal_is_there(spmd: Spmd, backend: str) -> None:
    for seed in range(20) if backend == "emulator" else [0]:
        assert spmd(run, 2, seed=seed)[1] == [{1}] * 10, f"seed {seed}"


def run_in_vain(rank: Rank, level: int) -> Any:
    flag = rank.symmetric(1, np.uint64)
    if rank.rank == 0:
        flag[0] = 2
        got = rank.to_device(np.zeros(WAITING, np.int32))
        Kernel.from_source(WAITS, "wait").launch(rank, 1, WAITING, level, flag, 3, 1, 17, got)
        with pytest.raises(PeerTimeout) as error:
            rank.synchronize()
        caught = error.value
        facts = (caught.rank, caught.peer, caught.phase, caught.slot, caught.seen, caught.expected)
        # Reported once; and the rank goes on working.
        flag[0] = 3
        Kernel.from_source(WAITS, "wait").launch(rank, 1, WAITING, level, flag, 3, 1, 17, after := got.copy())
        return facts, rank.to_host(got).tolist(), rank.to_host(after).tolist(), str(caught)
    rank.barrier()
    return None


@pytest.mark.parametrize("level", range(3))
def test_a_wait_in_vain_is_a_peer_timeout_and_the_kernel_returns(spmd: Spmd, level: int) -> None:
    def main(rank: Rank) -> Any:
        result = run_in_vain(rank, level)
        if rank.rank == 0:
            rank.barrier()
        return result

    facts, got, after, message = spmd(main, 2, timeout=4)[0]
    assert facts == (0, 1, "user", 17, 2, 3)
    assert set(got) == {-1}, "every thread learnt that the wait failed"
    assert set(after) == {1}
    assert message.startswith("rank 0 waited too long for rank 1 (user, slot 17): the signal is 2, and 3 was expected")


def run_faults(rank: Rank) -> tuple[int, str]:
    kernel = Kernel.from_source(WAITS, "faults")
    kernel.launch(rank, 1, 1, 5)
    kernel.launch(rank, 1, 64, 100)
    with pytest.raises(PeerTimeout) as error:
        rank.synchronize()
    rank.synchronize()
    return error.value.slot, error.value.phase


def test_the_first_fault_wins_and_is_raised_once(spmd: Spmd) -> None:
    assert spmd(run_faults, 1)[0] == (5, "credit")


# ---- the host's half -------------------------------------------------------------------------------------------------
def record(**fields: int) -> bytes:
    data = np.zeros(1, device_state.FAULT_DTYPE)
    for name, value in fields.items():
        data[name] = value
    return data.tobytes()


def test_no_fault_decodes_to_none() -> None:
    assert device_state.decode_fault(bytes(device_state.HEADER_BYTES)) is None


def test_a_timeout_becomes_a_peer_timeout() -> None:
    fault = device_state.decode_fault(record(code=1, rank=3, peer=-1, phase=5, slot=-1, seen=2**63, expected=2**64 - 1))
    assert fault is not None
    error = device_state.to_error(fault)
    assert isinstance(error, PeerTimeout) and isinstance(error, TimeoutError)
    assert (error.peer, error.phase, error.seen, error.expected) == (-1, "dispatch", 2**63, 2**64 - 1)
    assert "its peers (dispatch)" in str(error)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (2, "of bytes 8 to 24 of rank 1's memory was refused: only 16 bytes"),
        (3, "it has 16 entries, entry 8 does not exist"),
        (9, "the thread that carries out this rank's commands has given up"),
        (99, "unknown fault (code 99)"),
    ],
)
def test_other_faults_become_kernel_faults(code: int, message: str) -> None:
    fault = device_state.decode_fault(record(code=code, rank=0, peer=1, phase=99, slot=8, seen=24, expected=16))
    assert fault is not None and fault.phase == "phase 99"
    error = device_state.to_error(fault)
    assert isinstance(error, KernelFault) and message in str(error)
