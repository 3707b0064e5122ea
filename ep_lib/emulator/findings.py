"""What the checker found, in a person's words: the mistake, both places, an operation's way over the network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ep_lib.emulator import symbols
from ep_lib.errors import ThreadId


@dataclass(frozen=True)
class Operation:
    """What a NIC does: a put, put_signal, signal, get or atomic. Times count the scheduler's turns; 0: not yet."""

    kind: str
    number: int
    source: int
    target: int
    queue_pair: int
    bytes: int
    posted: int
    first_read: int
    last_read: int
    first_write: int
    delivered: int
    completed: int

    def __str__(self) -> str:
        size = f" of {self.bytes} bytes" if self.bytes else ""
        if self.by_tma:
            return f"{self.kind}{size}"
        return f"{self.kind}{size} from rank {self.source} to rank {self.target}, queue pair {self.queue_pair}"

    @property
    def by_tma(self) -> bool:
        """Whether it is a bulk copy of a block, not an operation of a NIC."""
        return self.kind.startswith("bulk")

    @property
    def life(self) -> str:
        """When it was posted, read its source, was delivered and completed."""
        steps = [f"posted at turn {self.posted}"]
        if self.bytes:
            steps.append(_span("read its source", self.first_read, self.last_read))
        steps.append(_span("delivered", self.first_write or self.delivered, self.delivered))
        steps.append(_span("completed", self.completed, self.completed))
        return ", ".join(steps)


def _span(what: str, first: int, last: int) -> str:
    if not first:
        return f"not {what} when this run ended"
    return f"{what} at turn {first}" + (f" to {last}" if last > first else "")


@dataclass(frozen=True)
class Access:
    """One side of a finding. For an operation of a NIC, thread and line are those that posted it."""

    what: str  # "reads", "writes", "reads atomically", ...
    thread: ThreadId
    kernel: str
    location: str  # file:line
    source: str  # the text of that line
    operation: Operation | None = None

    def __str__(self) -> str:
        who = f"kernel '{self.kernel}', {self.thread}"
        at = f"at {self.location}: {self.source}" if self.location else "at an unknown line"
        if self.operation is None:
            return f"{who} {self.what}\n      {at}"
        who_does = "TMA" if self.operation.by_tma else "the NIC"
        return (
            f"{who_does} {self.what}: {self.operation}\n      posted by {who}\n      {at}\n      {self.operation.life}"
        )


@dataclass(frozen=True)
class Finding:
    """One mistake. ``seed`` replays it; ``count`` is how often it was seen, over all seeds in ``seeds``.

    ``kind``: "race", "scope", "uninitialised", "divergent barrier", "source reused", "slot reused", "signal overtakes
    data", "read before arrival", "staged atomic", "deadlock", "out of bounds", "misaligned", "fault", "timeout",
    "assertion", "exception" or "values differ". ``remedy`` names what is missing, ``place`` where to put it, as far as
    that is known. ``first`` and ``second`` are the two accesses, where there are two. ``ranks``: on which it was seen.
    ``certainty``: of several occurrences of one mistake, the one with the highest is reported.
    """

    kind: str
    message: str
    seed: int
    remedy: str = ""
    where: str = ""
    detail: str = ""
    first: Access | None = None
    second: Access | None = None
    count: int = 1
    seeds: tuple[int, ...] = field(default=())
    place: str = ""
    ranks: tuple[int, ...] = ()
    certainty: int = 0
    lines: tuple[str, ...] = ()  # of a deadlock: where threads wait

    @property
    def key(self) -> tuple[str, ...]:
        """Findings with equal keys are one: the same lines, whichever ranks, blocks and threads they ran on.

        Two accesses are one mistake by their lines alone (in either order); anything else by its kind too.
        """
        if self.first is not None and self.second is not None:
            return tuple(sorted((self.first.location, self.second.location)))
        if self.first is not None and self.first.location:
            return (self.kind, self.first.location)
        return (self.kind, *self.lines) if self.lines else (self.kind, self.message)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}"]
        if self.where:
            lines.append(f"    where   {self.where}")
        if self.first is not None:
            lines.append(f"    first   {self.first}")
        if self.second is not None and self.second != self.first:
            lines.append(f"    second  {self.second}")
        if self.detail:
            lines.append(f"    note    {self.detail}")
        if self.remedy:
            lines.append(f"    remedy  {self.remedy}")
        if self.place:
            lines.append(f"    place   {self.place}")
        if others := self._elsewhere():
            lines.append(f"    also    {others}")
        seeds = self.seeds or (self.seed,)
        more = f" (seen with {len(seeds)} seeds)" if len(seeds) > 1 else ""
        lines.append(f"    replay  seed={self.seed}{more}")
        return "\n".join(lines)

    def _elsewhere(self) -> str:
        told = self.second or self.first
        others = [rank for rank in self.ranks if told is not None and rank != told.thread.rank]
        if not others:
            return ""
        return f"on rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"


_SENTENCES = {
    "proxy fence": "a bulk copy meets what a thread has written, and may see the old bytes: no tma_fence lies between",
    "width": "two atomics of different widths meet at one location: neither is atomic for the other",
    "scope": "both accesses are atomic, but the scope of one does not reach the thread of the other",
    "slot reused": "a slot is written again before its reader is done with it: its writer does not wait for a credit",
    "source reused": "the source of an operation is overwritten although the NIC may not have read it yet",
    "signal overtakes data": "data that a NIC brings is read although nothing says that it has arrived",
    "read before arrival": "what a get brings is read although nothing says that it has arrived",
    "staged atomic": "a NIC adds in two steps, a GPU changes the same counter: one of them can get lost",
    "uninitialised": "shared memory is read that no thread of the block has written",
    "divergent barrier": "threads of one block wait at different __syncthreads for each other",
}


def _sentence(kind: str, first: Access, second: Access, where: str) -> str:
    if kind == "uninitialised" and not where.startswith("shared memory"):
        return "memory is read that neither the host nor a kernel has written"
    if kind != "race":
        return _SENTENCES[kind]
    a, b = _who(first, second)
    if ("atomically" in first.what) != ("atomically" in second.what):
        atomic, plain = (a, b) if "atomically" in first.what else (b, a)
        return f"{atomic} uses an atomic where {plain} uses a plain access, and nothing orders the two"
    if first.what.startswith("writes") and second.what.startswith("reads"):
        return f"{b} reads what {a} writes, and nothing makes it wait: it may see old bytes, or some of both"
    if first.what.startswith("reads"):
        return f"{b} overwrites what {a} reads, and nothing makes it wait until that has happened"
    return f"{a} and {b} write the same memory, and nothing decides who comes last"


def _rank_of(side: Access) -> str:
    engine = "" if side.operation is None else "'s TMA" if side.operation.by_tma else "'s NIC"
    return f"rank {side.thread.rank}{engine}"


def _who(first: Access, second: Access) -> tuple[str, str]:
    a, b = first.thread, second.thread
    if first.operation is not None or second.operation is not None or a.rank != b.rank:
        one, other = _rank_of(first), _rank_of(second)
        return (one, other) if one != other else ("one operation", "another operation")
    if a.block != b.block:
        return "one block", "another block"
    return f"thread {_index(a)}", f"thread {_index(b)}"


def _index(thread: ThreadId) -> str:
    return str(thread).rsplit("thread ", 1)[1]


def _access(entry: Mapping[str, Any]) -> Access:
    place = symbols.find(entry["image"], entry["offset"])
    thread = ThreadId(entry["rank"], tuple(entry["block"]), tuple(entry["thread"]))
    operation = Operation(**entry["operation"]) if entry["operation"] else None
    return Access(entry["what"], thread, entry["kernel"], place.location, place.source, operation)


def parse(report: str, seed: int) -> list[Finding]:
    """The findings in a checker's report."""
    findings = []
    for entry in json.loads(report):
        first, second = _access(entry["first"]), _access(entry["second"])
        if entry["kind"] == "divergent barrier" and first.location == second.location and not entry["detail"]:
            continue  # the compiler made two of one
        if entry["kind"] == "uninitialised" and entry["place"]["what"] == "a byte" and "__shared__" in first.source:
            continue  # the compiler's own: has the variable been constructed?
        findings.append(
            Finding(
                kind=entry["kind"],
                message=_sentence(entry["kind"], first, second, entry["where"]),
                seed=seed,
                remedy=entry["remedy"],
                where=entry["where"],
                detail=entry["detail"],
                first=first,
                second=second,
                count=entry["count"],
                seeds=(seed,),
                place=advice(
                    entry["place"]["how"],
                    entry["place"]["what"],
                    *(_location(entry["place"][end]) for end in ("from", "to")),
                ),
                ranks=tuple(entry["ranks"]),
                certainty=entry["certainty"],
            )
        )
    return findings


def _location(spot: Mapping[str, Any] | None) -> str:
    return symbols.find(spot["image"], spot["offset"]).location if spot else ""


def merge_findings(findings: list[Finding]) -> list[Finding]:
    """The same findings, with consequences of another one left out, and causes before their consequences.

    Where a barrier is missing, the reader may also come before the writer: no finding of its own. A signal that
    overtakes its data makes credits worthless, a slot without a credit has its source reused as well, and a mistake in
    shared memory may cause any of those that follow.
    """
    races = [f for f in findings if f.kind == "race" and f.where.startswith("shared memory")]
    overtaken = {line for f in findings if f.kind == "signal overtakes data" for line in _posts(f)}
    reused = {line for f in findings if f.kind == "slot reused" for line in _posts(f)} - overtaken
    kept = []
    for finding in findings:
        if finding.kind == "uninitialised" and any(_reads_at(f, finding) for f in findings if f.kind != finding.kind):
            continue
        if finding.kind == "slot reused" and _posts(finding) & overtaken:
            continue
        if finding.kind == "source reused" and _posts(finding) & reused:
            detail = "the put that reuses its slot without a credit also reuses its source: the credit mends both"
            finding = dataclasses.replace(finding, detail=detail)
        kept.append(finding)

    def order(f: Finding) -> int:
        if f.kind == "divergent barrier" or f in races:
            return 0 if f.kind == "divergent barrier" else 1
        return 3 if f.kind == "source reused" and reused | overtaken else 2

    return sorted(kept, key=order)


def _reads_at(race: Finding, early: Finding) -> bool:
    sides = [s for s in (race.first, race.second) if s is not None]
    return early.first is not None and any(s.location == early.first.location for s in sides)


def _posts(finding: Finding) -> set[str]:
    return {s.location for s in (finding.first, finding.second) if s is not None and s.operation is not None}


# ---- where to put what is missing: one sentence that names the lines


def advice(how: str, what: str, begin: str, end: str) -> str:
    """A sentence such as "put a quiet between line 41 and line 43 of x.cu"; empty if nothing can be said.

    ``how``: empty, "between", "between_two", "around_two", "before", "after", "before_credit", "at", "both", "swap",
    "wait", "credit", "credit_late", "credit_put", "written" or "outside". ``what`` is put there. ``begin``, ``end``:
    places as ``file:line``, in the order of one thread's program (not of "..._two").
    """
    first, last = _Line(begin), _Line(end)
    if how == "before_credit" and first and last and first.file == last.file and last.number < first.number:
        return f"give the credit ({last}) after the read ({first}), with {what} between them"
    if how == "before_credit" and first:
        return f"put {what} {_between(first, last)}" if last else f"put {what} after {first}, before the credit"
    if how in ("between_two", "around_two") and first and last:
        low, high = sorted((first, last), key=lambda line: (line.file, line.number))
        return _of_two(what, low, high, how == "around_two")
    if how == "between":
        return f"put {what} {_between(first, last)}" if first and last else ""
    if how == "after":
        return f"put {what} after {first}, before the signal or credit that tells of it" if first else ""
    if not how or not last:
        return ""
    if how in ("before", "at"):
        return f"put {what} before {last}" if how == "before" else f"{what} in {last}"
    if how == "wait":
        return f"wait for the signal of what is read before {last}"
    if how == "written":
        return f"write it before {last} reads it, with __syncthreads() in between; or the index there is wrong"
    if how == "credit_put":
        return f"before {last} puts there again, wait for a credit that the receiver gives when it has read the slot"
    if not first:
        return ""
    if how == "both":
        return f"{what}: in {first} and {last}"
    if how == "swap":
        return f"signal ({first}) after the data ({last}), not before"
    if how == "outside":
        return f"one barrier outside of the branches instead of {_two(first, last)}"
    if how == "credit":
        return f"before {last} writes there again, wait for a credit that the reader gives after {first}"
    if how == "credit_late":
        return f"before {first} writes there again, wait for a credit that the reader gives after {last}"
    raise ValueError(f"unknown advice {how!r}")


class _Line:
    """``file:line``, which may be followed by where in a header of ep_lib it came to pass."""

    def __init__(self, location: str) -> None:
        self.file, _, number = location.partition(" (in ")[0].rpartition(":")
        self.number = int(number) if number.isdigit() else 0

    def __bool__(self) -> bool:
        return bool(self.number)

    def __str__(self) -> str:
        return f"line {self.number} of {self.file}"


def _of_two(what: str, low: _Line, high: _Line, again: bool) -> str:
    """Two lines that threads of a block run in no order; ``again``: met in a second round only, as far as is known."""
    if not again or low.file != high.file or low.number == high.number:
        return f"put {what} {_between(low, high)}"
    return f"put {what} after {high}, before line {low.number} runs again (or between the two, if there is none)"


def _two(first: _Line, last: _Line) -> str:
    if first.file != last.file:
        return f"{first} and {last}"
    numbers = sorted({first.number, last.number})
    if len(numbers) == 1:
        return f"those in {first}"
    return f"line {numbers[0]} and line {numbers[1]} of {first.file}"


def _between(first: _Line, last: _Line) -> str:
    if first.file != last.file:
        return f"after {first} and before {last}"
    if first.number < last.number:
        return f"between line {first.number} and line {last.number} of {first.file}"
    if first.number == last.number:
        return f"after {first}, before it runs again"
    return f"after line {first.number} and before line {last.number} of {first.file} runs again"
