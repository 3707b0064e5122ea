"""A remedy that says where to put what is put there, and then the program is right."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import ep_lib
from ep_lib import Kernel, Rank

pytestmark = pytest.mark.slow

HEAD = """#include <cuda_pipeline.h>
#include <ep/net.cuh>
extern "C" __global__ void k(uint64_t* box, uint64_t* flag, uint64_t* out, uint64_t* mine) {
using namespace ep;
const int t = threadIdx.x, ranks = num_ranks(), peer = ranks - 1 - rank();
__shared__ uint64_t tile[64], ring[2][64], one;
__shared__ uint32_t full, empty;
"""
_ORDER = re.compile(r"(?:load|store) the signal with (acquire|release) in line (\d+)")
_PLACE = re.compile(r"put (.+?) (?:(?:between line \d+ and|before) line (\d+) of|after line (\d+) of <kernel>, before)")
WORDS = {"a quiet": "ep::net_quiet(peer);", "a quiet (or a fence)": "ep::net_quiet(peer);"}
WORDS["a barrier of the grid"] = "cooperative_groups::this_grid().sync();"


class Wrong(NamedTuple):
    name: str
    body: str  # a line each
    ranks: int = 2
    fabric: str = "p2p"


CASES = [
    Wrong(
        "signal_before_the_barrier",
        """ep::peer_ptr(box, peer)[t] = t;
        if (t == 0) ep::signal_add(flag, 1, peer);
        if (!ep::wait_until_ge_block(flag, 1, {ep::kPhaseSignal, peer, 0})) return;
        out[t] = box[t];""",
    ),
    Wrong(
        "one_waits_for_all",
        """ep::peer_ptr(box, peer)[t] = t;
        __syncthreads();
        if (t == 0) ep::signal_add(flag, 1, peer);
        if (t == 0) ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, 0});
        out[t] = box[t];""",
    ),
    Wrong("tile", "tile[t] = t;\nout[t] = tile[63 - t];", 1),
    Wrong(
        "tile_in_a_loop",
        "for (int i = 0; i < 3; ++i) {\ntile[t] = t + i;\n__syncthreads();\nout[t] += tile[63 - t];\n}",
        1,
    ),
    Wrong(
        "scan",
        """tile[t] = t;
        for (int o = 1; o < 64; o *= 2) {
        __syncthreads();
        const uint64_t before = t >= o ? tile[t - o] : 0;
        __syncwarp();
        tile[t] += before;
        }""",
        1,
    ),
    Wrong(
        "scan_of_a_warp",
        """if (t >= 32) return;
        tile[t] = t;
        __syncwarp();
        for (int o = 1; o < 32; o *= 2) {
        const uint64_t before = t >= o ? tile[t - o] : 0;
        tile[t] += before;
        __syncwarp();
        }""",
        1,
    ),
    Wrong(
        "called_again",
        """const auto first = [&](uint64_t v) {
        if (t == 0) one = v;
        __syncthreads();
        const uint64_t r = one;
        return r;
        };
        out[t] = first(1);
        out[t] += first(2);""",
        1,
    ),
    Wrong(
        "called_in_a_loop",
        """const auto first = [&](uint64_t v) {
        if (t == 0) one = v;
        __syncthreads();
        const uint64_t r = one;
        return r;
        };
        for (int i = 0; i < 3; ++i) out[t] += first(i);""",
        1,
    ),
    Wrong(
        "called_again_with_a_group",
        """const auto block = cooperative_groups::this_thread_block();
        const auto sum = [&](uint64_t v) {
        tile[t] = v;
        block.sync();
        uint64_t all = 0;
        for (int i = 0; i < 64; ++i) all += tile[i];
        return all;
        };
        out[t] = sum(t);
        out[t] += sum(2 * t);""",
        1,
    ),
    Wrong(
        "called_again_and_returns",
        """const auto first = [&](uint64_t v) {
        if (t == 0) one = v;
        __syncthreads();
        return one;
        };
        out[t] = first(1);
        out[t] += first(2);""",
        1,
    ),
    Wrong(
        "tile_of_a_scheduler",
        """for (;;) {
        if (t == 0) one = atomicAdd(flag, 1ul);
        __syncthreads();
        if (one >= 4) return;
        if (t % 2) mine[t] += one;
        if (t < 8) out[8 * one + t] = t;
        }""",
        1,
    ),
    Wrong("neighbours", "tile[t] = t;\nout[t] = tile[t ^ 1];", 1),
    Wrong("copy", "__pipeline_memcpy_async(&tile[t], &box[t], 8);\n__pipeline_commit();\nout[t] = tile[t];", 1),
    Wrong(
        "copy_for_others",
        """__pipeline_memcpy_async(&tile[t], &box[t], 8);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        out[t] = tile[63 - t];""",
        1,
    ),
    Wrong(
        "ring_of_copies",
        """__pipeline_memcpy_async(&ring[0][t], &box[t], 8);
        __pipeline_commit();
        for (int i = 0; i < 3; ++i) {
        if (i < 2) __pipeline_memcpy_async(&ring[(i + 1) & 1][t], &box[t], 8);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        out[t] = ring[i & 1][63 - t];
        }""",
        1,
    ),
    Wrong(
        "put_and_signal",
        """if (t) return;
        ep::net_put_nbi(box, mine, 8, peer);
        ep::net_atomic_add_u64_nbi(flag, 1, peer);
        ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, 0});
        out[0] = box[0];""",
        2,
        "srd",
    ),
    Wrong("source", "if (t) return;\nep::net_put_nbi(box, mine, 8, peer);\nmine[0] = 43;", 2, "rc"),
    Wrong(
        "staged",
        """if (t >= 32) return;
        for (int i = 0; i < 3; ++i) {
        mine[t] = i;
        __syncwarp();
        if (t == 0) ep::net_put_nbi(box, mine, 256, peer);
        if (t == 0) ep::net_quiet(peer);
        }""",
        2,
        "rc",
    ),
    Wrong("get", "if (t) return;\nep::net_get_nbi(out, box, 8, peer);\nmine[4] = out[0];", 2, "rc"),
    Wrong(
        "get_for_others",
        """if (t == 0) ep::net_get_nbi(out, box, 64, peer);
        if (t == 0) ep::net_quiet(peer);
        if (t < 8) mine[t] = out[t];""",
        2,
        "rc",
    ),
]

ROUNDS = """for (uint64_t r = 1; r <= 2; ++r) {
if (t == 0) peer_ptr(box, peer)[r] = r;
if (t == 0) {
__threadfence_system();
for (int to = 0; to < ranks; ++to) ADD(peer_ptr(flag, to), 1ul);
while (ld_acquire_sys_u64(flag) < ranks) {}
out[r] = box[r];
}
}"""
BY_ANOTHER = """if (t) return;
if (rank() == 0) {
box = peer_ptr(box, 2), box[0] = 7;
st_release_sys_u64(peer_ptr(flag, 1), 1);
} else if (rank() == 1) {
while (ld_acquire_sys_u64(flag) == 0) {}
st_release_sys_u64(peer_ptr(flag, 2), 1);
} else {
while (ld_acquire_sys_u64(flag) == 0) {}
out[0] = box[0];
}"""
for link in (
    "st_release_sys_u64(peer_ptr(flag, 1)",
    "ld_acquire_sys_u64(flag)",
    "st_release_sys_u64(peer_ptr(flag, 2)",
):
    relaxed = re.sub("acquire|release", "relaxed", link)
    CASES.append(Wrong(f"by_another_{len(CASES)}", BY_ANOTHER.replace(link, relaxed, 1), 3))


class Followed(NamedTuple):
    """Where the remedy says what to write, and not only where."""

    name: str
    body: str
    remedy: str  # of what is said
    old: str
    new: str
    ranks: int = 2
    blocks: int = 1


FOLLOWED = [
    Followed(
        "round",
        ROUNDS.replace("ADD", "red_add_release_sys_u64"),
        "round x signals",
        "flag) < ranks",
        "flag) < r * ranks",
    ),
    Followed(
        "round_of_adds",
        ROUNDS.replace("ADD", "atomicAdd_system"),
        "round x signals",
        "flag) < ranks",
        "flag) < r * ranks",
    ),
    Followed(
        "stores_and_looks",
        """if (t) return;
        while (true) {
        st_release_sys_u64(peer_ptr(flag + rank(), 0), 1);
        // behind the store
        while (rank() == 0 && ld_acquire_sys_u64(peer_ptr(flag + 1, 0)) != 0) {}
        if (rank() == 0 || ld_acquire_sys_u64(peer_ptr(flag, 0)) == 0) break;
        st_release_sys_u64(peer_ptr(flag + 1, 0), 0);
        while (ld_acquire_sys_u64(peer_ptr(flag, 0)) != 0) {}
        }
        *peer_ptr(box, 0) += 1;
        st_release_sys_u64(peer_ptr(flag + rank(), 0), 0);""",
        "__threadfence_system (fence.sc) between each store",
        "// behind the store",
        "__threadfence_system();",
    ),
    Followed(
        "two_warps",
        """for (int r = 0; r < 2; ++r) {
        if (t < 32) {
        tile[t] = r;
        __barrier_sync_count(1, 64);
        // the writer's round
        } else {
        __barrier_sync_count(1, 64);
        out[t] += tile[t - 32];
        // the reader's round
        }
        }""",
        "second barrier by number at the end of each round",
        "// the",
        "__barrier_sync_count(2, 64); // the",
        1,
    ),
    Followed(
        "wait_behind_the_barrier",
        """for (int i = 0; i < 3; ++i) {
        __pipeline_memcpy_async(&tile[t], &box[t], 8);
        __pipeline_commit();
        __syncthreads();
        __pipeline_wait_prior(0);
        out[t] = tile[63 - t];
        __syncthreads();
        }""",
        "put __pipeline_wait_prior(0) before the barrier in line 11 of <kernel>",
        "__syncthreads();\n        __pipeline_wait_prior(0);",
        "__pipeline_wait_prior(0);\n        __syncthreads();",
        1,
    ),
    Followed(
        "half_a_warp",
        "if (t < 16) out[t] = __shfl_sync(0xffffffff, t, (t + 1) % 16);",
        "mask of the lanes that come",
        "0xffffffff",
        "0xffff",
        1,
    ),
    Followed(
        "freed_before_it_is_read",
        """if (t) return;
        for (int r = 1; r <= 2; ++r) {
        if (rank() == 0) {
        while (ld_acquire_sys_u64(peer_ptr(flag, 1)) != 0) {}
        peer_ptr(box, 1)[0] = r;
        st_release_sys_u64(peer_ptr(flag, 1), 1);
        } else {
        while (ld_acquire_sys_u64(flag) == 0) {}
        st_release_sys_u64(flag, 0);
        out[0] += box[0];
        }
        }""",
        "after the read",
        "st_release_sys_u64(flag, 0);\n        out[0] += box[0];",
        "out[0] += box[0];\nst_release_sys_u64(flag, 0);",
    ),
    Followed(
        "freed_before_it_is_read_in_a_ring",
        """if (t) return;
        for (uint64_t r = 0; r < 5; ++r) {
        if (rank() == 0) {
        if (r >= 2) while (ld_acquire_sys_u64(flag + 1) < r - 1) {}
        peer_ptr(box, 1)[r % 2] = r;
        st_release_sys_u64(peer_ptr(flag, 1), r + 1);
        } else {
        while (ld_acquire_sys_u64(flag) < r + 1) {}
        st_release_sys_u64(peer_ptr(flag + 1, 0), r + 1);
        out[r] = box[r % 2];
        }
        }""",
        "after the read",
        "st_release_sys_u64(peer_ptr(flag + 1, 0), r + 1);\n        out[r] = box[r % 2];",
        "out[r] = box[r % 2];\nst_release_sys_u64(peer_ptr(flag + 1, 0), r + 1);",
    ),
    Followed(
        "ticket_lock",
        """if (t) return;
        const uint64_t ticket = atomicAdd(flag, 1ul);
        while (ld_acquire_sys_u64(flag + 1) != ticket) {}
        box[0] += 1;
        st_relaxed_sys_u64(flag + 1, ticket + 1);""",
        "release/acquire of the lock",
        "st_relaxed",
        "st_release",
        1,
        3,
    ),
    Followed(
        "look_back",
        """if (t) return;
        const int b = blockIdx.x;
        uint64_t sum = 0;
        if (b > 0) {
        while (*(volatile uint64_t*)&flag[b - 1] == 0) {}
        __threadfence();
        sum = box[b - 1];
        }
        *(volatile uint64_t*)&flag[b] = 1;
        __threadfence();
        box[b] = sum + 1;""",
        "signal (line 16 of <kernel>) after the data (line 18 of <kernel>), not before",
        "*(volatile uint64_t*)&flag[b] = 1;\n        __threadfence();\n        box[b] = sum + 1;",
        "box[b] = sum + 1; __threadfence(); *(volatile uint64_t*)&flag[b] = 1;",
        1,
        3,
    ),
    Followed(
        "one_place_of_two",
        "for (int r = 0; r < 2; ++r) out[t / 2] = t;",
        "place of its own for each thread",
        "t / 2",
        "t",
        1,
    ),
    Followed(
        "semaphore_in_two_steps",
        """if (t) return;
        for (bool mine = false; !mine;) {
        const uint64_t taken = ld_acquire_gpu_u64(flag);
        if (taken < 1) mine = true, atomicAdd(flag, 1ul);
        }
        box[0] += 1;
        __threadfence();
        atomicAdd(flag, ~0ul);""",
        "look and change by one atomic: in line 10 and line 11 of <kernel>",
        "mine = true, atomicAdd(flag, 1ul);",
        "mine = atom_cas_acquire_gpu_u64(flag, taken, taken + 1) == taken;",
        1,
        2,
    ),
    Followed(
        "number_in_two_steps",
        """if (t) return;
        const uint64_t number = ld_relaxed_gpu_u64(flag);
        out[number] = 7 + blockIdx.x % 1;
        // taken
        atomicAdd(flag, 1ul);""",
        "look and change by one atomic: in line 9 and line 12 of <kernel>",
        """ld_relaxed_gpu_u64(flag);
        out[number] = 7 + blockIdx.x % 1;
        // taken
        atomicAdd(flag, 1ul);""",
        """atomicAdd(flag, 1ul);
        out[number] = 7;""",
        1,
        2,
    ),
    *(
        Followed(
            f"count_of_whom_{'in_order' if 'ticket)' in new else 'all'}",
            """if (t) return;
            if (blockIdx.x < 2) {
            const uint64_t ticket = atomicAdd(flag, 1ul);
            box[ticket] = 7;
            __threadfence();
            atomicAdd(flag + 1, 1ul);
            } else {
            for (uint64_t i = 0; i < 2; ++i) {
            while (ld_acquire_gpu_u64(flag + 1) < i + 1) {}
            out[i] = box[i];
            }
            }""",
            "wait in line 16 of <kernel> for all that may signal before line 13 of <kernel> does",
            old,
            new,
            1,
            3,
        )
        for old, new in (
            ("< i + 1", "< 2"),
            (
                "__threadfence();\n",
                "while (ld_acquire_gpu_u64(flag + 1) != ticket) {}\n            __threadfence();\n",
            ),
        )
    ),
    Followed(
        "more_credits_than_slots",
        """if (t) return;
        if (blockIdx.x == 0) {
        atomicAdd(flag + 1, 3ul);
        for (uint64_t i = 0; i < 6; ++i) {
        while (ld_acquire_gpu_u64(flag + 1) == 0) {}
        atomicAdd(flag + 1, ~0ul);
        box[i % 2] = i;
        st_release_gpu_u64(flag, i + 1);
        }
        } else {
        for (uint64_t i = 0; i < 6; ++i) {
        while (ld_acquire_gpu_u64(flag) <= i) {}
        out[i] = box[i % 2];
        __threadfence();
        atomicAdd(flag + 1, 1ul);
        }
        }""",
        "one credit fewer in what line 12 of <kernel> waits for",
        "3ul",
        "2ul",
        1,
        2,
    ),
    Followed("one_value_of_many", "if (t % 3 == 0) out[9] = 7;", "let one thread store it in line 8", "t % 3", "t", 1),
    Followed(
        "one_value_of_blocks",
        "if (t == 3) out[9] = 7;",
        "or all of them by an atomic",
        "out[9] = 7",
        "atomicExch(out + 9, 7ul)",
        1,
        2,
    ),
]


FREED = """if (GIVER) {
for (uint64_t r = 0; r < 5; ++r) {
if (r >= 2) while (ld_acquire_gpu_u64(flag + 1) < r - 1) {}
box[r % 2] = r;
st_release_gpu_u64(flag, r + 1);
}
} else if (TAKER) {
for (uint64_t r = 0; r < 5; ++r) {
while (ld_acquire_gpu_u64(flag) < r + 1) {}
st_release_gpu_u64(flag + 1, r + 1);
out[r] = box[r % 2];
}
}"""
for giver, taker, blocks in (
    ("t == 0", "t == 1", 1),
    ("t == 0", "t == 32", 1),
    ("t + blockIdx.x == 0", "t == 0", 2),
):
    FOLLOWED.append(
        Followed(
            f"freed_before_it_is_read_by_{taker}_of_{blocks}",
            FREED.replace("GIVER", giver).replace("TAKER", taker),
            "give the credit (line 17 of <kernel>) after the read (line 18 of <kernel>), not before",
            "st_release_gpu_u64(flag + 1, r + 1);\nout[r] = box[r % 2];",
            "out[r] = box[r % 2];\nst_release_gpu_u64(flag + 1, r + 1);",
            1,
            blocks,
        )
    )


SEQUENCE_LOCK = """if (t) return;
if (rank() == 0) {
for (uint64_t r = 1; r <= 2; ++r) {
// begin
st_relaxed_sys_u64(peer_ptr(box, 1), r);
st_relaxed_sys_u64(peer_ptr(box + 1, 1), r);
st_release_sys_u64(peer_ptr(flag, 1), 2 * r);
}
} else {
uint64_t seen, a, b;
do {
do { seen = ld_acquire_sys_u64(flag); } while (seen == 0 || seen % 2);
a = ld_relaxed_sys_u64(box);
b = ld_relaxed_sys_u64(box + 1);
__threadfence_system();
} while (ld_relaxed_sys_u64(flag) != seen); // end
if (a != b) __trap();
}"""
MARK = "st_relaxed_sys_u64(peer_ptr(flag, 1), 2 * r - 1); __threadfence_system();"
LOOK = "__threadfence_system();\n} while (ld_relaxed_sys_u64(flag) != seen); // end"
SEQUENCE_LOCKS = [
    Followed("sequence_lock_of_a_writer", SEQUENCE_LOCK, "an odd number before line", "// begin", MARK),
    Followed(
        "sequence_lock_of_a_reader",
        SEQUENCE_LOCK.replace(LOOK, "} while (false); // end").replace("// begin", MARK),
        "behind line 21 of",
        "} while (false); // end",
        LOOK,
    ),
]


def main(rank: Rank, source: str, blocks: int = 1) -> Any:
    arrays = [rank.symmetric(64, np.uint64) for _ in range(4)]
    Kernel.from_source(source, "k").launch(rank, blocks, 64, *arrays)
    rank.barrier()
    return rank.to_host(arrays[2])


def repaired(source: str, place: re.Match[str]) -> str:
    lines = source.split("\n")
    if place.re is _ORDER:
        lines[int(place[2]) - 1] = lines[int(place[2]) - 1].replace("relaxed", place[1])
        return "\n".join(lines)
    words = place[1].removesuffix(" behind the quiet,")
    lines.insert(int(place[3] or int(place[2]) - 1), WORDS.get(words) or words.replace(", then ", "; ") + ";")
    return "\n".join(lines)


@pytest.mark.parametrize("wrong", CASES, ids=[case.name for case in CASES])
def test_the_remedy_makes_the_program_right(wrong: Wrong) -> None:
    group = "#include <cooperative_groups.h>\n" * ("cooperative_groups" in wrong.body)
    source = group + HEAD + wrong.body + "\n}\n"
    found = ep_lib.check(main, wrong.ranks, wrong.fabric, 12, args=(source,), compare_values=False).findings
    places = [place for finding in found for form in (_PLACE, _ORDER) if (place := form.match(finding.place))]
    assert places, found
    for place in places:
        report = ep_lib.check(main, wrong.ranks, wrong.fabric, 12, args=(repaired(source, place),))
        assert report.ok, f"{place.string}, and then:\n{report}"


GRID_SUM = """if (t == 0) atomicAdd(box, 1ul);
grid.sync();
if (t == 0) out[blockIdx.x] = *box;
grid.sync();
if (t + blockIdx.x == 0) *box = 0;"""
GRID_SUMS = f"for (int i = 0; i < 3; ++i) {{\n{GRID_SUM}\ngrid.sync();\n}}"
GRID_STENCIL = """if (t == 0) box[blockIdx.x] = blockIdx.x;
grid.sync();
for (int i = 0; i < 3; ++i) {
if (t == 0) mine[blockIdx.x] = box[0] + box[1];
grid.sync();
if (t == 0) box[blockIdx.x] = mine[blockIdx.x];
grid.sync();
}"""


@pytest.mark.parametrize("instead", ["", "cooperative_groups::this_thread_block().sync();"])
@pytest.mark.parametrize(
    ("right", "missing"),
    [(GRID_SUM, 0), (GRID_SUM, 1), (GRID_SUMS, 0), (GRID_STENCIL, 1), (GRID_STENCIL, 2)],
)
def test_blocks_that_meet_at_barriers_of_the_grid_want_one_more(right: str, instead: str, missing: int) -> None:
    parts = right.split("grid.sync();")
    head = "#include <cooperative_groups.h>\n" + HEAD + "const auto grid = cooperative_groups::this_grid();\n"
    body = "grid.sync();".join(parts[: missing + 1]) + instead + "grid.sync();".join(parts[missing + 1 :])
    source = head + body + "\n}\n"
    findings = ep_lib.check(main, 1, seeds=12, args=(source, 2), compare_values=False).findings
    places = [place for finding in findings if (place := _PLACE.match(finding.place))]
    assert len(places) == len(findings) > 0, findings
    for place in places:
        report = ep_lib.check(main, 1, seeds=12, args=(repaired(source, place), 2))
        assert report.ok, f"{place.string}, and then:\n{report}"


@pytest.mark.parametrize("wrong", FOLLOWED, ids=[case.name for case in FOLLOWED])
def test_who_does_what_the_remedy_says_is_right(wrong: Followed) -> None:
    source = HEAD + wrong.body + "\n}\n"
    report = ep_lib.check(main, wrong.ranks, seeds=20, args=(source, wrong.blocks), compare_values=False)
    assert report.findings and all(wrong.remedy in f"{f.remedy} {f.place}" for f in report.findings), str(report)
    assert wrong.old in wrong.body
    report = ep_lib.check(main, wrong.ranks, seeds=20, args=(source.replace(wrong.old, wrong.new), wrong.blocks))
    assert report.ok, f"{wrong.remedy}, and then:\n{report}"


@pytest.mark.parametrize("memory", ["sc", "ptx"])
@pytest.mark.parametrize("wrong", SEQUENCE_LOCKS, ids=[case.name for case in SEQUENCE_LOCKS])
def test_a_sequence_lock_wants_both_ends_marked(wrong: Followed, memory: str) -> None:
    source = HEAD + wrong.body + "\n}\n"
    report = ep_lib.check(main, 2, args=(source,), exhaustive=True, stop_at_first=True, memory=memory)
    [finding] = report.findings
    assert wrong.remedy in finding.place, str(report)
    report = ep_lib.check(main, 2, seeds=100, args=(source.replace(wrong.old, wrong.new),), memory=memory)
    assert report.ok, str(report)


LOOKS_ONCE = """if (t) return;
if (blockIdx.x == 0) {
for (uint64_t r = 1; r <= 3; ++r) {
STORE(flag, 2 * r - 1);
__threadfence();
STORE(box, r);
STORE(box + 1, r);
__threadfence();
STORE(flag, 2 * r);
}
} else {
uint64_t seen, a, b;
do {
do { seen = LOAD(flag); } while (seen == 0 || seen % 2);
__threadfence();
a = LOAD(box);
b = LOAD(box + 1);
__threadfence();
} while (AGAIN);
out[0] = a != b;
}
}
"""


@pytest.mark.parametrize("base", [0, 20, 40])
@pytest.mark.parametrize("relaxed", [False, True])
def test_twenty_seeds_find_a_reader_that_looks_once(base: int, relaxed: bool) -> None:
    load, store = (r"ld_relaxed_gpu_u64(\1)", r"st_relaxed_gpu_u64(\1, \2)")
    if not relaxed:
        load, store = r"*(volatile uint64_t*)(\1)", r"*(volatile uint64_t*)(\1) = \2"

    def check(again: str) -> ep_lib.CheckReport:
        source = HEAD + LOOKS_ONCE.replace("AGAIN", again)
        source = re.sub(r"STORE\((.*?), (.*)\)", store, re.sub(r"LOAD\((.*?)\)", load, source))
        return ep_lib.check(main, 1, seeds=range(base, base + 20), args=(source, 2))

    findings = check("false").findings
    assert findings and all("a sequence lock marks both ends" in finding.remedy for finding in findings), findings
    assert findings[0].place.startswith("look at what line 16 of <kernel> stores behind line 24"), findings
    assert check("LOAD(flag) != seen").ok


HALF_MARKED = """volatile uint64_t *seen = flag, *data = box;
if (t) return;
if (blockIdx.x == 0) {
for (uint64_t r = 2; r <= 6; r += 2) {
// begin
for (int i = 0; i < 4; ++i) data[i] = r;
__threadfence();
MARK r);
}
} else {
uint64_t before, words[4];
do {
while ((before = *seen) == 0 || before % 2) {}
__threadfence();
for (int i = 0; i < 4; ++i) words[i] = data[i];
__threadfence();
} while (*seen != before);
for (int i = 0; i < 4; ++i) out[i] = words[i] != words[0];
}
}
"""


@pytest.mark.parametrize("mark", ["(*seen =", "atomicExch(flag,"])
def test_a_sequence_lock_of_volatile_data_wants_both_ends_marked(mark: str) -> None:
    source = HEAD + HALF_MARKED.replace("MARK", mark)
    findings = ep_lib.check(main, 1, seeds=20, args=(source, 2)).findings
    assert findings[0].place.startswith("mark the beginning too: an odd number before line 13 of <kernel>"), findings
    assert all("a sequence lock marks both ends" in finding.remedy for finding in findings), findings
    right = source.replace("// begin", f"{mark} r - 1); __threadfence();")
    assert ep_lib.check(main, 1, seeds=20, args=(right, 2)).ok


NO_SEQUENCE_LOCK = {
    "two_buffers_in_turn": """do {
before = *seen;
__threadfence();
for (int i = 0; i < 2; ++i) words[i] = data[2 * (before & 1) + i];
__threadfence();
} while (*seen != before);
out[0] = words[0] != words[1];""",
    "two_waits": """while ((before = *seen) < 1) {}
words[0] = data[0] + data[1];
while (*seen < 3) {}
out[0] = words[0] + data[0] + data[1] > 100;""",
}


@pytest.mark.parametrize("reader", NO_SEQUENCE_LOCK)
def test_two_looks_that_find_the_same_are_not_always_a_sequence_locks(reader: str) -> None:
    source = f"""{HEAD}volatile uint64_t *seen = flag, *data = box;
    uint64_t before, words[2];
    if (t) return;
    if (blockIdx.x == 0) {{
    for (uint64_t r = 1; r <= 4; ++r) {{
    for (int i = 0; i < 2; ++i) data[{"2 * (r & 1) + i" if "turn" in reader else "i"}] = r;
    __threadfence();
    *seen = r;
    __threadfence();
    }}
    }} else {{
    {NO_SEQUENCE_LOCK[reader]}
    }}
    }}"""
    report = ep_lib.check(main, 1, seeds=40, args=(source, 2))
    assert report.ok, str(report)


@pytest.mark.parametrize("seed", range(4))
def test_a_quiet_that_others_do_not_wait_for_is_not_missing(seed: int) -> None:
    [staged] = [case for case in CASES if case.name == "staged"]
    report = ep_lib.check(main, 2, "rc", [seed], args=(HEAD + staged.body + "\n}\n",), compare_values=False)
    [finding] = report.findings
    assert "missing __syncwarp" in finding.remedy, finding
    assert finding.place.startswith("put __syncwarp() after line 13 of <kernel>, before line 10 runs again"), finding


NUMBERS = """if (PRODUCES) {
for (int i = 0; i < 2; ++i) {
const uint64_t ticket = atomicAdd(flag, 1ul);
box[ticket] = 7;
// in order
ep::st_release_gpu_u64(flag + 1, ticket + 1);
}
} else if (t == 32 && !blockIdx.x) {
for (uint64_t i = 0; i < 4; ++i) {
while (ep::ld_acquire_gpu_u64(flag + 1) < i + 1) {}
out[i] = box[i];
}
}
}
"""


@pytest.mark.parametrize(("produces", "blocks"), [("t == 0 || t == 8", 1), ("t == 0 && blockIdx.x", 3)])
def test_who_signals_with_a_number_waits_for_its_turn(produces: str, blocks: int) -> None:
    source = HEAD + NUMBERS.replace("PRODUCES", produces)
    findings = ep_lib.check(main, 1, seeds=20, args=(source, blocks), compare_values=False).findings
    [race] = [finding for finding in findings if finding.kind == "race"]
    assert race.place.startswith("wait in line 17 of <kernel> for all that may signal before line 13"), race
    right = source.replace("// in order", "while (ep::ld_acquire_gpu_u64(flag + 1) != ticket) {}")
    assert ep_lib.check(main, 1, seeds=20, args=(right, blocks)).ok


VERSIONS = """if (t) return;
if (blockIdx.x == 0) {
for (uint64_t r = 1; r <= 4; ++r) {
// free
box[2 * (r % 2)] = r;
st_release_gpu_u64(flag, r);
// stored
}
} else {
for (int i = 0; i < 3; ++i) {
// enter
LOOK
out[blockIdx.x] += box[2 * (r % 2)];
// leave
}
}
}
"""
COUNTED = {
    "// free": "while (ld_acquire_gpu_u64(flag + 1) != 0) {}",
    "// stored": "__threadfence();",
    "// enter": "while (ld_acquire_gpu_u64(flag) == 0) {} atomicAdd(flag + 1, 1ul); __threadfence();",
    "// leave": "red_add_release_gpu_u64(flag + 1, -1ul);",
}


@pytest.mark.parametrize(
    "look",
    [
        "const uint64_t r = ld_acquire_gpu_u64(flag); if (r == 0) continue;",
        "uint64_t r; while ((r = ld_acquire_gpu_u64(flag)) == 0) {}",
    ],
)
def test_a_writer_waits_for_all_readers_of_an_old_version(look: str) -> None:
    source = HEAD + VERSIONS.replace("LOOK", look)
    findings = ep_lib.check(main, 1, seeds=20, args=(source, 3), compare_values=False).findings
    [finding] = [f for f in findings if f.kind == "slot reused"]
    assert "then look in line 19 of" in finding.place and "after line 20 of <kernel>; wait" in finding.place, finding
    assert "until it is 0 before line 12 of" in finding.place and "version (line 13 of" in finding.place, finding
    for words, line in COUNTED.items():
        source = source.replace(words, line)
    for memory in ("sc", "ptx"):
        report = ep_lib.check(main, 1, seeds=40, args=(source, 3), compare_values=False, memory=memory)
        assert report.ok, str(report)


HAND_OVER = """if (t == 0) full = empty = 0;
__syncthreads();
for (uint32_t i = 1; i <= 3; ++i) {
if (t == 0) {
CREDIT
one = i;
ep::st_release_gpu_u32(&full, i);
}
if (t == 32) {
while (ep::ld_acquire_gpu_u32(&full) < i) {}
out[i] = one;
ep::st_release_gpu_u32(&empty, i);
}
}
}
"""


def test_a_slot_between_warps_wants_a_credit_and_no_barrier() -> None:
    report = ep_lib.check(main, 1, seeds=12, args=(HEAD + HAND_OVER.replace("CREDIT", ""),), compare_values=False)
    assert {(f.kind, f.remedy) for f in report.findings} == {("slot reused", "credit before reuse")}, str(report)
    credit = "while (ep::ld_acquire_gpu_u32(&empty) < i - 1) {}"
    assert ep_lib.check(main, 1, seeds=12, args=(HEAD + HAND_OVER.replace("CREDIT", credit),)).ok


class OverNic(NamedTuple):
    name: str
    said: str
    old: str
    new: str
    body: str
    fabric: str = "srd"
    ranks: int = 2


QUIET_BESIDE = """if (rank() == 0) {
mine[t] = 5 + t;
ep::net_put_nbi(box + t, mine + t, 8, 1, t % 2);
if (t == 0) { ORDER; ep::net_atomic_add_u64_nbi(flag, 1, 1); }
} else if (ep::wait_until_ge_block(flag, 1, {ep::kPhaseSignal, peer, 0})) {
out[t] = box[t];
}"""
SET = "ep::net_put_signal_nbi(box + R, mine + R, 8, flag, R, 1, 0, ep::NetSignal::kSet);"
OVER_NIC = [
    *(
        OverNic(
            f"{order}_of_another_thread{'_behind_a_barrier' * len(first)}",
            "between line 10 and line 11",
            "if (t == 0)",
            "__syncthreads(); if (t == 0)",
            QUIET_BESIDE.replace("ORDER", f"ep::net_{order}(1)").replace("mine[t] =", f"{first}mine[t] ="),
            "rc",
        )
        for order in ("quiet", "fence")
        for first in ("", "__syncthreads(); ")
    ),
    *(
        OverNic(
            f"signal_of_{signals}_without_quiet_and_barrier",
            f"put a quiet, then {barrier}() between line 9 and line 10",
            "// then",
            f"ep::net_quiet(peer); {barrier}();",
            f"""if (rank() == 0) {{
            if (t == {posts}) {{ mine[0] = 5; ep::net_put_nbi(box, mine, 8, 1); }} // then
            if (t == {signals}) ep::net_atomic_add_u64_nbi(flag, 1, 1);
            }} else if (ep::wait_until_ge_block(flag, 1, {{ep::kPhaseSignal, peer, 0}})) {{
            out[t] = box[0];
            }}""",
        )
        for posts, signals, barrier in ((32, 0, "__syncthreads"), (0, 7, "__syncwarp"))
    ),
    OverNic(
        "credit_before_the_put_from_the_slot",
        "put a quiet between line 16 and line 17",
        "// sent on",
        "ep::net_quiet(2);",
        """if (t || rank() == 2) return;
        for (uint64_t r = 1; r <= 4; ++r) {
        if (rank() == 0) {
        while (ld_acquire_sys_u64(flag + 1) < r - 1) {}
        mine[0] = r;
        ep::net_put_signal_nbi(box, mine, 8, flag, 1, 1);
        ep::net_quiet(1);
        } else if (ep::wait_until_ge(flag, r, {ep::kPhaseSignal, 0, 0})) {
        ep::net_put_nbi(out + r, box, 8, 2); // sent on
        ep::net_atomic_add_u64_nbi(flag + 1, 1, 0);
        }
        }
        ep::net_quiet(rank() ? 2 : 1);""",
        ranks=3,
    ),
    OverNic(
        "signal_of_the_round_before",
        "an earlier round's is not enough",
        "block(flag, 1",
        "block(flag, r",
        """for (uint64_t r = 1; r <= 3; ++r) {
        if (rank() == 0) {
        if (t < 8) ep::net_put_nbi(box + 8 * r + t % 8, mine + t, 8, 1);
        __syncthreads();
        if (t == 0) { ep::net_quiet(1); ep::net_atomic_add_u64_nbi(flag, 1, 1); }
        } else if (ep::wait_until_ge_block(flag, 1, {ep::kPhaseSignal, peer, 0})) {
        out[t] += box[8 * r + t % 8];
        }
        }""",
    ),
    OverNic(
        "signal_of_another_thread",
        "an earlier round's is not enough",
        "block(flag, 1",
        "block(flag, 64",
        """if (rank() == 0) {
        ep::net_put_nbi(box + t, mine + t, 8, 1);
        ep::net_quiet(1);
        ep::net_atomic_add_u64_nbi(flag, 1, 1);
        } else if (ep::wait_until_ge_block(flag, 1, {ep::kPhaseSignal, peer, 0})) {
        out[t] = box[t];
        }""",
    ),
    *(
        OverNic(
            f"{order}_of_one_queue_pair",
            f"{remedy} in line 12",
            f"ep::net_{order}(1, 0);",
            followed,
            f"""if (t) return;
            if (rank() == 0) {{
            ep::net_put_nbi(box, mine, 8, 1, 0);
            ep::net_put_nbi(box + 1, mine + 1, 8, 1, 1);
            ep::net_{order}(1, 0);
            ep::net_atomic_add_u64_nbi(flag, 1, 1, 0);
            }} else {{
            ep::wait_until_ge(flag, 1, {{ep::kPhaseSignal, peer, 0}});
            out[0] = box[0] + box[1];
            }}""",
        )
        for order, remedy, followed in (
            ("quiet", "one more quiet for queue pair 1", "ep::net_quiet(1, 0); ep::net_quiet(1, 1);"),
            ("fence", "name no queue pair (net_fence(peer): all of them)", "ep::net_fence(1);"),
        )
    ),
    OverNic(
        "quiet_of_one_rank",
        "one more quiet for the rank of the put in line 11",
        "ep::net_quiet(1);",
        "ep::net_quiet(1); ep::net_quiet(2);",
        """if (t) return;
        if (rank() == 0) {
        for (int to = 1; to < 3; ++to) ep::net_put_nbi(box, mine, 8, to);
        ep::net_quiet(1);
        for (int to = 1; to < 3; ++to) ep::net_atomic_add_u64_nbi(flag, 1, to);
        } else {
        ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, 0, 0});
        out[0] = box[0];
        }""",
        ranks=3,
    ),
    *(
        OverNic(
            f"signals_that_are_set_{of}",
            f"put a quiet (or a fence) {place}",
            "// in order",
            f"ep::net_{order}(1);",
            f"""if (t) return;
            if (rank() == 0) {{
            {posts}
            ep::net_quiet(1);
            }} else {{
            ep::wait_until_ge(flag, 2, {{ep::kPhaseSignal, peer, 0}});
            out[0] = box[1] + box[2];
            }}""",
        )
        for of, order, place, posts in (
            (
                "in_a_loop",
                "fence",
                "after line 11 of <kernel>, before it runs again",
                f"""for (int r = 1; r <= 2; ++r) {{
            {SET.replace("R", "r")}
            // in order
            }}""",
            ),
            (
                "in_two_lines",
                "quiet",
                "between line 10 and line 12",
                f"""{SET.replace("R", "1")}
            // in order
            {SET.replace("R", "2")}""",
            ),
        )
    ),
]


@pytest.mark.parametrize("wrong", OVER_NIC, ids=[case.name for case in OVER_NIC])
def test_who_orders_operations_as_the_remedy_says_is_right(wrong: OverNic) -> None:
    source = HEAD + wrong.body + "\n}\n"
    report = ep_lib.check(main, wrong.ranks, wrong.fabric, 20, args=(source,), compare_values=False)
    assert report.findings and all(wrong.said in f"{f.detail} {f.place}" for f in report.findings), str(report)
    assert wrong.old in wrong.body
    report = ep_lib.check(main, wrong.ranks, wrong.fabric, 20, args=(source.replace(wrong.old, wrong.new),))
    assert report.ok, f"{wrong.said}, and then:\n{report}"


def test_a_plain_load_that_polls_is_named() -> None:
    body = """if (t) return;
    if (blockIdx.x == 0) {
    *box = 7;
    *flag = 1;
    } else {
    while (*flag == 0) {}
    *out = *box;
    }
    }
    """
    report = ep_lib.check(main, 1, seeds=20, args=(HEAD + body, 2), compare_values=False)
    [found] = [f for f in report.findings if "polls by a plain load" in f.detail]
    assert found.place.startswith("load with acquire in line 13 of <kernel>") and "release in line 11" in found.place
    right = body.replace("*flag = 1", "st_release_gpu_u64(flag, 1)").replace("*flag == 0", "!ld_acquire_gpu_u64(flag)")
    assert ep_lib.check(main, 1, seeds=20, args=(HEAD + right, 2), compare_values=False).ok
