"""What a piece in Python may not say: words by which Python reaches what nobody has handed to it.

A piece runs in one process with the function that plays around it. Whatever it was given leads, from attribute to
attribute, to that function's own records; so the words of such a way are refused, and those that make words at run time
(``getattr`` of a name that is put together, ``eval``, ``operator.attrgetter``). A piece imports what a list has, uses
of a module what is public and no module itself, and never holds a module as a value. Those of the list that no exercise
shows are flagged, and an instructor looks at them.

Words stop a piece in plain Python; they are no wall, and somebody who searches long enough may find a way around them.
Beneath them an audit hook refuses frames and code made of text (:mod:`ep_lib.workshop.seal`). What a piece could gain
is its own points: the walls around the process are the kernel's. Memory by its address is not watched: NumPy's doors
to it are closed words.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

# As attributes of whatever has them.
_CLOSED_MODULES = frozenset(
    (
        *("gc", "inspect", "builtins", "bltns", "importlib", "subprocess", "threading", "os", "posix", "pickle"),
        *("marshal", "multiprocessing", "sys", "copyreg"),
    )
)
# What a piece may import; a module that is an attribute of another one is none of its business. Those of the second
# group no exercise shows, so an instructor is told of them.
_SHOWN = frozenset(
    (
        *("__future__", "math", "dataclasses", "typing", "collections", "collections.abc", "enum", "functools"),
        *("itertools", "contextlib", "base64", "json", "struct", "zlib"),
        *("numpy", "numpy.typing", "numpy.linalg", "numpy.random"),
        *("torch", "torch.nn", "torch.nn.functional", "torch.compiler", "torch.linalg"),
        *("ep_lib", "ep_lib.errors", "ep_lib.require", "ep_lib.nixl", "ep_lib.moe", "ep_lib.moe.autograd"),
        "ep_lib.reference",
    )
)
_UNUSUAL = frozenset(
    ("bisect", "copy", "decimal", "fractions", "heapq", "operator", "random", "re", "statistics", "string", "time")
)
_MODULES = _SHOWN | _UNUSUAL
_LARGE = ("numpy", "torch", "ep_lib")  # of these, all that is public, no module, and not closed below
_NO_MODULES = frozenset(("chunk", "select", "trace"))  # functions of torch with the names of modules of Python's
# Of modules: what reads and writes files, runs text, or gets and sets attributes by names that are made at run time.
_CLOSED_OF_MODULES = frozenset(
    (
        *("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt", "fromregex", "lookfor"),
        *("safe_eval", "from_file", "import_ir_module", "parse_ir", "parse_schema", "set_string_function"),
        *("update_wrapper", "wraps", "partialmethod", "singledispatch", "singledispatchmethod", "cached_property"),
        *("EnumType", "EnumMeta", "property", "redirect_stdout", "redirect_stderr", "chdir"),
        # modules of torch's that no file has the name of
        *("np", "ops", "classes", "cpp", "windows", "grad", "registry"),
        *("TypedDict", "runtime_checkable", "get_origin", "no_type_check", "DynamicClassAttribute"),
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
        *("f_locals", "f_globals", "f_builtins", "tb_frame", "gi_frame", "cr_frame", "ag_frame"),
        *("exc_info", "TracebackException", "cell_contents"),
        *("modules", "settrace", "setprofile", "addaudithook", "monitoring", "FunctionType", "CodeType"),
        # names that are made at run time
        *("attrgetter", "methodcaller", "get_field", "Formatter", "get_type_hints", "ForwardRef", "make_dataclass"),
        "metaclass",
        # memory by its address, files, and code in data
        *("__array_interface__", "as_strided", "ctypeslib", "memmap", "open_memmap", "fromfile", "tofile"),
        *("FileIO", "DataSource"),
        *("from_source", "from_file", "library_kernel"),
        *("f2py", "testing", "distutils", "allow_pickle", "runstring"),
        "workshop",
    )
)
# Python's own names that a piece may say or define; others lead further, or are called for what is none of theirs.
_OPERATORS = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "divmod", "lshift", "rshift", "and", "xor"),
    "or",
)
_PYTHONS = frozenset(
    f"__{name}__"
    for name in (
        *("init", "new", "post_init", "repr", "str", "format", "len", "length_hint", "iter", "next", "reversed"),
        *("getitem", "setitem", "delitem", "contains", "missing", "call", "enter", "exit", "eq", "ne", "lt", "le"),
        *("gt", "ge", "hash", "bool", "int", "index", "float", "complex", "round", "trunc", "floor", "ceil", "neg"),
        *("pos", "abs", "invert", "copy", "deepcopy", "bytes", "array", "debug"),
        *(f"{how}{operator}" for how in ("", "r", "i") for operator in _OPERATORS),
        *("name", "qualname", "class", "doc", "all", "slots", "version", "main", "file", "future"),
    )
)
# The library's own attributes. A piece's classes may have such ones too, of ``self``.
_CLOSED_OF_OTHERS = frozenset(("_backend", "_heap", "_ask", "_copies", "_note", "_target", "_args", "_kwargs"))
_OF_NAMED_TUPLES = ("_replace", "_asdict", "_fields", "_make")
_BY_NAME = frozenset(("getattr", "setattr", "delattr", "hasattr"))
_WHY = "a piece works with what it is given, and this could reach the tests: leave it out"
_IMPORTS = f"a piece imports only {', '.join(sorted(_MODULES - {'__future__'}))}"
_CLASSES = "a class of a class makes others at run time: compare type(x), print it, or name the class itself"
_COMPARE = frozenset(("isinstance", "issubclass", "print", "str", "repr"))
_AS_A_VALUE = "a module is used by what it has, as in math.sqrt, or imported by that name"


class Reach(NamedTuple):
    """A word of a piece, its line, and whether it is refused; else it is worth a look."""

    line: int
    word: str
    refused: bool
    why: str = _WHY

    def __str__(self) -> str:
        if self.refused:
            return f"{self.line}: `{self.word}`: {self.why}."
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
    modules = _names_of_modules(tree)
    looked_into = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    may_be_classes = looked_into | set(_compared(tree))

    def is_of_others(name: str) -> bool:
        return name in _CLOSED_MODULES or (_is_private(name) and name not in own)

    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                called_by_name.add(node.func)
                yield from _words(line, name.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type":
            called_by_name |= {node.func} if len(node.args) == 1 and not node.keywords else set()
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            called_by_name.add(node.value)  # type[int]
        if isinstance(node, ast.MatchClass):
            if node.patterns and not _is_builtin(node.cls):
                yield Reach(line, "case", refused=True, why="name what a pattern looks at, as in Point(x=0)")
            for attribute in filter(is_of_others, node.kwd_attrs):
                yield Reach(line, attribute, refused=True)
        for word in _said(node):
            yield from _words(line, word)
        yield from _imports(node, line)
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            is_own = of in ("self", "cls") and node.attr not in _CLOSED_MODULES
            module = _module_at(node.value, modules)
            if (not is_own and is_of_others(node.attr)) or (module and not _is_open(module, node.attr)):
                yield Reach(line, node.attr, refused=True)
        if _is_class_of(node) and id(node) not in may_be_classes:
            yield Reach(line, "type" if isinstance(node, ast.Call) else "__class__", refused=True, why=_CLASSES)
        is_value = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        if is_value and id(node) not in looked_into and _module_at(node, modules):
            yield Reach(line, ast.unparse(node), refused=True, why=_AS_A_VALUE)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        if node.id in _CLOSED_NAMES or (node.id in (*_BY_NAME, "type") and node not in called_by_name):
            yield Reach(node.lineno, node.id, refused=True)


def _is_builtin(node: ast.expr) -> bool:
    """Whether a pattern of this class looks at the value itself."""
    return isinstance(node, ast.Name) and node.id in ("int", "str", "float", "bool", "bytes", "list", "tuple", "dict")


def _is_class_of(node: ast.AST) -> bool:
    """Whether it is type(x) or x.__class__."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type"
    return isinstance(node, ast.Attribute) and node.attr == "__class__"


def _compared(tree: ast.AST) -> Iterator[int]:
    """What of the tree is only compared or printed, by id()."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from map(id, (node.left, *node.comparators))
        elif isinstance(node, ast.FormattedValue):
            yield id(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COMPARE:
            yield from map(id, node.args)


# ---- modules ---------------------------------------------------------------------------------------------------------
def _imports(node: ast.AST, line: int) -> Iterator[Reach]:
    for module in _imported(node):
        if module not in _MODULES:
            yield Reach(line, f"import {module}", refused=True, why=_IMPORTS)
        elif module in _UNUSUAL:
            yield Reach(line, f"import {module}", refused=False)
        for word in module.split("."):
            yield from _words(line, word)
    if isinstance(node, ast.ImportFrom) and node.module in _MODULES - {"__future__"}:
        for each in node.names:
            is_all = each.name == "*" and node.module in ("math", "itertools")
            if not is_all and f"{node.module}.{each.name}" not in _MODULES and not _is_open(node.module, each.name):
                yield Reach(line, each.name, refused=True)


def _names_of_modules(tree: ast.AST) -> dict[str, str]:
    """Which names of a piece stand for which module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.partition(".")[0]
                found[each.asname or top] = each.name if each.asname else top
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                if f"{node.module}.{each.name}" in _MODULES:
                    found[each.asname or each.name] = f"{node.module}.{each.name}"
    return found


def _module_at(node: ast.AST, modules: dict[str, str]) -> str:
    """The module that an expression stands for; "" if it is none."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute) and (module := _module_at(node.value, modules)):
        inner = f"{module}.{node.attr}"
        return inner if inner in _MODULES else ""
    return ""


@cache
def _is_open(module: str, name: str) -> bool:
    """Whether a piece may use what a module calls ``name``: what is public, harmless, and no module."""
    if f"{module}.{name}" in _MODULES:
        return True
    if name == "*" or name in _CLOSED_OF_MODULES or (name.startswith("_") and name not in _PYTHONS):
        return False
    top, *inside = module.split(".")
    loaded = sys.modules.get(module) if top in _LARGE else import_module(module) if module in _MODULES else None
    names = {} if loaded is None else vars(loaded)
    if name in names and isinstance(names[name], ModuleType):
        return False
    if top not in _LARGE:
        return name in names.get("__all__", names)
    if name in names:
        return True
    # The library was not loaded for this: what is a file of it, or called like a module, is one.
    spec = find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        place = Path(folder, *inside, name)
        if place.is_dir() or place.with_suffix(".py").is_file():
            return False
    return name in _NO_MODULES or (name not in sys.stdlib_module_names and name not in _LARGE)


# ---- names -----------------------------------------------------------------------------------------------------------
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
    is_pythons = word.startswith("__") and word.endswith("__") and len(word) > 4
    if word in _CLOSED or (is_pythons and word not in _PYTHONS):
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
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    return []
