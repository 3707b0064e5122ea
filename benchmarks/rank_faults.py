"""Ranks on the emulator that are processes, and what can happen to them: who is told what, how soon, and what stays.

    python benchmarks/rank_faults.py --rounds 50

Prints a table. A round is right if every rank that remains raises an error of ep_lib which names the rank that is to
blame, within the time limit and a second, and nothing stays behind: no memory in /dev/shm, no process, no socket.
tests/runtime/test_rank_faults.py does some rounds.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import mask_cases  # noqa: E402
from support import rank_runs as processes  # noqa: E402
from support.tagged import tagged  # noqa: E402
from support.waiting import ENOUGH, wait_until  # noqa: E402

import ep_lib  # noqa: E402
from ep_lib import processes as all_processes  # noqa: E402
from ep_lib.emulator.shared_heaps import _PREFIX  # noqa: E402
from ep_lib.shared_memory import SHARED_MEMORY  # noqa: E402

RANKS = 4
TIMEOUT = 6.0  # of init: seconds
REPLACED_WITHIN = 5.0  # seconds
STAYS_AFTER = 5.0  # seconds
STEP = 0.01  # seconds between two looks


class Round(NamedTuple):
    """One round of a fault."""

    wrong: str  # what was wrong, or nothing
    seconds: float  # until the last rank was told, or until a new process took part


def lost(rng: random.Random, folder: Path, how: signal.Signals) -> Round:
    """A rank is killed, or stopped, at any moment of its work."""
    running = processes.start("works", folder, RANKS, timeout=TIMEOUT)
    victim = rng.randrange(RANKS)
    try:
        if not wait_until(lambda: all((folder / f"works-{r}").exists() for r in range(RANKS))):
            return Round("the ranks did not begin to work", 0)
        time.sleep(rng.uniform(0, 1.5))
        at = time.time()
        running[victim].send_signal(how)
        others = [r for r in range(RANKS) if r != victim]
        if how == signal.SIGSTOP:
            wait_until(lambda: all((folder / f"{r}").exists() for r in others))
            running[victim].kill()
        for process in running:
            process.communicate(timeout=ENOUGH)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    told = {r: processes.read(folder / f"{r}") for r in others if (folder / f"{r}").exists()}
    missing = [r for r in others if r not in told]
    if missing:
        return Round(f"ranks {missing} were told nothing", 0)
    seconds = max((folder / f"{r}").stat().st_mtime for r in told) - at  # when they had left the world
    for r, (error, named, text) in told.items():
        if error == "KernelTimeout" or named != victim:
            return Round(f"rank {r} was told of rank {named}, not {victim}: {error}: {text}", seconds)
    return Round(f"{seconds:.1f} s" if seconds > TIMEOUT + 1 else "", seconds)


def killed(rng: random.Random, folder: Path) -> Round:
    """SIGKILL."""
    return lost(rng, folder, signal.SIGKILL)


def stopped(rng: random.Random, folder: Path) -> Round:
    """SIGSTOP; it is killed once the others have ended."""
    return lost(rng, folder, signal.SIGSTOP)


def replaced(rng: random.Random, folder: Path, count: int = 1) -> Round:
    """SIGKILL; the others go on in the same Buffer, and new processes take the places, all at once."""
    dead = rng.sample(range(RANKS), count)
    arguments = {"way": rng.choice(["normal", "low latency"]), "dies_after": rng.uniform(0.02, 1), "dead": dead}
    running = processes.start("outlives", folder, RANKS, timeout=20, arguments=arguments)
    others = [running[r] for r in range(RANKS) if r not in dead]
    try:
        if not wait_until(lambda: all(running[r].poll() is not None for r in dead)):
            return Round("no rank died", 0)
        (folder / "dead").touch()
        if not wait_until(lambda: (folder / "invitation").exists() or any(p.poll() is not None for p in others)):
            return Round("no rank went on", 0)
        running += processes.start_replacements(folder, dead)
        said = [process.communicate(timeout=ENOUGH)[1] for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    left = {r: processes.read(folder / f"{r}") for r in range(RANKS) if (folder / f"{r}").exists()}
    for r in range(RANKS):
        if left.get(r) is not True and not isinstance(left.get(r), tuple):
            return Round(f"rank {r}: {left.get(r)!r} {said[r][-300:]}", 0)
    seconds = max(left[r][1] for r in range(RANKS) if r not in dead)
    return Round(f"{seconds:.1f} s" if seconds > REPLACED_WITHIN else "", seconds)


def two_replaced(rng: random.Random, folder: Path) -> Round:
    """The same with two ranks."""
    return replaced(rng, folder, 2)


def one_sentence(name: str, says: str, folder: Path, ranks: int = 2, **options: object) -> Round:
    """Every rank is told something; one of them what is the matter."""
    begin = time.monotonic()
    found = processes.run(name, folder, ranks, **options)
    silent = [r for r, error in enumerate(found) if not isinstance(error, Exception)]
    if silent or not any(says in str(error) for error in found):
        return Round(f"{[str(error) for error in found]}", 0)
    return Round("", time.monotonic() - begin)


def unequal(rng: random.Random, folder: Path) -> Round:
    """One rank's heap is larger."""
    return one_sentence("other_heap", "heap_bytes must be the same on all ranks", folder)


def other_buffers(rng: random.Random, folder: Path) -> Round:
    """One rank's Buffer is another."""
    return one_sentence("other_buffer", "the ranks make different Buffers: hidden is 128 on rank 0 but 256", folder)


def no_room(rng: random.Random, folder: Path) -> Round:
    """One rank finds /dev/shm full (a stand-in for the system's call says so)."""
    return one_sentence("too_large_a_buffer", "/dev/shm", folder)


def no_memory(rng: random.Random, folder: Path) -> Round:
    """More heaps than the address space has room for."""
    return one_sentence("ping_pong", "symmetric heaps of 35184372088832 bytes", folder, 4, heap_bytes=1 << 45)


def two_programs(rng: random.Random, folder: Path) -> Round:
    """Two programs at the same time disturb each other in nothing."""
    begin = time.monotonic()
    folders = [folder / "one", folder / "two"]
    for each in folders:
        each.mkdir()
    both = [processes.start("ping_pong", each, 2) for each in folders]
    for running in both:
        for process in running:
            process.communicate(timeout=ENOUGH)
    found = [processes.read(each / f"{r}") for each in folders for r in range(2)]
    return Round("" if found == [0] * 4 else f"{found}", time.monotonic() - begin)


def small_tmpfs(rng: random.Random, folder: Path) -> Round:
    """A /dev/shm of 256 KiB that is really full (needs root: a mount that nobody else sees)."""
    script = 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, __file__, "--inside", str(folder)]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENOUGH, check=False)
    return Round("" if done.returncode == 0 else done.stdout + done.stderr, time.monotonic() - begin)


def inside(folder: Path) -> str:
    """What is wrong where /dev/shm is a tmpfs of 256 KiB."""
    found = processes.run("too_large_a_buffer_really", folder, 2)
    return "" if all("/dev/shm" in str(error) or "no room" in str(error) for error in found) else repr(found)


FAULTS: dict[str, tuple[Callable[[random.Random, Path], Round], bool]] = {  # whether times are random
    "killed (SIGKILL)": (killed, True),
    "stopped (SIGSTOP)": (stopped, True),
    "killed, masked, replaced": (replaced, True),
    "two killed, masked, replaced": (two_replaced, True),
    "unequal heap_bytes": (unequal, False),
    "unequal Buffers": (other_buffers, False),
    "/dev/shm full (stand-in)": (no_room, False),
    "/dev/shm full (tmpfs)": (small_tmpfs, False),
    "more heaps than memory": (no_memory, False),
    "two programs at once": (two_programs, False),
}


def leaks(tag: str) -> str:
    """What a round has left behind."""
    memory = {path.name for path in SHARED_MEMORY.glob(f"{_PREFIX}*")}
    deadline = time.monotonic() + STAYS_AFTER
    while memory and time.monotonic() < deadline:  # another program's have names for a moment, too
        time.sleep(STEP)
        memory &= {path.name for path in SHARED_MEMORY.glob(f"{_PREFIX}*")}
    alive = tagged(f"EP_LIB_TEST_RUN={tag}")
    sockets = [path.name for path in all_processes.private_folder().glob("srun-*") if f"-{os.getpid()}" in path.name]
    left = {"memory": memory, "processes": alive, "sockets": sockets}
    return "".join(f" {what} left: {names}" for what, names in left.items() if names)


@functools.cache
def compile_kernels() -> None:
    """Once, ahead: rounds are about what happens to ranks that run."""

    def main(rank: ep_lib.Rank) -> None:
        with ep_lib.Buffer(rank, **mask_cases.BOTH) as buffer:
            for way in mask_cases.WAYS.values():
                way(buffer, rank, 0)
            buffer.mask_ranks([])

    ep_lib.spawn(main, RANKS, "emulator")


def run_rounds(name: str, rounds: int) -> list[Round]:
    """Rounds of one fault; what stays behind is wrong, too."""
    compile_kernels()
    fault, is_random = FAULTS[name]
    found = []
    for number in range(rounds if is_random else 1):
        tag = os.environ["EP_LIB_TEST_RUN"] = f"faults-{os.getpid()}-{number}"
        with tempfile.TemporaryDirectory() as folder:
            result = fault(random.Random(f"{name} {number}"), Path(folder))
        found.append(result._replace(wrong=result.wrong + leaks(tag)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(FAULTS))
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        wrong = inside(options.inside)
        print(wrong)
        return bool(wrong)
    table, failed = {}, False
    print(
        f"{RANKS} ranks, timeout {TIMEOUT:g} s\n\n| fault | right | median s | longest s |\n| --- | --- | --- | --- |"
    )
    for name in FAULTS if options.only is None else [options.only]:
        found = run_rounds(name, options.rounds)
        seconds = sorted(each.seconds for each in found)
        right = sum(not each.wrong for each in found)
        table[name] = {"rounds": len(found), "right": right, "seconds": seconds}
        print(
            f"| {name} | {right} of {len(found)} | {seconds[len(seconds) // 2]:.2f} | {seconds[-1]:.2f} |", flush=True
        )
        for each in found:
            if each.wrong:
                failed = True
                print(f"  {each.wrong}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
