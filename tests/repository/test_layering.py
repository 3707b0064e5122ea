"""Imports go downward only, and importing ep_lib starts nothing and loads nothing heavy."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "ep_lib"

# From the ground up. What stands on one line may import each other and everything above it, nothing below it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "version", "callers", "config", "processes", "require", "shared_memory", "transports.registry"),
    ("memory", "reference", "bootstrap"),
    ("jit",),
    ("cuda", "emulator"),
    ("transports",),
    ("backends",),
    ("runtime",),
    ("compat", "nixl", "ibgda", "transports.nixl_handles"),  # the last two are old names
    ("moe",),
    ("dispatch_combine", "compat.deep_ep"),
    ("compat.nixl_ep",),
    ("ep_lib",),  # the public names of __init__.py
    ("viz",),
    ("workshop",),
    ("commands",),
    ("cli", "__main__", "dispatch_combine.__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def part(path: Path) -> str:
    """The part of the house that a file belongs to; a file without a layer gives a name that LEVEL does not have."""
    words = path.relative_to(PACKAGE).with_suffix("").parts
    words = words[:-1] if words[-1] == "__init__" else words
    return find_part(words) or (words[0] if words else "ep_lib")


def find_part(words: Sequence[str]) -> str | None:
    """The longest name in LEVEL that ``words`` (what follows ``ep_lib.``) begin with."""
    return next((name for length in (2, 1) if (name := ".".join(words[:length])) in LEVEL), None)


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every import that is executed, inside functions too.

    Imports under ``if TYPE_CHECKING`` are for the type checker: they are not executed, so they may point anywhere.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from imports(ast.Module(body=[other], type_ignores=[]), path)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ("ep_lib", *path.relative_to(PACKAGE).parts)
                base = ".".join([*here[: len(here) - node.level], *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        else:
            yield from imports(node, path)


def target_part(name: str) -> str | None:
    """The part that an imported name belongs to; None for other packages."""
    words = name.split(".")
    return (find_part(words[1:]) or "ep_lib") if words[0] == "ep_lib" else None


@functools.cache
def all_imports() -> list[tuple[Path, int, str]]:
    return [
        (path, line, name)
        for path in modules()
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8"), str(path)), path)
    ]


def test_every_part_has_its_layer() -> None:
    assert {part(path) for path in modules()} - set(LEVEL) == set()


def test_imports_go_downward_only() -> None:
    upward = []
    for path, line, name in all_imports():
        target = target_part(name)
        if target is not None and LEVEL[target] > LEVEL[part(path)]:
            upward.append(f"{path.relative_to(PACKAGE.parent)}:{line} ({part(path)}) imports {name} ({target})")
    assert upward == []


def test_transports_never_import_each_other() -> None:
    transports = PACKAGE / "transports"
    names = {folder.name for folder in transports.iterdir() if (folder / "__init__.py").exists()}
    crossing = []
    for path, line, name in all_imports():
        words = name.split(".")
        if words[:2] != ["ep_lib", "transports"] or transports not in path.parents or path.parent == transports:
            continue
        if words[2] in names - {path.relative_to(transports).parts[0]}:
            crossing.append(f"{path.relative_to(transports)}:{line} imports {name}")
    assert crossing == []


def knows_its_backend(tree: ast.AST) -> list[int]:
    """Lines that ask a rank for the name of its backend."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "backend"]


def test_modes_know_no_backend() -> None:
    """They ask for the reason why backends differ (attributes of Backend): a third one has its own answers."""
    moe = PACKAGE / "moe"
    asked = [(p.name, line) for p in moe.rglob("*.py") for line in knows_its_backend(ast.parse(p.read_text("utf-8")))]
    backends = {"cuda", "emulator", "backends", "transports"}
    imported = [
        (path.name, name) for path, _, name in all_imports() if moe in path.parents and target_part(name) in backends
    ]
    assert (asked, imported) == ([], [])
    assert [name for path, _, name in all_imports() if moe in path.parents and target_part(name) == "reference"] == []
    assert knows_its_backend(ast.parse('if rank.backend == "emulator":\n    rank._backend.synchronize()')) == [1]


def test_the_checks_see_what_they_look_for() -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ep_lib.cli import main\n"
        "def f():\n    from ..moe import buffer\n"
    )
    found = list(imports(ast.parse(source), PACKAGE / "jit" / "kernel.py"))
    assert found == [(1, "typing.TYPE_CHECKING"), (5, "ep_lib.moe.buffer")]
    assert target_part("ep_lib.moe.buffer") == "moe" and target_part("ep_lib.spawn") == "ep_lib"
    assert LEVEL["moe"] > LEVEL["jit"]


def every_import(tree: ast.AST, path: Path) -> Iterator[str]:
    """The names that a file imports: as it is loaded, in functions, and for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name for _, name in imports(ast.Module(body=[node], type_ignores=[]), path))


def circles(files: Mapping[str, tuple[Path, str]]) -> list[list[str]]:
    """Groups of modules each of which imports all others of its group, directly or through them.

    ``files``: the path and the text of each module, by its dotted name.
    """
    reached: dict[str, set[str]] = {}
    for name, (path, text) in files.items():
        found = set(every_import(ast.parse(text), path))
        reached[name] = ({n if n in files else n.rpartition(".")[0] for n in found} & files.keys()) - {name}
    for middle in files:
        for name in files:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    groups = {frozenset(m for m in files if m in reached[name] and name in reached[m]) for name in files}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def dotted(path: Path) -> str:
    return ".".join(("ep_lib", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def test_no_import_circles() -> None:
    """Not in functions either, and not for types alone: what two modules need of each other belongs below both."""
    assert circles({dotted(path): (path, path.read_text(encoding="utf-8")) for path in modules()}) == []


@pytest.mark.parametrize(
    "back",
    [
        "from ep_lib.jit.first import a",
        "def f():\n    from ep_lib.jit import first",
        "class C:\n    def f(self):\n        if self:\n            from .first import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ep_lib.jit.first import a",
    ],
    ids=["as it is loaded", "in a function", "in a method", "for types"],
)
def test_a_circle_is_seen(back: str) -> None:
    texts = {"first": "from ep_lib.jit import second", "second": "import ep_lib.jit.third", "third": back}
    files = {f"ep_lib.jit.{name}": (PACKAGE / "jit" / f"{name}.py", text) for name, text in texts.items()}
    assert circles(files) == [[f"ep_lib.jit.{name}" for name in ("first", "second", "third")]]
    assert circles({**files, "ep_lib.jit.third": (PACKAGE / "jit" / "third.py", "import json")}) == []


@pytest.mark.parametrize("module", ["ep_lib", "ep_lib.cli"])
def test_import_is_light_and_starts_nothing(module: str, tmp_path: Path) -> None:
    code = f"""
import json, os, signal, sys, threading
before = (dict(os.environ), signal.getsignal(signal.SIGINT), sys.excepthook, set(sys.modules))
import {module}
print(json.dumps({{
    "heavy": sorted({{"torch", "cupy", "matplotlib", "mpi4py", "IPython", "nixl", "multiprocessing.pool"}}
                    & set(sys.modules)),
    "threads": threading.active_count(),
    "changed": [dict(os.environ) != before[0], signal.getsignal(signal.SIGINT) is not before[1],
                sys.excepthook is not before[2]],
    "children": os.path.exists("/proc/self/task") and open(f"/proc/self/task/{{os.getpid()}}/children").read(),
}}))
"""
    environment = {**os.environ, "EP_LIB_CACHE_DIR": str(tmp_path / "cache"), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    facts = json.loads(done.stdout)
    assert facts["heavy"] == []
    assert facts["threads"] == 1
    assert facts["changed"] == [False, False, False]
    assert not facts["children"]
    assert not (tmp_path / "cache").exists(), "importing ep_lib compiled or created something"
