"""The demo's text: the help topics that every Python ships, split into a training and a held-out part.

Python's own ``help("for")`` reads :mod:`pydoc_data.topics`. The split is by topic and depends on the names alone: every
eighth topic, in alphabetical order, is held out. Topics overlap (``compound`` repeats ``for`` and ``try`` word for
word), so every paragraph that occurs in a held-out topic is removed from the training part as well; otherwise the
held-out loss would reward remembering.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ep_lib.errors import ArgumentError, BackendUnavailable

HELD_OUT_EVERY = 8  # one topic in eight is held out
_HELD_OUT_FIRST = 3  # 'atom-identifiers' in Python 3.11; the first topics are very short
_MINIMUM_BYTES = 4096  # less text than this is not worth training on

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TextSplit:
    """Training and held-out text as flat ``uint8`` arrays, and the names of the held-out topics."""

    train: Bytes
    held_out: Bytes
    held_out_topics: tuple[str, ...]


def load_text(topics: dict[str, str] | None = None) -> TextSplit:
    """Split ``topics`` (name to text; default: those of the running Python) into training and held-out bytes.

    Raises :class:`BackendUnavailable` when this Python ships no topics and :class:`ArgumentError` when there is too
    little text in one of the two parts.
    """
    if topics is None:
        topics = _python_topics()
    names = sorted(topics)
    held_out_names = names[_HELD_OUT_FIRST::HELD_OUT_EVERY]
    seen: set[str] = set()
    held_out = _unique_paragraphs([topics[name] for name in held_out_names], seen)
    train = _unique_paragraphs([topics[name] for name in names if name not in set(held_out_names)], seen)
    split = TextSplit(_join(train), _join(held_out), tuple(held_out_names))
    if min(split.train.size, split.held_out.size) < _MINIMUM_BYTES:
        raise ArgumentError(
            f"too little text: {split.train.size} bytes to train on and {split.held_out.size} held out from "
            f"{len(names)} topics; each part needs at least {_MINIMUM_BYTES} bytes"
        )
    return split


def windows(text: Bytes, count: int, length: int) -> Bytes:
    """``count`` windows of ``length`` bytes at even distances over ``text``: ``uint8 [count, length]``."""
    if count < 1 or length < 1 or text.size < length:
        raise ArgumentError(f"cannot cut {count} windows of {length} bytes from a text of {text.size} bytes")
    starts = np.linspace(0, text.size - length, count).astype(np.int64)
    cut: Bytes = text[starts[:, None] + np.arange(length)]
    return cut


def random_windows(text: Bytes, count: int, length: int, generator: np.random.Generator) -> Bytes:
    """``count`` windows of ``length`` bytes at places drawn from ``generator``: ``uint8 [count, length]``."""
    if count < 1 or length < 1 or text.size < length:
        raise ArgumentError(f"cannot cut {count} windows of {length} bytes from a text of {text.size} bytes")
    starts = generator.integers(0, text.size - length + 1, size=count)
    cut: Bytes = text[starts[:, None] + np.arange(length)]
    return cut


def printable(data: Bytes | bytes) -> str:
    """Bytes as text for a terminal: UTF-8 where it is valid, a replacement mark elsewhere, no control characters."""
    decoded = bytes(data).decode("utf-8", errors="replace")
    return "".join(letter if letter == "\n" or letter.isprintable() else "\N{MIDDLE DOT}" for letter in decoded)


def _python_topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise BackendUnavailable(
            "this Python ships no pydoc_data.topics, the demo's text; install the full standard library "
            "(Debian: libpython3-stdlib) or use another Python"
        ) from error
    return dict(topics)


def _unique_paragraphs(texts: list[str], seen: set[str]) -> list[str]:
    """The paragraphs of ``texts`` in order, indentation kept, without those whose words are in ``seen``; adds to it."""
    kept: list[str] = []
    for text in texts:
        for paragraph in text.strip("\n").split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                kept.append(paragraph.strip("\n"))
    return kept


def _join(paragraphs: list[str]) -> Bytes:
    return np.frombuffer("\n\n".join(paragraphs).encode("utf-8"), dtype=np.uint8)
