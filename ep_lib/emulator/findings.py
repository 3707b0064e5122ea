"""The checker's findings in plain words: the mistake, both places, and the life of a network operation."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ep_lib.emulator import surroundings, symbols
from ep_lib.emulator.symbols import Place
from ep_lib.errors import ThreadId


@dataclass(frozen=True)
class Operation:
    """An operation of a NIC: a put, put_signal, signal, get or atomic. Times count the scheduler's turns; 0: not
    yet."""

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
        if self.engine != "the NIC":
            return f"{self.kind}{size}"
        return f"{self.kind}{size} from rank {self.source} to rank {self.target}, queue pair {self.queue_pair}"

    @property
    def engine(self) -> str:
        """Its engine: a NIC, or the copy engine of a block (TMA, cp.async)."""
        return {"bulk": "TMA", "async": "cp.async"}.get(self.kind.partition(" ")[0], "the NIC")

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
    """One side of a finding. For an operation of a NIC, ``thread`` and the line are the poster's."""

    what: str  # "reads", "writes", "reads atomically", "writes (volatile)", ...
    thread: ThreadId
    kernel: str
    location: str  # file:line
    source: str  # the text of that line
    operation: Operation | None = None
    caller: str = ""  # file:line: text, of the call that leads there; empty for the kernel's own lines
    by_host: bool = False  # a rank's Python

    def __str__(self) -> str:
        if self.by_host:
            return f"the host of rank {self.thread.rank} {self.what}\n      at {self.location}"
        who = f"kernel '{self.kernel}', {self.thread}"
        at = f"at {self.location}: {self.source}" if self.location else "at an unknown line"
        if self.operation is None:
            return f"{who} {self.what}\n      {at}"
        operation = self.operation
        return f"{operation.engine} {self.what}: {operation}\n      posted by {who}\n      {at}\n      {operation.life}"


DEFAULT_SCHEDULE = "default"  # the schedule that takes the first option everywhere, whose line is empty


def schedule_name(schedule: str) -> str:
    """A schedule's line as reported: never empty."""
    return schedule or DEFAULT_SCHEDULE


@dataclass(frozen=True)
class Finding:
    """One mistake. ``seed`` replays it, and so does ``schedule`` with few switches, if one is known; ``count``:
    occurrences over all of ``seeds``.

    ``kind``: "race", "scope", "uninitialised", "divergent barrier", "source reused", "slot reused", "signal overtakes
    data", "read before arrival", "staged atomic", "deadlock", "livelock", "out of bounds", "misaligned", "fault",
    "timeout", "assertion", "exception", "weak memory", "values differ", "mask", "shift amount" or "cast range".
    ``remedy`` names what is missing, ``place`` where to put it, if known. ``first`` and ``second`` are the two
    accesses, where there are two.
    ``ranks``: those that it was seen on.
    ``certainty``: the occurrence with the highest value is reported.
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
    lines: tuple[str, ...] = ()  # of a deadlock: where threads wait; of values that differ: where they come from
    replay: str = ""  # what leads to this run, step by step: a call or a command
    schedule: str | None = None  # the run with the fewest switches that shows it, as far as one was found

    @property
    def run(self) -> int | str:
        """The run that replays it: its schedule, or its seed."""
        return self.seed if self.schedule is None else self.schedule

    @property
    def key(self) -> tuple[str, ...]:
        """Findings with equal keys are one: the same lines, on any ranks, blocks and threads.

        Two accesses are one mistake by their lines alone (in either order); anything else by its kind too.
        """
        if self.first is not None and self.second is not None and self.kind != "mask":
            return tuple(sorted((self.first.location, self.second.location)))
        if self.first is not None and self.first.location:
            return (self.kind, self.first.location)
        return (self.kind, *self.lines) if self.lines else (self.kind, self.message)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}"]
        if self.where:
            lines.append(f"    where   {self.where}")
        if self.first is not None:
            lines.append(f"    first   {self.first}{self.called(self.first)}")
        if self.second is not None and self.second != self.first:
            lines.append(f"    second  {self.second}{self.called(self.second)}")
        if self.detail:
            lines.append(f"    note    {self.detail}")
        if self.remedy:
            lines.append(f"    remedy  {self.remedy}")
        if self.place:
            lines.append(f"    place   {self.place}")
        if others := self._elsewhere():
            lines.append(f"    also    {others}")
        seeds = self.seeds or (self.seed,)
        # Several runs may have one schedule and differ only in the values of loads.
        seen, name = (
            ("with {} seeds", f"seed={self.seed}")
            if self.schedule is None
            else ("in {} runs", f'"{schedule_name(self.schedule)}"')
        )
        more = f" (seen {seen.format(len(seeds))})" if len(seeds) > 1 else ""
        lines.append(f"    replay  {name}{more}" + (f": {self.replay}" if self.replay else ""))
        return "\n".join(lines)

    def called(self, side: Access) -> str:
        """From where, if both accesses are in one line, and only the way there tells them apart."""
        one, other = self.first, self.second
        if one is None or other is None or one.location != other.location or one.caller == other.caller:
            return ""
        return f"\n      called at {side.caller}" if side.caller else ""

    def _elsewhere(self) -> str:
        told = self.second or self.first
        others = [rank for rank in self.ranks if told is not None and rank != told.thread.rank]
        if not others:
            return ""
        return f"on rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"


_SENTENCES = {
    "weak memory": "the GPU's memory model allows an older value here, and the run goes wrong by it",
    "volatile": "volatile accesses carry data here (no thread polls it), and nothing orders them: either may be late",
    "read-only path": "memory is read through the read-only path (ld_nc, __ldg, or what the compiler makes of const T* "
    "__restrict__) that the same kernel writes",
    "shuffle": "a shuffle reads a lane that takes no part in it: it gets anything, and results depend on it",
    "shift amount": "by its width or more a GPU shifts everything out, and a CPU gives any value",
    "cast range": "the integer cannot hold the value: a GPU gives the nearest one, or 0 for NaN, and a CPU any",
    "mask": "an operation of a warp waits for lanes that its mask names and that do not come to it: what it gives, and "
    "whether it ends, is undefined on a GPU",
    "activemask": "what a kernel gets depends on which lanes __activemask happens to find together",
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


OTHER_VALUES = ("shift amount", "cast range")  # what a GPU defines and C++ does not


def other_values(report: str) -> list[tuple[Place, str]]:
    """What the checker would find by :data:`OTHER_VALUES`, of a run without it."""
    return [
        (place, f"kernel '{spot['kernel']}' {spot['text']}: {_SENTENCES[spot['kind']]}")
        for spot in json.loads(report)
        if not symbols.is_of_a_library(spot["image"], spot["offset"]) and (place := _place(spot))
    ]


TORN = (
    "a sequence lock marks both ends: the writer stores an odd number, then (behind a fence) the values, then with "
    "release an even one; the reader looks with acquire, reads, looks again behind a fence, and takes the values only "
    "if both found one even number"
)

_OVERWRITTEN = {  # the same where the second access writes
    "slot reused": "what was written into a slot is overwritten, and nothing says that its reader is done with it",
    "signal overtakes data": "data that a NIC brings is overwritten although nothing says that it has arrived",
    "read before arrival": "what a get brings is overwritten although nothing says that it has arrived",
}


_OF_COPIES = {  # the same for those of a block
    "signal overtakes data": "what a {kind} writes is {done} although nothing says that it has been written",
    "read before arrival": "what {article} {kind} brings is {done} although nothing says that it has arrived",
    "source reused": "the source of {article} {kind} is overwritten although {engine} may not have read it yet",
}


def _name_in(where: str) -> str:
    """The variable in shared memory, or the array, that a place in memory is of."""
    found = re.search(r"\('(\w+)'|^(\w+)\[", where)
    return (found[1] or found[2]) if found else ""


def _sentence(kind: str, first: Access, second: Access, where: str, handed_over: bool) -> str:
    copies = [s.operation for s in (first, second) if s.operation is not None and s.operation.engine != "the NIC"]
    if kind in _OF_COPIES and copies:
        both_write = first.what.startswith("writes") and second.what.startswith("writes")
        return _OF_COPIES[kind].format(
            kind=copies[0].kind,
            article="an" if copies[0].kind.startswith("async") else "a",
            engine=copies[0].engine,
            done="overwritten" if both_write else "read",
        )
    if kind == "uninitialised" and not where.startswith("shared memory"):
        return "memory is read that neither the host nor a kernel has written"
    if kind in _OVERWRITTEN and first.what.startswith("writes") and second.what.startswith("writes"):
        return _OVERWRITTEN[kind]
    if kind != "race":
        return _SENTENCES[kind]
    a, b = _who(first, second)
    if first.by_host or second.by_host:
        host, other = (first, second) if first.by_host else (second, first)
        a, b = _rank_of(host), _rank_of(other) if other.by_host or other.operation else f"a kernel of {_rank_of(other)}"
        return f"{a} {host.what} what {b} {other.what}, and nothing orders the two"
    strong = [" " in side.what for side in (first, second)]  # "reads atomically", "writes (volatile)"
    if strong[0] != strong[1]:
        atomic, plain = (a, b) if strong[0] else (b, a)
        how = "a volatile access" if "(volatile)" in first.what + second.what else "an atomic"
        return f"{atomic} uses {how} where {plain} uses a plain access, and nothing orders the two"
    order = "what hands it over does not make it wait" if handed_over else "nothing makes it wait"
    if first.what.startswith("writes") and second.what.startswith("reads"):
        return f"{b} reads what {a} writes, and {order}: it may see old bytes, or some of both"
    if first.what.startswith("reads"):
        return f"{b} overwrites what {a} reads, and {order} until that has happened"
    return f"{a} and {b} write the same memory, and nothing decides who comes last"


def _rank_of(side: Access) -> str:
    if side.by_host:
        return f"rank {side.thread.rank}'s host"
    engine = "" if side.operation is None else f"'s {side.operation.engine.removeprefix('the ')}"
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


def _access(entry: Mapping[str, Any]) -> tuple[Access, Place]:
    place = _place(entry)
    thread = symbols.thread_of(entry)
    if host := entry.get("host"):
        return Access(entry["what"], thread, "", host, "", by_host=True), place
    operation = Operation(**entry["operation"]) if entry["operation"] else None
    return Access(entry["what"], thread, entry["kernel"], place.location, place.source, operation, place.caller), place


def _place(spot: Mapping[str, Any] | None) -> Place:
    return symbols.find(spot["image"], spot["offset"]) if spot else Place()


def parse(report: str, seed: int) -> list[tuple[int, Finding]]:
    """The findings in a checker's report, each with the checker's number for it."""
    findings = []
    for entry in json.loads(report):
        (first, one), (second, other) = (_access(entry[side]) for side in ("first", "second"))
        if entry["kind"] == "divergent barrier" and first.location == second.location and not entry["detail"]:
            continue  # the compiler split one access
        if entry["kind"] == "uninitialised" and entry["place"]["what"] == "a byte" and "__shared__" in first.source:
            continue  # the compiler's own: has the variable been constructed?
        if entry["kind"] in OTHER_VALUES and symbols.is_of_a_library(entry["first"]["image"], entry["first"]["offset"]):
            continue  # a library's own code is correct
        if entry["kind"] == "mask" and not _passes_by(one, other):
            continue  # an early return: a mask may name ended lanes
        if entry["kind"] == "mask" and not second.location:
            second = first
        how, what, remedy = entry["place"]["how"], entry["place"]["what"], entry["remedy"]
        places = [_place(entry["place"][end]) for end in ("from", "to")]
        turns = ""
        if how in ("between_two", "around_two") and _write_in_one_line(first, second):
            if surroundings.in_a_loop(one.file, one.line) is not False:
                turns = f"; or, if the two are of different rounds, {advice(how, what, *places)}"
            how, what, remedy = "own", "", "a place of its own for each thread (check the index), or an atomic"
        detail = entry["detail"]
        signal = entry["signal"]
        credit = symbols.find_called(signal, entry["called"]) if signal else Place()
        wait = _place(entry["wait"])
        if how == "take":
            places[0] = credit.outer
        if how == "wait" and _POLLS_PLAINLY.search(places[1].source):
            how, remedy, detail = (
                "poll",
                _ATOMIC_SIGNAL,
                "this wait polls by a plain load, which a compiler may do once",
            )
            places[0] = other if one.line == places[1].line else one
        if how == "credit_or_data":
            if credit.file == places[0].file and credit.line > places[0].line:
                how = "credit_old"
            else:
                how, detail, credit, wait = "credit", "", Place(), Place()
        if how == "credit_or_count":
            how = "count" if credit and _KEPT.search(wait.source) else "credit"
            places = [*places, wait, credit] if how == "count" else places
            remedy = _READERS if how == "count" else remedy
            credit = wait = Place()
        if how == "mark":
            near = surroundings.between(wait.file, wait.line, places[0].line) if wait.file == places[0].file else None
            if near is None or not near.loop:
                continue  # it does not try again: the second look may be a wait of its own
            remedy = TORN
        if entry["kind"] == "weak memory":
            detail = f"stored before it: {credit}; loaded: {wait}" if credit and wait else ""
        elif ways := _by_way_of(credit, wait, detail):
            detail = f"{detail} ({ways})" if detail else ways
        findings.append(
            (
                entry["number"],
                Finding(
                    kind=entry["kind"],
                    message=_sentence(entry["kind"], first, second, entry["where"], bool(credit and wait)),
                    seed=seed,
                    remedy=remedy,
                    where=entry["where"],
                    detail=detail,
                    first=first,
                    second=second,
                    count=entry["count"],
                    seeds=(seed,),
                    place=_earlier_credit(credit, wait, places[0])
                    if how == "credit_old"
                    else mark_both_ends(places[1], credit, wait)
                    if how == "mark"
                    else count_readers(*places)
                    if how == "count"
                    else advice(how, what, *places, name=_name_in(entry["where"])) + turns,
                    ranks=tuple(entry["ranks"]),
                    certainty=entry["certainty"],
                ),
            )
        )
    return findings


def _passes_by(operation: Place, last: Place) -> bool:
    """Whether a lane whose last access was there leaves an operation of its warp out, and did not end before it."""
    near = surroundings.between(operation.file, operation.line, operation.line)
    behind = last.file == operation.file and last.line >= operation.line
    return near is not None and (behind or bool(near.inside and not near.left))


def _earlier_credit(credit: Place, wait: Place, read: Place) -> str:
    if credit.file == read.file and credit.line < read.line:
        return f"give the credit ({credit}) after the read ({read}), not before"
    return f"wait in {wait} for one credit more: the one that {credit} gives after the read ({read})"


def mark_both_ends(store: Place, mark: Place, look: Place) -> str:
    return (
        f"mark the beginning too: an odd number before {store}, with __threadfence_system() behind it; {mark} stores "
        f"the next even one, and line {look.line} takes no odd one"
    )


_KEPT = re.compile(r"[^=!<>]=[^=]")  # what a look finds is kept: it says which version is read
_POLLS_PLAINLY = re.compile(r"^while\s*\([^()]*\)\s*(?:;|\{\s*\}|continue;)?$")
_ATOMIC_SIGNAL = "an atomic access to the signal (release to set it, acquire to wait for it) on both sides"
_READERS = (
    "wait for all readers of an old version before it is written again: a reader gives no credit for one that it has "
    "not read"
)


def count_readers(read: Place, write: Place, look: Place, publish: Place) -> str:
    return (
        f"let readers add 1 to a count, then look in {look} (a wait for the first version goes before the addition), "
        f"and take it off, with release, after {read}; wait (acquire) until it is 0 before {write}. The addition and "
        f"the new version ({publish}) want a __threadfence() behind them"
    )


def _write_in_one_line(first: Access, second: Access) -> bool:
    """A barrier would not help, except between the rounds of a loop."""
    both_write = first.what == second.what == "writes" and first.operation is second.operation is None
    return both_write and first.location == second.location


def _by_way_of(signal: Place, wait: Place, detail: str) -> str:
    """The lines by which two threads should synchronise."""
    thing = "credit" if "credit" in detail else "lock" if re.search(r"\block\b", detail) else "signal"
    if signal and wait and thing == "lock":
        taken, given = wait.by_way(f"line {wait.line}"), signal.by_way(f"line {signal.line}")
        return f"taken in {taken}, given back in {given} of {signal.name}"
    if signal and wait:
        waited = f"line {wait.line}" if wait.file == signal.file else str(wait)
        return f"the {thing} is stored in {signal}, and waited for in {waited}"
    if signal and thing == "lock":
        return f"taken in {signal.by_way()}"
    return f"the {thing}: {signal or wait}" if signal or wait else ""


def parse_spots(report: str) -> set[str]:
    """Places in kernels as file:line; of Machine.polls, Machine.clocks and Machine.choices."""
    return {symbols.find(spot["image"], spot["offset"]).location for spot in json.loads(report)}


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
        if finding.kind == "mask" and any(f.kind == "shuffle" and _reads_at(f, finding) for f in findings):
            continue  # results depend on it: that one says more
        if finding.kind == "slot reused" and _posts(finding) & overtaken:
            continue
        if finding.kind == "source reused" and _posts(finding) & reused:
            detail = "the put that reuses its slot without a credit also reuses its source: the credit mends both"
            finding = dataclasses.replace(finding, detail=detail)
        kept.append(finding)

    def order(f: Finding) -> int:
        if f.kind == "divergent barrier" or f in races:
            return 0 if f.kind == "divergent barrier" else 1
        if f.kind == "values differ":  # says what comes of the others
            return 4
        return 3 if f.kind == "source reused" and reused | overtaken else 2

    return sorted(kept, key=order)


def _reads_at(race: Finding, early: Finding) -> bool:
    sides = [s for s in (race.first, race.second) if s is not None]
    return early.first is not None and any(s.location == early.first.location for s in sides)


def _posts(finding: Finding) -> set[str]:
    return {s.location for s in (finding.first, finding.second) if s is not None and s.operation is not None}


# ---- where to put what is missing: one sentence that names the lines


_AT_ONE_LINE = {
    "before": "put {what} before {last}",
    "at": "{what} in {last}",
    "wait": "wait for the signal of what is read before {last}",
    "written": "write it before {last} reads it, with __syncthreads() in between; or the index there is wrong",
    "credit_put": "before {last} puts there again, wait for a credit that the receiver gives when it has read the slot",
}
_AT_TWO_LINES = {
    "poll": "load with acquire in {last}, such as by ep::ld_acquire_sys, and store with release in {first}",
    "own": "check the index in {two}: two threads are there for one place",
    "same": "let one thread store it in {two}, or all of them by an atomic; if each has a place of its own, check the "
    "index",
    "take": "take the lock of {first} before {last} too",
    "own_wait": "{two} write the same place: let the NIC write elsewhere, or wait for its signal in between",
    "wait_post": "wait for {first} (its release) before {last} is posted",
    "both": "{what}: in {two}",
    "swap": "signal ({first}) after the data ({last}), not before",
    "wait_for": "wait for the signal of {first} before {last} reads",
    "wait_round": "wait in {last} for the value that {first} stores after this write: an earlier round's is not enough",
    "wait_count": "wait in {last} for all that may signal before {first} does, not for so many of them; or let the "
    "writers signal in the order of their places, each when its turn has come",
    "credit_fewer": "begin with one credit fewer in what {first} waits for, or wait there for one more, before {last} "
    "writes there again",
    "outside": "one barrier outside of the branches instead of {two}",
    "named": "put a barrier by number that both warps pass between {first} and {last}",
    "named_again": "end each round at a second barrier by number: reader after {first}, writer before {last} runs "
    "again",
    "credit": "before {last} writes there again, wait for a credit that the reader gives after {first}",
    "credit_more": "wait in {first} for one credit more, before {last} writes there again",
    "credit_late": "before {first} writes there again, wait for a credit that the reader gives after {last}",
}


def advice(how: str, what: str, first: Place, last: Place, *, name: str = "") -> str:
    """A sentence such as "put a quiet between line 41 and line 43 of x.cu"; empty if there is no advice.

    ``how``: empty, "between", "between_two", "around_two", "after", "before_credit", "before_signal", or of the two
    tables above. ``what``: what to put there. ``first``, ``last``: in the order of one thread's program (not of
    "..._two"). ``name``: of the variable that the two meet at.
    """
    if how == "before_credit" and first and last and not (first.file == last.file and first.line < last.line):
        return f"give the credit ({last}) after the read ({first}), with {what} between them"
    if how == "before_credit" and first:
        return f"put {what} {_between(first, last)}" if last else f"put {what} after {first}, before the credit"
    if how in ("between_two", "around_two") and first and last:
        low, high = sorted((first, last), key=lambda place: (place.name, place.line))
        return _barrier(what, low, high, how == "around_two", name)
    if how in ("between", "before_signal") and first and last and what.startswith("__sync"):
        put = _barrier(what, first, last, False)
        if how == "between" or first.file != last.file or first.line < last.line:
            return put
        return f"{put}; or, if this signal tells of this write, give it after {first}, with {what} between them"
    if how == "between":
        wait, _, others = what.partition(", then ")
        near = surroundings.between(first.file, first.line, last.line) if others and first.file == last.file else None
        if near and near.meets and first.line < last.line:
            return (
                f"put {wait} before the barrier in line {near.meets} of {first.name}, not behind it: it waits for the "
                f"copies of its own thread, and others hear of it at a barrier behind the wait"
            )
        return f"put {what} {_between(first, last)}" if first and last else ""
    if how == "after":
        return f"put {what} after {first}, before the signal or credit that tells of it" if first else ""
    if not how or not last:
        return ""
    if how in _AT_ONE_LINE:
        return _AT_ONE_LINE[how].format(what=what, last=last)
    if not first:
        return ""
    if how in _AT_TWO_LINES:
        two = str(first) if how in ("own", "same") and first == last else _two(first, last)
        return _AT_TWO_LINES[how].format(what=what, first=first, last=last, two=two)
    raise ValueError(f"unknown advice {how!r}")


def _barrier(what: str, low: Place, high: Place, again: bool, name: str = "") -> str:
    """Where a barrier of a grid, block or warp goes; ``again``: the two may have met in a second round only."""
    group = {"__syncw": "warp", "__synct": "block"}.get(what[:7], "grid")
    near = surroundings.between(low.file, low.line, high.line, group) if low.file == high.file else None
    if near is None:
        return f"put {what} {_between(low, high)}"
    if low.line > high.line and not near.loop:
        return f"wait ({low}) before {high} reads, with {what} between the two"
    if near.parted:
        return (
            f"{_two(low, high)} are in different branches of line {near.parted}, so no barrier fits between them: end "
            f"the branches after the first, put {what} there for all threads, then branch again (or hand over with a "
            f"flag, stored with release and loaded with acquire)"
        )
    rounds = not near.around and (again or near.meets or low.line == high.line) if near.loop else near.full
    if rounds and name and (last := surroundings.last_use(high.file, low.line, high.line, name)) > high.line:
        return _barrier(what, low, symbols.at_line(high, last), again)
    if low.line > high.line:
        text = f"put {what} after {low}, before line {high.line} runs again"
    elif rounds and not near.loop and high.source.startswith("return"):
        text = f"put {what} before {low}, which runs again after line {high.line}"
    elif near.meets and not rounds:  # a barrier is there, of too few threads or in another branch
        text = f"put {what} {_between(low, high)}; the barrier there does not hold all threads that meet here"
    elif rounds and low.line == high.line:
        text = f"put {what} after {low}, before it runs again"
    elif rounds and near.meets:
        text = f"put {what} after {high}, before line {low.line} runs again"
    elif rounds:
        text = f"put {what} after {high}, before line {low.line} runs again (or between the two, if there is none)"
    elif low.line == high.line:
        text = f"split {low}: read into a variable, then {what}, then write"
    else:
        text = f"put {what} {_between(low, high)}"
    outside = (group != "warp" and near.inside) or near.deeper
    if outside and outside != low.line:
        who = "lanes" if group == "warp" else "threads"
        text += f", outside of line {outside}'s branch or loop: all {who} of the {group} must reach it"
    elif near.inside and group != "warp":
        text += f", where all threads of the {group} reach it, outside of the branch"
    return text


def _two(first: Place, last: Place) -> str:
    if first.file != last.file:
        return f"{first} and {last}"
    numbers = sorted({first.line, last.line})
    if len(numbers) == 1:
        return f"those in {first}"
    return f"line {numbers[0]} and line {numbers[1]} of {first.name}"


def _between(first: Place, last: Place) -> str:
    if first.file != last.file:
        return f"after {first} and before {last}"
    if first.line < last.line:
        return f"between line {first.line} and line {last.line} of {first.name}"
    in_a_loop = surroundings.in_a_loop(first.file, first.line)
    if first.line == last.line:
        return f"after {first}" + (", before it runs again" if in_a_loop is not False else "")
    if in_a_loop is False:
        return f"after {first}, before line {last.line} (which runs in another place of the program)"
    return f"after line {first.line} and before line {last.line} of {first.name} runs again"
