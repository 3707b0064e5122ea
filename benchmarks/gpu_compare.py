"""ep_lib beside DeepEP V1, DeepEP V2, NCCL and torch, by one protocol: the same inputs, checks, clocks and bytes.

    python benchmarks/gpu_compare.py [--ranks 2] [--libraries ep_lib,nccl] [--tokens 128,4096] [--json FILE]
        [--deep-ep-v1 FOLDER] [--deep-ep-v2 FOLDER --nccl FOLDER]

A peer that needs a folder is left out without one. Each library runs in processes of its own, one after the other,
--turns times, and the quickest row counts. Every operation is checked, then taken by three clocks:

- event: the GPU's own, from a barrier in a kernel until the operation is done, with everything queued beforehand
  (p50 and p99 of --repeats); what a program pays that keeps the GPU busy elsewhere and launches ahead;
- queued: --calls back to back, wall time / calls (the median of 5 rounds): what a program pays that calls one after the
  other without waiting; never less than the host's part;
- host: until the call returned, the mean of the same 50 calls.

Rounds of the last two count at the host's full pace (gpu_pace.py); where too few came in time, the row has "pace".

Each is that of the slowest rank. GB/s are wire bytes (a token once for each other rank that it goes to) over event.
Sizes: --tokens x --hidden with random routing; --tokens-skewed x the largest --hidden with every other routing; decode
operations at 128 tokens. --backend emulator tries the script on small sizes and times nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import importlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu_libraries
import gpu_peers
from gpu_clock import watch_of
from gpu_inputs import ROUTINGS, Shape, most_experts
from gpu_libraries import LOW_LATENCY_TOKENS, Case, Library, Limits, Operation
from gpu_machine import git_commit, machine
from gpu_pace import ROUNDS, at_full_pace
from gpu_rows import NAME, Row, Rows, merge, with_rates, write

import ep_lib

LIBRARIES: dict[str, Any] = {
    "ep_lib": gpu_libraries.EpLib,
    "ep_lib_areas": gpu_libraries.EpLibAreas,
    "ep_lib_shared": gpu_libraries.EpLibShared,
    "nccl": gpu_libraries.Nccl,
    "torch": gpu_libraries.Torch,
    "deep_ep_v1": gpu_libraries.DeepEpV1,
    "deep_ep_v2": gpu_libraries.DeepEpV2,
}
FOLDERS = {"deep_ep_v1": "deep_ep_v1", "deep_ep_v2": "deep_ep_v2"}  # library: its option
SYMMETRIC_SIZE = "24G"  # of torch's symmetric memory: it is not freed between cases


# ---- One rank of one library


def queued(
    rank: ep_lib.Rank, turns: Sequence[Callable[[], Any]], calls: int, synchronize: Callable[[], None]
) -> dict[str, Any]:
    """Microseconds per call of ``calls`` back to back, in each round: until all was done, and until they returned."""
    turn = itertools.cycle(turns)

    def once() -> tuple[float, float]:
        began = time.perf_counter()
        for _ in range(calls):
            next(turn)()
        back = time.perf_counter()
        synchronize()
        return 1e6 * (time.perf_counter() - began) / calls, 1e6 * (back - began) / calls

    samples, pace = at_full_pace(rank, once)
    rank.synchronize()  # raises what went wrong in kernels
    done, returned = zip(*samples, strict=True)
    return {"queued_samples": done, "host_samples": returned} | ({"pace": pace} if pace else {})


def cases(options: argparse.Namespace) -> Iterator[tuple[Shape, str]]:
    """Shapes and routings, by hidden size, since a Buffer has one."""
    for hidden in options.hidden:
        for tokens in options.tokens:
            yield Shape(options.ranks, tokens, hidden, options.experts, options.top_k), "random"
        for tokens in options.tokens_skewed if hidden == max(options.hidden) else ():
            for routing in options.routings:
                yield Shape(options.ranks, tokens, hidden, options.experts, options.top_k), routing


def measure(case: Case, library: Library, rows: Rows, dtypes: Iterable[str], calls: int) -> None:
    """Collective: checks and times all operations of a case."""
    for dtype in dtypes:
        for operation in library.operations(case, dtype):
            _measure_one(case, library, rows, dtype, operation, calls)
    if case.shape.tokens <= LOW_LATENCY_TOKENS and case.routing == "random":
        for operation in library.low_latency(case):
            dtype = "fp8" if operation.what.endswith("dispatch") else "bf16"
            _measure_one(case, library, rows, dtype, operation, calls)


def _measure_one(case: Case, library: Library, rows: Rows, dtype: str, operation: Operation, calls: int) -> None:
    import torch

    gpu = case.device == "cuda"
    synchronize = torch.cuda.synchronize if gpu else case.rank.synchronize
    row = {"group": "compare", "by": library.by, "what": operation.what, "dtype": dtype, "note": operation.note or None}
    row |= {"tokens": case.shape.tokens, "hidden": case.shape.hidden, "routing": case.routing}
    row |= {"outputs": operation.outputs, **case.traffic(dtype)}
    result = operation.turns[0]()
    synchronize()
    right = operation.right(result)
    rows.check(right, " ".join(str(row[key]) for key in ("by", "what", "dtype", "note", "tokens", "hidden", "routing")))
    del result
    synchronize()
    if operation.divide > 1:
        row["divide"] = operation.divide
    added = rows.time(operation.turns, waits=operation.waits, **row)
    added |= queued(case.rank, operation.turns, calls, synchronize)


def compared(rank: ep_lib.Rank, library: Library, options: argparse.Namespace) -> Iterator[tuple[str, Rows]]:
    """Collective: measures all cases; yields the name and rows of each when it is done."""
    watch = watch_of(rank)
    for shape, routing in cases(options):
        rows = Rows(rank, watch, options.repeats)
        measure(Case(rank, shape, routing), library, rows, options.dtypes, options.calls)
        yield f"{shape.tokens} x {shape.hidden} {routing}", rows


Measure = Callable[[ep_lib.Rank, Library, argparse.Namespace], Iterator[tuple[str, Rows]]]


def main(rank: ep_lib.Rank, options: argparse.Namespace, measured: Measure) -> None:
    """One rank of one library. After each case its rows are appended to a file, so that a crash costs one case."""
    import torch

    if rank.backend == "cuda":
        torch.cuda.set_device(rank.rank % torch.cuda.device_count())  # EP_LIB_GPUS=1: ranks share it
    shape = Shape(options.ranks, max(options.tokens), max(options.hidden), options.experts, options.top_k)
    library = make_library(rank, options, Limits(max(options.tokens), max(options.hidden), options.sms), shape)
    with (options.part / f"rank{rank.rank}.jsonl").open("a", encoding="utf-8") as file:
        began = time.perf_counter()
        for name, rows in measured(rank, library, options):
            file.write(json.dumps({"rows": rows.rows, "wrong": rows.wrong}) + "\n")
            file.flush()
            if rank.rank == 0:
                print(f"{library.by} {name}: {time.perf_counter() - began:.1f} s", flush=True)
            began = time.perf_counter()
    if rank.rank == 0 and rank.backend == "cuda":
        about = machine(rank) | {"NCCL": _nccl_version()}
        (options.part / "machine.json").write_text(json.dumps(about))
    rank.barrier()
    library.close()


def make_library(rank: ep_lib.Rank, options: argparse.Namespace, limits: Limits, shape: Shape) -> Library:
    """Collective: the library of ``options.library``; all but ep_lib use torch's process group."""
    name = options.library
    if name.startswith("ep_lib"):
        return LIBRARIES[name](rank, limits, shape)
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank.rank)
    where = f"tcp://127.0.0.1:{options.port}"
    dist.init_process_group("nccl", init_method=where, rank=rank.rank, world_size=rank.world_size, device_id=device)
    if name == "torch":
        import torch.distributed._symmetric_memory as symm_mem

        symm_mem.set_backend("NVSHMEM")
    if name in FOLDERS:
        return LIBRARIES[name](rank, limits, shape, importlib.import_module("deep_ep"), dist.group.WORLD)
    return LIBRARIES[name](rank, limits, shape)


def _nccl_version() -> str:
    """The version of the NCCL that this process really uses: torch.cuda.nccl tells what torch was built with."""
    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


# ---- All libraries, one after the other


def environment(library: str, options: argparse.Namespace) -> dict[str, str]:
    """What a library's processes need besides this one's variables."""
    more = dict(gpu_peers.NO_MULTICAST)
    if library == "torch":
        more["NVSHMEM_SYMMETRIC_SIZE"] = SYMMETRIC_SIZE
    if library in FOLDERS:
        folder = str(getattr(options, FOLDERS[library]).resolve())
        more["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    if library == "deep_ep_v2":
        nccl = options.nccl.resolve()
        more |= {"EP_NCCL_ROOT_DIR": str(nccl), "LD_PRELOAD": str(nccl / "lib" / "libnccl.so.2")}
        # torch's own NCCL stays loaded as well, unused, which V2 takes for a mistake. Without NICs there is no GIN.
        more |= {"EP_SUPPRESS_NCCL_CHECK": "1", "EP_DISABLE_GIN": "1"}
    return more


def run_library(library: str, options: argparse.Namespace) -> dict[str, Any]:
    """Rows and machine of one library, measured in processes of its own; what it finished before it failed is kept."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--library", library, "--part", folder]
        process = subprocess.Popen(
            command, env=os.environ | environment(library, options), start_new_session=True, stderr=subprocess.STDOUT
        )
        try:
            status = process.wait(options.limit)
            why = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            why = f"stopped after {options.limit:.0f} s"
        finally:
            _end(process)
        found = read_part(Path(folder), options.ranks)
    return found | {"why": why}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a library's processes, if any are left: it has a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_part(folder: Path, ranks: int) -> dict[str, Any]:
    """What the ranks of a library wrote: the cases that all of them finished."""
    files = [folder / f"rank{rank}.jsonl" for rank in range(ranks)]
    lines = [file.read_text(encoding="utf-8").splitlines() if file.exists() else [] for file in files]
    rows: list[Row] = []
    wrong = []
    for parts in zip(*lines, strict=False):
        results = [json.loads(part) for part in parts]
        rows += merge_clocks([result["rows"] for result in results])
        wrong += [text for result in results for text in result["wrong"]]
    about = folder / "machine.json"
    return {"rows": rows, "wrong": wrong, "machine": json.loads(about.read_text()) if about.exists() else {}}


def merge_clocks(ranks: Sequence[Sequence[Row]]) -> list[Row]:
    """Rows of all ranks as one each (:func:`gpu_rows.merge`), with the 99th percentile and the other two clocks."""
    merged = merge(ranks)
    for row, parts in zip(merged, zip(*ranks, strict=True), strict=True):
        if "queued_samples" not in parts[0]:  # it has one clock
            continue
        divide = parts[0].get("divide", 1)
        worst = sorted(max(repeat) for repeat in zip(*(part["samples"] for part in parts), strict=True))
        row["us_p99"] = round(worst[round(0.99 * (len(worst) - 1))] / divide, 3)
        for clock in ("queued", "host"):
            rounds = zip(*(part[f"{clock}_samples"] for part in parts), strict=True)
            row[f"{clock}_us"] = round(statistics.median(max(each) for each in rounds) / divide, 3)
    return merged


def built_from(folder: Path | None) -> str:
    """The commit that a file ``commit`` beside the built modules names."""
    note = folder / "commit" if folder else None
    return note.read_text(encoding="utf-8").strip() if note and note.exists() else "unknown"


def show(report: dict[str, Any]) -> str:
    """The rows as text: event p50 and p99, queued, host."""
    lines = [f"{'':76}{'event':>9}{'p99':>9}{'queued':>9}{'host':>9}{'GB/s':>7}"]
    for row in report["rows"]:
        words = [row["by"], row["dtype"].upper(), row["what"], row.get("note") or "", row["outputs"], row["routing"]]
        name = " ".join(filter(None, words)) + f" {row['tokens']} x {row['hidden']}"
        figures = "".join(f"{row[key]:9.1f}" for key in ("us", "us_p99", "queued_us", "host_us"))
        late = f"  {row['launched_late']} late: event is too long" if row.get("launched_late") else ""
        late += f"  the host at 1/{row['pace']} of its pace" if "pace" in row else ""
        lines.append(f"{name:76}{figures}{row['wire_gb_s']:7.0f}{late}")
    lines += [f"not measured: {name}: {why}" for name, why in report["not_measured"].items()]
    return "\n".join([*lines, *(f"WRONG {text}" for text in report["wrong"])])


def numbers(text: str) -> list[int]:
    """ "128,4096" as numbers."""
    return [int(part) for part in text.split(",") if part]


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = parser_of(str(__doc__), {"repeats": 100, "calls": 50, "turns": 1})
    parser.add_argument("--tokens", type=numbers, default="128,1000,4096,8192", help="per rank; default %(default)s")
    parser.add_argument("--hidden", type=numbers, default="2048,4096,7168", help="default %(default)s")
    parser.add_argument(
        "--tokens-skewed", type=numbers, default="4096", help="with other routings; default %(default)s"
    )
    parser.add_argument("--routings", default=",".join(ROUTINGS[1:]), help="besides random; default %(default)s")
    parser.add_argument("--dtypes", default="fp8,bf16")
    return parsed(parser, {"routings": ROUTINGS, "dtypes": ("fp8", "bf16")})


def parser_of(text: str, counts: dict[str, int]) -> argparse.ArgumentParser:
    """The options of every script that runs all libraries, and those of ``counts`` with their defaults."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in ({"ranks": 2, "top-k": 8, "sms": 24} | counts).items():
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--experts", type=int, help="default: 256, or the next smaller multiple of the ranks")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default: all")
    parser.add_argument("--deep-ep-v1", type=Path, help="a folder with DeepEP V1 (deep_ep and deep_ep_cpp)")
    parser.add_argument("--deep-ep-v2", type=Path, help="a folder with DeepEP V2 (deep_ep)")
    parser.add_argument(
        "--nccl", type=Path, help="for V2: nvidia/nccl of nvidia-nccl-cu13 >= 2.30, with include and lib"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds for each library (default 300)")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    parser.add_argument("--commit", default=git_commit(), help="of the tree, if git cannot tell")
    parser.add_argument("--library", choices=LIBRARIES, help=argparse.SUPPRESS)  # be the processes of this one
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)  # and write its rows to this folder
    return parser


def parsed(parser: argparse.ArgumentParser, lists: Mapping[str, Iterable[str]]) -> argparse.Namespace:
    """The arguments, checked; each of ``lists`` is some of its words, separated by commas."""
    options = parser.parse_args()
    for name, known in {"libraries": LIBRARIES, **lists}.items():
        setattr(options, name, [part for part in getattr(options, name).split(",") if part])
        if unknown := [word for word in getattr(options, name) if word not in known]:
            parser.error(f"--{name}: {unknown[0]!r} is not one of {', '.join(known)}")
    options.experts = options.experts or most_experts(options.ranks)
    if options.ranks < 2:
        parser.error("--ranks must be 2 or more: a peer is another GPU")
    if options.deep_ep_v2 and not options.nccl:
        parser.error("--deep-ep-v2 needs --nccl as well: a newer NCCL than torch brings")
    return options


def be_one_library(options: argparse.Namespace, measured: Measure) -> int:
    """In the processes of one library: what ``measured`` does."""
    options.port = gpu_peers.free_port()
    heap = 4 << 20
    if options.library.startswith("ep_lib"):
        limits = Limits(max(options.tokens), max(options.hidden), options.sms)
        shape = Shape(options.ranks, limits.tokens, limits.hidden, options.experts, options.top_k)
        sizes = [LIBRARIES[options.library].arguments(shape, limits, hidden) for hidden in options.hidden]
        heap += max(ep_lib.Buffer.symmetric_bytes(options.ranks, **size) for size in sizes)
    ep_lib.spawn(main, ranks=options.ranks, backend=options.backend, args=(options, measured), heap_bytes=heap)
    return 0


def quickest(rows: Iterable[Row]) -> list[Row]:
    """Of the rows of one name the one with the smallest ``us``."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        name = tuple(row.get(key) for key in NAME)
        if name not in found or row["us"] < found[name]["us"]:
            found[name] = row
    return list(found.values())


SETTINGS = ("ranks", "experts", "top_k", "sms", "calls", "turns", "tokens", "hidden", "routings")


def reports(options: argparse.Namespace, more: Sequence[str]) -> Iterator[dict[str, Any]]:
    """After each library, in its own processes, the report of all so far, with SETTINGS and ``more`` of the options."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about, rows, wrong, missing, versions = {}, [], [], {}, {}
    settings = {key: getattr(options, key) for key in (*SETTINGS, *more)} | {"rounds": ROUNDS}
    for library in options.libraries * options.turns:
        by = LIBRARIES[library].by
        if library in FOLDERS and getattr(options, FOLDERS[library]) is None:
            missing[by] = f"no --{FOLDERS[library].replace('_', '-')}"
        else:
            found = run_library(library, options)
            rows += found["rows"]
            wrong += found["wrong"]
            about = about or found["machine"]
            if found["why"]:
                wrong.append(f"{by}: {found['why']}; {len(found['rows'])} rows were done")
            if library in FOLDERS:
                versions[by] = built_from(getattr(options, FOLDERS[library]))
            if library == "deep_ep_v2" and found["machine"]:
                versions["NCCL of DeepEP V2"] = found["machine"]["NCCL"]
        head = {"date": date, "commit": options.commit, "machine": about, "versions": versions, "settings": settings}
        yield {**head, "wrong": wrong, "not_measured": missing, "rows": with_rates(quickest(rows))}


def run(
    options: argparse.Namespace, measured: Measure, shown: Callable[[dict[str, Any]], str], more: Sequence[str]
) -> int:
    """What such a script does; returns its exit status."""
    if options.library:
        return be_one_library(options, measured)
    for outcome in reports(options, more):
        if options.json is not None:
            write(options.json, outcome)  # a run that is stopped leaves what was measured until then
    print(shown(outcome))
    return bool(outcome["wrong"])


MORE = ("repeats", "tokens_skewed")  # settings of this script alone

if __name__ == "__main__":
    raise SystemExit(run(arguments(), compared, show, MORE))
