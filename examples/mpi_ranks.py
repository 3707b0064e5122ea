"""Ranks that MPI started, in a communicator of the program's own: here two groups beside each other.

mpiexec -n 4 python -m mpi4py examples/mpi_ranks.py     # on GPUs where there are some, else on the emulator
"""

import numpy as np
from mpi4py import MPI

import ep_lib

EXPERTS, TOP_K, HIDDEN, TOKENS = 4, 2, 64, 10

world = MPI.COMM_WORLD
half = world.Split(color=world.Get_rank() * 2 // world.Get_size())
with ep_lib.init(group=half) as rank:
    assert (rank.rank, rank.world_size) == (half.Get_rank(), half.Get_size())
    rng = np.random.default_rng(world.Get_rank())
    x = rng.integers(-8, 8, (TOKENS, HIDDEN)).astype(np.float32)
    chosen = np.argsort(rng.random((TOKENS, EXPERTS)), axis=1)[:, :TOP_K]
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "dtype": "float32"}
    with ep_lib.Buffer(rank, **shape) as buffer:
        came = buffer.dispatch(rank.to_device(x), rank.to_device(chosen))
        out = rank.to_host(buffer.combine(2 * came.x, came.handle))
    times = [len(set(row // (EXPERTS // rank.world_size))) for row in chosen]  # a row for each rank of its experts

assert np.array_equal(out, 2 * x * np.array(times)[:, None])
