"""A rank dies, the others go on without it, and a new process takes its place.

python examples/lost_rank.py        # starts three ranks on the emulator, as srun -n 3 would; no GPU

On GPUs the first half is the same (mask_ranks); a process cannot be replaced there yet: docs/faults.md.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import ep_lib
from ep_lib.errors import PeerTimeout, RankFailed

RANKS, LOST = 3, 1
EXPERTS, TOP_K, HIDDEN, TOKENS = 6, 2, 64, 8
SHAPE = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "dtype": "float32"}


def layer(buffer: ep_lib.Buffer, me: int) -> None:
    """One layer whose experts multiply by 1: a token comes back times its weights on ranks that live."""
    rng = np.random.default_rng(me)
    x = rng.integers(-8, 8, (TOKENS, HIDDEN)).astype(np.float32)
    chosen = np.ascontiguousarray(np.argsort(rng.random((TOKENS, EXPERTS)), axis=1)[:, :TOP_K])
    weights = np.full((TOKENS, TOP_K), 0.5, np.float32)
    came = buffer.dispatch(x, chosen, weights)
    out = buffer.combine(came.x * came.topk_weights.sum(axis=1, keepdims=True), came.handle)
    kept = np.where(buffer.dropped(chosen), 0, weights).sum(axis=1, keepdims=True)
    assert np.array_equal(out, x * kept)


def survivor(me: int, folder: Path) -> None:
    with ep_lib.init("emulator") as rank, ep_lib.Buffer(rank, **SHAPE) as buffer:
        layer(buffer, me)
        if me == LOST:
            os._exit(1)
        try:
            while True:
                layer(buffer, me)
        except (RankFailed, PeerTimeout):
            buffer.mask_ranks([LOST])
        layer(buffer, me)
        if me == 0:
            (folder / "new").write_text(rank.invitation())
            (folder / "new").rename(folder / "invitation")  # whole at once: somebody looks for it
        buffer.connect_ranks([LOST])
        layer(buffer, me)
    (folder / f"done-{me}").touch()


def replacement(folder: Path) -> None:
    with ep_lib.rejoin((folder / "invitation").read_text(), LOST) as rank, ep_lib.Buffer(rank, **SHAPE) as buffer:
        buffer.connect_ranks([LOST])
        layer(buffer, LOST)
    (folder / f"done-{LOST}").touch()


def start(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *words], env=os.environ | environment)


def launch(folder: Path) -> None:
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(RANKS)}
    ranks = [
        start("rank", str(me), str(folder), **step, SLURM_PROCID=str(me), SLURM_LOCALID=str(me)) for me in range(RANKS)
    ]
    ranks[LOST].wait()
    while not (folder / "invitation").exists() and ranks[0].poll() is None:
        os.sched_yield()
    ranks[LOST] = start("replacement", str(folder))
    codes = [process.wait() for process in ranks]
    assert codes == [0] * RANKS, codes


if len(sys.argv) == 1:
    with tempfile.TemporaryDirectory() as name:
        launch(Path(name))
        done = sorted(path.name for path in Path(name).glob("done-*"))
    assert done == ["done-0", "done-1", "done-2"], done
elif sys.argv[1] == "rank":
    survivor(int(sys.argv[2]), Path(sys.argv[3]))
else:
    replacement(Path(sys.argv[2]))
