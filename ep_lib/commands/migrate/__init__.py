"""``ep-lib migrate FILE.cu``: the changes that a kernel written for IBGDA needs on EFA, line by line.

It walks the guide's migration checklist over one file. The rules use the parse of cuda_source.py. They follow calls
into functions of the same file, through branches and around loops, but know neither other files nor a call's queue pair
or peer. ``ep_lib.check`` runs a kernel and knows all that; these rules quickly find the first changes in any file. In
doubt they report nothing: a quiet in a branch counts, because the branch usually elects the thread that calls it.

Exit codes: 0 no change is necessary; 1 a change is necessary (or the file cannot be read); 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ep_lib.commands import efa_environment
from ep_lib.errors import ArgumentError
from ep_lib.jit import cuda_source
from ep_lib.jit.cuda_source import Call, Function, Node
from ep_lib.jit.lexer import without_comments

Severity = Literal["wrong", "slow", "look", "host"]
Step = Literal["done", "to do", "by hand"]

PUT = re.compile(r"nvshmemi_ibgda_put_nbi_warp|nvshmemx?_(?!\w*signal)\w*put\w*|net_put_nbi")
SIGNAL = re.compile(
    r"nvshmemi_ibgda_amo_nonfetch_add|nvshmemx?_\w*atomic_\w+|nvshmemx_signal_op|nvshmemx?_\w+_p"
    r"|net_(?:atomic_)?add_u(?:32|64)_nbi"
)
ORDERS = re.compile(r"nvshmemi_ibgda_quiet|nvshmemx?_(quiet|fence)\w*|nvshmemx?_(barrier|sync)\w*|net_(quiet|fence)")
QUIET = re.compile(r"nvshmemi_ibgda_quiet|nvshmemx?_quiet\w*|net_quiet")
BARRIER = re.compile(r"nvshmemx?_(barrier|sync)\w*")
RUNTIME = re.compile(r"\b(ibgda_get_state|nvshmemi_(ibgda_\w+|get_p2p_ptr))\b")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_LAUNCH = re.compile(r"<<<|\b(?:cudaLaunchKernel|cudaLaunchCooperativeKernel|cuLaunchKernel|LAUNCH_KERNEL)\w*\s*\(")
_INIT = re.compile(r"\b(?:init_efa_device_state|init_internode)\s*\(")
_NVSHMEM_INIT = re.compile(r"\bnvshmemx?_init\w*\s*\(")
_SETENV = re.compile(r'\bsetenv\s*\(\s*"(\w+)"\s*,\s*"([^"\n]*)"')
_NEW_INCLUDES = ("ibgda_shim.cuh", "efa_device_fixed.cuh")


@dataclass(frozen=True)
class Finding:
    """One change to make, or one place to look at. ``line`` is None if it is not in the file."""

    rule: str
    severity: Severity
    line: int | None
    message: str
    remedy: str
    source: str = ""  # the text of the line


@dataclass(frozen=True)
class Item:
    """One line of the checklist: done, to do (see the findings), or to do by hand."""

    text: str
    step: Step
    how: str = ""


@dataclass(frozen=True)
class Migration:
    """``findings`` in the order of the file; ``checklist`` in the order of the guide."""

    file: str
    uses_ibgda: bool
    findings: tuple[Finding, ...]
    checklist: tuple[Item, ...]

    @property
    def must_change(self) -> bool:
        """Whether the file itself is wrong or slow on EFA; places to look at, and the host, do not count."""
        return any(finding.severity in ("wrong", "slow") for finding in self.findings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.cu", type=Path, help="CUDA source that uses IBGDA's functions")
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")
    parser.epilog = (
        "Exit codes: 0 nothing in the file must change; 1 something is wrong or slow on EFA; 2 wrong usage. Things to "
        "look at and this host's environment do not count. The file is read, not compiled."
    )


def run(args: argparse.Namespace) -> int:
    result = migrate_file(args.file, os.environ)
    print(_as_json(result) if args.json else _as_text(result))
    return 1 if result.must_change else 0


def _as_json(result: Migration) -> str:
    return json.dumps({**asdict(result), "must_change": result.must_change}, indent=2)


def _as_text(result: Migration) -> str:
    if not result.uses_ibgda:
        return f"{result.file}: no IBGDA or NVSHMEM put in it, nothing to migrate."
    lines = []
    for f in result.findings:
        place = result.file if f.line is not None else "this host"
        lines.append(f"{f.severity:>5}  {place}{f':{f.line}' if f.line is not None else ''}: {f.message}")
        if f.source:
            lines.append(f"       |  {f.source}")
        lines.append(f"       -> {f.remedy}")
    lines += ["", "Checklist, IBGDA to EFA:"] if lines else ["Checklist, IBGDA to EFA:"]
    for item in result.checklist:
        lines.append(f"{item.step:>8}  {item.text}{f': {item.how}' if item.how else ''}")
    changes = sum(f.severity in ("wrong", "slow") for f in result.findings)
    last = f"{changes} to change in the file." if changes else "Nothing in the file must change."
    return "\n".join([*lines, "", last])


def migrate_file(path: Path, environment: Mapping[str, str]) -> Migration:
    """Walks the checklist over a file. Raises ArgumentError if it cannot be read as text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"cannot read {str(path)!r} as CUDA source: {error}") from error
    return migrate(text, str(path), environment)


def migrate(text: str, file: str, environment: Mapping[str, str]) -> Migration:
    """Walks the checklist over CUDA source, for a host with this environment."""
    code = cuda_source.blank(text)
    commented = without_comments(text, keep_strings=True)
    functions = cuda_source.functions(code)
    old = any(_is_old(name) for name in _INCLUDE.findall(commented))
    order = _Walk(functions).findings()
    if not (old or RUNTIME.search(code) or any(PUT.fullmatch(call.name) for call in cuda_source.calls_in(code))):
        return Migration(file, False, (), ())
    found = [*_includes(commented, code), *_initialisation(code), *order, *_barriers(functions)]
    lines = text.splitlines()
    found = [Finding(f.rule, f.severity, f.line, f.message, f.remedy, lines[(f.line or 1) - 1].strip()) for f in found]
    found.sort(key=lambda f: f.line or 0)
    hosts = _environment({**environment, **dict(_SETENV.findall(commented))})
    return Migration(file, True, (*found, *hosts), _checklist({f.rule for f in (*found, *hosts)}))


def _checklist(rules: set[str]) -> tuple[Item, ...]:
    def item(text: str, *those: str) -> Item:
        return Item(text, "to do" if rules & set(those) else "done")

    return (
        item("include the shim instead of ibgda_device.cuh", "old-include", "no-include"),
        item("call init_efa_device_state() in host code", "no-init", "late-init", "init-elsewhere"),
        item("set the environment variables", "environment"),
        Item("verify P2P between GPUs of a node", "by hand", "print_p2p of tutorial_kernels/03_ibgda_shim_debug.cu"),
        Item("test communication for correctness", "by hand", "ep_lib.check on fabrics 'rc' and 'srd'"),
        Item("run the put benchmark", "by hand", "benchmark_put of tutorial_kernels/03_ibgda_shim_debug.cu"),
        item("check the place of every quiet", "quiet-in-loop", "unordered-signal"),
        item("verify that barriers match", "barrier-in-branch"),
    )


# ---- includes, initialisation, environment ---------------------------------------------------------------------------
def _is_old(name: str) -> bool:
    return name.rsplit("/", 1)[-1] == "ibgda_device.cuh"


def _includes(commented: str, code: str) -> list[Finding]:
    remedy = "include <ep/ibgda_shim.cuh> (in the guide's own code: efa_device_fixed.cuh)"
    includes = list(_INCLUDE.finditer(commented))
    found = [
        Finding(
            "old-include",
            "wrong",
            cuda_source.line_of(commented, match.start(1)),
            f"{match.group(1)} drives an InfiniBand NIC's queues directly, which EFA does not have",
            remedy,
        )
        for match in includes
        if _is_old(match.group(1))
    ]
    first = RUNTIME.search(code)
    if first and not found and not any(match.group(1).endswith(_NEW_INCLUDES) for match in includes):
        line = cuda_source.line_of(code, first.start())
        message = f"{first.group()} is used, but this file does not include what declares it for EFA"
        own = re.search(r'^[ \t]*#[ \t]*include[ \t]*"', commented, re.MULTILINE)  # perhaps one of these declares it
        found.append(Finding("no-include", "look" if own else "wrong", line, message, remedy))
    return found


def _initialisation(code: str) -> list[Finding]:
    init, launch, nvshmem = _INIT.search(code), _LAUNCH.search(code), _NVSHMEM_INIT.search(code)
    use = RUNTIME.search(code)
    remedy = "call init_efa_device_state(num_channels, num_devices) after nvshmem_init() and before any kernel"
    if init and nvshmem and init.start() < nvshmem.start():
        line = cuda_source.line_of(code, init.start())
        return [Finding("late-init", "wrong", line, "the shim is initialised before NVSHMEM is", remedy)]
    if init:
        return []
    if launch:
        line = cuda_source.line_of(code, launch.start())
        return [Finding("no-init", "wrong", line, "a kernel is launched, but the shim is never initialised", remedy)]
    if use:
        line = cuda_source.line_of(code, use.start())
        message = "no host code in this file: does the file that launches this kernel initialise the shim?"
        here = "ep_lib: ep_lib.ibgda.init_efa_device_state(rank, num_channels, num_devices) before the first launch"
        return [Finding("init-elsewhere", "look", line, message, here)]
    return []


def _environment(environment: Mapping[str, str]) -> list[Finding]:
    return [
        Finding(
            "environment",
            "host",
            None,
            efa_environment.explain(variable, environment),
            f"on hosts with EFA: export {variable.export()}",
        )
        for variable in efa_environment.faulty(environment)
    ]


# ---- the order of calls ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _State:
    """The possibly pending puts at a point of the program: their lines, without a quiet or fence since."""

    puts: frozenset[int] = frozenset()
    reachable: bool = True

    def join(self, other: _State) -> _State:
        if not self.reachable or not other.reachable:
            return other if not self.reachable else self
        return _State(self.puts | other.puts)


class _Walk:
    """Follows every kernel, and every device function without callers, along all paths."""

    def __init__(self, functions: list[Function]) -> None:
        self._functions = {function.name: function for function in functions}
        kinds = (PUT, SIGNAL, ORDERS)
        self._matters = {
            name
            for name, function in self._functions.items()
            if any(kind.fullmatch(call.name) for call in self._reached(function.body) for kind in kinds)
        }
        self._signals: dict[int, set[int]] = {}  # line of the signal -> lines of puts that it may overtake
        self._puts_of: dict[int, set[int]] = {}  # by loop: lines of the puts in each iteration
        self._quiets_of: dict[int, set[int]] = {}
        self._calling: list[str] = []
        self._loops: list[int] = []

    def findings(self) -> list[Finding]:
        called = {call.name for function in self._functions.values() for call in _all_calls(function.body)}
        for function in self._functions.values():
            if function.name not in self._matters:
                continue
            if function.is_kernel or function.name not in called:
                self._call(function, _State())
        found = []
        for line, puts in self._signals.items():
            which = ", ".join(str(put) for put in sorted(puts))
            message = (
                f"this signal may overtake the data of the put in line {which}: nothing between them orders them, and "
                "EFA (SRD) keeps no order, not even on one queue pair"
            )
            remedy = "call nvshmemi_ibgda_quiet(dst_pe, qp_id) after the puts and before the signal, or put_signal"
            found.append(Finding("unordered-signal", "wrong", line, message, remedy))
        for loop, quiets in self._quiets_of.items():
            for line in quiets if loop in self._puts_of else ():
                put = min(self._puts_of[loop])
                message = f"a quiet for every put (line {put}) waits for a whole round trip each time around the loop"
                remedy = "issue all puts of a batch, each from its own source, then one quiet after the loop"
                found.append(Finding("quiet-in-loop", "slow", line, message, remedy))
        return found

    def _call(self, function: Function, state: _State) -> _State:
        if function.name in self._calling:
            return state
        self._calling.append(function.name)
        after = self._node(function.body, state)
        self._calling.pop()
        return _State(after.puts)  # a return in the callee does not end the caller

    def _node(self, node: Node, state: _State) -> _State:
        if node.kind == "jump":
            return _State(state.puts, reachable=False)
        if node.kind == "loop":
            return self._loop(node, state)
        for call in node.calls:
            state = self._event(call, state)
        if node.kind == "branch":
            ends = [self._node(part, state) for part in node.parts]
            if node.may_skip and not any(ORDERS.fullmatch(call.name) for call in self._reached(node)):
                ends.append(state)
            after = _State(state.puts, reachable=False)
            for end in ends:
                after = after.join(end)
            return after
        for part in node.parts:
            if not state.reachable:
                break
            state = self._node(part, state)
        return state

    def _loop(self, node: Node, state: _State) -> _State:
        self._loops.append(id(node))
        puts = state.puts
        for _ in range(2):  # the second round sees the puts that the first one left
            turn = _State(puts)
            for call in node.calls:
                turn = self._event(call, turn)
            for part in node.parts:
                turn = self._node(part, turn)
            puts = puts | turn.puts if turn.reachable else puts
        self._loops.pop()
        return _State(turn.puts if turn.reachable else puts)  # assumes that the loop runs at least once

    def _reached(self, node: Node) -> list[Call]:
        """The calls of a node and of the functions that it calls."""
        calls, done = _all_calls(node), set[str]()
        for call in calls:  # grows while it is read
            if call.name in self._functions and call.name not in done:
                done.add(call.name)
                calls += _all_calls(self._functions[call.name].body)
        return calls

    def _event(self, call: Call, state: _State) -> _State:
        if call.name in self._functions:
            if call.name not in self._matters:
                return state
            return self._call(self._functions[call.name], state)
        loop = self._loops[-1] if self._loops else None
        if PUT.fullmatch(call.name):
            if loop is not None:
                self._puts_of.setdefault(loop, set()).add(call.line)
            return _State(state.puts | {call.line})
        if ORDERS.fullmatch(call.name):
            if loop is not None and QUIET.fullmatch(call.name):
                self._quiets_of.setdefault(loop, set()).add(call.line)
            return _State()
        if SIGNAL.fullmatch(call.name) and state.puts and not _is_local(call):
            self._signals.setdefault(call.line, set()).update(state.puts)
        return state


def _is_local(call: Call) -> bool:
    """The shim's atomic with is_local_copy = true never leaves the GPU."""
    return call.name == "nvshmemi_ibgda_amo_nonfetch_add" and call.arguments[4:5] == ("true",)


def _all_calls(node: Node) -> list[Call]:
    return [*node.calls, *(call for part in node.parts for call in _all_calls(part))]


def _barriers(functions: list[Function]) -> list[Finding]:
    def inside(node: Node, in_branch: bool) -> list[Call]:
        here = [call for call in node.calls if in_branch and node.kind == "calls" and BARRIER.fullmatch(call.name)]
        below = in_branch or node.kind == "branch"
        return here + [call for part in node.parts for call in inside(part, below)]

    message = "a barrier inside a branch: every rank must come here equally often, or all of them wait forever"
    remedy = "move it out of the branch, or make sure that the condition is the same on every rank"
    return [
        Finding("barrier-in-branch", "look", call.line, f"{call.name}: {message}", remedy)
        for function in functions
        for call in inside(function.body, False)
    ]
