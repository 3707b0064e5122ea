"""The emulator's promises: it always ends, it says who waits where, the process survives, and seeds replay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.waiting import ENOUGH

import ep_lib
from ep_lib import errors
from ep_lib.emulator import world
from ep_lib.runtime.emulated import make_machine, run_program

SOURCE = r"""
#include <ep/memory.cuh>
#include <ep/peer.cuh>

extern "C" __global__ void order(unsigned* next, unsigned* out) {
    // which thread comes when: the schedule, made visible
    const unsigned me = blockIdx.x * blockDim.x + threadIdx.x;
    out[atomicAdd(next, 1u)] = me;
}

extern "C" __global__ void wait_forever(const uint64_t* flag) {
    if (threadIdx.x == 3) {
        while (ep::ld_acquire_sys_u64(flag) != 7) {
        }  // nobody stores 7
    }
    __syncthreads();
}

extern "C" __global__ void wait_for_two(volatile int* flags) {
    while (flags[0] == 0 || flags[1] == 0) {
    }
}

extern "C" __global__ void set_two(volatile int* flags, int peer) {
    volatile int* theirs = ep::peer_ptr(flags, peer);
    theirs[0] = 1;
    theirs[1] = 1;
}

extern "C" __global__ void half_a_warp(int* out) {
    if (threadIdx.x < 16) __syncwarp();
    out[threadIdx.x] = 1;
    __syncthreads();
}

extern "C" __global__ void spin_without_memory() {
    unsigned x = threadIdx.x;
    while (true) {
        x = x * 3 + 1;
        asm volatile("" : "+r"(x));
    }
}

extern "C" __global__ void spin_with_memory(unsigned* x) {
    while (true) x[threadIdx.x] += 1;
}

extern "C" __global__ void spin_with_atomics(unsigned* x) {
    while (true) atomicAdd(x, 1u);
}

extern "C" __global__ void write_at(int* base, long long index) { base[index] = 42; }

extern "C" __global__ void divide(int* x, int by) { x[0] = x[0] / by; }

extern "C" __global__ void recurse(int* x, int depth);
__device__ __noinline__ int deep(int* x, int depth) {
    volatile int local[64];
    local[depth % 64] = x[0];
    return depth == 0 ? local[0] : deep(x, depth - 1) + local[depth % 64];
}
extern "C" __global__ void recurse(int* x, int depth) { x[0] = deep(x, depth); }

extern "C" __global__ void wide_frame(int* x, int at) {
    int local[200000];
    for (int i = 0; i < 200000; ++i) local[i] = x[0] + i;
    x[0] = local[at];
}

extern "C" __global__ void shared_past_end(int* x) {
    extern __shared__ int words[];
    words[threadIdx.x] = x[0];
    __syncthreads();
    x[threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void spin_bounded(const volatile int* flag, int* out) {
    int tries = 0;
    while (tries < 5000 && *flag == 0) tries++;
    out[0] = tries;
}

extern "C" __global__ void wait_with_naps(uint64_t* flag, int* out, int most) {
    const long long begin = clock64();
    int tries = 0;
    while (ep::ld_acquire_sys_u64(flag) == 0 && (most == 0 || ++tries < most))
        __nanosleep(static_cast<unsigned>(clock64() - begin) / 4);
    out[threadIdx.x] = tries;
}

// Block 0 waits for one word, then for the other. Block 1 looks at a third one a number of times, three times.
extern "C" __global__ void wait_behind_a_bounded_loop(uint64_t* words) {
    if (blockIdx.x == 0) {
        for (int i = 0; i < 2; ++i)
            while (ep::ld_acquire_sys_u64(words + i) == 0) {
            }
        return;
    }
    for (int i = 0; i < 3; ++i) {
        for (int look = 0; look < 10; ++look) ep::ld_acquire_sys_u64(words + 2);
        ep::st_release_sys_u64(words + (i == 2), i + 1);
    }
}

extern "C" __global__ void spin_until_time(const uint64_t* flag, unsigned long long ns, int* out) {
    const unsigned long long begin = ep::globaltimer_ns();
    while (ep::ld_acquire_sys_u64(flag) == 0) {
        if (ep::globaltimer_ns() - begin > ns) {
            out[0] = 1;
            return;
        }
    }
}

extern "C" __global__ void say(int n) {
    if (threadIdx.x == 0) printf("rank %d says %d and %.2f\n", ep::rank(), n, n / 4.0);
}

extern "C" __global__ void touch(float* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = 2 * x[i];
}
"""


def kernel(name: str) -> ep_lib.Kernel:
    return ep_lib.Kernel.from_source(SOURCE, name, filename="runtime_test.cu")


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def one(main, **options):
    return ep_lib.spawn(main, 1, "emulator", **options)[0]


def schedule(seed: int) -> list[int]:
    def main(rank: ep_lib.Rank) -> list[int]:
        counter, out = rank.symmetric(1, np.uint32), rank.symmetric(256, np.uint32)
        kernel("order").launch(rank, 4, 64, counter, out)
        return rank.to_host(out).tolist()

    return one(main, seed=seed)


def test_same_seed_same_schedule_and_other_seeds_differ():
    first = schedule(5)
    assert sorted(first) == list(range(256))
    assert schedule(5) == first
    assert len({tuple(schedule(seed)) for seed in range(10)}) == 10


def test_a_deadlock_names_every_waiting_thread_line_and_address():
    def main(rank: ep_lib.Rank) -> None:
        flag = rank.symmetric(1, np.uint64)
        kernel("wait_forever").launch(rank, 2, 64, flag)
        rank.synchronize()

    with pytest.raises(ep_lib.errors.DeadlockError) as caught:
        ep_lib.spawn(main, 3, "emulator")
    waiters = caught.value.waiters
    assert {w.thread.rank for w in waiters} == {0, 1, 2}
    polling = [w for w in waiters if w.address is not None]
    barred = [w for w in waiters if "__syncthreads" in w.what]
    assert sum(w.count for w in polling) == 3 * 2 and sum(w.count for w in barred) == 3 * 2 * 63
    assert all(w.thread.thread == (3, 0, 0) for w in polling)
    assert all(f"runtime_test.cu:{line_of('while (ep::ld_acquire')}" in w.location for w in polling)
    assert all(f"runtime_test.cu:{line_of('    __syncthreads();')}" in w.location for w in barred)
    assert "sees 0" in str(caught.value) and "rank 2" in str(caught.value)


def test_a_barrier_that_half_a_warp_misses_is_a_deadlock():
    def main(rank: ep_lib.Rank) -> None:
        kernel("half_a_warp").launch(rank, 1, 32, rank.empty(32, np.int32))
        rank.synchronize()

    with pytest.raises(errors.DeadlockError, match=r"__syncwarp.*mask 0xffffffff, arrived 0xffff"):
        one(main)


def test_a_rank_that_never_comes_to_the_barrier_is_a_deadlock():
    def main(rank: ep_lib.Rank) -> None:
        if rank.rank != 1:
            rank.barrier()

    with pytest.raises(errors.DeadlockError, match=r"rank 0 waits in barrier\(\).*rank 1 has returned"):
        ep_lib.spawn(main, 2, "emulator")


def test_ranks_in_different_collectives_are_told():
    def main(rank: ep_lib.Rank) -> None:
        rank.barrier() if rank.rank else rank.all_gather(3)

    with pytest.raises(errors.RankMismatchError, match=r"all_gather\(\).*barrier\(\)"):
        ep_lib.spawn(main, 2, "emulator")


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("seed", range(8))
def test_polling_several_volatile_words_ends_when_they_change(seed):
    def main(rank: ep_lib.Rank) -> None:
        flags = rank.symmetric(2, np.int32)
        kernel("wait_for_two").launch(rank, 1, 64, flags)
        kernel("set_two").launch(rank, 1, 1, flags, 1 - rank.rank)
        rank.synchronize()

    # in one stream the store comes after the wait, so rank order decides nothing: both wait forever
    with pytest.raises(errors.DeadlockError):
        ep_lib.spawn(main, 2, "emulator", seed=seed)

    def good(rank: ep_lib.Rank) -> None:
        flags = rank.symmetric(2, np.int32)
        kernel("set_two").launch(rank, 1, 1, flags, 1 - rank.rank)
        kernel("wait_for_two").launch(rank, 1, 64, flags)
        rank.synchronize()

    ep_lib.spawn(good, 2, "emulator", seed=seed)


def test_bounded_polling_loops_run_to_their_bound():
    def main(rank: ep_lib.Rank) -> list[int]:
        flag, out = rank.symmetric(1, np.uint64), rank.symmetric(2, np.int32)
        kernel("spin_bounded").launch(rank, 1, 1, rank.symmetric(1, np.int32), out)
        kernel("wait_with_naps").launch(rank, 1, 1, flag, out[1:], 5000)
        return rank.to_host(out).tolist()

    assert one(main) == [5000, 5000]


@pytest.mark.parametrize("seed", range(2))
def test_a_deadlock_is_known_when_all_threads_are_back_in_their_state(seed: int) -> None:
    def main(rank: ep_lib.Rank) -> None:
        kernel("wait_with_naps").launch(rank, 1, 64, rank.symmetric(1, np.uint64), rank.symmetric(64, np.int32), 0)

    machine = make_machine(1, seed=seed, fabric=ep_lib.Fabric())
    with pytest.raises(errors.DeadlockError):
        run_program(main, machine)
    assert machine.steps < 1_000_000  # of bounded loops, 64 threads would be given four times as many


def test_a_word_that_was_polled_before_does_not_keep_others_waiting():
    # the first word changes again while block 0 polls the second: that must not wake it over and over
    def main(rank: ep_lib.Rank) -> list[int]:
        words = rank.symmetric(3, np.uint64)
        kernel("wait_behind_a_bounded_loop").launch(rank, 2, 1, words)
        return rank.to_host(words).tolist()

    assert one(main) == [2, 3, 0]


def test_time_passes_for_a_loop_that_looks_at_the_clock():
    def main(rank: ep_lib.Rank) -> int:
        out = rank.symmetric(1, np.int32)
        flag = rank.symmetric(1, np.uint64)
        kernel("spin_until_time").launch(rank, 1, 1, flag, 30 * 10**9, out)
        return int(rank.to_host(out)[0])

    assert one(main) == 1


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["spin_without_memory", "spin_with_memory", "spin_with_atomics"])
def test_an_infinite_kernel_ends_at_the_time_limit(name):
    def main(rank: ep_lib.Rank) -> None:
        args = [rank.empty(32, np.uint32)] if name != "spin_without_memory" else []
        kernel(name).launch(rank, 1, 32, *args)
        rank.synchronize()

    kernel(name).compile("emulator")
    with pytest.raises(errors.KernelTimeout, match=r"0\.5 s"):
        one(main, timeout=0.5)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("name", ["spin_without_memory", "spin_with_memory", "spin_with_atomics"])
def test_an_interrupt_ends_kernels_at_once_and_the_process_goes_on(name):
    def main(rank: ep_lib.Rank) -> None:
        args = [rank.empty(32, np.uint32)] if name != "spin_without_memory" else []
        kernel(name).launch(rank, 1, 32, *args)
        rank.synchronize()

    kernel(name).compile("emulator")
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ep_lib.spawn(main, 2, "emulator")
    assert sorted(schedule(1)) == list(range(256))


@pytest.mark.parametrize("thread", ["main", "rank"])
def test_an_interrupt_ends_a_rank_that_loops_in_python(thread):
    """In the rank's thread, the signal does not wake the main thread, as if it came just before that one waits."""

    def main(rank: ep_lib.Rank) -> None:
        ident = threading.main_thread().ident if thread == "main" else threading.get_ident()
        threading.Timer(0.3, signal.pthread_kill, (ident, signal.SIGINT)).start()
        while True:
            sum(range(100))

    with pytest.raises(KeyboardInterrupt):
        ep_lib.spawn(main, 2, "emulator")
    assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]


UNDER_A_DEBUGGER = """
import sys
import ep_lib

def trace(frame, event, arg):
    return trace

sys.settrace(trace)
ep_lib.spawn(lambda rank: 1 / 0, 2, "emulator")
"""


def test_a_rank_that_fails_before_others_begin_under_a_debugger():
    """It hung, in CPython 3.11, and no signal but SIGKILL ended it: so in a process of its own."""
    command = [sys.executable, "-c", UNDER_A_DEBUGGER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENOUGH, check=False)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("index", "what"),
    [
        (1 << 18, "past the end of the symmetric heap"),
        (300, "where nothing is allocated"),
        (-(1 << 20), "rank 0 heap"),
        (1 << 40, "in no heap"),
    ],
)
def test_an_access_outside_is_an_exception_with_the_line(index, what):
    def main(rank: ep_lib.Rank) -> None:
        base = rank.symmetric(16, np.int32)
        kernel("write_at").launch(rank, 1, 1, base, index)
        rank.synchronize()

    with pytest.raises(errors.KernelFault) as caught:
        ep_lib.spawn(main, 2, "emulator", heap_bytes=1 << 20)
    fault = caught.value
    assert f"runtime_test.cu:{line_of('base[index] = 42')}" in fault.location
    assert fault.source.startswith('extern "C" __global__ void write_at')
    if index > 0:
        assert what in str(fault)
    assert sorted(schedule(1)) == list(range(256))


def test_an_access_past_the_end_of_an_array_argument():
    def main(rank: ep_lib.Rank) -> None:
        kernel("write_at").launch(rank, 1, 1, np.zeros(16, np.int32), 16)
        rank.synchronize()

    with pytest.raises(errors.KernelFault, match="0 bytes past the end of an array of 64 bytes"):
        one(main)


def test_a_null_pointer_a_division_and_a_stack_overflow_are_exceptions():
    def launch(name, *args):
        def main(rank: ep_lib.Rank) -> None:
            kernel(name).launch(rank, 1, 1, *args)
            rank.synchronize()

        with pytest.raises(errors.KernelFault) as caught:
            one(main)
        return str(caught.value)

    assert "null pointer" in launch("write_at", None, 0)
    assert "divides an integer by zero" in launch("divide", np.ones(1, np.int32), 0)
    for name in ("recurse", "wide_frame"):
        assert "overflows its stack" in (said := launch(name, np.ones(1, np.int32), 100000)) and "EP_LIB_STACK" in said


def test_large_local_arrays_have_room_where_it_is_asked_for(monkeypatch):
    def main(rank: ep_lib.Rank) -> int:
        x = np.ones(1, np.int32)
        kernel("wide_frame").launch(rank, 1, 1, x, 100000)
        rank.synchronize()
        return int(x[0])

    monkeypatch.setenv("EP_LIB_STACK_BYTES", "1M")
    assert one(main) == 100001


def test_dynamic_shared_memory_is_bounded():
    def main(rank: ep_lib.Rank, nbytes: int) -> list[int]:
        x = rank.to_device(np.arange(5, 37, dtype=np.int32))
        kernel("shared_past_end").launch(rank, 1, 32, x, shared_bytes=nbytes)
        return rank.to_host(x).tolist()

    assert one(main, args=(128,)) == [5] * 32
    with pytest.raises(errors.KernelFault, match=r"shared memory\+0x.*dynamic 124"):
        one(main, args=(124,))


def test_results_may_look_into_the_heap_after_the_world_has_ended():
    def main(rank: ep_lib.Rank):
        x = rank.symmetric(4, np.float32, fill=rank.rank + 1)
        kernel("touch").launch(rank, 1, 32, x, 4)
        return x

    arrays = ep_lib.spawn(main, 3, "emulator")
    assert [a.tolist() for a in arrays] == [[2.0] * 4, [4.0] * 4, [6.0] * 4]


def test_an_exception_in_one_rank_ends_the_others():
    def main(rank: ep_lib.Rank) -> None:
        if rank.rank == 2:
            raise ValueError("rank 2 has enough")
        kernel("wait_forever").launch(rank, 1, 32, rank.empty(1, np.uint64))
        rank.synchronize()

    with pytest.raises(ValueError, match="has enough") as caught:
        ep_lib.spawn(main, 4, "emulator")
    assert "rank 2 of 4" in caught.value.__notes__[0]


def test_a_world_that_broke_stays_broken_and_a_new_one_works():
    def main(rank: ep_lib.Rank) -> str:
        kernel("divide").launch(rank, 1, 1, np.ones(1, np.int32), 0)
        with pytest.raises(errors.KernelFault):
            rank.synchronize()
        with pytest.raises(errors.KernelFault):
            kernel("say").launch(rank, 1, 1, 1)
        raise RuntimeError("as expected")

    with pytest.raises(RuntimeError, match="as expected"):
        one(main)
    assert one(lambda rank: rank.rank) == 0


def test_symmetric_memory_checks_its_callers():
    def disagree(rank: ep_lib.Rank) -> None:
        rank.symmetric(16 + rank.rank, np.int32)

    with pytest.raises(errors.RankMismatchError, match=r"rank 0: shape \(16,\).*rank 1: shape \(17,\)"):
        ep_lib.spawn(disagree, 2, "emulator")

    def too_much(rank: ep_lib.Rank) -> None:
        rank.symmetric(1 << 20, np.uint8)

    with pytest.raises(errors.OutOfSymmetricMemory) as caught:
        ep_lib.spawn(too_much, 2, "emulator", heap_bytes=1 << 20)
    assert caught.value.short_by == 256 and "256 bytes are missing" in str(caught.value)

    def reuse(rank: ep_lib.Rank) -> tuple[int, int]:
        a = rank.symmetric(100, np.float32)
        offset = rank.offset_of(a)
        rank.free(a)
        with pytest.raises(errors.ArgumentError):
            rank.free(a)
        second = rank.symmetric(60, np.float32)
        assert rank.offset_of(second) == offset + 2 * rank.heap_bytes  # a's pointers do not hit it
        rank.free(second)
        return offset, rank.offset_of(rank.symmetric(60, np.float32))

    assert all(a == b for a, b in ep_lib.spawn(reuse, 2, "emulator"))


@pytest.mark.parametrize(
    "options",
    [
        {"ranks": 0},
        {"ranks": 65},
        {"ranks": 2.5},
        {"ranks": 2, "backend": "gpu"},
        {"ranks": 2, "seed": -1},
        {"ranks": 2, "timeout": 0},
        {"ranks": 2, "heap_bytes": 100},
    ],
)
def test_spawn_refuses_bad_arguments(options):
    with pytest.raises(errors.ArgumentError, match="must be"):
        ep_lib.spawn(lambda rank: None, **options)


@pytest.mark.parametrize(("grid", "block"), [(0, 32), (1, 1025), (1, (32, 64)), (1, (1, 1, 65)), ("4", 1), (1, ())])
def test_impossible_launches_are_refused(grid, block):
    def main(rank: ep_lib.Rank) -> None:
        kernel("say").launch(rank, grid, block, 1)

    with pytest.raises(errors.KernelLaunchError):
        one(main)


def test_the_time_limit_says_where_threads_were_last_seen():
    def main(rank: ep_lib.Rank) -> None:
        kernel("spin_with_atomics").launch(rank, 1, 4, rank.empty(32, np.uint32))
        rank.synchronize()

    with pytest.raises(errors.KernelTimeout, match="still running, last seen at") as caught:
        one(main, timeout=0.3)
    line = f"runtime_test.cu:{line_of('while (true) atomicAdd(x, 1u);')}"
    assert all(line in w.location for w in caught.value.waiters) and caught.value.waiters


# What a kernel's library has in it beside constants and variables, and how a kernel gets there by its own names.
PLACES = """
struct Shape { virtual int sides() const = 0; };
struct Square : Shape { int sides() const override { return 4; } };
static const Square square;
static const char* const names[] = {"a", "b"};
__device__ long variable = 7;
extern "C" __global__ void k(int place, const Shape** shapes, long* out) {
    volatile int zero = 0;
    if (place == 0) out[0] = variable + names[zero][0] + square.sides();
    if (place == 1) for (volatile long* at = &variable;; --at) out[0] += *at;           // the table of addresses
    if (place == 2) for (unsigned long long* at = (unsigned long long*)&variable;; --at) atomicAdd(at, 0ull);
    if (place == 3) out[0] = *reinterpret_cast<const volatile char*>(&k);               // its code
    if (place == 4) out[0] = *reinterpret_cast<const volatile char*>(&epemu_free);      // the emulator's
    if (place == 5) const_cast<const char**>(names)[zero] = "c";                        // a constant
    if (place == 6) **reinterpret_cast<volatile long**>(const_cast<Square*>(&square)) = 0;  // of the compiler's
}
"""


@pytest.mark.parametrize("place", range(7))
def test_a_library_has_no_memory_for_kernels_but_its_variables(place: int) -> None:
    def main(rank: ep_lib.Rank) -> int:
        out = rank.to_device(np.zeros(1, np.int64))
        ep_lib.Kernel.from_source(PLACES, "k", filename="places.cu").launch(rank, 1, 1, place, 0, out)
        rank.synchronize()
        return int(out[0])

    if place == 0:
        assert ep_lib.spawn(main, 1) == [7 + ord("a") + 4]
        return
    with pytest.raises(errors.KernelFault, match=r" bytes at |memory that does not exist") as caught:
        ep_lib.spawn(main, 1)
    line = next(n for n, line in enumerate(PLACES.splitlines(), 1) if f"place == {place}" in line)
    assert f"places.cu:{line}" in str(caught.value)


# A base's function of a derived object, by code that the compiler writes behind its sanitizer.
BASES = """
struct Left { long a = 1; __device__ virtual long sum() { return a; } };
struct Right { long b = 2; __device__ virtual __noinline__ long all() { return b; } };
struct Both : INHERITED Left, INHERITED Right { __device__ __noinline__ long all() override { return a + b; } };
__device__ __noinline__ long ask(Right* right) { return right->all(); }
extern "C" __global__ void k(long* out) { Both both; out[0] = ask(&both); }
"""


def test_of_a_virtual_base_a_note_says_that_it_is_not_watched() -> None:
    def main(rank: ep_lib.Rank, inherited: str) -> int:
        out = rank.to_device(np.zeros(1, np.int64))
        source = BASES.replace("INHERITED", inherited)
        ep_lib.Kernel.from_source(source, "k", filename="bases.cu").launch(rank, 1, 1, out)
        rank.synchronize()
        return int(out[0])

    for inherited, noted in (("", False), ("virtual", True)):
        assert ep_lib.spawn(main, 1, args=(inherited,)) == [3]
        report = ep_lib.check(main, 1, seeds=1, args=(inherited,))
        assert report.ok and ("Both::all is a virtual function of a virtual base" in str(report)) == noted


def test_a_rank_that_stays_in_its_own_python_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(world, "_LONG_SECONDS", 0)
    told, is_over = threading.Event(), threading.Event()
    to_stderr = sys.stderr.write

    def write(text: str) -> int:
        if "rank 1" in text:
            told.set()
        return to_stderr(text)

    monkeypatch.setattr(sys.stderr, "write", write)

    def main(rank: ep_lib.Rank) -> None:
        if rank.rank == 1:
            told.wait(ENOUGH)
            os.kill(os.getpid(), signal.SIGINT)
            is_over.wait(ENOUGH)
        rank.barrier()

    with pytest.raises(KeyboardInterrupt) as stopped:
        ep_lib.spawn(main, 2)
    is_over.set()  # a thread of Python that is left behind slows down what the process runs after this
    (note,) = stopped.value.__notes__
    assert note.startswith("(rank 1 of 2 was in its own Python at test_emulator_runtime.py:")
    said = capsys.readouterr().err
    line = next(line for line in said.splitlines() if "rank 1" in line)
    assert line.startswith("ep_lib: rank 1 has been in its own Python for 0 s at test_emulator_runtime.py:")
    assert line.endswith("; the other ranks wait for it")
