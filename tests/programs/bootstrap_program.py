"""What test_bootstrap.py starts under mpiexec and torchrun: prints what this rank gathered, one line of JSON."""

import json
import sys
import time

from ep_lib.errors import EpError
from ep_lib.runtime.launcher import detect, make_bootstrap


def main() -> None:
    what = sys.argv[1].split("+")
    bootstrap = make_bootstrap(detect(), timeout=120)
    if "pg" in what:  # the program's own process group, made before and after
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
    gathered = [bootstrap.all_gather((bootstrap.rank, turn, "x" * size)) for turn, size in enumerate((0, 10, 300_000))]
    sums = [sum(len(text) + turn for _, turn, text in parts) for parts in gathered]
    report = {
        "kind": bootstrap.kind,
        "rank": bootstrap.rank,
        "local_rank": bootstrap.local_rank,
        "ranks": [rank for rank, _, _ in gathered[0]],
        "sums": sums,
    }
    bootstrap.barrier()
    if "pg" in what:
        total = torch.ones(1)
        dist.all_reduce(total)
        report["reduced"] = int(total.item())
        dist.destroy_process_group()
    try:
        if "late" in what and bootstrap.rank == 1:
            time.sleep(2.0)
        elif "late" in what:
            bootstrap.barrier(timeout=0.5)
        elif "leave" in what and bootstrap.rank != 1:
            bootstrap.barrier(timeout=60)
    except EpError as error:
        report["error"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    bootstrap.close()
    if "leave" in what and bootstrap.rank == 1:
        time.sleep(3.0)  # MPI and the store stay up until the others have noticed


main()
