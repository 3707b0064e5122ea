"""A deadlock says which value came and went by whose line, and who has not come; then what that says makes it right."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import ep_lib
from ep_lib import Kernel, Rank

pytestmark = pytest.mark.slow

HEAD = """#include <cuda/barrier>
#include <cuda/latch>
#include <ep/net.cuh>
using Barrier = cuda::barrier<cuda::thread_scope_block>;
using Latch = cuda::latch<cuda::thread_scope_block>;
__device__ void lock(uint64_t* word) {
while (atomicCAS(word, 0ul, 1ul) != 0) {} // L
__threadfence();
}
__device__ void unlock(uint64_t* word) {
__threadfence();
atomicExch(word, 0ul);
}
extern "C" __global__ void k(uint64_t* box, uint64_t* flag, uint64_t* out, uint64_t* mine) {
using namespace ep;
const int t = threadIdx.x;
__shared__ uint64_t tile[64];
__shared__ alignas(16) char room[2][64];
"""


class Wrong(NamedTuple):
    """``says``: what the finding tells, with the number of a line for {its comment}. ``old``, ``new``: the remedy."""

    name: str
    body: str
    says: tuple[str, ...]
    old: str
    new: str
    ranks: int = 2
    blocks: int = 1
    fabric: str = "p2p"
    kind: str = "deadlock"


RESET = "reset a signal before anyone may send the next one"
ACKNOWLEDGE = "who stores waits until the reader has taken the last value"
COUNT = "of two that set it to the same value one counts for nothing"
ARRIVE = "as many arrivals in each round as the count says"

MAILBOX = """if (t) return;
if (rank() == 0) {
for (uint64_t r = 1; r <= 3; ++r) {
// free
peer_ptr(box, 1)[0] = r;
st_release_sys_u64(peer_ptr(flag, 1), VALUE); // S
}
} else {
for (uint64_t r = 1; r <= 3; ++r) {
while (ld_acquire_sys_u64(flag) == 0) {} // W
out[r] = box[0];
st_release_sys_u64(flag, 0); // R
}
}"""
PIPELINE = """Barrier &full = *reinterpret_cast<Barrier*>(room[0]), &empty = *reinterpret_cast<Barrier*>(room[1]);
if (t == 0) { init(&full, 64); init(&empty, 64); }
__syncthreads();
if (t < 32) {
for (int i = 0; i < 3; ++i) {
empty.arrive_and_wait(); // E
tile[t] = i;
(void)full.arrive(); // F
}
} else {
(void)empty.arrive(); // P
for (int i = 0; i < 3; ++i) {
full.arrive_and_wait(); // W
out[t] += tile[t - 32];
// again
}
}"""
LATCH = """Latch& latch = *reinterpret_cast<Latch*>(room[0]);
if (t == 0) new (&latch) Latch(COUNT);
__syncthreads();
if (t < 63 || ALL) {
tile[t] = t;
latch.arrive_and_wait(); // W
out[t] = tile[62 - t % 63];
}"""
WRONG = [
    Wrong(
        "reset_behind_the_credit",
        """if (t) return;
        for (int r = 0; r < 2; ++r) {
        if (rank() == 0) {
        while (ld_acquire_sys_u64(flag) != 1) {} // W
        out[r] = box[r];
        st_release_sys_u64(peer_ptr(flag + 1, 1), 1);
        st_relaxed_sys_u64(flag, 0); // R
        } else {
        peer_ptr(box, 0)[r] = r;
        st_release_sys_u64(peer_ptr(flag, 0), 1); // S
        while (ld_acquire_sys_u64(flag + 1) != 1) {}
        st_relaxed_sys_u64(flag + 1, 0);
        }
        }""",
        ("it was 1 until line {R} of <kernel> made it 0", "had stored it in line {S}", RESET, "reset (line {R} of"),
        """st_release_sys_u64(peer_ptr(flag + 1, 1), 1);
        st_relaxed_sys_u64(flag, 0); // R""",
        """st_relaxed_sys_u64(flag, 0);
        st_release_sys_u64(peer_ptr(flag + 1, 1), 1);""",
    ),
    Wrong(
        "counter_reset_behind_the_release",
        """if (t) return;
        for (int r = 0; r < 2; ++r) {
        atomicAdd(flag, 1ul); // S
        if (blockIdx.x == 0) {
        while (ld_acquire_gpu_u64(flag) < 3) {} // W
        st_release_gpu_u64(flag + 1, r + 1);
        st_relaxed_gpu_u64(flag, 0); // R
        } else {
        while (ld_acquire_gpu_u64(flag + 1) < r + 1) {}
        }
        }""",
        ("until line {R} of <kernel> made it 0", "had stored it in line {S}", RESET, "reset (line {R} of"),
        """st_release_gpu_u64(flag + 1, r + 1);
        st_relaxed_gpu_u64(flag, 0); // R""",
        """st_relaxed_gpu_u64(flag, 0);
        st_release_gpu_u64(flag + 1, r + 1);""",
        ranks=1,
        blocks=3,
    ),
    Wrong(
        "mailbox_of_values",
        MAILBOX.replace("VALUE", "r"),
        ("until line {S} of <kernel> made it", ACKNOWLEDGE, "before line {S} of", "for what line {R} of"),
        "// free",
        "while (ld_acquire_sys_u64(peer_ptr(flag, 1)) != 0) {}",
    ),
    Wrong(
        "mailbox_of_one_value",
        MAILBOX.replace("VALUE", "1"),
        ("it was 1 until line {S} of <kernel> made it 1 again", ACKNOWLEDGE, "before line {S}", "for what line {R} of"),
        "// free",
        "while (ld_acquire_sys_u64(peer_ptr(flag, 1)) != 0) {}",
    ),
    Wrong(
        "value_that_passed",
        """if (t) return;
        if (rank() == 0) {
        for (uint64_t r = 1; r <= 3; ++r) st_release_sys_u64(peer_ptr(flag, 1), r); // S
        } else {
        for (uint64_t r = 1; r <= 3; ++r)
        while (ld_acquire_sys_u64(flag) != r) {} // W
        }""",
        ("until line {S} of <kernel> made it", "wait for >=", "an acknowledgement", "in line {W} of"),
        "flag) != r",
        "flag) < r",
    ),
    Wrong(
        "nic_sets_twice",
        """if (t) return;
        if (rank() == 0) {
        for (int i = 0; i < 2; ++i) {
        mine[i] = i;
        net_put_signal_nbi(box + i, mine + i, 8, flag, 1, 1, 0, NetSignal::kSet); // S
        }
        net_quiet(1);
        } else {
        while (ld_acquire_sys_u64(flag) < 2) {} // W
        out[0] = box[0] + box[1];
        }""",
        ("it was 1 until line {S} of <kernel> made it 1 again", COUNT, "instead of storing in line {S} of"),
        "kSet",
        "kAdd",
        fabric="rc",
    ),
    Wrong(
        "two_blocks_set_one_flag",
        """if (t) return;
        if (blockIdx.x) {
        st_release_gpu_u64(flag, 1); // S
        } else {
        while (ld_acquire_gpu_u64(flag) < 2) {} // W
        }""",
        ("it was 1 until line {S} of <kernel> made it 1 again", COUNT, "instead of storing in line {S} of"),
        "st_release_gpu_u64",
        "red_add_release_gpu_u64",
        ranks=1,
        blocks=3,
    ),
    Wrong(
        "latch_of_one_too_few",
        LATCH.replace("COUNT", "63").replace("ALL", "true"),
        ("for a count to be 0: it was 0 until line {W} of <kernel> made it -1", "more came than it was made for"),
        "Latch(63)",
        "Latch(64)",
        ranks=1,
    ),
    Wrong(
        "latch_of_one_too_many",
        LATCH.replace("COUNT", "64").replace("ALL", "false"),
        ("thread 63 has never come, and has ended", ARRIVE, "or make its count without them"),
        "Latch(64)",
        "Latch(63)",
        ranks=1,
    ),
    Wrong(
        "pipeline_without_its_arrival",
        PIPELINE,
        (
            "thread 32 and 31 more have come less often, last in line {P} of <kernel>, and wait in line {W} of",
            ARRIVE,
            "let rank 0 block 0 thread 32 and 31 more arrive at what line {E} of <kernel> waits for, behind line {W}",
        ),
        "// again",
        "(void)empty.arrive();",
        ranks=1,
    ),
    Wrong(
        "pipeline_without_one_arrival",
        PIPELINE.replace("// again", "if (t != 40) (void)empty.arrive();"),
        (ARRIVE, "let rank 0 block 0 thread 40 arrive at what line {E} of <kernel> waits for, behind line {W} of"),
        "if (t != 40)",
        "",
        ranks=1,
    ),
    Wrong(
        "locks_in_two_orders_by_a_function",
        """if (t) return;
        uint64_t *a = flag + blockIdx.x, *b = flag + 1 - blockIdx.x;
        lock(a); // A
        lock(b); // B
        box[0] += 1;
        unlock(b);
        unlock(a);""",
        (
            "(line {L} of <kernel>, called in line {B}) waits for the lock that rank 0 block",
            "taken in line {L} of <kernel>, called in line {A}",
            "take the locks of line {A} in the same order",
        ),
        "*a = flag + blockIdx.x, *b = flag + 1 - blockIdx.x",
        "*a = flag, *b = flag + 1",
        ranks=1,
        blocks=2,
    ),
    Wrong(
        "lock_of_a_function_kept",
        """if (t) return;
        lock(flag); // A
        box[0] += 1;
        if (box[0] == 1) return; // out
        unlock(flag);""",
        ("took in line {L} of <kernel>, called in line {A}, and that thread has ended", "give back what line {A} of"),
        "return; // out",
        "out[0] = 1;",
        ranks=1,
        blocks=2,
    ),
    Wrong(
        "lock_of_a_function_taken_twice",
        """if (t) return;
        lock(flag); // A
        // back
        lock(flag); // B
        box[0] += 1;
        unlock(flag);""",
        (
            "(line {L} of <kernel>, called in line {B}) waits for the lock that it holds itself, taken in line {L} of "
            "<kernel>, called in line {A}",
            "give back what line {A} of",
        ),
        "// back",
        "unlock(flag);",
        ranks=1,
    ),
    Wrong(
        "lock_of_a_function_on_one_side",
        """if (t) return;
        if (blockIdx.x) {
        lock(flag); // A
        box[0] += 1;
        unlock(flag);
        } else {
        // take
        box[0] += 1; // B
        // give
        }""",
        (
            "(taken in line {L} of <kernel>, called in line {A})",
            "take the lock of line {A} of <kernel> before line {B}",
        ),
        "// take\n        box[0] += 1; // B",
        "lock(flag); box[0] += 1; unlock(flag);",
        ranks=1,
        blocks=2,
        kind="race",
    ),
]


def main(rank: Rank, source: str, blocks: int) -> Any:
    arrays = [rank.symmetric(64, np.uint64) for _ in range(4)]
    Kernel.from_source(source, "k").launch(rank, blocks, 64, *arrays)
    rank.barrier()


@pytest.mark.parametrize("wrong", WRONG, ids=[case.name for case in WRONG])
def test_who_follows_what_a_deadlock_says_has_none(wrong: Wrong) -> None:
    source = HEAD + wrong.body + "\n}\n"
    lines = {text.rpartition("// ")[2]: number for number, text in enumerate(source.split("\n"), 1) if "// " in text}
    report = ep_lib.check(main, wrong.ranks, wrong.fabric, 12, args=(source, wrong.blocks), compare_values=False)
    [finding] = [f for f in report.findings if f.kind == wrong.kind] or pytest.fail(f"not found:\n{report}")
    for words in wrong.says:
        assert words.format(**lines) in str(finding), f"{words.format(**lines)!r} is not in\n{finding}"
    assert wrong.old in source
    right = source.replace(wrong.old, wrong.new)
    report = ep_lib.check(main, wrong.ranks, wrong.fabric, 20, args=(right, wrong.blocks), compare_values=False)
    assert report.ok, f"{finding.place}, and then:\n{report}"


@pytest.mark.parametrize(
    "wait", ["while (ld_acquire_sys_u64(flag) == 0) {}", "wait_until_ge(flag, 1, {kPhaseUser, 0, 0});"]
)
def test_a_rank_that_launches_no_kernel_is_named(wait: str) -> None:
    source = HEAD + "st_release_sys_u64(peer_ptr(flag, 1 - rank()), 1);\n" + wait + "}"

    def main(rank: Rank, all_launch: bool) -> None:
        arrays = [rank.symmetric(64, np.uint64) for _ in range(4)]
        if all_launch or rank.rank == 0:
            Kernel.from_source(source, "k").launch(rank, 1, 1, *arrays)

    (found,) = ep_lib.check(main, 2, seeds=3, args=(False,)).findings
    assert "no kernel was launched by rank 1" in found.message and "each rank launches" in found.remedy
    assert ep_lib.check(main, 2, seeds=3, args=(True,)).ok


BITS = """if (rank() && !t) {
uint64_t* const there = peer_ptr(flag, 0);
*(volatile uint64_t*)there |= 1ul << rank();
} else if (!t) {
while (ld_acquire_sys_u64(flag) != 6) {}
}
}
"""


def test_a_bit_that_another_store_loses_needs_an_atomic() -> None:
    def main(rank: Rank, source: str) -> None:
        Kernel.from_source(source, "k").launch(rank, 1, 1, *(rank.symmetric(64, np.uint64) for _ in range(4)))

    deadlock = next(f for f in ep_lib.check(main, 3, seeds=20, args=(HEAD + BITS,)).findings if f.kind == "deadlock")
    assert deadlock.remedy.startswith("one atomic that reads and writes") and "in line 21 of" in deadlock.place
    right = BITS.replace("*(volatile uint64_t*)there |= 1ul << rank();", "atomicOr_system(there, 1ul << rank());")
    assert not [f for f in ep_lib.check(main, 3, seeds=20, args=(HEAD + right,)).findings if f.kind == "deadlock"]


def test_a_block_that_returns_before_the_barrier_of_the_grid() -> None:
    source = """#include <cooperative_groups.h>
    __global__ void k(int* a) {
    if (blockIdx.x == 2) return;
    cooperative_groups::this_grid().sync();
    a[blockIdx.x] = 1;
    }"""

    def main(rank: Rank, source: str) -> None:
        Kernel.from_source(source, "k").launch(rank, 3, 1, rank.to_device(np.zeros(4, np.int32)))

    (found,) = ep_lib.check(main, 1, seeds=3, args=(source,)).findings
    assert found.place == "return only behind line 4 of <kernel>" and "barrier of the grid" in found.message
    lines = source.split("\n")
    lines[2], lines[3] = lines[3], lines[2]
    assert ep_lib.check(main, 1, seeds=3, args=("\n".join(lines),)).ok
