"""Messages about failures for learners: exceptions and the checker's findings, shortened to the helpful part.

A finding names two places. The learner's own is shown with its line. A line of the hidden test is not shown: instead,
its comment ``// role: the receiver, reading the data`` describes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ep_lib.emulator.findings import Access
from ep_lib.jit.device_state import BELOW_ZERO
from ep_lib.jit.lexer import without_comments
from ep_lib.workshop.grader.process.crossing import GivenWasChanged
from ep_lib.workshop.grader.process.sandbox import ChildFailed, ChildTookTooLong, ChildUsedItsTime
from ep_lib.workshop.grader.scenario import (
    CHECKER_IS_OFF,
    RETURNED_NOTHING,
    BadReply,
    Call,
    Complaint,
    Failure,
    Outputs,
    Scenario,
    Side,
)

STILL_TO_DO = "is still to do"  # what the holes say: see generate.py
UNSEEN = (
    "your writes could not be watched: {} bytes changed, and the checker saw no write to them. What it does not see "
    "proves nothing"
)
_CANARY = "// canary"  # of hidden/grader.cuh: the grader's own race, which every checked run must report
_ROLE = re.compile(r"//\s*role:\s*(.*)")
_MINE = re.compile(r"^(?:\.\./)?mine/(.*?:\d+)")  # the grader's copy of the learner's files
_TEST = "/hidden/"
_TEST_PLACE = re.compile(r"\S*/hidden/[\w/]+\.cuh?:\d+(?: \(in [^)]*\))?(?:: .*)?")
_TEST_LINE = re.compile(r"line \d+ of \S*/hidden/[\w/]+\.cuh?(?P<same>, and [\w ]+ in line \d+\b(?! of))?")
# A compiler's message in a line of the test: it is about the learner's functions.
_IN_A_TEST = re.compile(r"<?\S*hidden/[\w/]+\.cuh?>?:\d+: error: (?P<error>[^\n]*)")
_OF_A_TEST = re.compile(r"\S*/hidden/[\w/]+\.cuh?: (?=error: )")  # an error about a whole file of a test
_OF_TESTS_OWN = re.compile(r" ?'[^']*\btest::[^']*'")  # quotations of the tests' names and types by a compiler
_ASSERTED = re.compile(r"static (?:assertion|_assert) failed[^:]*: \"?([^\n\"]*)")  # of a struct that is given
_OF_A_NAME = re.compile(
    r"declared|not a member|no member|undefined|identifier|arguments?\b|matching|convert|ambiguous|type"
)
_UNFINISHED = "The compiler came as far as the tests, which include your file: is something at its end not finished?"
_RENAMED = "That is where the tests call your functions: keep their names and parameters as the exercise gives them."
_CALLED = re.compile(r"has no attribute|\bargument")  # of a Python exception outside the learner's file
_NO_SETTING = " (spawn's timeout=)"  # a learner has not called spawn
_NO_FOLDER = "pass include=[its folder] to Kernel"  # nor made a Kernel
_INTO_THE_PIECE = "write what you need of it into your file, since no other file of yours is graded"
_OF_A_REAL_PROXY = ": has its thread ended"  # advice to the end; in a test, the test plays the proxy
_LOOPS_IN_TEST = re.compile(r"at \S*/hidden/[\w/]+\.cuh?:\d+(?: \(in [^)]*\))?: (?P<source>.*)")
_WAITED = "What is waited for was never written: to another place, to another rank, with another value, or not at all?"
_OVERWRITTEN = (
    "What is waited for holds another value: is a signal missing, or was a wrong value written? Where a place is used "
    "again: was the right value overwritten before it was taken?"
)
_TOGETHER = "All threads that are to meet there must come: does one take another way, or leave before?"
_WAITERS = ". Who waits where:"  # above a list, of which nothing may be left
_MEETS = re.compile(r"waits? in __\w+")  # of a warp or block
_SEEN = re.compile(r"\(sees (\d+)\)|\bthe signal is (\d+)")  # the values that waiting threads see
_ENDLESS = "A loop that never lets others run never ends: poll with the functions of <ep/wait.cuh> or <ep/memory.cuh>."
_ADVICE = {
    "DeadlockError": _WAITED,
    "LivelockError": _WAITED,
    "deadlock": _WAITED,
    "PeerTimeout": _WAITED,
    "KernelTimeout": _ENDLESS,
    "timeout": _ENDLESS,
    "KernelFault": "Is each index in range, and each address of the rank that it is meant for?",
    "fault": "Is each index in range, and each address of the rank that it is meant for?",
}
_COPY = re.compile(r"\S*\bmine/(?=\S)")
_A_LINE = "a line of the test"  # left out of a list of waits: these wait for a thread of their own warp
_STANDS_BY = re.compile(  # threads of the test that wait because others do
    f"at {_A_LINE}$|which are no part of this call$|are at the barrier in {_A_LINE}"
)
_WAITS = re.compile(r"\s*(?P<block>rank \d+ block \d+) thread \d+ .*waits? in a polling loop.* at (?P<place>.*)")
_LABEL = "{:<12}"
_OF_THE_CHILD = (
    ChildFailed.__name__,
    ChildTookTooLong.__name__,
    ChildUsedItsTime.__name__,
    BadReply.__name__,
)  # kinds with a complete message


def what_failed(scenario: Scenario | Call, outputs: Outputs, work: Path, given: Sequence[str] = ()) -> str:
    """The text for a run that failed or has findings; "" if the run can be judged.

    ``given``: provided files, which the learner does not write.
    """
    if outputs.failure and STILL_TO_DO in outputs.failure.message:
        return failure_text(outputs.failure, work)
    if real := _real(outputs):
        return complaint_text(max(real, key=lambda each: _helps(each, given)), given)
    if outputs.failure:
        text = failure_text(outputs.failure, work)
        # Only Python pieces can call it, and their scenarios are Calls.
        return (
            text.replace("waits in barrier()", "waits in the test's barrier()")
            if isinstance(scenario, Scenario)
            else text
        )
    if scenario.check_seeds and not outputs.complaints:
        return CHECKER_IS_OFF
    return UNSEEN.format(outputs.unseen) if outputs.unseen else ""


def _real(outputs: Outputs) -> list[Complaint]:
    return [each for each in outputs.complaints if not is_canary(each.sides)]


def advice_for(outputs: Outputs) -> str:
    """General advice for this kind of failure; "" if the test's own advice is enough, or a complaint is told."""
    failure = outputs.failure
    if failure is None or _real(outputs):
        return ""
    if _is_renamed(failure):
        return _RENAMED
    if BELOW_ZERO in failure.message:
        return ""
    advice = _ADVICE.get(failure.kind, "")
    seen = [int(a or b) for a, b in _SEEN.findall(failure.message)]
    if advice == _WAITED and not seen and _MEETS.search(failure.message):
        return _TOGETHER
    return _OVERWRITTEN if advice == _WAITED and seen and all(seen) else advice


def says_all(outputs: Outputs) -> bool:
    """Whether the failure explains itself without the test's advice: a missing name, a missing return value, an endless
    loop, or a changed argument."""
    failure = outputs.failure
    return failure is not None and (
        failure.kind in ("AttributeError", GivenWasChanged.__name__, ChildUsedItsTime.__name__)
        or failure.message.endswith(RETURNED_NOTHING)
        or _is_renamed(failure)
    )


def _is_renamed(failure: Failure) -> bool:
    """Whether a function of a Python piece that the tests call is missing, or takes other arguments."""
    return (
        failure.kind in ("AttributeError", "TypeError")
        and _CALLED.search(failure.message) is not None
        and " (line " not in failure.message
    )


def failure_text(failure: Failure, work: Path) -> str:
    """The child's exception without the paths of the temporary copy; for an unfinished task, only that it is one."""
    if todo := re.search(r"Task \w+ is still to do: [^\"]*", failure.message):
        return todo.group()
    text = (
        (failure.message.partition(_OF_A_REAL_PROXY)[0] or "without a word")
        .replace(f"{work}/mine/", "")
        .replace(f"{work}/", "")
        .replace("../mine/", "")
        .replace(_NO_SETTING, "")
        .replace(_NO_FOLDER, _INTO_THE_PIECE)
        .rstrip(". \n")
    )
    if compiled := _IN_A_TEST.match(text):
        if said := _ASSERTED.search(compiled["error"]):
            return said[1]
        advice = _RENAMED if _OF_A_NAME.search(compiled["error"]) else _UNFINISHED
        return f"{failure.kind}: {_OF_TESTS_OWN.sub('', compiled['error'])}\n{advice}"
    lines = [_loop_in_words(line, work) for line in _OF_A_TEST.sub("", text).splitlines()]
    lines = without_test_places("\n".join(lines)).splitlines()
    text = "\n".join(_once_each(line for line in lines if not _STANDS_BY.search(line))).removesuffix(_WAITERS)
    text += f". If it is yours, {_INTO_THE_PIECE}" if failure.kind == ModuleNotFoundError.__name__ else ""
    named = failure.kind in _OF_THE_CHILD or text.startswith(f"{failure.kind}:")
    return text if named else f"{failure.kind}: {text}"


def _loop_in_words(line: str, work: Path) -> str:
    """An endless loop at the test's call of a function, with the name of the learner's function."""
    place = _LOOPS_IN_TEST.search(line) if " loops without " in line else None
    if place is None:
        return line
    called = re.findall(r"(\w+)\(", place["source"])
    for file in sorted(each for each in (work / "mine").rglob("*.*") if each.is_file()):
        text = without_comments(file.read_text("utf-8", "replace"))
        for name in called:
            if begins := re.search(rf"\b{name}\([^;{{]*\{{", text):
                where = f"{file.relative_to(work / 'mine')}:{text.count(chr(10), 0, begins.start()) + 1}"
                return f"{line[: place.start()]}in your {name}, which begins at {where}"
    return f"{line[: place.start()]}in what the test calls of yours"


def _once_each(lines: Iterable[str]) -> list[str]:
    """Lists threads of a block that wait at one place once: the first, and the number of others."""
    first: dict[object, str] = {}
    more: dict[object, int] = {}
    for number, line in enumerate(lines):
        waits = _WAITS.match(line)
        key: object = waits.group("block", "place") if waits else number
        more[key] = more.get(key, -1) + 1
        first.setdefault(key, line)
    return [f"{line} (as do {more[key]} more like it)" if more[key] else line for key, line in first.items()]


def complaint_text(complaint: Complaint, given: Sequence[str] = ()) -> str:
    """The checker's message, both places, and the missing synchronisation, in about four lines."""
    lines = [f"{complaint.kind}: {complaint.message}"]
    lines += dict.fromkeys(_side_text(side, given) for side in complaint.sides)
    if complaint.remedy:
        lines.append(f"{_LABEL.format('remedy')}{_without_test_lines(complaint.remedy)}")
    if complaint.detail:
        lines.append(f"{_LABEL.format('because')}{_without_test_lines(complaint.detail)}")
    return "\n".join(lines)


def _without_test_lines(text: str) -> str:
    """The text of a finding with the learner's files and lines, but without the test's."""
    return _COPY.sub("", _TEST_LINE.sub(_some_line, text))


def without_test_places(text: str) -> str:
    """The text with the test's lines replaced by their roles; the learner's files keep their paths."""
    return _TEST_LINE.sub(_some_line, _TEST_PLACE.sub(_role, text))


def _some_line(place: re.Match[str]) -> str:
    same = place["same"]  # ", and waited for in line 51": of the same file
    return _A_LINE + (same[: same.rindex("line")] + "another" if same else "")


def _role(place: re.Match[str]) -> str:
    role = _ROLE.search(place.group())
    return f"{_A_LINE}: {role[1]}" if role else _A_LINE


def _side_text(side: Side, given: Sequence[str]) -> str:
    by = f" (by the NIC: {side.operation})" if side.operation else ""
    if own := _MINE.search(side.location):
        label = "your line" if _is_own(side, given) else "given"
        return f"{_LABEL.format(label)}{own[1]}: {side.source}{by}"
    if _TEST in side.location:
        role = _ROLE.search(side.source)
        return f"{_LABEL.format('against')}{role[1] if role else 'the other side, which the test plays'}{by}"
    place = re.sub(r"^/\S*/(?=[^/\s]+/[^/\s]+:\d)", "", re.sub(r"^.*/(?=ep/)", "", side.location))
    return f"{_LABEL.format('against')}{place}: {side.source}{by}"


def is_canary(sides: Iterable[Side | Access]) -> bool:
    """Whether a finding, of these accesses, is the grader's own race."""
    return all(_CANARY in side.source and _TEST in side.location for side in sides)


def _is_own(side: Side, given: Sequence[str]) -> bool:
    found = _MINE.search(side.location)
    return found is not None and found[1].rpartition(":")[0] not in given


def _helps(complaint: Complaint, given: Sequence[str]) -> int:
    """The sort key for findings: first those about the learner's line, then those that know exactly what is missing."""
    own = any(_is_own(side, given) for side in complaint.sides)
    return 4 * own + 2 * ("missing __sync" in complaint.remedy) + bool(complaint.detail)
