"""A process that is killed in mid-dispatch, on real GPUs: no launcher here ends the others, who have to find out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import json, os, signal, sys, time
import numpy as np
import ep_lib
from ep_lib.errors import EpError, PeerTimeout

TOKENS, SHAPE = 256, {"num_experts": 8, "top_k": 2, "hidden": 1024, "max_tokens": 256}

def arrays(rank):
    generator = np.random.default_rng(rank.rank)
    idx = np.argsort(generator.random((TOKENS, 8)), axis=1)[:, :2].astype(np.int64)
    return rank.to_device(generator.integers(-9, 9, (TOKENS, 1024)).astype(np.float32)), rank.to_device(idx)

def dispatches(rank, calls):
    """In mid-dispatch for nearly all of the time, so wherever a signal falls."""
    with ep_lib.Buffer(rank, **SHAPE, dtype="float32") as buffer:
        x, idx = arrays(rank)
        recv = buffer.dispatch(x, idx)
        for call in range(calls):
            if call == 200:
                print(json.dumps({"rank": rank.rank, "ready": True}), flush=True)
            recv = buffer.dispatch(x, idx)
        return rank.to_host(buffer.combine(recv.x, recv.handle)), rank.to_host(x), rank.to_host(idx)

rank = ep_lib.init("cuda", heap_bytes=64 << 20, timeout=4)
found = {"rank": rank.rank}
start = time.monotonic()
try:
    dispatches(rank, 10**9)
except PeerTimeout as error:
    found |= {"peer": error.peer, "phase": error.phase, "slot": error.slot, "text": str(error)}
    found |= {"behind": error.seen < error.expected, "seconds": time.monotonic() - start}
try:
    rank.close()
except EpError as error:
    found["close"] = str(error)

# The same process, in a world without the dead rank.
os.environ["SLURM_STEP_NUM_TASKS"], os.environ["SLURM_PROCID"] = "1", "0"
alone = ep_lib.init("cuda", heap_bytes=64 << 20, timeout=4)
out, x, idx = dispatches(alone, 3)
found["again"] = bool((out == x).all())
alone.close()
print(json.dumps(found), flush=True)
'''


@pytest.mark.gpu(count=2, own=True)
def test_the_others_name_a_killed_rank_and_their_processes_go_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    common = {**os.environ, "TMPDIR": str(tmp_path), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}
    ranks = []
    for rank in range(2):
        mine = common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(program)], env=mine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        assert ranks[1].stdout is not None
        ready = ranks[1].stdout.readline()
        assert ready, ranks[1].communicate(timeout=60)
        ranks[1].send_signal(signal.SIGKILL)
        printed, errors = ranks[0].communicate(timeout=90)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert ranks[0].returncode == 0, printed + errors
    found = json.loads(printed.splitlines()[-1])
    assert found["peer"] == 1 and found["phase"] in ("layout", "dispatch"), found
    assert found["behind"] and found["slot"] >= 0
    assert f"rank 0 waited too long for rank 1 ({found['phase']}, slot {found['slot']})" in found["text"]
    assert found["again"], found
