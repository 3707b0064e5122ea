"""Hidden tests of exercise 04_proxy_loop. A model of the proxy here says what each call may do; in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import calling, one

Step = tuple[Any, ...]


class _Model:
    """A model of a right proxy, with command numbers only."""

    def __init__(self, slots: int, most: int, batch: Sequence[int]) -> None:
        self.slots, self.most, self.batch = slots, most, list(batch)
        self.taken = self.head = len(batch)
        self.completed, self.room = 0, 1 << 30
        self.late: set[int] = set()
        self.done: set[int] = set()

    def ready(self) -> int:
        count = 0
        while len(self.batch) + count < self.most and count < self.slots:
            if self.taken + count >= self.head or self.taken + count in self.late:
                break
            count += 1
        return count

    def told(self) -> str:
        """What ready() has to look at, in words."""
        there = min(self.head - self.taken, self.slots)
        late = "".join(f", and {number} is not filled yet" for number in sorted(self.late))
        batch = f"the batch holds {len(self.batch)} of at most {self.most}"
        return f"the ring has {there} commands, from number {self.taken} on{late}; {batch}"

    def take(self) -> int:
        count = self.ready()
        self.batch += range(self.taken, self.taken + count)
        self.taken += count
        return count

    def post(self) -> int:
        count = min(self.room, len(self.batch))
        self.room -= count
        self.batch = self.batch[count:]
        return count

    def complete(self) -> int:
        before = self.completed
        while self.completed in self.done:
            self.completed += 1
        return self.completed - before

    def step(self) -> bool:
        work = self.complete() + self.post()
        if not self.batch:
            work += self.take() + self.post()
        return work > 0


def _case(rng: Rng, steps: Sequence[Step], slots: int = 4, most: int = 64, batch: Sequence[int] = ()) -> Case:
    salt = int(rng.integers(1000, 1 << 30))

    def judge(seen: Any) -> str | None:
        model, answers = _Model(slots, most, batch), iter(seen or ())
        for what, *arguments in steps:
            if what == "push":
                model.head += arguments[0]
                model.late |= set(arguments[1:])
            elif what == "fill":
                model.late.discard(arguments[0])
            elif what == "room":
                model.room = arguments[0]
            elif what == "finish":
                model.done |= set(arguments[0])
            elif what == "leave":
                model.batch = []
            elif found := _wrong(what, model, next(answers), salt):
                return found
        return None

    return calling("run", judge, slots=slots, most=most, salt=salt, batch=list(batch), steps=list(steps))


def _wrong(what: str, model: _Model, seen: dict[str, Any], salt: int) -> str | None:
    before, taken, completed = list(model.batch), model.taken, model.completed
    wanted = getattr(model, what)()
    posted = [event for event in seen["events"] if event[0] == "post"]
    numbers = [event[1] for event in posted]
    stores = {name: [e[1] for e in seen["events"] if e[0] == name] for name in ("taken", "completed")}
    sent = (before + list(range(taken, model.taken)))[: len(before) + model.taken - taken - len(model.batch)]
    if numbers != sent:
        return f"{what}() posted the commands {numbers}; {sent} are right"
    left = [number for number, _ in seen["left"]]
    whole = [(number, words, "was posted") for _, number, words in posted]
    whole += [(number, words, "is in the batch") for number, words in seen["left"]] if left == model.batch else []
    for number, words, where in whole:
        if words != [salt + number, 3 * number, number % 7]:
            return f"command {number} {where} with words that the kernel wrote into its slot later"
    for name, was, now in (("taken", taken, model.taken), ("completed", completed, model.completed)):
        if stores[name] and stores[name][-1] != now:
            return f"{what}() left ring.{name} at {stores[name][-1]}; {now} is right"
        if not stores[name] and was != now:
            return f"{what}() did not write ring.{name}, which should be {now}"
        if stores[name] and was == now:
            return f"{what}() wrote ring.{name}, which stays {now}: no store is needed here"
        if len(stores[name]) > 1:
            return f"{what}() wrote ring.{name} {len(stores[name])} times, and one is enough"
    if found := _out_of_order(what, seen["events"], len(before)):
        return found
    if left != model.batch:
        return f"after {what}() the batch holds the commands {left}; {model.batch} are right"
    if over := [number for number in seen["done"] if number < model.completed]:
        return f"after {what}() self.done still holds {len(over)} commands that were published: it would grow for ever"
    if seen["returned"] is None or seen["returned"] != int(wanted):
        why = f" ({model.told()})" if what == "ready" else ""
        return f"{what}() returned {seen['returned']}; {wanted} is right{why}"
    return None


def _out_of_order(what: str, events: Sequence[Sequence[Any]], left_before: int) -> str | None:
    """A problem if events came in a wrong order; ``left_before`` commands were in the batch."""
    names = [event[0] for event in events]
    if what == "post" and names.count("full") > 1:
        return "post() went on asking the NIC after it had answered False"
    if what != "step":
        return None
    first_post = min((at for at, name in enumerate(names) if name in ("post", "full")), default=len(names))
    if "completed" in names and names.index("completed") > first_post:
        return "step() posted commands before it published what is done: complete() comes first"
    if "taken" in names and names[: names.index("taken")].count("post") < left_before:
        return "step() took new commands before those left in the batch were posted: post() comes first"
    return None


# ---- what is asked ---------------------------------------------------------------------------------------------------
_READY, _TAKE, _LEAVE, _POST, _COMPLETE, _STEP = (
    (what,) for what in ("ready", "take", "leave", "post", "complete", "step")
)


def _ready(rng: Rng) -> Iterator[Case]:
    late = int(rng.integers(1, 4))
    yield _case(rng, [_READY, ("push", 3), _READY, _READY, ("push", 9), _READY])
    yield _case(rng, [("push", 6, late), _READY, ("fill", late), _READY], slots=8)
    yield _case(rng, [("push", 6), _READY], slots=8, most=5)
    slots = int(rng.integers(300, 600))
    yield _case(rng, [("push", 700), _READY], slots=slots, most=slots - int(rng.integers(1, 40)))
    yield _case(rng, [("push", 6), _READY], slots=8, most=5, batch=[0, 1, 2])


def _ready_later(rng: Rng) -> Case:
    """Slots that still hold the commands of the round before."""
    return _case(rng, [("push", 4), _TAKE, _READY, ("push", 2), _READY])


def _take(rng: Rng) -> Iterator[Case]:
    """Cases without post(), which is another task."""
    yield _case(rng, [_TAKE, ("push", 3), _TAKE, _TAKE])
    yield _case(rng, [("push", 30), *[_TAKE, _LEAVE] * 4])
    slots = int(rng.integers(280, 350))
    yield _case(rng, [("push", 700), *[_TAKE, _LEAVE] * 2], slots=slots, most=slots - int(rng.integers(1, 20)))
    yield _case(rng, [("push", 30), _TAKE, _TAKE, _TAKE], most=10)
    late = int(rng.integers(2, 6))
    yield _case(rng, [("push", 7, late), _TAKE, _LEAVE, ("fill", late), _TAKE], slots=8)


def _post(rng: Rng) -> Iterator[Case]:
    batch = list(range(int(rng.integers(5, 9))))
    yield _case(rng, [_POST])
    yield _case(rng, [_POST, _POST], batch=batch)
    yield _case(rng, [("room", 2), _POST, _POST, ("room", 1), _POST, ("room", 99), _POST], batch=batch)


def _complete(rng: Rng) -> Iterator[Case]:
    # a gap first: code that counts completions would also store a value twice, which is the lesser mistake
    yield _case(rng, [("finish", [1, 2]), _COMPLETE, ("finish", [0, 4]), _COMPLETE, ("finish", [3]), _COMPLETE])
    yield _case(rng, [_COMPLETE, ("finish", [0]), _COMPLETE, _COMPLETE])
    yield _case(rng, [("finish", list(range(300))), _COMPLETE])
    order = [int(each) for each in rng.permutation(20)]
    rounds = [order[begin : begin + 4] for begin in range(0, 20, 4)]
    yield _case(rng, [step for numbers in rounds for step in (("finish", numbers), _COMPLETE)])


def _step(rng: Rng) -> Iterator[Case]:
    yield _case(rng, [_STEP, ("push", 3), _STEP, ("finish", [2, 0]), _STEP, ("finish", [1]), _STEP, _STEP])
    yield _case(rng, [("push", 20), ("room", 3), _STEP, _STEP, ("room", 2), _STEP, ("room", 99), _STEP, _STEP])
    # completions, commands left in the batch, and new ones, all in one round; then a round that only takes
    left = [("push", 5), ("room", 2), _STEP, ("finish", [0, 1]), ("push", 2), ("room", 99), _STEP]
    yield _case(rng, [*left, ("push", 2), ("room", 0), _STEP, ("finish", [2]), _STEP, _STEP], slots=8)
    steps: list[Step] = []
    for _ in range(25):
        steps += [("push", int(rng.integers(0, 4))), ("room", int(rng.integers(0, 4))), _STEP]
    slots, most = int(rng.integers(5, 12)), int(rng.integers(3, 9))
    yield _case(rng, [*steps, ("room", 999), *[_STEP] * 20], slots=slots, most=most)


_IN_ORDER = "Commands are taken in the order of their numbers; a slot that says something else is not ready."
_COPY = "Copy the words, then write ring.taken: from that moment on the slots are the kernel's."
_QUEUE = "The first in the batch goes first, and stays there until the NIC has accepted it."
_GAP = "ring.completed says that this many commands, from the first on, are all done."
_ROUND = "complete, post; and if the batch is empty, take and post."
BEHAVIOURS = (
    Behaviour(1, "it counts what is ready, in order", _ready, _IN_ORDER),
    Behaviour(2, "commands are whole, credits come back once", _take, _COPY),
    Behaviour(2, "old commands are not taken again", one(_ready_later), _IN_ORDER),
    Behaviour(3, "a full queue loses nothing", _post, _QUEUE),
    Behaviour(4, "completions in any order", _complete, _GAP),
    Behaviour(5, "rounds, with a NIC that is slow at times", _step, _ROUND),
)

REHEARSED = 99  # cases of each, in the public checks
