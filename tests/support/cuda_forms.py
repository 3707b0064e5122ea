"""The corpus of forms in tests/cuda_forms: small kernels in the ways in which public code is written.

A form begins at a line of four equals signs with its name. ``KERNEL`` is the head of its kernel, which has two blocks
of 64 threads, 1 KiB of dynamic shared memory, and 512 words each to read and to write; ``NAME`` is the kernel's name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ep_lib import Rank
from ep_lib.jit.kernel import Kernel
from support import TESTS

FOLDER = TESTS / "cuda_forms"
_BEGIN = re.compile(r"^// ==== (\w+)\n", re.MULTILINE)
_INCLUDE = re.compile(r"^#include [^\n]*\n", re.MULTILINE)
_MACRO = re.compile(r"^#define (\w+)", re.MULTILINE)
_CONDITION = re.compile(r"^#if", re.MULTILINE)
_WORDS = 512


class Form(NamedTuple):
    name: str
    text: str

    @property
    def has_conditions(self) -> bool:
        return _CONDITION.search(self.text) is not None


def forms(file: str) -> list[Form]:
    """Those of one file of the corpus."""
    _, *found = _BEGIN.split((FOLDER / file).read_text(encoding="utf-8"))
    return [Form(*words) for words in zip(found[::2], found[1::2], strict=True)]


def right_forms() -> list[Form]:
    return [form for file in ("functions.txt", "threads.txt", "numbers.txt") for form in forms(file)]


def kernels_of(several: Sequence[Form], *, filename: str = "form.cu") -> list[Kernel]:
    """The forms' kernels, which are compiled together where the preprocessor leaves none of them out."""
    includes = sorted({line for form in several for line in _INCLUDE.findall(form.text)})
    source = "".join([*includes, *map(_in_a_namespace, several)])
    return [Kernel.from_source(source, form.name, filename=filename) for form in several]


def _in_a_namespace(form: Form) -> str:
    """No form sees another one's names: two may be called alike."""
    head = 'extern "C" __global__ void NAME(unsigned* out, const unsigned* in)'
    text = re.sub(r"\bNAME\b", form.name, re.sub(r"\bKERNEL\b", head, _INCLUDE.sub("", form.text)))
    after = "".join(f"#undef {name}\n" for name in _MACRO.findall(text))
    return f"namespace of_{form.name} {{\n{text}}}\nusing of_{form.name}::{form.name};\n{after}"


def values(rank: Rank, kernels: Sequence[Kernel]) -> dict[str, int]:
    """A checksum of what each kernel writes, for inputs that are the same everywhere."""
    words = np.random.default_rng(0).integers(0, 1 << 32, _WORDS, np.uint32)
    words[::3] &= 127  # small ones among them, and some that are equal
    given, found = rank.to_device(words), {}
    for kernel in kernels:
        out = rank.to_device(np.zeros(_WORDS, np.uint32))
        kernel.launch(rank, 2, 64, out, given, shared_bytes=1024)
        found[kernel.name] = zlib.crc32(rank.to_host(out).tobytes())
    return found
