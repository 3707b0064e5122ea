"""A learner's Python in a process of its own: what it gets, what comes back, and that nothing of a test is there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from ep_lib import spawn
from ep_lib.bootstrap import wire
from ep_lib.errors import ArgumentError, EpError, RankFailed
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.grader.followed import Carried, TheKernel, TheRank, findings_of, kernels
from ep_lib.workshop.grader.grading import grade
from ep_lib.workshop.grader.process import crossing
from ep_lib.workshop.grader.process.far import Far, Guest
from ep_lib.workshop.grader.process.guest import Nursery
from ep_lib.workshop.grader.scenario import CHECKER_IS_OFF

PYTHON = [name for name in names() if find(name).pieces[0].endswith(".py")]
NEEDS_A_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler"
)
Made = Callable[..., Guest]


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Made]:
    """guest(text) -> a piece with this text, without walls."""
    nursery = Nursery()
    nursery.start(tmp_path, None, ())
    made: list[Guest] = []

    def make(text: str) -> Guest:
        (tmp_path / "piece.py").write_text(text)
        made.append(Guest(nursery, "piece.py", (), 1.0, compiles=False))
        made[-1].imported()
        return made[-1]

    yield make
    for each in made:
        each.end()


ECHO = "def same(x): return x\n"
numbers = st.one_of(st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), st.text(), st.binary())
values = st.recursive(
    numbers,
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@given(values)
def test_plain_values_are_the_same_on_both_sides(value: Any) -> None:
    assert wire.loads(wire.dumps(value, crossing.value_of), -1, lambda told: crossing.object_of(*told)) == value


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint64, np.float16, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_arrays_keep_type_and_shape(guest: Made, dtype: Any) -> None:
    piece, array = guest(ECHO), np.arange(6).reshape(2, 3).astype(dtype)[:, ::2]
    found = piece.call("same", array)
    assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
    assert piece.call("same", dtype) == np.dtype(dtype)


def test_tensors_and_their_gradients_cross(guest: Made) -> None:
    torch = pytest.importorskip("torch")
    piece = guest("def square(x): return (x * x).sum()\n")
    leaf = piece.make("torch:Tensor.requires_grad_", torch.tensor([1.0, 2.0]))
    loss = piece.make("square", leaf)
    assert loss.get("requires_grad") and loss.call("item") == 5
    (found,) = piece.call("torch:autograd.grad", [loss], [leaf])
    assert found.tolist() == [2, 4]
    half = torch.tensor([[1.5]], dtype=torch.bfloat16)
    assert torch.equal(piece.call("torch:mul", half, 2), half * 2)


def test_objects_stay_and_paths_lead_on_from_them(guest: Made) -> None:
    piece = guest("class Box:\n    def __init__(self): self.items = []\n    def first(self): return self.items[0]\n")
    box = piece.make("Box")
    box.call("items.append", box, may_be_none=True)
    assert isinstance(box.call("first"), Far) and box.call("first") == box and "Box object" in repr(box)
    box.set("items", [3])
    assert box.get("items") == [3] and piece.make("Box").get("items") == []
    assert piece.call("builtins:range", 3) == (0, 1, 2), "what can be gone through"


class Counter:
    OPEN = ("add", "total")

    def __init__(self) -> None:
        self.total, self.secret = 0, "s"

    def add(self, number: int) -> int:
        self.total += number
        return self.total


def test_of_an_object_nothing_is_had_but_what_is_open(guest: Made) -> None:
    piece = guest(
        "def use(c, f):\n    c.add(2)\n    c.total = c.total * 10\n    return f(c.total, by=1), hasattr(c, 'secret')\n"
        "def ask(c): return c._ask\n"
    )
    counter = Counter()
    assert piece.call("use", counter, lambda total, by: total + by) == (21, False)
    with pytest.raises(AttributeError, match="_ask"):
        piece.call("ask", counter)
    number = piece.lend(counter)[1]
    for name, what in (("secret", "get"), ("secret", "set"), ("add", "set"), ("__class__", "get")):
        assert "is not open" in piece._answer(number, name, what, (1,), {})["error"]["text"]


def test_what_comes_from_a_piece_is_no_object_of_any_kind(guest: Made) -> None:
    piece = guest(ECHO)
    piece.array(np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="over numbers"):
        piece._object(["array", 0, 0, (1,), (8,), "O"])
    with pytest.raises(ValueError, match="strides"):
        piece._object(["array", 0, 0, (4,), (8,), "<i8"])
    with pytest.raises(RankFailed):
        wire.loads(b'{"array": ["O", [1], "AAAAAAAAAAA=", false]}', -1)
    kind = type(crossing.error_of({"kinds": ["SystemExit", "KeyboardInterrupt"], "text": "", "more": {}, "place": ""}))
    assert issubclass(kind, Exception) and kind.__name__ == "SystemExit"


RAISES = """
from ep_lib.errors import RankFailed
class Stranger(RankFailed):
    def __init__(self, text): super().__init__(text, rank=-1)
def raises(f): raise Stranger("who?")
def passes(f): f()
def catches(f):
    try: f()
    except ValueError as error: return str(error)
def changes(a, b): b[0] = 9; return 1
def nothing(): pass
def ends(): raise SystemExit(3)
"""


def test_errors_keep_their_type_message_and_line(guest: Made) -> None:
    def refuses() -> None:
        raise RankFailed("it is gone", rank=4)

    def bad() -> None:
        raise ValueError("bad")

    piece = guest(RAISES)
    with pytest.raises(RankFailed, match=r"^who\?$") as own:
        piece.call("raises", None)
    assert (type(own.value).__name__, own.value.place) == ("Stranger", " (line 5 of piece.py)")  # type: ignore[attr-defined]
    with pytest.raises(EpError, match="it is gone") as through:
        piece.call("passes", refuses)
    assert through.value.rank == 4 and through.value.place == " (line 6 of piece.py)"  # type: ignore[attr-defined]
    assert piece.call("catches", bad) == "bad"
    with pytest.raises(Exception, match="ends its process") as end:
        piece.call("ends")
    assert (type(end.value).__name__, end.value.place) == ("SystemExit", " (line 12 of piece.py)")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'gone'"):
        piece.call("gone")
    with pytest.raises(crossing.GivenWasChanged, match="has changed `b`"):
        piece.call("changes", [1], [1], unchanged="a b")
    assert piece.call("changes", [1], [1], unchanged="a") == 1
    with pytest.raises(TypeError, match=r"nothing\(\) returned nothing"):
        piece.call("nothing")


def test_what_nothing_can_hold_is_the_pieces_own(guest: Made) -> None:
    piece = guest("import numpy as np\nwide = lambda: memoryview(np.broadcast_to(np.int8(0), (10**17,)))\n")
    with pytest.raises(ValueError, match="takes more memory"):
        piece.call("wide")
    with pytest.raises(ValueError, match="takes more memory"):
        piece.call("builtins:bytes", crossing.MOST_TOLD)


LAUNCHES = """
import numpy as np
import ep_lib
def main(rank, kernel):
    assert isinstance(rank, ep_lib.Rank) and isinstance(kernel, ep_lib.Kernel) and rank == 0 and rank.xp is np
    box, mine = rank.symmetric((2, 3), np.int32), np.zeros(9, np.int32)  # the host's own
    box[1:], out = 5, mine[2:5]
    source = rank.to_device(np.arange(3, dtype=np.int32)[::-1])
    kernel.launch(rank, 1, 32, box[1], box[1].nbytes, out)
    kernel.launch(rank, 1, 32, source, source.nbytes, box[0])
    kernel.launch(rank, 1, 32, mine[2:], 4, mine)
    rank.synchronize()
    return mine[:6].tolist(), box.tolist(), rank.offset_of(box[1]) - rank.offset_of(box), np.add(box, 1).max()
def foreign(rank, kernel): ep_lib.Kernel.launch(kernel, rank, 1, 1)
def other(rank, kernel): rank.launch(ep_lib.Kernel.from_source("", "x"), 1, 1, [])
"""


@NEEDS_A_COMPILER
def test_a_rank_and_its_arrays_are_those_of_the_worker(guest: Made) -> None:
    piece = guest(LAUNCHES)
    kernel = kernels(ROOT / "ep_lib/workshop/hidden/ex00_first_main.cu")["note"]

    def run(function: str) -> Any:
        (found,) = spawn(
            lambda rank: piece.call(function, TheRank(rank, piece), TheKernel(kernel)),
            1,
            "emulator",
            heap_bytes=1 << 20,
        )
        return found

    assert run("main") == ([5, 0, 5, 5, 5, 0], [[2, 1, 0], [5, 5, 5]], 12, 6)
    with pytest.raises(EpError, match="none of the kernels"):
        run("other")
    with pytest.raises(ArgumentError):
        run("foreign")


def carried(*journeys: tuple[Any, ...]) -> Carried:
    return Carried({"carried": [(*each[:3], each[3].hex(), *each[4:]) for each in journeys]})


def test_what_was_carried_in_parts_was_carried() -> None:
    parts = carried(("sent", 0, 1, b"abcd", 0, 0), ("sent", 0, 1, b"efgh", 4, 0), ("sent", 0, 2, b"xabcdefghx", 0, 0))
    assert parts.was_sent(0, 1, b"abcdefgh") and parts.was_sent(0, 2, b"abcdefgh")
    assert not parts.was_sent(0, 1, b"abcdefghi") and not parts.was_sent(1, 0, b"abcd")
    bytewise = carried(*(("sent", 0, 1, bytes([byte]), 0, 0) for byte in range(256)))
    assert not bytewise.was_sent(0, 1, bytes(range(8)))


@pytest.mark.parametrize(("at", "signal", "awaited"), [(64, 8, True), (68, 8, True), (72, 8, False), (64, 16, False)])
def test_a_wait_is_one_for_the_signal_and_the_place_that_were_sent_to(at: int, signal: int, awaited: bool) -> None:
    both = carried(("sent", 0, 1, b"abcdefgh", 64, 8), ("received", 1, 0, b"efgh", at, signal, 1))
    assert both.was_awaited(1, 0, b"efgh") == awaited
    assert not both.was_awaited(0, 1, b"efgh")


@pytest.mark.parametrize(("least", "awaited"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_wait_is_one_for_the_signal_that_was_sent_with_it(least: int, awaited: bool) -> None:
    sent = [("sent", 0, 1, name, 64, 8) for name in (b"first", b"other")]
    assert carried(*sent, ("received", 1, 0, b"other", 64, 8, least)).was_awaited(1, 0, b"other") == awaited


@NEEDS_A_COMPILER
def test_a_silent_checker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        findings = ()

    monkeypatch.setattr("ep_lib.workshop.grader.followed.check", lambda *_, **__: Silent)
    assert findings_of(lambda rank: None, 2, None, seeds=1, heap_bytes=1 << 16) == [CHECKER_IS_OFF]  # type: ignore[arg-type]


WRITES = """
import logging, os, tempfile
import numpy as np
assert not os.listdir(), "a folder of another one"
logging.basicConfig(filename="run.log", force=True)
logging.error("here")
np.savetxt("numbers.txt", np.arange(3))
assert np.array_equal(np.loadtxt("numbers.txt"), range(3))
with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
    assert os.path.dirname(file.name) == os.path.dirname(folder) == os.path.expanduser("~") == os.getcwd()
"""


@pytest.mark.slow
@NEEDS_A_COMPILER
def test_a_piece_writes_into_a_fresh_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "10_plan.py").write_text(
        WRITES
        + (find("10_plan").solution_dir / "10_plan.py").read_text().replace("from __future__ import annotations", "")
    )
    found = grade("10_plan", tmp_path, tasks=[1, 2], seed=1)
    assert all(each.passed for each in found.tasks), found.as_json()
