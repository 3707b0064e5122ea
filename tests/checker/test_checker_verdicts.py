"""What the checker says of one pattern after the other, each beside its right form: kernels/verdicts.cuh has them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import TESTS

import ep_lib
from ep_lib import Kernel, Rank
from ep_lib.jit import nvrtc

pytestmark = pytest.mark.slow

TEXT = (TESTS / "kernels" / "verdicts.cuh").read_text()
SEEDS = 12
THREADS = 64


class Case(NamedTuple):
    """``kind``: of the finding, empty if the kernel is right; ``says``: in its remedy."""

    name: str
    kind: str = ""
    says: str = ""
    fabric: str = "p2p"
    blocks: int = 1
    more: dict[str, Any] = {}  # noqa: RUF012  # never changed


CASES = [
    Case("fence_of_the_system"),
    Case("fence_of_the_device", "race"),
    Case("fence_of_the_block", "race"),
    Case("shared_volatile_stored_first"),
    Case("shared_atomic_stored_first"),
    Case("shared_cuda_barrier"),
    Case("boxes_behind_cuda_barriers"),
    Case("shared_added_to_first", "uninitialised"),
    Case("shared_exchanged_first"),
    Case("shared_lock_that_is_never_free", "uninitialised"),
    Case("all_tell_when_they_have_read"),
    Case("one_tells_before_it_reads", "race"),
    Case("get_reads_what_a_put_brings", "signal overtakes data", fabric="rc"),
    Case("get_reads_what_a_put_brings", "signal overtakes data", fabric="srd"),
    Case("put_after_get", "source reused", fabric="rc"),
    Case("put_after_get", "source reused", fabric="srd"),
    Case("put_after_get_and_fence", fabric="rc"),
    Case("put_after_get_and_fence", fabric="srd"),
    Case("nics_add", fabric="rc"),
    Case("nics_add", fabric="srd"),
    Case("each_other_is_the_credit", fabric="rc"),
    Case("each_other_is_the_credit", fabric="srd"),
    Case("half_of_a_flag", "width", "one width"),
    Case("nic_adds_to_half", "width", "one width", "rc"),
    Case("tma_rows"),
    Case("tma_rows_without_wait", "read before arrival", "tma_wait before"),
    Case("tma_rows_of_the_round_before", "read before arrival", "the phase of each round"),
    Case("tma_rows_without_wait_read", "source reused", "tma_wait_read before"),
    Case("tma_rows_without_wait_written", "signal overtakes data", "tma_wait_written between"),
    Case("tma_rows_signalled_too_early", "signal overtakes data", "tma_wait_written between"),
    Case("tma_rows_without_fence", "proxy fence", "tma_fence by each thread"),
    Case("tma_rows_without_syncwarp", "race", "missing __syncwarp before the bulk copy"),
    Case("tma_rows_of_a_block_that_ends", "source reused", "tma_wait_read<0> before the block ends"),
    Case("tma_sums"),
    Case("tma_sums_without_syncwarp", "race", "missing __syncwarp before the bulk copy"),
    Case("shuffle_beyond_the_mask", "shuffle", "a mask that names the lane"),
    Case("shuffle_whose_value_is_dropped"),
    Case("activemask_taken_as_the_warp", "activemask", "a mask from __ballot_sync"),
    Case("activemask_of_whoever_is_there"),
    Case("read_only_of_what_the_block_wrote", "read-only path", "a plain load"),
    Case("ldg_of_what_the_block_wrote", "read-only path", "a plain load"),
    Case("read_only_of_input"),
    Case("grid_barrier", blocks=4),
    Case("grid_barrier", blocks=4, more={"resident_blocks": 4}),
    Case("grid_barrier", "deadlock", blocks=4, more={"resident_blocks": 3}),
    Case("the_last_clears_a_counter", blocks=3),
    Case("one_clears_a_counter", "race", "atomics on both sides", blocks=3),
    Case("volatile_data_behind_a_right_lock", blocks=3, more={"volatile": "plain"}),
    Case("volatile_data_behind_a_wrong_lock", "volatile", "release/acquire", blocks=3, more={"volatile": "plain"}),
    Case("volatile_data_behind_a_wrong_lock", blocks=3),
    Case("volatile_flag", more={"volatile": "plain"}),
    Case("passed_on_to_another_block", blocks=2),
]


NAMES = list(dict.fromkeys(case.name for case in CASES))
CALLS = "".join(f"        case {number}: return {name}(m);\n" for number, name in enumerate(NAMES))
ALL_IN_ONE = Kernel.from_source(  # so that the compiler runs once
    f"""{TEXT}
extern "C" __global__ void verdict(int which, uint32_t* data, uint64_t* flag, uint32_t* out) {{
    const Memory m = {{data, flag, out}};
    switch (which) {{
{CALLS}    }}
}}
""",
    "verdict",
)


def main(rank: Rank, name: str, blocks: int) -> Any:
    data, flag = rank.symmetric(256, np.uint32), rank.symmetric(4, np.uint64)
    out = rank.to_device(np.zeros(THREADS, np.uint32))
    ALL_IN_ONE.launch(rank, blocks, THREADS, NAMES.index(name), data, flag, out)
    rank.synchronize()
    return rank.to_host(out).copy() if name.startswith(("shuffle", "activemask")) else None


def run(case: Case, seeds: int | list[int]) -> ep_lib.CheckReport:
    return ep_lib.check(main, 2, case.fabric, seeds, (case.name, case.blocks), timeout=20, **case.more)


@pytest.mark.parametrize("case", CASES, ids=[f"{c.name}-{c.fabric}-{'-'.join(c.more)}" for c in CASES])
def test_verdict(case: Case) -> None:
    report = run(case, SEEDS)
    if not case.kind:
        assert report.ok, str(report)
        return
    finding = next((f for f in report.findings if f.kind == case.kind), None)
    assert finding is not None and case.says in finding.remedy, str(report)
    again = run(case, [finding.seed])
    assert finding.key in {f.key for f in again.findings}, f"{report}\n\nbut, with this seed alone:\n\n{again}"


def test_every_kernel_is_judged() -> None:
    found = re.findall(r"^(template.*\n)?EP_DEVICE void (\w+)\(Memory m\)", TEXT, re.MULTILINE)
    assert {name for template, name in found if not template} == set(NAMES)


@pytest.mark.extended
@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")
def test_the_kernels_are_cuda() -> None:
    ALL_IN_ONE.compile("sm_90")


def test_a_grid_barrier_of_too_many_blocks_names_those_that_never_started() -> None:
    case = Case("grid_barrier", "deadlock", blocks=4, more={"resident_blocks": 3})
    (finding,) = [f for f in run(case, 1).findings if f.kind == "deadlock"]
    assert "block 3 has not started, of 4 of kernel 'verdict' on rank 0: the 3 that are resident" in finding.message
