"""``ep-lib cache``: shows the compile cache; ``prune`` and ``clear`` free space.

Entries unused for two months are removed automatically.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ep_lib.errors import ArgumentError
from ep_lib.jit import cache

_WHAT = {
    "emulator": "kernels for the emulator",
    "cubin": "kernels for GPUs",
    "nvshmem": "kernels over NVSHMEM",
    "nixl": "kernels over NIXL",
    "runtime": "the emulator itself",
    "object": "pieces of the emulator",
    "prelude": "the emulator's headers, precompiled",
    "half": "tests' own halves, which are linked with pieces",
    "closed": "pieces, as tests call them",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "show (default): what is there; prune: remove what was not used for DAYS days; clear: remove everything"
    parser.add_argument("action", nargs="?", choices=("show", "prune", "clear"), default="show", help=words)
    days = f"with prune: what was not used for so long goes (default: {cache.KEPT_DAYS})"
    parser.add_argument("--days", type=float, default=cache.KEPT_DAYS, help=days)
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")


def run(args: argparse.Namespace) -> int:
    if not args.days >= 0:
        raise ArgumentError(f"--days is {args.days:g}; it must be a number of days, 0 or more")
    freed = 0
    if args.action == "prune":
        freed = cache.prune(args.days)
    elif args.action == "clear":
        freed = cache.clear()
    kinds = cache.contents()
    if args.json:
        found = {"directory": str(cache.cache_dir()), "freed_bytes": freed, "kinds": [asdict(kind) for kind in kinds]}
        print(json.dumps(found))
        return 0
    if args.action != "show":
        print(f"removed {_size(freed)}")
    for kind in kinds:
        print(f"{_size(kind.nbytes):>10}  {kind.count:>6}  {kind.name:<14}{_WHAT.get(kind.name, '')}".rstrip())
    print(f"{_size(sum(kind.nbytes for kind in kinds)):>10}  in {cache.cache_dir()}")
    return 0


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
