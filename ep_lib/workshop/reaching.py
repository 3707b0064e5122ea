"""What a piece in Python may not say: words by which Python reaches what nobody has handed to it.

A piece runs in one process with the function that plays around it. Whatever it was given leads, from attribute to
attribute, to that function's own records; so the words of such a way are refused, and those that make words at run time
(``getattr`` of a name that is put together, ``eval``, ``operator.attrgetter``). Modules that no exercise has a use for
are flagged, and an instructor looks at them.

Words stop a piece in plain Python. Memory by its address is not watched here: NumPy's doors to it are closed words.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

# Also as attributes of other modules that import them.
_CLOSED_MODULES = frozenset(
    (
        *("gc", "inspect", "builtins", "importlib", "subprocess", "threading", "_thread", "os", "posix", "pickle"),
        *("marshal", "multiprocessing"),
    )
)
_NOT_TO_IMPORT = _CLOSED_MODULES | frozenset(
    (
        *("ctypes", "mmap", "signal", "unittest", "doctest", "pdb", "bdb", "code", "codeop", "concurrent", "asyncio"),
        *("fcntl", "select", "socket", "shelve", "atexit", "runpy", "pkgutil", "site", "weakref", "tracemalloc"),
        *("faulthandler", "cProfile", "profile", "timeit", "ast", "dis", "resource", "pty", "sqlite3", "pathlib"),
        *("shutil", "tempfile", "glob", "fileinput"),
    )
)
_KNOWN_MODULES = frozenset(
    (
        *("__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "contextlib", "copy"),
        *("dataclasses", "decimal", "enum", "ep_lib", "fractions", "functools", "hashlib", "heapq", "itertools"),
        *("json", "math", "ml_dtypes", "numbers", "numpy", "operator", "random", "re", "statistics", "string"),
        *("struct", "sys", "textwrap", "time", "torch", "types", "typing", "typing_extensions", "warnings", "zlib"),
    )
)
_CLOSED_NAMES = frozenset(
    ("eval", "exec", "compile", "open", "__import__", "__builtins__", "globals", "locals", "vars", "breakpoint")
)
# Names of variables, attributes and arguments.
_CLOSED = frozenset(
    (
        # of frames and functions, and what lists all objects
        *("_getframe", "_current_frames", "_current_exceptions", "currentframe", "walk_stack", "walk_tb", "f_back"),
        *("f_locals", "f_globals", "f_builtins", "tb_frame", "gi_frame", "cr_frame", "ag_frame", "__traceback__"),
        *("__context__", "__cause__", "exc_info", "TracebackException", "__globals__", "__closure__", "__code__"),
        *("__dict__", "__subclasses__", "__mro__", "__bases__", "__base__", "__getattribute__", "__self__"),
        *("__func__", "__wrapped__", "__loader__", "__spec__", "__reduce__", "__reduce_ex__", "cell_contents"),
        *("modules", "settrace", "setprofile", "addaudithook", "monitoring", "FunctionType", "CodeType"),
        # names that are made at run time
        *("attrgetter", "methodcaller", "get_field", "Formatter", "get_type_hints", "ForwardRef", "make_dataclass"),
        # memory by its address, files, and code in data
        *("__array_interface__", "as_strided", "ctypeslib", "memmap", "open_memmap", "fromfile", "tofile"),
        *("FileIO", "DataSource"),
        *("from_source", "from_file", "library_kernel"),
        *("f2py", "testing", "distutils", "allow_pickle", "runstring"),
        "workshop",
    )
)
# The library's own attributes. A piece's classes may have such ones too, of ``self``.
_CLOSED_OF_OTHERS = frozenset(("_backend", "_heap", "_ask", "_copies", "_note", "_target", "_args", "_kwargs"))
_OF_NAMED_TUPLES = ("_replace", "_asdict", "_fields", "_make")
_OF_EP_LIB = frozenset(("errors", "require", "nixl", "moe", "reference"))  # modules that pieces import
_NOT_OF_EP_LIB = frozenset(
    (
        *("backends", "bootstrap", "callers", "cli", "commands", "compat", "config", "cuda", "device", "emulator"),
        *("jit", "memory", "processes", "runtime", "shared_memory", "transports", "viz", "workshop"),
    )
)
_BY_NAME = frozenset(("getattr", "setattr", "delattr", "hasattr"))
_WHY = "a piece works with what it is given, and this could reach the tests: leave it out"


class Reach(NamedTuple):
    """A word of a piece, its line, and whether it is refused; else it is worth a look."""

    line: int
    word: str
    refused: bool

    def __str__(self) -> str:
        if self.refused:
            return f"{self.line}: `{self.word}`: {_WHY}."
        return f"{self.line}: `{self.word}`: no exercise needs it; look whether it reaches for the tests"


def reaches(source: bytes) -> list[Reach]:
    """The first use of each such word, by line; nothing of what is no Python. Bytes: a file says itself how Python
    is to read it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # then it does not run either
    found: dict[str, Reach] = {}
    for reach in _all(tree):
        if reach.word not in found or reach.line < found[reach.word].line:
            found[reach.word] = reach
    return sorted(found.values())


def _all(tree: ast.AST) -> Iterator[Reach]:
    called_by_name = set()
    own = _own_names(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                called_by_name.add(node.func)
                yield from _words(line, name.value)
        for word in _said(node):
            yield from _words(line, word)
        for module in _imported(node):
            first = module.partition(".")[0]
            if first in _NOT_TO_IMPORT:
                yield Reach(line, f"import {module}", refused=True)
            elif first not in _KNOWN_MODULES:
                yield Reach(line, f"import {module}", refused=False)
            elif first == "ep_lib" and not _OF_EP_LIB.issuperset(module.split(".")[1:2]):
                yield Reach(line, f"import {module}", refused=True)
            for word in module.split("."):
                yield from _words(line, word)
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            opens = node.attr == "open" and of in ("io", "codecs")
            others = of not in ("self", "cls") and (_is_private(node.attr) and node.attr not in own)
            if opens or others or node.attr in _CLOSED_MODULES or (of == "ep_lib" and node.attr in _NOT_OF_EP_LIB):
                yield Reach(line, node.attr, refused=True)
        if isinstance(node, ast.ImportFrom):
            for each in node.names:
                if _is_private(each.name) or (node.module == "ep_lib" and each.name in _NOT_OF_EP_LIB):
                    yield Reach(line, each.name, refused=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        if node.id in _CLOSED_NAMES or (node.id in _BY_NAME and node not in called_by_name):
            yield Reach(node.lineno, node.id, refused=True)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _own_names(tree: ast.AST) -> set[str]:
    """The private names that a piece gives to parts of its own classes, and those that named tuples have."""
    own = set(_OF_NAMED_TUPLES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            own |= {node.attr} if node.value.id in ("self", "cls") else set()
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own.add(node.name)
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
                own |= {target.id for target in targets if isinstance(target, ast.Name)}
    return own - _CLOSED_OF_OTHERS


def _words(line: int, word: str) -> Iterator[Reach]:
    if word in _CLOSED:
        yield Reach(line, word, refused=True)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "."]
    return []


def _said(node: ast.AST) -> list[str]:
    """The names that a piece of the syntax tree says itself."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.ImportFrom):
        return [each.name for each in node.names]
    if isinstance(node, ast.keyword):
        return [node.arg or ""]
    if isinstance(node, ast.MatchClass):
        return list(node.kwd_attrs)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    return []
