"""``ep-lib check script.py ...``: each script's ``main(rank)`` under many schedules, with every access watched.

The script runs in a process of its own. At the time limit, or if this process is killed, that process ends with all its
children.

Exit codes: 0 if nothing was found (with --exhaustive: and every schedule was covered); 1 for findings, and for a script
that cannot be checked; 2 for wrong usage; 3 if an exhaustive check found nothing but did not cover every schedule: it
was stopped, runs were cut, or it met a bound (preemptions, turns, kernels).
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from ep_lib import processes
from ep_lib.commands.scripts import CheckFailed, ScriptMain, describe, load_main
from ep_lib.emulator.fabric import KINDS, Fabric
from ep_lib.emulator.findings import Finding, schedule_name
from ep_lib.errors import ArgumentError, EpError
from ep_lib.require import at_least_one, seconds
from ep_lib.runtime.check import check, record
from ep_lib.transports import registry
from ep_lib.workshop.classroom.executors import open_executor

_MODULE = "ep_lib.commands.check"
_STDERR = 2  # the descriptor: a notebook's sys.stderr has none
_SEEDS = 20
_NOT_PROVED = 3  # exit code
_OF_A_RUN = 0.5  # share of --timeout: a longer run is a finding, which names the running kernels
_OF_TIMEOUT = 0.9  # after this much of --timeout an exhaustive check reports what it has covered
_AN_INTERRUPT_IS_ANSWERED = b"\n"  # first byte of a child's answer, which JSON ignores
_LOOK_S = 0.2  # between two checks of the script's time
# The options that determine a run, besides the script, its time limit and the seed: see add_run_arguments.
_OF_THE_RUN = ("main", "ranks", "fabric", "transport", "ranks_per_node", "volatile", "memory", "resident_blocks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, several=True)
    parser.add_argument("--seeds", type=int, help=f"how many schedules to try (default: {_SEEDS})")
    parser.add_argument("--first-seed", type=int, help="the first of them (default: 0)")
    parser.add_argument(
        "--no-reduce", action="store_true", help="replay findings by their seeds: look for no runs with fewer switches"
    )
    parser.add_argument(
        "--no-compare", action="store_true", help="main's values may depend on the schedule, as sums by atomics do"
    )
    parser.add_argument(
        "--exhaustive", action="store_true", help="every schedule of a small program, instead of seeds; Ctrl-C reports"
    )
    parser.add_argument("--preemptions", type=int, help="with --exhaustive: the most of a schedule")
    parser.add_argument("--events", type=int, default=2000, help="the most events of a schedule (default: %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=3, help="of a wait that counts, while nothing changes (default: %(default)s)"
    )
    parser.add_argument(
        "--kernels", metavar="NAMES", help="with --exhaustive: of these kernels alone, with commas between them"
    )
    parser.add_argument(
        "--seconds", type=float, help="with --exhaustive: report after that (default: 0.9 of --timeout)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="with --exhaustive: processes that make the runs (default: %(default)s)"
    )
    parser.add_argument(
        "--executor", metavar="WHERE", help="with --exhaustive: other machines make the runs: mpi, or dask://HOST:PORT"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; the script prints to stderr")


def add_run_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Adds the options that determine a run, except its seed; shared with ``ep-lib replay``, which takes one script."""
    a_script = "a Python file that defines main(rank)"
    if several:
        parser.add_argument("scripts", type=Path, nargs="+", metavar="script", help=f"{a_script}; one after the other")
    else:
        parser.add_argument("script", type=Path, help=a_script)
    parser.add_argument("--main", default="main", help="another function of the script (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks (default: %(default)s)")
    parser.add_argument("--fabric", choices=KINDS, default="p2p", help="what connects the ranks (default: %(default)s)")
    parser.add_argument(
        "--transport",
        choices=registry.names("emulator"),
        default="emulated",
        help="what is behind ep::net_* (default: %(default)s)",
    )
    parser.add_argument("--ranks-per-node", type=int, default=1, help="with rc and srd (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        help="seconds for all together, of the script's own time (default: %(default)g)",
    )
    parser.add_argument(
        "--volatile",
        choices=("relaxed", "plain"),
        default="relaxed",
        help="plain: report volatile accesses that carry data and that nothing orders (default: %(default)s)",
    )
    parser.add_argument(
        "--memory",
        choices=("mixed", "sc", "ptx"),
        default="mixed",
        help="sc: one memory for all; ptx: loads may return older values, as far as PTX's memory model allows it; "
        "mixed: every fourth schedule under ptx too, if nothing else is found (default: %(default)s)",
    )
    parser.add_argument("--resident-blocks", type=int, help="the most blocks of a rank that run at a time")


def run(args: argparse.Namespace) -> int:
    if len(args.scripts) > 1 and args.executor is not None:
        raise ArgumentError(f"--executor is for one script, and there are {len(args.scripts)}")
    codes, reports = set(), []
    for script in args.scripts:
        args.script = script
        if len(args.scripts) > 1 and not args.json:
            print(f"== {script}")
        try:
            answer = _checked(args)
        except CheckFailed as error:
            if len(args.scripts) == 1:
                raise
            answer = {"report": {"error": str(error), "ok": False}, "text": f"not checked: {error}"}
        if answer is None:
            return 0  # it has served another process of mpiexec
        reports.append(answer["report"])
        if not args.json:
            print(answer["text"], flush=True)
        proved = not args.exhaustive or answer["report"].get("proved")
        codes.add(1 if not answer["report"]["ok"] else 0 if proved else _NOT_PROVED)
    if args.json:
        by_script = dict(zip(map(str, args.scripts), reports, strict=True))
        print(json.dumps(reports[0] if len(args.scripts) == 1 else by_script))
    return 1 if 1 in codes else max(codes)


def _checked(args: argparse.Namespace) -> dict[str, Any] | None:
    """The report on ``args.script``; None in a process of mpiexec that has served another one."""
    if args.exhaustive and (args.seeds is not None or args.first_seed is not None):
        raise ArgumentError("--seeds and --first-seed choose schedules, and --exhaustive makes all: leave one out")
    seeds, first = _SEEDS if args.seeds is None else args.seeds, args.first_seed or 0
    if seeds < 1 or first < 0:
        raise ArgumentError(f"--seeds is {seeds}, --first-seed {first}; they must be at least 1 and 0")
    if not args.exhaustive and (args.preemptions is not None or args.seconds is not None or args.kernels):
        raise ArgumentError(
            "--preemptions, --seconds and --kernels are bounds of an exhaustive check: add --exhaustive"
        )
    if not args.exhaustive and (args.jobs != 1 or args.executor is not None):
        raise ArgumentError("--jobs and --executor are for an exhaustive check: add --exhaustive")
    if args.executor == "threads":
        raise ArgumentError("--executor is 'threads'; one process makes one run at a time: use --jobs N")
    task: dict[str, Any] = {"seeds": (first, first + seeds), "reduce": not args.no_reduce}
    if args.exhaustive:
        task = {
            "exhaustive": True,
            "preemptions": args.preemptions,
            "events": args.events,
            "turns": args.turns,
            "kernels": [name.strip() for name in (args.kernels or "").split(",") if name.strip()],
            "seconds": _OF_TIMEOUT * args.timeout if args.seconds is None else args.seconds,
            "jobs": at_least_one("--jobs", args.jobs),
        }
    request = {"checks": {**task, "compare_values": not args.no_compare}, "again": _again(args)}
    if args.executor is None:
        return in_a_process(args, request)
    with open_executor(args.executor) as place:
        return None if place is None else _require_report(_answer(_request(args, request), place[0]))


def _again(args: argparse.Namespace) -> str:
    """A template of the command that shows a run."""
    defaults = argparse.ArgumentParser()
    add_run_arguments(defaults)
    words = ["ep-lib replay", shlex.quote(str(args.script))]
    for name in _OF_THE_RUN:
        value = getattr(args, name)
        if value != defaults.get_default(name):
            words.append(f"--{name.replace('_', '-')} {value}")
    return " ".join([*words, "{}", "--html replay.html"])


def in_a_process(args: argparse.Namespace, task: dict[str, Any]) -> dict[str, Any]:
    """Calls :func:`_answer` in a child process, whose process group ends with it, and with this process.

    Raises ArgumentError for invalid arguments, before anything starts, and CheckFailed.
    """
    request = _request(args, task)
    ours, theirs = os.pipe()
    request["answer_to"] = theirs
    with os.fdopen(ours, "rb", buffering=0) as answers, processes.guarded() as guard:
        try:
            child = guard.start(
                processes.python("-m", _MODULE, json.dumps(request)),
                stdout=_STDERR if "json" in args and args.json else None,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        cores = task.get("checks", {}).get("jobs", 1)
        own = processes.OwnTime(lambda: processes.in_group(child.pid))
        answer = bytearray()
        try:
            try:
                _read(answers, answer, own, args.timeout, cores)
            except KeyboardInterrupt:
                if not answer or not task.get("checks", {}).get("exhaustive"):
                    raise
                os.kill(child.pid, signal.SIGINT)  # it reports what it has covered
                _read(answers, answer, own, args.timeout, cores)
        except processes.TookTooLong:
            raise CheckFailed(
                f"{args.script} did not end within {args.timeout:g} s (--timeout). Either the script's own Python does "
                f"not end (a loop, or a wait for something outside), or there was no time left for its kernels: one "
                f"that runs on is a finding after {_OF_A_RUN * args.timeout:g} s of its run. Pass a larger --timeout, "
                f"fewer seeds, or --first-seed where it stays"
            ) from None
        finally:
            processes.end_group(child)
    if not answer.strip():
        raise CheckFailed(
            f"{args.script} ended the process itself, with exit code {child.returncode}, before it was checked"
        )
    return _require_report(json.loads(answer))


def _require_report(answer: dict[str, Any]) -> dict[str, Any]:
    if "interrupted" in answer:
        raise KeyboardInterrupt
    if "error" in answer:
        raise CheckFailed(answer["error"])
    return answer


def _request(args: argparse.Namespace, task: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a run, and the task for it. Raises ArgumentError."""
    if not args.script.is_file():
        raise ArgumentError(f"there is no file {args.script}; name a Python file that defines main(rank)")
    if args.script.suffix in (".cu", ".cuh"):
        raise CheckFailed(
            f"{args.script} holds kernels, and a check runs a program: name the Python file whose main(rank) launches "
            f"them. Pieces of an exercise are checked by `ep-lib grade`"
        )
    seconds("--timeout", args.timeout)
    Fabric(args.fabric, ranks_per_node=args.ranks_per_node).check(args.ranks)
    return {
        **task,
        "script": str(args.script.resolve()),
        "timeout": args.timeout,
        **{name: getattr(args, name) for name in _OF_THE_RUN},
    }


def _read(answers: io.FileIO, answer: bytearray, own: processes.OwnTime, limit_s: float, cores: int) -> None:
    """Appends the child's output to ``answer`` until the child ends. Raises TookTooLong."""
    while True:
        if select.select([answers], [], [], _LOOK_S)[0]:
            chunk = answers.read(1 << 16)
            if not chunk:
                return
            answer += chunk
        else:
            own.require(cpu_s=limit_s * cores, idle_s=limit_s)


# ---- in the child --------------------------------------------------------------------------------------------------
def _answer(request: dict[str, Any], executor: Executor | None = None) -> dict[str, Any]:
    script = Path(request["script"])
    try:
        if request.get("checks", {}).get("exhaustive"):
            main: Callable[..., Any] = ScriptMain(script, request["main"])
            request["checks"]["executor"] = executor
        else:
            main = load_main(script, request["main"])
            if "checks" in request:
                request["checks"]["seeds"] = range(*request["checks"]["seeds"])
        if "replay" in request:
            return _replayed(main, request)
        report = check(**request["checks"], **_run_of(main, request))
    except EpError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001  # the script may raise anything
        return {"error": f"{script.name}: main raised {describe(error, script)}"}
    again = request["again"]
    if report.memory == "ptx" and request["memory"] == "mixed":
        again += " --memory ptx"
    findings = [dataclasses.replace(found, replay=again.format(_run_named(found))) for found in report.findings]
    report = dataclasses.replace(report, findings=tuple(findings))
    return {"report": report.to_dict(), "text": str(report)}


def _run_named(finding: Finding) -> str:
    return f"--seed {finding.run}" if isinstance(finding.run, int) else f'--schedule "{schedule_name(finding.run)}"'


def _replayed(main: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """For ``ep-lib replay``: records the run of one seed and writes its page."""
    from ep_lib.viz.time_travel import page_of

    recording = record(**request["replay"], **_run_of(main, request))
    page_of(recording, request["steps"]).save(request["html"])
    texts = [f"{found.finding.kind}: {found.finding.message}" for found in recording.found]
    return {"findings": texts, "steps": recording.steps}


def _run_of(main: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    options = {name: request[name] for name in _OF_THE_RUN}
    fabric = Fabric(options.pop("fabric"), ranks_per_node=options.pop("ranks_per_node"))
    return {**options, "main": main, "fabric": fabric, "timeout": _OF_A_RUN * request["timeout"]}


def _child_main() -> None:
    request = json.loads(sys.argv[1])
    os.set_inheritable(request["answer_to"], False)  # children of the script must not keep it open
    with os.fdopen(request["answer_to"], "wb") as file:
        try:
            file.write(_AN_INTERRUPT_IS_ANSWERED)
            file.flush()
            answer = _answer(request)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it would cut the answer off
        except KeyboardInterrupt:
            answer = {"interrupted": "before the check began"}
        sys.stdout.flush()
        file.write(json.dumps(answer).encode())
    os._exit(0)  # waits for no thread that the script left behind


if __name__ == "__main__":
    _child_main()
