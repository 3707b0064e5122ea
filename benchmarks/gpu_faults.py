"""A rank is killed, stopped or late while two GPUs exchange tokens: no call may return a wrong result.

    python benchmarks/gpu_faults.py [--runs 20] [--ways cached,graph,...] [--faults kill,stop,late] [--json FILE]

Each run is a world of two processes that call a Buffer in one way, over and over, with other rows in every turn, and
wait by ``torch.cuda.synchronize()`` only. At a random moment one of them gets SIGKILL or SIGSTOP, or pauses for longer
than the time limit. What the others are handed from then on is right, or NaN, or counts as wrong; their Buffer's next
call must raise, ``on_fault`` must have been called, close() must end within its limit and leave the GPU's memory free,
and the process must be able to make the next world. With masks, operations go on without the rank and are right.

A process that lives takes part in many runs; killed ones are replaced by processes that were started in advance.
With --backend emulator every way runs a few turns without faults, without a GPU.
Exit status: 0 if nothing was wrong, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FAULTS = ("kill", "stop", "late")
TOKENS, HIDDEN, EXPERTS, TOP_K = 64, 512, 16, 4
STEPS = 8  # turns until rows repeat; sums stay small integers, which FP8 and bfloat16 hold exactly
TURNS_AFTER = 8  # that a graph is replayed, or operations go on under masks, once a fault is seen
LIMIT = 2.5  # seconds: the timeout= of every rank; waits in kernels give up after half of it
PAUSE = 2.5  # seconds that a late rank is late
READY_AFTER = 5  # turns
TRIES = 3  # to begin a run: on a machine that is busy with other worlds, ranks may miss each other at the start
GRACE = 1.5  # seconds that close() may take beyond it, on a machine that is busy with other worlds
PATIENCE = 60.0  # seconds until a process that says nothing counts as hanging
HEAP_BYTES = 64 << 20


# ---- one rank: the ways of calling -----------------------------------------------------------------------------------


class Program:
    """A Buffer in one world, its inputs, and what every rank knows about all others' inputs."""

    def __init__(self, rank: Any, way: str) -> None:
        import torch

        import ep_lib

        self.torch, self.rank, self.way = torch, rank, way
        self.gpu = rank.backend == "cuda"
        self.device = "cuda" if self.gpu else "cpu"
        self.told: list[str] = []
        options: dict[str, Any] = {}
        if way.startswith("low latency"):
            options["num_max_dispatch_tokens_per_rank"] = TOKENS
            options["low_latency_mask_on_timeout"] = way == "low latency, masks"
        if way == "pcie":
            options |= {"allow_nvlink_for_normal_mode": False}
        self.buffer = ep_lib.Buffer(
            rank,
            num_experts=EXPERTS,
            top_k=TOP_K,
            hidden=HIDDEN,
            max_tokens=TOKENS,
            num_sms=8 if way == "pull" else 24 if self.gpu else 2,
            on_fault=lambda error: self.told.append(type(error).__name__),
            **options,
        )
        ranks = range(rank.world_size)
        self.choices = [self._routing(source) for source in ranks]
        self.idx = [choices.to(self.device) for choices in self.choices]
        self.base = [self._rows(source) for source in ranks]
        here = EXPERTS // rank.world_size
        self.copies = sum((self.idx[rank.rank] // here == r).any(1).int() for r in ranks).unsqueeze(1)
        self.x = self.base[rank.rank].clone()
        self.graph: Any = None

    def _routing(self, source: int) -> Any:
        torch = self.torch
        scores = torch.rand(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(source))
        return torch.topk(scores, TOP_K, dim=-1).indices

    def _rows(self, source: int) -> Any:
        torch = self.torch
        drawn = torch.randint(0, 8, (TOKENS, HIDDEN), generator=torch.Generator().manual_seed(50 + source))
        return drawn.to(self.device).bfloat16()

    def wait(self) -> None:
        """As a user of torch waits."""
        if self.gpu:
            self.torch.cuda.synchronize()
        else:
            self.rank.synchronize()

    def prepare(self) -> None:
        """What comes before the first turn: a handle, a captured graph."""
        me, torch = self.rank.rank, self.torch
        if self.way.startswith("low latency"):
            self.ones = torch.ones(TOKENS, TOP_K, device=self.device)
            sent = self.buffer.low_latency_dispatch(self.x, self.idx[me], False)
            self.wait()
            self.counts = sent.recv_count.clone()
            self.origin = self._low_latency_origin()
        else:
            first = self.buffer.dispatch(self.x, self.idx[me])
            self.handle = first.handle
            self.wait()
            self.origin = (first.src_rank.long().clone(), first.src_token.long().clone())
        self.rank.barrier()
        if "graph" in self.way and self.gpu:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.results = self.operate()
            torch.cuda.current_stream().wait_stream(side)
            self.wait()
            self.rank.barrier()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.results = self.operate()

    def _low_latency_origin(self) -> list[Any]:
        """For each of this rank's experts, the (source, token) of its rows."""
        per = EXPERTS // self.rank.world_size
        origin = []
        for expert in range(self.rank.rank * per, (self.rank.rank + 1) * per):
            pairs = [
                (source, token)
                for source in range(self.rank.world_size)
                for token in range(TOKENS)
                if (self.choices[source][token] == expert).any()
            ]
            origin.append(self.torch.tensor(pairs, dtype=self.torch.long, device=self.device).reshape(-1, 2))
        return origin

    def operate(self) -> dict[str, Any]:
        """One turn's operations; "rows" is what a dispatch brought, "sums" what a combine did."""
        buffer, me, way = self.buffer, self.rank.rank, self.way
        if way.startswith("low latency"):
            rows, counts, handle, _, _ = buffer.low_latency_dispatch(self.x, self.idx[me], way.endswith("fp8"))
            found = {"rows": rows, "counts": counts}
            if not way.endswith("fp8"):
                found["sums"] = buffer.low_latency_combine(rows, self.idx[me], self.ones, handle).out
            return found
        if way in ("counted", "pcie"):
            recv = buffer.dispatch(self.x, self.idx[me])
        elif way in ("worst", "graph"):
            recv = buffer.dispatch(self.x, self.idx[me], num_worst_tokens=self.rank.world_size * TOKENS)
        elif way == "fp8":
            scales = self.torch.ones(TOKENS, HIDDEN // 128, device=self.device)
            recv = buffer.dispatch((self.x.to(self.torch.float8_e4m3fn), scales), handle=self.handle)
            return {"rows": recv.x}
        else:
            recv = buffer.dispatch(self.x, handle=self.handle, copy=way != "pull")
        rows = y = recv.x
        if way == "pull":  # the rows are a view, which is good until the combine
            rows, y = recv.x.clone(), buffer.combine_input(self.handle, recv.x)
            y.copy_(recv.x)
        return {"rows": rows, "sums": buffer.combine(y, recv.handle)}

    def turn(self, number: int) -> str:
        """One turn with its own rows: "right", "nan" (all that is not right is NaN) or what is wrong."""
        step = number % STEPS
        self.x.copy_(self.base[self.rank.rank] + step)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.results = self.operate()
        self.wait()
        verdicts = [self._judge(name, array, step) for name, array in self.results.items() if name != "counts"]
        wrong = [verdict for verdict in verdicts if verdict not in ("right", "nan")]
        return wrong[0] if wrong else "nan" if "nan" in verdicts else "right"

    def _judge(self, name: str, found: Any, step: int) -> str:
        torch = self.torch
        if name == "sums":
            if self.way.startswith("low latency"):
                own = self.base[self.rank.rank] + step
                wanted = [own * TOP_K]
                if self.way == "low latency, masks":  # without a rank that is masked
                    per = EXPERTS // self.rank.world_size
                    mine = (self.idx[self.rank.rank] // per == self.rank.rank).sum(1, keepdim=True)
                    wanted.append(own * mine)
            else:
                wanted = [(self.base[self.rank.rank] + step) * self.copies]
            return self._compare(name, found, wanted)
        found, scales = found if isinstance(found, tuple) else (found, None)
        if scales is not None:
            # Each may still be NaN where the other is right: their product is what a caller computes with.
            found = found.float() * scales.repeat_interleave(128, -1)
        if not self.way.startswith("low latency"):
            source, token = self.origin
            return self._compare(name, found[: len(source)], [torch.stack(self.base)[source, token] + step])
        counts = self.results["counts"].tolist()
        for expert, pairs in enumerate(self.origin):
            want = torch.stack(self.base)[pairs[:, 0], pairs[:, 1]] + step
            if self.way == "low latency, masks":  # some rows of a rank that died may be missing
                rows = found[expert, : counts[expert]]
                known = (rows.unsqueeze(1) == want.unsqueeze(0)).all(-1).any(-1)
                if not bool((known | torch.isnan(rows).all(-1)).all()):
                    return f"{name}: a row of expert {expert} is nobody's"
                continue
            if counts[expert] not in (len(want), 0):
                return f"{name}: {counts[expert]} rows of expert {expert}, not {len(want)}"
            rows = found[expert, : len(want)]
            tolerance = 0.07 * (want.float().abs() + 1) if scales is not None else None
            verdict = self._compare(name, rows, [want], tolerance)
            if verdict != "right":
                return verdict
        return "right"

    def _compare(self, name: str, found: Any, wanted: list[Any], tolerance: Any = None) -> str:
        torch = self.torch
        found = found.float()
        nan = torch.isnan(found)
        if tolerance is None:
            right = torch.stack([(found == want.float()).all(-1) | nan.all(-1) for want in wanted]).any(0)
            right = right.unsqueeze(-1) | nan | (found == wanted[0].float())
        else:
            right = nan | ((found - wanted[0].float()).abs() <= tolerance)
        if not bool(right.all()):
            place = (~right).nonzero()[0].tolist()
            return f"{name}{place} is {float(found[tuple(place)])}, and {int((~right).sum())} more are wrong"
        return "nan" if bool(nan.any()) else "right"


WAYS = (
    "counted",
    "cached",
    "pull",
    "fp8",
    "worst",
    "graph",
    "low latency",
    "low latency, fp8",
    "low latency, masks",
    "low latency, graph",
    "pcie",
)


def take_part(rank: Any, order: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """One run, on one rank, until a fault is noticed and the Buffer is closed."""
    import torch

    from ep_lib.errors import EpError

    program = Program(rank, order["way"])
    masks = order["way"] == "low latency, masks"
    found: dict[str, Any] = {"turns": 0, "wrong": [], "raised": "", "said": ""}
    try:
        program.prepare()
        rank.barrier()
        after = 0  # turns since the fault was seen
        while after < TURNS_AFTER:
            if found["turns"] == READY_AFTER:
                say({"ready": True})
            if found["turns"] == order.get("pause_at"):
                time.sleep(PAUSE)
            verdict = program.turn(found["turns"])
            found["turns"] += 1
            if verdict in ("right", "nan"):
                found[verdict] = found.get(verdict, 0) + 1
            else:
                found["wrong"].append(verdict)
                after += 1
            after += verdict == "nan" or (masks and bool(program.buffer.low_latency_query_mask_buffer().any()))
        if not masks:  # a graph knows nothing of the host: the next call must raise
            for _ in range(2):
                program.operate()
                found["raised"] = "nothing"
    except EpError as error:
        found["raised"], found["said"] = type(error).__name__, str(error)
    found["told"] = program.told
    began = time.monotonic()
    program.buffer.close()
    found["buffer_close_s"] = time.monotonic() - began
    program.results = program.graph = None
    torch.cuda.synchronize()
    return found


def serve() -> None:
    """A process that takes part in one world after the other, as its standard input says; results are lines of JSON."""
    import cupy
    import torch

    import ep_lib
    from ep_lib.errors import EpError

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), flush=True)

    say({"started": True})
    for line in sys.stdin:
        order = json.loads(line)
        names = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
        os.environ.update(dict(zip(names, (order["world"], order["rank"], order["rank"], "2"), strict=True)))
        torch.cuda.set_device(int(order["rank"]))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        rank, heaps = None, []
        try:
            rank = ep_lib.init("cuda", heap_bytes=HEAP_BYTES, timeout=LIMIT)
            heaps = [rank._backend.heap_address(peer) for peer in range(2)]
            found = take_part(rank, order, say)
        except EpError as error:
            found = {"raised": type(error).__name__, "said": str(error), "turns": -1, "wrong": []}
        began = time.monotonic()
        try:
            if rank is not None:
                rank.close()
        except EpError as error:
            found["close_raised"] = f"{type(error).__name__}: {error}"
        found["close_s"] = time.monotonic() - began
        try:
            found["context"] = bool((torch.ones(8, device="cuda") * 2).sum().item() == 16)
        except RuntimeError as error:
            found["context"], found["said"] = False, str(error)
        # Every rank's heap, as this process had it: nothing is there any more.
        found["freed"] = all(cupy.cuda.runtime.pointerGetAttributes(address).type == 0 for address in heaps)
        say({**found, "done": True})


# ---- the parent: starts processes, orders runs, sends signals --------------------------------------------------------


class Child:
    """A process that serves; its lines arrive in a queue."""

    def __init__(self, folder: str, command: list[str]) -> None:
        environment = {**os.environ, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        self.errors = tempfile.TemporaryFile("w+", dir=folder)  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def order(self, what: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def next(self, key: str) -> dict[str, Any]:
        """The next line with this key. An empty one says that the process ended or says nothing."""
        deadline = time.monotonic() + PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=left)
            except queue.Empty:
                break
            if not line:
                return {"ended": self.process.wait(), "log": self.log()}
            found: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
            if key in found or "done" in found:
                return found
        return {"silent": True, "log": self.log()}

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-800:]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.errors.close()


class Pair:
    """Two processes that run worlds together, and spare ones."""

    def __init__(self, folder: str, command: list[str], spares: int) -> None:
        self._start = lambda: Child(folder, command)
        self._spares = [self._start() for _ in range(spares)]
        self.members = [self._take(), self._take()]

    def _take(self) -> Child:
        self._spares.append(self._start())
        child = self._spares.pop(0)
        child.next("started")
        return child

    def replace(self, member: int) -> None:
        self.members[member].end()
        self.members[member] = self._take()

    def end(self) -> None:
        for child in (*self.members, *self._spares):
            child.end()


def one_run(pair: Pair, world: str, way: str, fault: str, number: int) -> list[str] | None:
    """What was wrong with one run; an empty list if nothing was, None if the ranks did not get as far as the fault."""
    chance = random.Random(f"{way} {fault} {number}")
    victim = number % 2
    orders: list[dict[str, Any]] = [{"world": world, "rank": str(rank), "way": way} for rank in range(2)]
    if fault == "late":
        orders[victim]["pause_at"] = READY_AFTER + chance.randrange(6)
    for child, order in zip(pair.members, orders, strict=True):
        child.order(order)
    came = [child.next("ready") for child in pair.members]
    if not all("ready" in line for line in came):
        for rank, child in enumerate(pair.members):
            if "done" not in came[rank] and "done" not in child.next("done"):
                pair.replace(rank)
        return None
    wrong = []
    time.sleep(chance.random() * 0.2)
    survivor, died = pair.members[1 - victim], pair.members[victim]
    if fault == "kill":
        died.process.send_signal(signal.SIGKILL)
    elif fault == "stop":
        died.process.send_signal(signal.SIGSTOP)
    found = {1 - victim: survivor.next("done")}
    if fault == "stop":
        died.process.send_signal(signal.SIGCONT)
    if fault == "kill":
        pair.replace(victim)
    else:
        found[victim] = died.next("done")
    masks = way == "low latency, masks"
    for rank, result in found.items():
        if "done" not in result:
            wrong.append(f"rank {rank}: {result}")
            pair.replace(rank)
            continue
        if result["wrong"]:
            wrong.append(f"rank {rank} was handed {len(result['wrong'])} wrong results: {result['wrong'][0]}")
        if masks and rank != victim and result["raised"]:
            wrong.append(f"rank {rank} raised {result['raised']} with masks: {result['said']}")
        if not masks and result["raised"] not in ("PeerTimeout", "BufferClosedError"):
            wrong.append(f"rank {rank}: the next call raised {result['raised'] or 'nothing'}: {result.get('said')}")
        if not masks and result["turns"] >= 0 and len(result.get("told", [])) != 1:
            wrong.append(f"rank {rank}: on_fault was called {len(result['told'])} times")
        if result.get("close_raised"):
            wrong.append(f"rank {rank}: close() raised {result['close_raised']}")
        if max(result.get("buffer_close_s", 0), result["close_s"]) > LIMIT + GRACE:
            wrong.append(f"rank {rank}: close() took {result['close_s']:.1f} s")
        if not result["freed"]:
            wrong.append(f"rank {rank}: memory of a heap is still there after close()")
        if not result["context"]:
            wrong.append(f"rank {rank} lost its CUDA context: {result['said']}")
            pair.replace(rank)
    RESULTS.append({"way": way, "fault": fault, "run": number, "victim": victim, "wrong": wrong, "ranks": found})
    return wrong


RESULTS: list[dict[str, Any]] = []


class Plan:
    """Which runs there are to make, and until when."""

    def __init__(self, faults: list[str], runs: int, split: int, seconds: float) -> None:
        self.faults, self.runs, self.split, self.deadline = faults, runs, split, time.monotonic() + seconds

    def parts(self, ways: list[str]) -> list[tuple[str, int]]:
        return [(way, part) for way in ways for part in range(self.split)]

    def make(self, way: str, part: int, command: list[str]) -> dict[str, list[list[str]]]:
        """The runs of one part, one after the other: for each fault what was wrong with each run."""
        found: dict[str, list[list[str]]] = {fault: [] for fault in self.faults}
        with tempfile.TemporaryDirectory() as folder:
            pair = Pair(folder, command, spares=2 if "kill" in self.faults else 0)
            try:
                for number in range(part, self.runs, self.split):
                    for fault in self.faults:
                        if time.monotonic() < self.deadline:
                            found[fault].append(self._try(pair, way, fault, number))
            finally:
                pair.end()
        return found

    def _try(self, pair: Pair, way: str, fault: str, number: int) -> list[str]:
        for attempt in range(TRIES):
            world = f"{WAYS.index(way)}.{FAULTS.index(fault)}.{number}.{attempt}"
            wrong = one_run(pair, world, way, fault, number)
            if wrong is not None:
                if wrong:
                    print(f"WRONG {way}, {fault}, run {number}: {'; '.join(wrong)[:500]}", flush=True)
                return wrong
        return ["the ranks did not find each other"]


def rehearse(rank: Any) -> list[str]:
    """On the emulator: every way, without a fault. What was not right."""
    found = []
    for way in WAYS:
        if "graph" in way:
            continue
        program = Program(rank, way)
        program.prepare()
        found += [f"{way}, turn {n}: {verdict}" for n in range(3) if (verdict := program.turn(n)) != "right"]
        program.buffer.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each way and fault, default 20")
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by semicolons; default: all")
    parser.add_argument("--faults", default=",".join(FAULTS), help="default: all")
    parser.add_argument("--split", type=int, default=2, help="worlds of each way at the same time, default 2")
    parser.add_argument("--seconds", type=float, default=900, help="begin no run later than this, default 900")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    if options.backend == "emulator":
        import ep_lib

        texts = [text for found in ep_lib.spawn(rehearse, 2, "emulator") for text in found]
        print("\n".join(texts) or "every way is right")
        return 1 if texts else 0
    ways, faults = options.ways.split(";"), options.faults.split(",")
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    plan = Plan(faults, options.runs, options.split, options.seconds)
    parts = plan.parts(ways)
    began = time.monotonic()
    with ThreadPoolExecutor(len(parts)) as pool:
        outcomes = list(pool.map(lambda part: plan.make(*part, command), parts))
    status = 0
    for way in ways:
        for fault in faults:
            runs = [
                run for (name, _), found in zip(parts, outcomes, strict=True) if name == way for run in found[fault]
            ]
            wrong = [run for run in runs if run]
            word = "WRONG" if wrong else "ok" if runs else "NOT RUN"
            status |= word != "ok"
            print(f"{word:6} {way:20} {fault:5} {len(runs)} runs, {len(wrong)} wrong")
    closes = [rank["close_s"] for result in RESULTS for rank in result["ranks"].values() if "close_s" in rank]
    if closes:
        print(f"close() took at most {max(closes):.1f} s; {len(RESULTS)} runs in {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(RESULTS))
    return status


if __name__ == "__main__":
    sys.exit(main())
