"""The command line: ``ep-lib doctor | demo | check | replay | bench | grade | ladder | ...``.

A command is a module with ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code). Only the requested
command's module is imported, so ``ep-lib --help`` is quick and works without torch or CuPy.

Exit codes: 0 done; 1 an error of ep_lib (one paragraph on stderr) or a command's own "no"; 2 wrong usage;
130 interrupted. With ``EP_LIB_DEBUG=1`` errors show their traceback instead.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence

from ep_lib.commands import Entry
from ep_lib.config import Config
from ep_lib.errors import EpError
from ep_lib.version import __version__

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


_COMMANDS = (
    Entry("doctor", "ep_lib.commands.doctor", "what this machine can do, and the next step for what is missing"),
    Entry("demo", "ep_lib.commands.demo", "train a small mixture-of-experts model and run it across ranks"),
    Entry("check", "ep_lib.commands.check", "find races, missing fences and deadlocks in a script's main(rank)"),
    Entry("replay", "ep_lib.commands.replay", "go through the run of a finding step by step, on a page of HTML"),
    Entry("bench", "ep_lib.commands.bench", "measure puts, transports and modes, on GPUs or on the emulator"),
    Entry(
        "dispatch-combine",
        "ep_lib.commands.dispatch_combine",
        "dispatch and combine once with the standalone API, checked and timed; under mpiexec, torchrun or alone",
    ),
    Entry("grade", "ep_lib.commands.grade", "check your piece of an exercise with the hidden tests"),
    Entry("release", "ep_lib.commands.release", "for instructors: the learners' tree, without any answers"),
    Entry("ladder", "ep_lib.commands.ladder", "run, check and time every rung of a tutorial file"),
    Entry("migrate", "ep_lib.commands.migrate", "what a CUDA file written for IBGDA must change to run on EFA"),
    Entry("lab", "ep_lib.commands.lab", "open the notebooks in JupyterLab"),
    Entry("cache", "ep_lib.commands.cache", "show, prune or clear the cache of compiled kernels"),
)


def build_parser(selected: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; only ``selected`` gets its arguments, since that imports the command's module."""
    parser = argparse.ArgumentParser(
        prog="ep-lib",
        description="A workshop on GPU-initiated communication, and the expert-parallel library that it builds.",
        epilog="`ep-lib COMMAND --help` says more. Settings: the EP_LIB_* variables listed in ep_lib/config.py.",
    )
    parser.add_argument("--version", action="version", version=f"ep-lib {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for entry in _COMMANDS:
        if not entry.exists():
            continue
        sub = entry.add_parser(commands)
        if entry.name == selected:
            module = entry.load()
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` is ``sys.argv[1:]`` by default."""
    words = list(sys.argv[1:] if argv is None else argv)
    # The top-level options take no value, so the first word without a dash is the command.
    selected = next((word for word in words if not word.startswith("-")), None)
    try:
        Config.from_environment()  # reports a bad EP_LIB_* value here, not deep inside a run
        args = build_parser(selected).parse_args(words)
        return int(args.run(args))
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) went away, which is no error. Keep the interpreter's flush quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EpError as error:
        if _debug():
            raise
        if not (error.is_everywhere and _is_further_rank()):
            _say(str(error))
        return EXIT_ERROR
    except ImportError as error:
        if _debug():
            raise
        missing = error.name or str(error)
        _say(
            f"the command {selected!r} needs the Python package {missing!r}, which cannot be imported here ({error}). "
            "`ep-lib doctor` names the one thing to install; EP_LIB_DEBUG=1 shows where it was needed"
        )
        return EXIT_ERROR


def _is_further_rank() -> bool:
    """Whether a launcher has started this process as a rank other than the first."""
    from ep_lib.runtime import launcher

    return launcher.detect().rank > 0


def _debug() -> bool:
    return os.environ.get("EP_LIB_DEBUG", "").strip().lower() in {"1", "true", "yes", "on"}


def _say(message: str) -> None:
    """Prints to stderr, with long lines wrapped; line breaks in the message (source code, lists) stay."""
    lines = [textwrap.fill(line, width=110, subsequent_indent="  ") for line in f"ep-lib: {message}".splitlines()]
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
