"""``ep-lib check script.py``: the script's ``main(rank)`` under many schedules, with every access watched.

The script runs in a process of its own. At the time limit that process ends, with everything that it started, and so
it does if this one is killed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import inspect
import io
import json
import os
import select
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ep_lib import processes
from ep_lib.emulator.fabric import KINDS, Fabric
from ep_lib.emulator.findings import Finding
from ep_lib.errors import ArgumentError, EpError
from ep_lib.runtime.check import check, record
from ep_lib.transports import registry

_MODULE = "ep_lib.commands.check"
_STDERR = 2  # the descriptor: a notebook's sys.stderr has none
_OF_TIMEOUT = 0.9  # after this much of --timeout an exhaustive check reports what it has covered
_LOOK_S = 0.2  # between two looks at the script's time


class CheckFailed(EpError):
    """The script could not be checked: it cannot be imported, has no main, or does not end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--seeds", type=int, default=20, help="how many schedules to try (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument(
        "--exhaustive", action="store_true", help="every schedule of a small program, instead of seeds; Ctrl-C reports"
    )
    parser.add_argument("--preemptions", type=int, help="with --exhaustive: the most of a schedule")
    parser.add_argument("--events", type=int, default=2000, help="the most events of a schedule (default: %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=3, help="of a wait that counts, while nothing changes (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, help="with --exhaustive: report after that (default: 0.9 of --timeout)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; the script prints to stderr")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What determines a run, but for its seed: the same for ``ep-lib replay``."""
    parser.add_argument("script", type=Path, help="a Python file that defines main(rank)")
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
    if args.seeds < 1 or args.first_seed < 0:
        raise ArgumentError(f"--seeds is {args.seeds}, --first-seed {args.first_seed}; they must be at least 1 and 0")
    if not args.exhaustive and (args.preemptions is not None or args.seconds is not None):
        raise ArgumentError("--preemptions and --seconds are bounds of an exhaustive check: add --exhaustive")
    task: dict[str, Any] = {"seeds": list(range(args.first_seed, args.first_seed + args.seeds))}
    if args.exhaustive:
        task = {
            "exhaustive": True,
            "preemptions": args.preemptions,
            "events": args.events,
            "turns": args.turns,
            "seconds": _OF_TIMEOUT * args.timeout if args.seconds is None else args.seconds,
        }
    answer = in_a_process(args, {"checks": task, "again": _again(args)})
    print(json.dumps(answer["report"]) if args.json else answer["text"])
    return 0 if answer["report"]["ok"] else 1


def _again(args: argparse.Namespace) -> str:
    """The command that shows the run of a seed, which is to be filled in."""
    defaults = argparse.ArgumentParser()
    add_run_arguments(defaults)
    words = ["ep-lib replay", shlex.quote(str(args.script))]
    for name in ("main", "ranks", "fabric", "transport", "ranks_per_node", "volatile", "memory", "resident_blocks"):
        value = getattr(args, name)
        if value != defaults.get_default(name):
            words.append(f"--{name.replace('_', '-')} {value}")
    return " ".join([*words, '--schedule "{}"' if args.exhaustive else "--seed {}", "--html replay.html"])


def in_a_process(args: argparse.Namespace, task: dict[str, Any]) -> dict[str, Any]:
    """What :func:`_answer` returns in a child process; its process group ends with it, and with this process.

    Raises ArgumentError for arguments that no run has, before anything starts, and CheckFailed.
    """
    if not args.script.is_file():
        raise ArgumentError(f"there is no file {args.script}; name a Python file that defines main(rank)")
    if not args.timeout > 0:
        raise ArgumentError(f"--timeout is {args.timeout:g}; it must be a number of seconds above zero")
    Fabric(args.fabric, ranks_per_node=args.ranks_per_node).check(args.ranks)
    ours, theirs = os.pipe()
    request = {
        **task,
        "script": str(args.script.resolve()),
        "main": args.main,
        "ranks": args.ranks,
        "fabric": args.fabric,
        "ranks_per_node": args.ranks_per_node,
        "transport": args.transport,
        "timeout": args.timeout,
        "volatile": args.volatile,
        "memory": args.memory,
        "resident_blocks": args.resident_blocks,
        "answer_to": theirs,
    }
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
        own = processes.OwnTime(lambda: processes.in_group(child.pid))
        try:
            try:
                answer = _read(answers, own, args.timeout)
            except KeyboardInterrupt:
                if not task.get("checks", {}).get("exhaustive"):
                    raise
                os.kill(child.pid, signal.SIGINT)  # it reports what it has covered
                answer = _read(answers, own, args.timeout)
        except processes.TookTooLong:
            raise CheckFailed(
                f"{args.script} did not end within {args.timeout:g} s (--timeout). A kernel that never ends is found "
                f"earlier, so look at the script's own Python: a loop, or a wait for something outside"
            ) from None
        finally:
            processes.end_group(child)
    if not answer:
        raise CheckFailed(
            f"{args.script} ended the process itself, with exit code {child.returncode}, before it was checked"
        )
    found: dict[str, Any] = json.loads(answer)
    if "error" in found:
        raise CheckFailed(found["error"])
    return found


def _read(answers: io.FileIO, own: processes.OwnTime, limit_s: float) -> bytes:
    """What the child writes until it ends. Raises TookTooLong."""
    answer = b""
    while True:
        if select.select([answers], [], [], _LOOK_S)[0]:
            chunk = answers.read(1 << 16)
            if not chunk:
                return answer
            answer += chunk
        else:
            own.require(cpu_s=limit_s, idle_s=limit_s)


# ---- in the child --------------------------------------------------------------------------------------------------
def _answer(request: dict[str, Any]) -> dict[str, Any]:
    script = Path(request["script"])
    try:
        main = _load_main(script, request["main"])
        if "replay" in request:
            return _replayed(main, request)
        report = check(**request["checks"], **_run_of(main, request))
    except EpError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001  # the script may raise anything
        return {"error": f"{script.name}: main raised {_describe(error, script)}"}
    again = request["again"]
    if report.memory == "ptx" and request["memory"] == "mixed":
        again += " --memory ptx"
    findings = [dataclasses.replace(found, replay=again.format(_run_named(found))) for found in report.findings]
    report = dataclasses.replace(report, findings=tuple(findings))
    return {"report": report.to_dict(), "text": str(report)}


def _run_named(finding: Finding) -> int | str:
    return finding.seed if finding.schedule is None else finding.schedule


def _replayed(main: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """Of ``ep-lib replay``: records the run of one seed and writes its page."""
    from ep_lib.viz.time_travel import page_of

    recording = record(**request["replay"], **_run_of(main, request))
    page_of(recording, request["steps"]).save(request["html"])
    texts = [f"{found.finding.kind}: {found.finding.message}" for found in recording.found]
    return {"findings": texts, "steps": recording.steps}


def _run_of(main: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    return {
        "main": main,
        "ranks": request["ranks"],
        "fabric": Fabric(request["fabric"], ranks_per_node=request["ranks_per_node"]),
        "timeout": request["timeout"],
        "volatile": request["volatile"],
        "memory": request["memory"],
        "resident_blocks": request["resident_blocks"],
        "transport": request["transport"],
    }


def _load_main(script: Path, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location(script.stem, script)
    if spec is None or spec.loader is None:
        raise CheckFailed(f"{script.name} is not a Python file; name one that defines main(rank)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as end:
        raise CheckFailed(
            f"{script.name} cannot be imported: it calls sys.exit({end.code!r}) at once; put what runs the program "
            f'under `if __name__ == "__main__":`'
        ) from None
    except Exception as error:
        raise CheckFailed(f"{script.name} cannot be imported: {_describe(error, script)}") from error
    main = getattr(module, name, None)
    if not callable(main):
        raise CheckFailed(f"{script.name} has no function {name}; define {name}(rank: ep_lib.Rank)")
    try:
        inspect.signature(main).bind(None)
    except TypeError:
        raise CheckFailed(
            f"{name}{inspect.signature(main)} in {script.name} cannot be called with one argument; it must be "
            f"{name}(rank), with defaults for everything else"
        ) from None
    except ValueError:
        pass  # a callable without a signature: try it
    return main  # type: ignore[no-any-return]


def _describe(error: BaseException, script: Path) -> str:
    """Type and text of an exception, and the last line of the script in its traceback."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == script]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"


def _child_main() -> None:
    request = json.loads(sys.argv[1])
    os.set_inheritable(request["answer_to"], False)  # what the script starts does not hold it open
    answer = _answer(request)
    sys.stdout.flush()
    with os.fdopen(request["answer_to"], "wb") as file:
        file.write(json.dumps(answer).encode())
    os._exit(0)  # waits for no thread that the script left behind


if __name__ == "__main__":
    _child_main()
