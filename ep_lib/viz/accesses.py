"""The contents of a few small arrays, and the writers and readers of each word: the instant picture of a puzzle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ep_lib.emulator.accesses import MemoryAccess
from ep_lib.errors import ArgumentError
from ep_lib.viz.page import NARROW
from ep_lib.viz.style import (
    EMPTY,
    INK,
    QUIET,
    describe,
    draws,
    ink_on,
    legend_below,
    legend_beside,
    new_picture,
    rank_color,
    tidy,
)

_COLUMNS = 16  # words in a line
_MOST_WORDS = 64  # of an array that are drawn
_ROW = 0.5  # the height of a cell's value, of its writer and of its reader, in the width of a cell
_LINE = 3 * _ROW + 0.4  # from one line of cells to the next
_CELL_INCHES, _BESIDE_INCHES = 0.34, 4.2  # of a cell, of names and legend; a full line is NARROW, its legend below
_TITLE_INCHES = 0.4  # with the margins above and below
_VALUE_LETTERS = 5  # of a value, in a cell
_NIC = -1
_MOST_SAID = 16  # values of an array in its description
_MOST_GROUPS = 4  # of words with equal accessors, in the description of an array
_READ, _WRITTEN = "read", "written"


@dataclass(frozen=True)
class NamedArray:
    """An array of one rank, its address, and its words at the end of a run (empty: unknown)."""

    name: str
    rank: int
    address: int
    words: int
    word_bytes: int
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Who:
    """A thread: ``block`` and ``thread`` are numbers; thread -1 is a NIC that works for the rank."""

    rank: int
    block: int
    thread: int

    def __str__(self) -> str:
        if self.thread == _NIC:
            return f"rank {self.rank}'s NIC"
        return f"rank {self.rank} block {self.block} thread {self.thread}"


@dataclass
class Word:
    """One word of an array: its writers and readers, in order, each once; and those that used atomics."""

    written: dict[Who, bool] = field(default_factory=dict)
    read: dict[Who, bool] = field(default_factory=dict)


def words_of(accesses: Iterable[MemoryAccess], arrays: Sequence[NamedArray]) -> list[list[Word]]:
    """For each array its words, with the threads that touched any byte of them; an addition counts as a write."""
    found = [[Word() for _ in range(array.words)] for array in arrays]
    for access in accesses:
        who = Who(access.rank, access.block, access.thread)
        for array, words in zip(arrays, found, strict=True):
            first = (access.address - array.address) // array.word_bytes
            last = (access.address + access.bytes - 1 - array.address) // array.word_bytes
            for number in range(max(first, 0), min(last, array.words - 1) + 1):
                word = words[number]
                for kind, happened in ((word.written, access.writes), (word.read, not access.writes)):
                    if happened:
                        kind[who] = kind.get(who, False) or access.is_atomic
    return found


def describe_accesses(accesses: Iterable[MemoryAccess], arrays: Sequence[NamedArray]) -> str:
    """The picture in words: a line for each array of each rank."""
    lines = []
    for array, words in zip(arrays, words_of(accesses, arrays), strict=True):
        parts = []
        for verb in (_WRITTEN, _READ):
            by: dict[str, list[int]] = {}
            for number, word in enumerate(words):
                if users := getattr(word, verb):
                    by.setdefault(_people(users), []).append(number)
            if len(by) > _MOST_GROUPS:
                touched = sorted(number for numbers in by.values() for number in numbers)
                ranks = sorted({who.rank for word in words for who in getattr(word, verb)})
                by = {f"{len(by)} threads, or groups of them, of rank {' and '.join(map(str, ranks))}": touched}
            parts += [f"{_numbers(numbers)} {verb} by {people}" for people, numbers in by.items()]
        lines.append(f"{array.name} of rank {array.rank}{_held(array)}: {'; '.join(parts) or 'not touched'}")
    return "\n".join(lines)


def _held(array: NamedArray) -> str:
    shown = [_in_letters(value) for value in array.values]
    if len(shown) > _MOST_SAID:
        shown = [*shown[: _MOST_SAID - 2], "...", shown[-1]]
    return f" holds [{', '.join(shown)}] at the end" if shown else ""


def _in_letters(value: float) -> str:
    """A value, with as many digits as fit into a cell."""
    digits = [f"{value:.{count}g}" for count in (4, 3, 2)] if isinstance(value, float) else [str(value)]
    fewer = [re.sub(r"e\+?(-?)0*", r"e\1", text) for text in (*digits, f"{value:.0e}")]
    return next((text for text in fewer if len(text) <= _VALUE_LETTERS), fewer[-1])


def _people(users: dict[Who, bool]) -> str:
    names = [f"{who}{' atomically' if atomic else ''}" for who, atomic in users.items()]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} threads ({names[0]} to {names[-1]})"


def _numbers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"word {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"words {numbers[0]} to {numbers[-1]}"
    return f"words {', '.join(map(str, numbers))}"


@draws
def access_map(accesses: Iterable[MemoryAccess], arrays: Sequence[NamedArray], *, title: str | None = None) -> Figure:
    """A cell for each word of each array: at the top its final value, bold if a kernel or a NIC wrote it; then its
    writers, and below its readers, in the colours of the ranks.

    A thread is ``t3``, or ``block.thread`` if several blocks took part; ``+`` means an atomic.
    """
    if not arrays:
        raise ArgumentError("access_map needs at least one array")
    words = words_of(accesses, arrays)
    everybody = {who for row in words for word in row for who in (*word.written, *word.read)}
    with_blocks = len({who.block for who in everybody if who.thread != _NIC}) > 1
    lines = [-(-min(array.words, _MOST_WORDS) // _COLUMNS) for array in arrays]
    columns = min(_COLUMNS, max(array.words for array in arrays))
    wide = columns == _COLUMNS
    high = max(1.75, (1.1 if wide else 0.6) + _CELL_INCHES * _LINE * sum(lines))
    cell = (high - _TITLE_INCHES) / (_LINE * sum(lines))  # cells take the height that there is
    figure = new_picture(NARROW if wide else _BESIDE_INCHES + cell * columns, high)
    axes = figure.add_subplot()
    top, ticks = 0.0, []
    for array, row, height in zip(arrays, words, lines, strict=True):
        shown = f"\n{_MOST_WORDS} of {array.words} words" if array.words > _MOST_WORDS else ""
        ticks.append((top + 1.5 * _ROW, f"{array.name} of rank {array.rank}{shown}"))
        for number, word in enumerate(row[:_MOST_WORDS]):
            value = _in_letters(array.values[number]) if array.values else ""
            x, y = number % _COLUMNS, top + number // _COLUMNS * _LINE
            size = min(7, (88 if word.written else 100) * _CELL_INCHES / max(1, len(value)))  # bold letters are wider
            weight, ink = ("bold", INK) if word.written else ("normal", QUIET)
            axes.text(x + 0.5, y + _ROW / 2, value, ha="center", va="center", fontsize=size, color=ink, weight=weight)
            _users(axes, x, y, word, with_blocks)
        top += height * _LINE
    axes.set_xlim(-0.1, columns + 0.1)
    axes.set_ylim(top - _LINE + 3 * _ROW + 0.1, -0.1)
    axes.set_aspect("equal")
    axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=9)
    axes.set_xticks([])
    axes.tick_params(length=0)
    tidy(axes, title=title)
    axes.spines[:].set_visible(False)
    handles = [Patch(color=rank_color(rank), label=f"rank {rank}") for rank in sorted({who.rank for who in everybody})]
    words_said = ["top: the value at the end", "middle: who wrote it", "bottom: who read it"]
    users = [users for row in words for word in row for users in (word.written, word.read)]
    alone = [who for each in users if len(each) == 1 for who in each]
    if any(who.thread != _NIC for who in alone):
        words_said.append("1.3: block 1, thread 3" if with_blocks else "t0: thread 0")
    if any(who.thread == _NIC for who in alone):
        words_said.append("N: a NIC")
    if any(atomic for each in users if len(each) == 1 for atomic in each.values()):
        words_said.append("+ atomically")
    if any(len(each) > 1 for each in users):
        words_said.append("8x: by 8 threads")
    if any(len({who.rank for who in each}) > 1 for each in users):
        words_said.append("striped: of several ranks")
    handles += [Patch(facecolor="none", edgecolor="none", label=text) for text in words_said]
    if wide:
        legend_below(figure, handles)
    else:
        legend_beside(axes, handles, fontsize=8)
    describe(figure, title, *describe_accesses(accesses, arrays).split("\n"))
    return figure


def _users(axes: Axes, x: float, y: float, word: Word, with_blocks: bool) -> None:
    """The writers and readers of a word, below its value."""
    for users, at in ((word.written, y + _ROW), (word.read, y + 2 * _ROW)):
        last = next(reversed(users), None)
        color = EMPTY if last is None else rank_color(last.rank)
        several = len({who.rank for who in users}) > 1
        hatch = "///" if several else ""
        axes.add_patch(Rectangle((x + 0.04, at), 0.92, _ROW - 0.02, facecolor=color, edgecolor="white", hatch=hatch))
        if last is None:
            continue
        text = _label(last, users[last], with_blocks) if len(users) == 1 else f"{len(users)}x"
        ink = INK if several else ink_on(color)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5} if several else None
        axes.text(
            x + 0.5,
            at + _ROW / 2,
            text,
            ha="center",
            va="center",
            fontsize=min(7, 96 * _CELL_INCHES / len(text)),
            color=ink,
            bbox=box,
        )
    axes.add_patch(Rectangle((x + 0.04, y), 0.92, 3 * _ROW - 0.02, fill=False, edgecolor="#BBBBBB", linewidth=0.7))


def _label(who: Who, atomic: bool, with_blocks: bool) -> str:
    name = "N" if who.thread == _NIC else f"{who.block}.{who.thread}" if with_blocks else f"t{who.thread}"
    return f"+{name}" if atomic else name
