"""Where to put what is missing: one sentence that names the lines."""

from __future__ import annotations


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
