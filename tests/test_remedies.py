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
const int t = threadIdx.x, peer = ep::num_ranks() - 1 - ep::rank();
__shared__ uint64_t tile[64], ring[2][64], one;
__shared__ uint32_t full, empty;
"""
_PLACE = re.compile(r"put (.+?) (?:between line \d+ and line (\d+)|after line (\d+) of <kernel>, before)")
WORDS = {"a quiet": "ep::net_quiet(peer);", "a quiet (or a fence)": "ep::net_quiet(peer);"}


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


def main(rank: Rank, source: str) -> Any:
    arrays = [rank.symmetric(64, np.uint64) for _ in range(4)]
    Kernel.from_source(source, "k").launch(rank, 1, 64, *arrays)
    rank.barrier()
    return rank.to_host(arrays[2])


def repaired(source: str, place: re.Match[str]) -> str:
    lines = source.split("\n")
    words = place[1].removesuffix(" behind the quiet,")
    lines.insert(int(place[3] or int(place[2]) - 1), WORDS.get(words) or words.replace(", then ", "; ") + ";")
    return "\n".join(lines)


@pytest.mark.parametrize("wrong", CASES, ids=[case.name for case in CASES])
def test_the_remedy_makes_the_program_right(wrong: Wrong) -> None:
    source = HEAD + wrong.body + "\n}\n"
    found = ep_lib.check(main, wrong.ranks, wrong.fabric, 12, args=(source,), compare_values=False).findings
    places = [place for finding in found if (place := _PLACE.match(finding.place))]
    assert places, found
    for place in places:
        report = ep_lib.check(main, wrong.ranks, wrong.fabric, 12, args=(repaired(source, place),))
        assert report.ok, f"{place.string}, and then:\n{report}"


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
