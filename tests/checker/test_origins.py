"""Values that differ between schedules: the lines that they come from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import ep_lib
from ep_lib import Kernel, Rank

HEAD = """#include <ep/net.cuh>
extern "C" __global__ void k(uint64_t* box, uint64_t* flag, uint64_t* out) {
using namespace ep;
const int t = threadIdx.x, peer = num_ranks() - 1 - rank();
"""


class Differs(NamedTuple):
    """``//``: the lines that are named, from the one at which the runs part to the one that writes the result."""

    name: str
    body: str
    place: str


CASES = [
    Differs(
        "a_place_by_a_ticket",
        """const uint64_t n = atomicAdd((unsigned long long*)flag, 1ull); // 1
        out[n] = t; // 2""",
        "the order of the atomics in line 5 of k.cu decides",
    ),
    Differs(
        "a_read_that_does_not_wait",
        """if (t == 0) st_relaxed_gpu_u64(flag, 7); // 2
        if (t == 1) {
        const uint64_t v = ld_relaxed_gpu_u64(flag); // 1
        box[3] = v * 2;
        }
        __syncthreads();
        if (t == 2) out[5] = box[3] + 1; // 3""",
        "line 7 of k.cu may come before or after line 5: let it wait",
    ),
    Differs(
        "two_in_one_place",
        "if (t > 1) return;\nst_relaxed_gpu_u64(out, t); // 1",
        "check the index in line 6 of k.cu",
    ),
    Differs(
        "a_tag_before_its_data",
        """if (t) return;
        if (rank() == 0) {
        st_relaxed_sys_u64(peer_ptr(box + 1, 1), 1);
        st_relaxed_sys_u64(peer_ptr(box, 1), 42); // 2
        } else {
        uint64_t value, tag;
        do { ld_relaxed_sys_u64x2(box, &value, &tag); } while (tag != 1); // 1
        out[0] = value; // 3
        }""",
        "signal (line 7 of k.cu) after the data (line 8 of k.cu), not before",
    ),
]


def main(rank: Rank, source: str) -> Any:
    arrays = [rank.symmetric(64, np.uint64) for _ in range(3)]
    Kernel.from_source(source, "k", filename="k.cu").launch(rank, 1, 32, *arrays)
    rank.barrier()
    return rank.to_host(arrays[2])


@pytest.mark.parametrize("how", [{}, {"reduce": False}, {"exhaustive": True, "stop_at_first": True}])
@pytest.mark.parametrize("differs", CASES, ids=[case.name for case in CASES])
def test_values_that_differ_name_the_lines_that_gave_them(differs: Differs, how: dict[str, bool]) -> None:
    source = HEAD + differs.body + "\n}\n"
    report = ep_lib.check(main, 2, args=(source,), **how)
    [finding] = report.findings
    marked = {line[-1]: f"k.cu:{n}" for n, line in enumerate(source.split("\n"), 1) if line[:-1].endswith("// ")}
    assert finding.kind == "values differ" and finding.place.startswith(differs.place), str(report)
    assert finding.lines == tuple(marked[number] for number in sorted(marked)), str(report)


def test_a_main_that_counts_its_calls_makes_the_difference() -> None:
    calls = []

    def counts(rank: Rank) -> int:
        calls.append(rank.rank)
        return len(calls)

    [finding] = ep_lib.check(counts, 1, seeds=3).findings
    assert finding.detail == "kernels left the same in memory: main itself makes the difference" and not finding.lines


def test_an_older_value_is_from_before_the_store_that_it_misses() -> None:
    body = """if (t) return;
    if (rank() == 0) {
    st_relaxed_sys_u64(peer_ptr(box, 1), 42);
    st_relaxed_sys_u64(peer_ptr(flag, 1), 1);
    } else {
    while (!ld_relaxed_sys_u64(flag)) {}
    out[0] = ld_relaxed_sys_u64(box);
    }"""
    findings = ep_lib.check(main, 2, args=(HEAD + body + "\n}\n",), memory="ptx").findings
    [differs] = [finding for finding in findings if finding.kind == "values differ"]
    assert "finds 0 from before any kernel's store" in differs.detail and "42, stored in line 7" in differs.detail


IN_STEP = """volatile uint64_t* const v = box;
v[t] = t;
__syncwarp();
for (int o = 16; o; o /= 2)
v[t] += v[(t + o) % 64];
if (t == 0) out[0] = v[0];
}
"""


def test_lanes_that_are_taken_to_run_in_step_want_syncwarps() -> None:
    [finding] = ep_lib.check(main, 1, args=(HEAD + IN_STEP,)).findings
    assert finding.remedy.startswith("missing __syncwarp"), str(finding)
    assert finding.place.startswith("in line 9 of k.cu, and in each step like it: read into a variable"), str(finding)
    findings = ep_lib.check(main, 1, args=(HEAD + IN_STEP,), volatile="plain", compare_values=False).findings
    assert findings and all(f.kind == "volatile" and "missing __syncwarp" in f.remedy for f in findings), findings
    right = "{ const uint64_t sum = v[t] + v[(t + o) % 64]; __syncwarp(); v[t] = sum; __syncwarp(); }"
    source = HEAD + IN_STEP.replace("v[t] += v[(t + o) % 64];", right)
    assert ep_lib.check(main, 1, args=(source,)).ok and ep_lib.check(main, 1, args=(source,), volatile="plain").ok
