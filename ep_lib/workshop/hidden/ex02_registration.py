"""Hidden tests of exercise 02_registration. A model of the cache here says what each step may do; in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import all_of, calling, one

Held = tuple[int, int, int]  # address, bytes, users
Step = tuple[Any, ...]
_FIRST_NUMBER = 101  # of the initial registrations, as in the program; those that the cache makes have 0, 1, ...
_OF_THE_TEST = ("use", "refuse")  # steps that are no call of the learner's


class _Model:
    """The registrations by number: [address, bytes, users]. Idle ones are in the order of their release."""

    def __init__(self, held: Sequence[Held], idle_bytes: int) -> None:
        self.known = {number: list(each) for number, each in enumerate(held, _FIRST_NUMBER)}
        self.idle = [number for number, each in self.known.items() if not each[2]]
        self.idle_bytes = idle_bytes
        self.refuses = False

    def use(self, number: int) -> None:
        self.known[number][2] += 1
        if number in self.idle:
            self.idle.remove(number)

    def refuse(self) -> None:
        self.refuses = True

    def holding(self, address: int, nbytes: int) -> set[int]:
        return {n for n, (a, b, _) in self.known.items() if a <= address and address + nbytes <= a + b}

    def touched(self, address: int, nbytes: int) -> set[int]:
        return {n for n, (a, b, _) in self.known.items() if a < address + nbytes and address < a + b}

    def shown(self, number: int) -> str:
        address, nbytes, users = self.known[number]
        return f"[{address}, {address + nbytes}) with {users} users"

    def wrong(self, step: Step, seen: dict[str, Any]) -> str | None:
        """The problem with a step, or None; updates the model by it."""
        what, *arguments = step
        made = [event[1:] for event in seen["events"] if event[0] == "register"]
        ended = [event[1] for event in seen["events"] if event[0] == "deregister"]
        for number in ended:
            if number not in self.known:
                return f"{what}{tuple(arguments)} deregistered number {number}, which is not registered"
        found: str | None = getattr(self, f"_{what}")(arguments, seen, made, ended)
        return found or self._known_wrong(f"{what}{tuple(arguments)}", seen["known"])

    def _known_wrong(self, after: str, known: Sequence[tuple[int, int]]) -> str | None:
        numbers = [number for number, _ in known]
        if sorted(numbers) != sorted(self.known):
            return f"after {after}, known has the numbers {numbers}; registered are {sorted(self.known)}"
        for number, users in known:
            if users != self.known[number][2]:
                return f"after {after}, number {number} has {users} users where it should have {self.known[number][2]}"
        idle = [number for number in numbers if number in self.idle]
        if idle != self.idle:
            return (
                f"after {after}, the idle ones in known are {idle}; in the order in which they were let go {self.idle}"
            )
        return None

    def _find(self, arguments: Any, seen: Any, made: Any, ended: Any) -> str | None:
        address, nbytes = arguments
        asked, good = f"find({address}, {nbytes})", self.holding(address, nbytes)
        if made or ended or seen["error"]:
            return f"{asked} is to look only: it registered or ended something, or raised {seen['error']}"
        got = seen["returned"]
        if got is None and good:
            return f"{asked} found nothing, although {self.shown(min(good))} holds all of these bytes"
        if got is not None and got not in good:
            return f"{asked} returned {self.shown(got)}, which does not hold all of these bytes"
        return None

    def _acquire(self, arguments: Any, seen: Any, made: Any, ended: Any) -> str | None:
        address, nbytes = arguments
        asked, good = f"acquire({address}, {nbytes})", self.holding(address, nbytes)
        got = seen["returned"]
        if self.refuses and not good:
            self.refuses = False
            if seen["error"] == "NotSupportedError" and not made and not ended:
                return None
            return f"{asked}: register() raised NotSupportedError, and acquire() did not"
        if got is not None and got not in self.known and not made:
            return f"{asked} returned a registration that register() never made: before it, register() has raised"
        if seen["error"] or got is None or ended:
            return f"{asked} raised {seen['error']}, returned nothing, or deregistered something"
        if good and made:
            return f"{asked} registered memory anew, although {self.shown(min(good))} holds it"
        if not good and len(made) != 1:
            return f"{asked} needs a new registration, and register() was called {len(made)} times"
        for number, at, size in made:
            if at > address or address + nbytes > at + size:
                return f"{asked} registered [{at}, {at + size}), which does not hold these bytes"
            self.known[number] = [at, size, 0]
            good = {number}
        if got not in good:
            return f"{asked} returned {self.shown(got)}, which does not hold all of these bytes"
        self.use(got)
        if seen["users"] != self.known[got][2]:
            return f"{asked}: the registration has {seen['users']} users where it should have {self.known[got][2]}"
        return None

    def _release(self, arguments: Any, seen: Any, made: Any, ended: Any) -> str | None:
        (number,) = arguments
        one = self.known.get(number)
        if one is None or not one[2]:
            return None if seen["error"] == "ArgumentError" else "a second release of the same user was not refused"
        if seen["error"] or made:
            return f"release() of a registration in use raised {seen['error']}, or registered something"
        one[2] -= 1
        if not one[2]:
            self.idle.append(number)
        if busy := [each for each in ended if self.known[each][2]]:
            return f"release() ended {self.shown(busy[0])}"
        expected, taken = [], sum(self.known[each][1] for each in self.idle)
        for each in self.idle:
            if taken <= self.idle_bytes:
                break
            expected.append(each)
            taken -= self.known[each][1]
        if len(ended) > len(expected):
            return f"release() ended {len(ended)} idle registrations; {len(expected)} would have been enough"
        left = sum(self.known[each][1] for each in self.idle if each not in ended)
        if left > self.idle_bytes:
            return f"after release() the idle registrations take {left} bytes, more than the {self.idle_bytes} they may"
        if ended != expected:
            early = next((each for each in ended if each not in expected), ended[0])
            return f"release() ended {self.shown(early)}, which was not the one let go of longest ago"
        for each in ended:
            self.idle.remove(each)
            del self.known[each]
        return None

    def _forget(self, arguments: Any, seen: Any, made: Any, ended: Any) -> str | None:
        address, nbytes = arguments
        asked, touched = f"forget({address}, {nbytes})", self.touched(address, nbytes)
        if any(self.known[each][2] for each in touched):
            if seen["error"] != "ArgumentError":
                return f"{asked} touches a registration in use, and was not refused"
            return f"{asked} was refused, but has ended {len(ended)} registrations before" if ended else None
        if seen["error"] or made:
            return f"{asked}: it raised {seen['error']}, or registered something, where only idle ones are touched"
        if missed := touched - set(ended):
            return f"after {asked}, {self.shown(min(missed))} is still registered, and a part of it will be freed"
        if more := set(ended) - touched:
            return f"{asked} ended {self.shown(min(more))}, which it does not touch"
        for each in ended:
            if each in self.idle:
                self.idle.remove(each)
            del self.known[each]
        return None


def _case(held: Sequence[Held], steps: Sequence[Step], idle_bytes: int = 0) -> Case:
    def judge(seen: Any) -> str | None:
        model, answers = _Model(held, idle_bytes), iter(seen or ())
        for step in steps:
            if step[0] in _OF_THE_TEST:
                getattr(model, step[0])(*step[1:])
            elif found := model.wrong(step, next(answers)):
                return found
        return None

    return calling("run", judge, idle_bytes=idle_bytes, held=list(held), steps=list(steps))


def _apart(rng: Rng, count: int, users: int = 1) -> list[Held]:
    """Registrations that do not touch each other."""
    held, at = [], int(rng.integers(1000, 2000))
    for _ in range(count):
        size = int(rng.integers(20, 200))
        held.append((at, size, users))
        at += size + int(rng.integers(5, 50))
    return held


# ---- tasks 1 and 2 ---------------------------------------------------------------------------------------------------
def _lookups(rng: Rng, at: int) -> list[tuple[int, int]]:
    """Ranges inside of, at the edges of, across and between the registrations of :func:`_beside`."""
    inside = [(at, 100), (at + 1, 98), (at, 1), (at + 99, 1), (at + 100, 60), (at + 40, 60)]
    across = [(at - 1, 2), (at + 99, 2), (at + 50, 100), (at - 5, 300), (at + 159, 2), (at + 160, 4), (at - 9, 9)]
    return [*inside, *across, (at + int(rng.integers(1, 90)), 5)]


def _beside(rng: Rng, *users: int) -> tuple[int, list[Held]]:
    """An address, and two registrations from there on, one right behind the other."""
    at = int(rng.integers(5000, 1 << 47))
    return at, [(at, 100, users[0]), (at + 100, 60, users[1])]


def _in_any_order(rng: Rng) -> tuple[int, list[Held]]:
    """The result of _beside, with another registration that was released later and lies before them."""
    at, held = _beside(rng, 1, 0)
    return at, [*held, (at - 3000, 40, 0)]


def _finds(rng: Rng) -> Iterator[Case]:
    at, held = _in_any_order(rng)
    yield _case(held, [("find", *each) for each in _lookups(rng, at)], 1000)
    # the first registration with the first byte does not contain the last one
    yield _case([(at, 100, 1), (at + 30, 110, 0)], [("find", at + 50, 80), ("find", at + 50, 50)], 1000)


def _acquires(rng: Rng) -> Iterator[Case]:
    at, held = _in_any_order(rng)
    yield _case([], [("acquire", at, 100)] * 3 + [("acquire", at, 10), ("acquire", at - 1000, 10)])
    yield _case(held, [("acquire", *each) for each in rng.permutation(_lookups(rng, at)).tolist()], 1000)


def _register_raises(rng: Rng) -> Case:
    held = _apart(rng, int(rng.integers(2, 5)))
    address, nbytes, _ = held.pop()
    return _case(held, [("refuse",), *[("acquire", address, nbytes)] * 3], 1000)


# ---- task 3 ----------------------------------------------------------------------------------------------------------
def _releases(rng: Rng) -> Iterator[Case]:
    held = _apart(rng, 5)
    order = [_FIRST_NUMBER + int(each) for each in rng.permutation(5)]
    total = sum(nbytes for _, nbytes, _ in held)
    oldest = held[order[0] - _FIRST_NUMBER][1]
    # limits at which none, some or all may stay; one byte less than all; one byte less than all without the oldest
    for limit in (0, total // 3, total, total - 1, total - oldest - 1):
        yield _case(held, [("release", number) for number in order], limit)
    # the last one needs the room of all others, or exceeds the limit
    size, count = (int(each) for each in rng.integers(2, 40, 2))
    small = [(1000 + 50 * each, size, 1) for each in range(count)]
    steps = [("release", _FIRST_NUMBER + each) for each in range(count + 1)]
    for most in (size * count, size * count - 1):
        yield _case([*small, (5000, size * count, 1)], steps, most)


def _shared(rng: Rng) -> Iterator[Case]:
    numbers = [_FIRST_NUMBER] * 3 + [_FIRST_NUMBER + 1] * 3
    yield _case(_apart(rng, 2, users=3), [("release", int(each)) for each in rng.permutation(numbers)])


def _idle_again(rng: Rng) -> Case:
    """A registration that was idle and is used and released again becomes the last in the order; used ones have no
    place in it."""
    held = _apart(rng, 4)
    first, second, third, last = (_FIRST_NUMBER + int(each) for each in rng.permutation(4))
    total = sum(nbytes for _, nbytes, _ in held)
    used_again = [("release", first), ("release", second), ("use", first), ("release", third)]
    return _case(held, [*used_again, ("release", first), ("release", last)], total - 1)


def _in_use_stays(rng: Rng) -> Case:
    """A registration in use that is older than all idle ones, and too large for the limit."""
    held: list[Held] = [(1000, 500, 1), (3000, 50, 1), (4000, 60, 1)]
    return _case(held, [("release", _FIRST_NUMBER + 1), ("release", _FIRST_NUMBER + 2)], 60)


def _twice(rng: Rng) -> Case:
    return _case(_apart(rng, 1), [("release", _FIRST_NUMBER), ("release", _FIRST_NUMBER)], 1 << 20)


# ---- task 4 ----------------------------------------------------------------------------------------------------------
def _forgets(rng: Rng) -> Iterator[Case]:
    around = ((0, 160), (20, 10), (-10, 11), (99, 2), (159, 1), (160, 50), (-1000, 1000), (-5000, 9000))
    for begin, nbytes in around:
        at, held = _beside(rng, 0, 0)
        yield _case(held, [("forget", at + begin, nbytes)], 1 << 20)


def _forget_in_use(rng: Rng) -> Iterator[Case]:
    for users in ((0, 2), (0, 1), (1, 0), (2, 0)):
        for begin in (50, 0, 100):
            at, held = _beside(rng, *users)
            yield _case(held, [("forget", at + begin, 100)], 1 << 20)


_ALL_BYTES = "Every byte, from the first to the last, is to be inside of one registration."
_SHARE = "find() first; register only what no registration holds; one more user in either case."
_RAISES = "Append it to self.known once register() has returned a number."
_IDLE = "Idle from the last release on, to the end of the list; while idle ones take too much, end the first idle one."
_TOUCH = "Touching is enough here, and nothing is ended if one of them is in use."


BEHAVIOURS = (
    Behaviour(1, "it finds what holds all bytes, and nothing else", _finds, _ALL_BYTES),
    Behaviour(2, "registrations are shared", _acquires, _SHARE),
    Behaviour(2, "what could not be registered is not known", one(_register_raises), _RAISES),
    Behaviour(3, "idle ones stay within the limit", all_of(_releases, one(_idle_again)), _IDLE),
    Behaviour(3, "shared ones stay until the last release", all_of(_shared, one(_in_use_stays)), _IDLE),
    Behaviour(3, "a release too many is refused", one(_twice), "ArgumentError, if it has no users."),
    Behaviour(4, "what touches freed memory ends", _forgets, _TOUCH),
    Behaviour(4, "memory in use is not forgotten", _forget_in_use, _TOUCH),
)
