"""A library kernel in all its wrong variants, as one program, and a Buffer's mode that runs with one of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ep_lib
from ep_lib import Kernel, Rank

ROOTS = (Path(ep_lib.__file__).parent / "device", Path(ep_lib.__file__).parent)


KINDS = frozenset(
    {"race", "uninitialised", "slot reused", "source reused", "signal overtakes data", "read before arrival"}
)


class Mistake(NamedTuple):
    """``old``, which is there once in the headers of ``kernel``, becomes ``new``; a report has one of ``kinds``."""

    name: str
    kernel: str
    old: str
    new: str
    kinds: frozenset[str] = KINDS
    tokens: int = 14
    fabric: str = "srd"
    alone: bool = False  # seen where rank 0 alone has tokens: else what ranks send each other also orders them


def all_in_one(
    name: str, headers: Sequence[str], entry: tuple[str, str], includes: Sequence[str], variants: Sequence[Mistake]
) -> Kernel:
    """The kernel ``name`` in all its variants, chosen by their number, so that the compiler runs once. Words behind the
    first tell apart what is made of the same kernel.

    ``headers``: the files that are varied; ``includes``: those that are not; both without suffix. ``entry``: parameters
    and the call; @Type in the parameters is a struct of the variant's own, all of which are alike, and @name in the
    call takes it.
    """
    right = "".join(read(header) for header in headers)
    parameters, call = entry
    types = {word.split()[1]: word.split()[0][1:] for word in parameters.split(", ") if word.startswith("@")}
    program, cases, first = "".join(f"#include <{file}.cuh>\n" for file in includes), "", ""
    for number, variant in enumerate(variants):
        if variant.kernel != name:
            continue
        assert right.count(variant.old) == 1, f"{variant.name}: its line is there {right.count(variant.old)} times"
        space = f"v{number}"
        first = first or space
        text = re.sub(
            r"^namespace ep(::\w+)? \{",
            f"namespace {space} {{\nusing namespace ep;",
            right.replace(variant.old, variant.new),
            flags=re.MULTILINE,
        )
        # All headers of a variant are in its one namespace.
        text = text.replace("using namespace ep::pcie;", "")
        program += "\n".join(line for line in text.splitlines() if not line.startswith("#")) + "\n"
        mine = call
        for argument, struct in types.items():
            mine = mine.replace(f"@{argument}", f"reinterpret_cast<const {space}::{struct}&>({argument})")
        # A function of its own, so that not all variants' variables lie on one stack.
        own = parameters.replace("@", f"{first}::")
        body = f"using namespace {space}; {space}::{mine};"
        program += f"__attribute__((noinline)) void run_{number}({own}) {{ {body} }}\n"
        names = ", ".join(word.split()[-1].lstrip("*") for word in parameters.split(", "))
        cases += f"        case {number}: return run_{number}({names});\n"
    program += f'extern "C" __global__ void wrong(int which, {parameters.replace("@", f"{first}::")}) {{\n'
    return Kernel.from_source(
        f"{program}    switch (which) {{\n{cases}    }}\n}}\n",
        "wrong",
        filename=f"{name.replace(' ', '_')}_variants.cu",
    )


def read(name: str) -> str:
    """A header, or a kernel without its entry, by the name under which it is included, without its suffix."""
    places = [root / f"{name}{suffix}" for root in ROOTS for suffix in (".cuh", ".cu")]
    text = next(place for place in places if place.exists()).read_text()
    return text[: text.index("\n", text.rindex("}  // namespace ep")) + 1]


class Wrong(NamedTuple):
    """Launches a variant as its right kernel is launched."""

    program: Kernel
    number: int

    def launch(self, rank: Rank, grid: Any, block: Any, *args: Any, **options: Any) -> None:
        self.program.launch(rank, grid, block, self.number, *args, **options)


@functools.cache
def program_of(module: Any, name: str) -> Kernel:
    """The kernel ``name`` in all variants of a module."""
    return all_in_one(name, module.HEADERS[name], module.ENTRIES[name], module.INCLUDES, module.VARIANTS)


def use_variant(module: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers in the mode that a module of variants is of run with one of them from now on."""
    for setting, value in module.SETTINGS.items():
        monkeypatch.setattr(setting, value)
    name = module.VARIANTS[number].kernel
    program_of(module, name).compile()
    wrong, right_kernel = Wrong(program_of(module, name), number), module.MODES[name].kernel

    def kernel(which: str, *template: str, **entry: str) -> Any:
        return wrong if which == name.split()[0] else right_kernel(which, *template, **entry)

    monkeypatch.setattr(module.MODES[name], "kernel", kernel)
