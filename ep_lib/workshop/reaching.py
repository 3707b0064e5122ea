"""What a piece in Python may not say: words by which Python reaches what nobody has handed to it.

A piece runs in one process with the function that plays around it. Whatever it was given leads, from attribute to
attribute, to that function's own records; so the words of such a way are refused, and those that make words at run time
(``getattr`` of a name that is put together, ``eval``, ``operator.attrgetter``). A piece imports what a list has, uses
of a module what is public and no module itself, and never holds a module as a value. Those of the list that no exercise
shows are flagged, and an instructor looks at them.

Words stop a piece in plain Python; they are no wall, and somebody who searches long enough may find a way around them.
Beneath them an audit hook refuses frames, code made of text, memory by its address through ctypes, and native code that
is not the test's (:mod:`ep_lib.workshop.seal`). NumPy tells nobody whose memory it takes: its doors are closed by words
alone. What a piece could gain is its own points: the walls around the process are the kernel's.
"""

from __future__ import annotations

import ast
import builtins
import string
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ep_lib.workshop.variables import Variables

# As attributes of whatever has them.
_CLOSED_MODULES = frozenset(
    (
        *("gc", "inspect", "builtins", "bltns", "importlib", "subprocess", "threading", "os", "posix", "pickle"),
        *("marshal", "multiprocessing", "sys", "copyreg"),
    )
)
# What a piece may import; a module that is an attribute of another one is none of its business, and ep_lib.reference
# answers tasks. Those of the last group no exercise shows, and they go further than numbers and bytes, so an
# instructor is told of them.
_SHOWN = frozenset(
    (
        *("__future__", "math", "dataclasses", "typing", "collections", "collections.abc", "enum", "functools"),
        *("itertools", "contextlib", "base64", "json", "struct", "zlib"),
        *("numpy", "numpy.typing", "numpy.linalg", "numpy.random"),
        *("torch", "torch.nn", "torch.nn.functional", "torch.compiler", "torch.linalg"),
        *("ep_lib", "ep_lib.errors", "ep_lib.require", "ep_lib.nixl", "ep_lib.moe", "ep_lib.moe.autograd"),
    )
)
_PLAIN = frozenset(
    (
        *("abc", "array", "binascii", "bisect", "cmath", "datetime", "decimal", "fractions", "graphlib", "hashlib"),
        *("heapq", "io", "numbers", "queue", "statistics", "textwrap", "types"),
    )
)
_UNUSUAL = frozenset(("copy", "operator", "random", "re", "string", "time"))
# Of these modules, only what is named here.
_ONLY = {
    "abc": frozenset(("ABC", "abstractmethod")),
    "io": frozenset(("BytesIO", "StringIO")),
    "queue": frozenset(("Empty", "Full", "LifoQueue", "PriorityQueue", "Queue", "SimpleQueue")),
    "types": frozenset(("MappingProxyType", "SimpleNamespace")),
}
_MODULES = _SHOWN | _PLAIN | _UNUSUAL
_LARGE = ("numpy", "torch", "ep_lib")  # of these, all that is public, no module, and not closed below
_NO_MODULES = frozenset(("chunk", "select", "trace"))  # functions of torch with the names of modules of Python's
# Of modules: what reads and writes files, runs text, or gets and sets attributes by names that are made at run time.
_CLOSED_OF_MODULES = frozenset(
    (
        *("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt", "fromregex", "lookfor"),
        *("safe_eval", "from_file", "import_ir_module", "parse_ir", "parse_schema", "set_string_function"),
        *("update_wrapper", "partialmethod", "singledispatch", "singledispatchmethod"),
        *("EnumType", "EnumMeta", "property", "redirect_stdout", "redirect_stderr", "chdir"),
        # modules of torch's that no file has the name of
        *("np", "ops", "classes", "cpp", "windows", "grad", "registry"),
        *("matrix", "bmat", "asmatrix"),  # arrays over any memory, by the class beneath them
        "fields",  # of dataclasses: the classes that annotations name, as values
        *("TypedDict", "runtime_checkable", "get_origin", "no_type_check", "DynamicClassAttribute"),
    )
)
_CLOSED_NAMES = frozenset(
    ("eval", "exec", "compile", "open", "__import__", "__builtins__", "globals", "locals", "vars", "breakpoint")
)
# Names of attributes, and of what is imported. A variable may be called so.
_CLOSED = frozenset(
    (
        # of frames and functions, and what lists all objects
        *("_getframe", "_current_frames", "_current_exceptions", "currentframe", "walk_stack", "walk_tb", "f_back"),
        *("f_locals", "f_globals", "f_builtins", "tb_frame", "gi_frame", "cr_frame", "ag_frame"),
        *("exc_info", "TracebackException", "cell_contents"),
        *("modules", "settrace", "setprofile", "addaudithook", "monitoring", "FunctionType", "CodeType"),
        # names that are made at run time
        *("get_field", "Formatter", "get_type_hints", "ForwardRef", "make_dataclass"),
        # memory by its address, files, and code in data
        *("__array_interface__", "as_strided", "ctypeslib", "memmap", "open_memmap", "fromfile", "tofile"),
        *("FileIO", "DataSource", "data_as", "in_dll", "from_address", "from_buffer", "from_buffer_copy"),
        *("UntypedStorage", "TypedStorage", "untyped_storage", "storage", "set_", "resize_"),
        "mro",  # a class as a value
        *("_convert_", "_convert", "_create_"),  # of enumerations: others, with any names, of any module's
        "ParameterDict",  # has attributes by names that are made at run time
        *("from_source", "from_file", "library_kernel"),
        *("f2py", "testing", "distutils", "runstring"),
        "workshop",
    )
)
_CLOSED_ARGUMENTS = frozenset(("allow_pickle", "metaclass", "refcheck"))
# Called, they put an array, of objects too, over any memory.
_OVER_MEMORY = frozenset(("ndarray", "recarray", "NDArray"))
# Words of these that are also somebody's own, if the piece itself has such an attribute or method; of modules, never.
_MAY_BE_OWN = frozenset(
    (
        *("modules", "monitoring", "testing", "workshop", "inspect", "marshal", "pickle", "from_buffer"),
        *("from_address", "from_buffer_copy", "set_", "storage"),
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
        *("pos", "abs", "invert", "copy", "bytes", "array", "debug"),
        *(f"{how}{operator}" for how in ("", "r", "i") for operator in _OPERATORS),
        *("name", "qualname", "class", "doc", "all", "slots", "version", "main", "file", "future"),
    )
)
# The library's own attributes. A piece's classes may have such ones too, of ``self``.
_CLOSED_OF_OTHERS = frozenset(("_backend", "_heap", "_ask", "_copies", "_note", "_target", "_args", "_kwargs"))
_OF_NAMED_TUPLES = ("_replace", "_asdict", "_fields", "_make")
_BY_NAME = frozenset(("getattr", "setattr", "delattr", "hasattr"))
_OF_OPERATOR = frozenset(("attrgetter", "methodcaller"))
_DECORATORS = frozenset(("wraps", "cached_property"))  # of functools; called otherwise, they set and get names
_FORMATS = frozenset(("format", "format_map"))
_ENUMS = frozenset(("Enum", "IntEnum", "StrEnum", "ReprEnum", "Flag", "IntFlag"))
_FLAGS = frozenset(("Flag", "IntFlag"))
# Called otherwise than with names that stand there, they make attributes of any name.
_MAKE_ATTRIBUTES = _ENUMS | {"SimpleNamespace"}
_TEXTS = frozenset(("str", "StrEnum", "UserString", "Template"))  # their objects have Python's own format()
_DEEP_COPY = "deepcopy"  # with a memo, or in a __deepcopy__, it hands out what objects keep inside
_ONLY_SO = _OF_OPERATOR | _DECORATORS | _MAKE_ATTRIBUTES | {_DEEP_COPY}
_WHY = "a piece works with what it is given, and this could reach the tests: leave it out"
_FILES = "a piece reads and writes no files: work on the bytes that it is given (io.BytesIO is a stream of bytes)"
_SAY_NAMES = "say the name itself, as in x.name or getattr(x, 'name'), or keep values in a dictionary of your own"
_CODE = "write the code itself, not as text"
_INSTEAD = {
    **dict.fromkeys(
        ("open", "load", "save", "savez", "loadtxt", "savetxt", "genfromtxt", "fromfile", "tofile"), _FILES
    ),
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), _CODE),
    **dict.fromkeys(("globals", "locals", "vars", *_BY_NAME, *_OF_OPERATOR), _SAY_NAMES),
    **dict.fromkeys(_DECORATORS, "it is a decorator: @wraps(f) or @cached_property, above a function"),
    **dict.fromkeys(
        _FORMATS,
        "it follows the attributes that its text names: write f'{x}', or '{}'.format(x) of plain text; an attribute "
        "of this name is compared with a constant, as in x.format == 'B'",
    ),
    **dict.fromkeys(_ENUMS, "write the class itself, as in class State(Enum)"),
    _DEEP_COPY: "it is called with what it copies, as in copy.deepcopy(x)",
    "SimpleNamespace": "say what it has by name, as in SimpleNamespace(x=1), or keep values in a dictionary",
    **dict.fromkeys(
        _OVER_MEMORY, "np.zeros, np.empty and np.array make arrays; in annotations and isinstance it is free"
    ),
    **dict.fromkeys(("matrix", "bmat", "asmatrix"), "take an array of two dimensions, as np.zeros((2, 3)), and @"),
    "fields": "say the fields by their names, or take dataclasses.asdict(x)",
    "refcheck": "np.resize or np.pad makes another array",
    "resize": "call it with arguments that stand there; np.resize and np.pad make another array",
    "ctypes": "of array.ctypes a piece uses array.ctypes.data, the address",
    "__dict__": _SAY_NAMES,
    "__setattr__": "a frozen dataclass is made anew by dataclasses.replace(), or it is not frozen",
    "breakpoint": "ep-lib check shows what a call gets and returns: leave it out",
    "metaclass": "for an abstract class, inherit from abc.ABC",
    "ABCMeta": "for an abstract class, inherit from abc.ABC",
    "TypedDict": "take a dataclass or a NamedTuple",
    "make_dataclass": "write the class itself, below @dataclass",
    "singledispatch": "ask isinstance() and call the function that fits",
    "allow_pickle": "no exercise needs pickled objects: leave it out",
    "type": "type(x) is compared or printed; it makes no classes, and is no value: write the class itself",
}
_MEMBERS = "give the enumeration a member in its own body, as in RED = 1 (of flags: one bit), and leave _ignore_ out"
_PYTHONS_OWN = "of Python's own names a piece says those of operators, containers and contexts: give it a plain method"
_INSIDE = "of a module a piece uses public functions and classes: no modules inside of it, no files and no code in text"
_HANDED = "a piece launches the kernels that it is handed, and makes none"
_DEEPEST = 250  # of a syntax tree: what looks at it calls itself, some times for each level
_ANYBODYS = "type()"  # in place of a name that Python could read
_NESTED = "nested too deeply to be read: give its parts names, in lines of their own"
_IMPORTS = f"a piece imports only {', '.join(sorted(_MODULES - {'__future__'}))}"
_CLASSES = (
    "a class of a class makes others at run time: compare type(x) with a class that stands there (or by `is`), "
    "print it, or name the class itself"
)
_COMPARE = frozenset(("isinstance", "issubclass", "print", "str", "repr"))
_CHANGES = "what is imported is not yours to change: keep values in variables, or in objects of your own"
_AS_A_VALUE = "a module is used by what it has, as in math.sqrt, or imported by that name"


class Reach(NamedTuple):
    """A word of a piece, its line, and whether it is refused; else it is worth a look."""

    line: int
    word: str
    refused: bool
    why: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"{self.line}: `{self.word}`: {self.why or _INSTEAD.get(self.word, _WHY)}."
        return f"{self.line}: `{self.word}`: no exercise needs it; look whether it reaches for the tests"


def reaches(source: bytes) -> list[Reach]:
    """The first use of each such word, by line; nothing of what is no Python. Bytes: a file says itself how Python
    is to read it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []  # then it does not run either
    except (RecursionError, MemoryError):  # the parser's own limits: what runs it may have others
        return [Reach(1, "...", refused=True, why=_NESTED)]
    if _is_deeper_than(_DEEPEST, tree):
        return [Reach(1, "...", refused=True, why=_NESTED)]
    found: dict[str, Reach] = {}
    for reach in _all(tree, Variables(tree)):
        if reach.word not in found or reach.line < found[reach.word].line:
            found[reach.word] = reach
    return sorted(found.values())


def _is_deeper_than(most: int, tree: ast.AST) -> bool:
    level = [tree]
    for _ in range(most):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def _all(tree: ast.AST, variables: Variables) -> Iterator[Reach]:
    own = _Own(tree, variables)
    modules = _names_of_modules(tree)
    imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names}
    said_rightly = _said_rightly(tree, own)
    looked_into = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    addresses = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "data"}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {id(node.func) for node in calls}
    said_all = {id(node.func) for node in calls if all(each.arg for each in node.keywords)}  # arguments, by name
    compared = set(_compared(tree, own))
    may_be_classes = looked_into | compared
    bases = [_word(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
    kernels = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "ep_lib"
        for each in node.names
        if each.name == "Kernel"
    }
    looked_at = compared | _asked_for(tree, own)
    has_texts = not _TEXTS.isdisjoint(bases)

    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        for name in (*_names_in_text(node), *(node.kwd_attrs if isinstance(node, ast.MatchClass) else ())):
            if name == "__class__":
                yield Reach(line, name, refused=True, why=_CLASSES)
            elif own.is_of_others(name) or name in _FORMATS | _OVER_MEMORY | {"ctypes", "resize"}:
                yield Reach(line, name, refused=True)
        if isinstance(node, ast.MatchClass) and node.patterns and not own.is_taken_apart(node.cls):
            yield Reach(line, "case", refused=True, why="name what a pattern looks at, as in Point(x=0)")
        for word in _said(node):
            if _is_closed_by_python(word) or (isinstance(node, ast.keyword) and word in _CLOSED_ARGUMENTS):
                why = _PYTHONS_OWN if isinstance(node, ast.FunctionDef) else ""
                yield Reach(line, word, refused=True, why=why)
        yield from _imports(node, line)
        if isinstance(node, ast.Attribute):
            module = _module_at(node.value, modules)
            if module and not _is_open(module, node.attr):
                yield Reach(line, node.attr, refused=True, why=_INSTEAD.get(node.attr, _INSIDE))
            elif module == "ep_lib" and node.attr == "Kernel" and id(node) in called:
                yield Reach(line, node.attr, refused=True, why=_HANDED)
            elif own.is_of_others(node.attr) and (module or not own.is_of_its_object(node)):
                yield Reach(line, node.attr, refused=True)
            if node.attr in _OVER_MEMORY and id(node) not in looked_at:
                yield Reach(line, node.attr, refused=True)
            if node.attr == "resize" and not module and id(node) not in said_all:  # ** may hand on a refcheck
                yield Reach(line, node.attr, refused=True)
            said_otherwise = node.attr in _ONLY_SO and id(node) not in said_rightly
            if said_otherwise or (node.attr == "ctypes" and id(node) not in addresses):
                yield Reach(line, node.attr, refused=True)
            is_format = node.attr in _FORMATS and isinstance(node.ctx, ast.Load) and id(node) not in compared
            is_own = own.is_of_its_object(node) and not has_texts
            if is_format and not is_own and not own.is_plain_template(node.value):
                yield Reach(line, node.attr, refused=True)
        if isinstance(node, ast.ClassDef) and _may_make_classes(node):
            yield Reach(line, node.name, refused=True, why=_MEMBERS)
        if isinstance(node, ast.Call) and _word(node.func) in kernels:  # there it is refused by what the process may
            yield Reach(line, _word(node.func), refused=True, why=_HANDED)
        if _is_class_of(node) and id(node) not in may_be_classes:
            yield Reach(line, "type" if isinstance(node, ast.Call) else "__class__", refused=True, why=_CLASSES)
        is_value = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        if is_value and id(node) not in looked_into and _module_at(node, modules):
            yield Reach(line, ast.unparse(node), refused=True, why=_AS_A_VALUE)
        if isinstance(node, ast.Name) and is_value:
            is_builtin = id(node) not in variables.of_functions
            may_not = node.id in _ONLY_SO & imported
            may_not |= node.id in _OVER_MEMORY & imported and id(node) not in looked_at
            may_not |= node.id in (*_BY_NAME, "type") and is_builtin
            if (node.id in _CLOSED_NAMES and is_builtin) or (may_not and id(node) not in said_rightly):
                yield Reach(line, node.id, refused=True)
    for node, changed in _changed(tree):
        yield Reach(getattr(node, "lineno", 1), changed, refused=True, why=_CHANGES)


def _said_rightly(tree: ast.AST, own: _Own) -> set[int]:
    """By id(), where a piece says getattr, type, attrgetter or wraps as it may: with names that stand there, in an
    annotation, or as a decorator."""
    found = set()
    # with this nothing of an annotation is evaluated
    future = "annotations" in {
        each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for each in node.names
    }
    for node in ast.walk(tree):
        annotations = [getattr(node, "returns", None), getattr(node, "annotation", None)]
        if future:
            found |= {id(each) for annotation in filter(None, annotations) for each in ast.walk(annotation)}
        elif isinstance(node, (ast.FunctionDef, ast.arg)):  # dataclasses show those of a class
            found |= {id(each.value if isinstance(each, ast.Subscript) else each) for each in annotations}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            called = [each.func for each in node.decorator_list if isinstance(each, ast.Call) and _is_plain_call(each)]
            found |= {id(each) for each in (*node.decorator_list, *called) if _word(each) in _DECORATORS}
        if isinstance(node, ast.ClassDef):
            found |= {id(each) for each in node.bases if _word(each) in _ENUMS}
        if isinstance(node, ast.Call):
            word = _word(node.func)
            is_function = isinstance(node.func, ast.Name) and own.is_pythons(word)
            if (word in ("type", _DEEP_COPY) and _is_plain_call(node)) or next(_names_in_text(node), None) is not None:
                found.add(id(node.func))
            if word == "SimpleNamespace" and not node.args and all(each.arg for each in node.keywords):
                found.add(id(node.func))
            if word == "isinstance" and len(node.args) == 2 and is_function:
                kinds = node.args[1]
                found |= set(map(id, kinds.elts if isinstance(kinds, ast.Tuple) else (kinds,)))
    return found


_PARTS_OF_TYPES = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Tuple, ast.List, ast.BinOp, ast.BitOr, ast.Load),
    ast.Starred,
)


def _asked_for(tree: ast.AST, own: _Own) -> set[int]:
    """By id(), the names of classes in annotations, patterns, and behind isinstance and issubclass; and the class that
    a name stands for, as in ``Array = np.ndarray`` or ``Ints = NDArray[np.int64]``, if that is all for which the name
    is used."""
    places: list[ast.AST | None] = []
    for node in ast.walk(tree):
        places += [getattr(node, "returns", None), getattr(node, "annotation", None)]
        if isinstance(node, ast.MatchClass):
            places.append(node.cls)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COMPARE:
            places += node.args[1:2] if own.is_pythons(node.func.id) else []
    found = set[int]()
    for place in places:
        found |= _parts_of_type(place)
    used = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in found
    }
    for node in tree.body if isinstance(tree, ast.Module) else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute, ast.Subscript)):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            if len(names) == len(node.targets) and used.isdisjoint(names):
                found |= _parts_of_type(node.value)
    return found


def _parts_of_type(place: ast.AST | None) -> set[int]:
    """By id(), the parts of what stands in an annotation; none if something is called or kept there."""
    parts = [*ast.walk(place)] if place is not None else []
    return {id(each) for each in parts} if all(isinstance(each, _PARTS_OF_TYPES) for each in parts) else set()


def _may_make_classes(node: ast.ClassDef) -> bool:
    """Whether it is an enumeration of which it cannot be seen that it has a member: without one it makes others, with
    any names, when it is called."""
    bases = {_word(base) for base in node.bases}
    if bases.isdisjoint(_ENUMS):
        return False
    if any(isinstance(each, (ast.Global, ast.Nonlocal)) for each in node.body):
        return True  # what looks like a member is somebody else's
    names = {each.id for line in node.body for each in ast.walk(line) if isinstance(each, ast.Name)}
    return "_ignore_" in names or not any(_is_member(line, not bases.isdisjoint(_FLAGS)) for line in node.body)


def _is_member(line: ast.stmt, is_flag: bool) -> bool:
    """Whether this line of an enumeration makes a member for certain: of flags not 0, and not several at once."""
    if not isinstance(line, ast.Assign) or not all(isinstance(each, ast.Name) for each in line.targets):
        return False
    if any(isinstance(each, ast.Name) and each.id.startswith("_") for each in line.targets):
        return False
    value = line.value
    if isinstance(value, ast.Call):
        return _word(value.func) == "auto" and not value.args
    if not is_flag:
        return isinstance(value, ast.Constant) or (
            isinstance(value, (ast.Tuple, ast.UnaryOp)) and not any(isinstance(e, ast.Call) for e in ast.walk(value))
        )
    return isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value.bit_count() == 1


def _is_plain_call(node: ast.Call) -> bool:
    """Whether it has one argument."""
    return len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred)


def _word(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names_in_text(node: ast.AST) -> Iterator[str]:
    """The names that getattr, attrgetter and their like are given as text; none if one is made at run time."""
    if not isinstance(node, ast.Call) or node.keywords:
        return
    word = _word(node.func)
    texts = node.args[1:2] if word in _BY_NAME else []
    if word in _OF_OPERATOR:
        texts = node.args if word == "attrgetter" else node.args[:1]
    names = [each.value for each in texts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if len(names) == len(texts):
        for name in names:
            yield from name.split(".")


def _is_builtin(node: ast.expr) -> bool:
    """Whether a pattern of this class looks at the value itself."""
    return isinstance(node, ast.Name) and node.id in ("int", "str", "float", "bool", "bytes", "list", "tuple", "dict")


def _is_class_of(node: ast.AST) -> bool:
    """Whether it is type(x) or x.__class__."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type"
    return isinstance(node, ast.Attribute) and node.attr == "__class__"


def _compared(tree: ast.AST, own: _Own) -> Iterator[int]:
    """What of the tree is only compared or printed, by id(). An object of the piece's own that it is compared with
    would be handed it, by a method that may have been put there at run time: so what stands on the other side is a
    constant or a class, or nobody is asked (``is``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            by_identity = all(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops)
            may_be_theirs = [each for each in sides if not own.compares_plainly(each)]
            for side in sides:
                if by_identity or all(each is side for each in may_be_theirs):
                    yield id(side)
        elif isinstance(node, ast.FormattedValue):
            yield id(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COMPARE:
            yield from map(id, node.args if own.is_pythons(node.func.id) else ())


def _changed(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Where attributes or items are set of what was imported, or of a class that was not made here: ranks are threads,
    and would find there what another one has put down."""
    imported = {
        (each.asname or each.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for each in node.names
    } - {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}

    def belongs_to_all(node: ast.AST) -> bool:
        return any(name in imported for name in _roots(node))

    named = [
        (name, value)
        for target, value in _bound(tree)
        for name, value in _paired(target, value)
        if not isinstance(value, (ast.Call, ast.Subscript))  # what it returns or holds is no import
    ]
    imported.add(_ANYBODYS)
    also: dict[str, set[str]] = {}  # by name, those that are other names for it
    for name, value in named:
        for root in _roots(value):
            also.setdefault(root, set()).add(name)
    new = imported
    while new := {name for root in new for name in also.get(root, ())} - imported:
        imported |= new
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            if not isinstance(node.ctx, ast.Load) and belongs_to_all(node.value):
                yield node, ast.unparse(node)
        elif (
            isinstance(node, ast.Call)
            and _word(node.func) in ("setattr", "delattr")
            and belongs_to_all(next(iter(node.args), node))
        ):
            yield node, _word(node.func)


def _roots(node: ast.AST) -> Iterator[str]:
    """The names at which an expression begins whose attributes and items are set; _ANYBODYS for somebody's class."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr == "__class__":
            yield from () if isinstance(node.value, ast.Name) and node.value.id == "self" else (_ANYBODYS,)
            return
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and node.args:
        yield from () if isinstance(node.args[0], ast.Name) and node.args[0].id == "self" else (_ANYBODYS,)
    elif isinstance(node, ast.Name):
        yield node.id
    else:
        for each in _meant(node):
            yield from _roots(each) if each is not node else ()


def _meant(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression stands for, or has in it: of a condition both, of a display its elements."""
    parts: list[ast.expr] = []
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts = node.elts
    elif isinstance(node, (ast.Dict, ast.BoolOp)):
        parts = node.values
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, (ast.NamedExpr, ast.Starred)):
        parts = [node.value]
    if not parts:
        yield node
    for part in parts:
        yield from _meant(part)


def _bound(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Each target of the tree, and what is bound to it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            if isinstance(node.iter, (ast.Tuple, ast.List, ast.Set)):
                yield from ((node.target, each) for each in node.iter.elts)
        elif isinstance(node, ast.withitem) and node.optional_vars and isinstance(node.context_expr, ast.Call):
            yield from ((node.optional_vars, each) for each in node.context_expr.args)  # nullcontext(it)
        elif isinstance(node, ast.Match):
            names = [each.name for case in node.cases for each in ast.walk(case) if isinstance(each, ast.MatchAs)]
            yield from ((ast.Name(name, ast.Store()), node.subject) for name in names if name)


def _paired(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names of a target, each with what it gets."""
    if isinstance(target, ast.Name):
        yield from ((target.id, each) for each in _meant(value))
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for inner, each in zip(target.elts, value.elts, strict=False):
            yield from _paired(inner, each)


# ---- modules ---------------------------------------------------------------------------------------------------------
def _imports(node: ast.AST, line: int) -> Iterator[Reach]:
    for module in _imported(node):
        if module not in _MODULES:
            yield Reach(line, f"import {module}", refused=True, why=_IMPORTS)
        elif module in _UNUSUAL:
            yield Reach(line, f"import {module}", refused=False)
        for word in module.split("."):
            if word in _CLOSED or _is_closed_by_python(word):
                yield Reach(line, word, refused=True)
    if isinstance(node, ast.ImportFrom):
        for each in node.names:
            if each.name in _CLOSED or (each.asname and each.name in _ONLY_SO | _OVER_MEMORY):
                yield Reach(line, each.name, refused=True)
    if isinstance(node, ast.ImportFrom) and node.module in _MODULES - {"__future__"}:
        for each in node.names:
            is_all = each.name == "*" and node.module in ("math", "itertools")
            if not is_all and f"{node.module}.{each.name}" not in _MODULES and not _is_open(node.module, each.name):
                yield Reach(line, each.name, refused=True, why=_INSTEAD.get(each.name, _INSIDE))


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
    if isinstance(node, ast.Attribute) and node.attr == "xp":
        return "numpy"  # of a Rank
    if isinstance(node, ast.Attribute) and (module := _module_at(node.value, modules)):
        inner = f"{module}.{node.attr}"
        return inner if inner in _MODULES else ""
    return ""


@cache
def _is_open(module: str, name: str) -> bool:
    """Whether a piece may use what a module calls ``name``: what is public, harmless, and no module."""
    if f"{module}.{name}" in _MODULES:
        return True
    if name in _CLOSED or name not in _ONLY.get(module, (name,)):
        return False
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


class _Own:
    """What a piece calls its own: attributes of its classes, and the objects that its methods are called on."""

    def __init__(self, tree: ast.AST, variables: Variables) -> None:
        self._objects = variables.own_object
        self._names: set[str] = set()
        self._named: list[str] = []  # all that is given a name, once for each time
        classes: dict[str, set[str]] = {}  # and what they inherit from
        loaded, decorated, imported = set(), set[str](), set[str]()
        texts: dict[str, ast.expr] = {}  # of variables, what is assigned to them
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                texts[node.targets[0].id] = node.value
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                self._names |= {node.attr} if _word(node.value) in ("self", "cls") else set()
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._names.add(node.name)
                self._named.append(node.name)
            elif isinstance(node, ast.ClassDef):
                classes[node.name] = {_word(base) for base in (*node.bases, *(each.value for each in node.keywords))}
                self._named.append(node.name)
                if {_word(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list} - {
                    "dataclass"
                }:
                    decorated.add(node.name)
                for each in node.body:
                    targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
                    self._names |= {target.id for target in targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    loaded.add(node.id)
                else:
                    self._named.append(node.id)
            elif isinstance(node, ast.arg):
                self._named.append(node.arg)
            elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
                self._named.append((node.rest if isinstance(node, ast.MatchMapping) else node.name) or "")
            elif isinstance(node, ast.ImportFrom):
                imported |= {each.asname or each.name for each in node.names}
            elif isinstance(node, ast.alias) and (node.asname or node.name != "NamedTuple"):
                self._named.append(node.asname or node.name.partition(".")[0])
        self._given_names = frozenset(self._named)
        times = Counter(self._named)
        self._texts = {name: text for name, text in texts.items() if times[name] == 1}
        # classes that no object of another one passes for, and no other meaning of their names
        self._plain: set[str] = {each for each in ("NamedTuple", "object") if each not in self._named}
        for name, bases in classes.items():
            self._plain |= {name} if bases <= self._plain and times[name] == 1 else set()
        self._plain_modules = {name for name in _names_of_modules(tree) if times[name] == 1}
        # and that stay what they are: no decorator puts something else in their places
        self._plain_to_compare = (self._plain & set(classes) - decorated) | {
            name for name in imported if times[name] == 1
        }
        self._hands_on_classes = self._are_values(tree, classes)
        # A.method of a class, not of its object, can be called on anything; and so can a method with another name
        self._by_class = loaded | {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and (_word(node.value) in classes or _is_class_of(node.value))
        }

    def _are_values(self, tree: ast.AST, classes: Collection[str]) -> bool:
        """Whether a class of the piece's is more than called, inherited from and asked for."""
        plain = set[int]()
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                plain |= set(map(id, node.bases))
            elif isinstance(node, ast.ExceptHandler) and node.type:
                plain |= set(map(id, node.type.elts if isinstance(node.type, ast.Tuple) else (node.type,)))
            elif isinstance(node, ast.Attribute):
                plain.add(id(node.value))  # of which is_of_its_object() knows
            elif isinstance(node, ast.MatchClass):
                plain.add(id(node.cls))
            elif isinstance(node, ast.Call):
                plain.add(id(node.func))
                if isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2:
                    kinds = node.args[1]
                    plain |= set(map(id, kinds.elts if isinstance(kinds, ast.Tuple) else (kinds,)))
            for annotation in (getattr(node, "returns", None), getattr(node, "annotation", None)):
                plain |= {id(each) for each in ast.walk(annotation)} if annotation else set()
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                words = {_word(each) for each in node.decorator_list}
                if node.name == "__new__" or not words.isdisjoint(("classmethod",)):
                    return True
            if isinstance(node, ast.ClassDef) and node.decorator_list:
                called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
                if any(_word(each) != "dataclass" for each in called):
                    return True
            is_value = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in classes
            if is_value and id(node) not in plain:
                return True
        return False

    def is_of_others(self, name: str) -> bool:
        """Whether an attribute of this name, of something that may be anybody's, is closed."""
        if name in _MAY_BE_OWN and name in self._names:
            return False
        if name in _CLOSED_MODULES or name in _CLOSED or _is_closed_by_python(name):
            return True
        is_own = name in _OF_NAMED_TUPLES or (name in self._names and name not in _CLOSED_OF_OTHERS)
        return _is_private(name) and not is_own

    def is_of_its_object(self, node: ast.Attribute) -> bool:
        """Whether it is a private attribute of the object that a method of the piece's was called on."""
        method = self._objects.get(id(node.value))
        if node.attr in _CLOSED_OF_OTHERS and self._hands_on_classes:
            return False  # then its methods can be called on anything
        return method is not None and node.attr in self._names and method not in self._by_class

    def is_pythons(self, name: str) -> bool:
        """Whether a builtin's name means that."""
        return name not in self._given_names

    def is_plain_template(self, node: ast.expr) -> bool:
        """Whether it is text that stands there, and its format() looks at no attributes and items."""
        text = self._texts.get(node.id) if isinstance(node, ast.Name) else node
        return isinstance(text, ast.Constant) and isinstance(text.value, str) and _is_plain_template(text.value)

    def compares_plainly(self, node: ast.expr) -> bool:
        """Whether what is compared with this is handed to nobody: a constant, a class, type(x), or some of them."""
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return all(self.compares_plainly(each) for each in node.elts)
        if isinstance(node, ast.Name):
            is_builtin = isinstance(getattr(builtins, node.id, None), type) and self.is_pythons(node.id)
            return is_builtin or node.id in self._plain_to_compare
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.value.id in self._plain_modules
        return isinstance(node, ast.Constant) or (_is_class_of(node) and self.is_pythons("type"))

    def is_taken_apart(self, node: ast.expr) -> bool:
        """Whether a pattern of this class may look at parts by their places: nobody else's names are among them."""
        return _is_builtin(node) or (isinstance(node, ast.Name) and node.id in self._plain)


def _is_plain_template(text: str, depth: int = 2) -> bool:
    if depth == 0:
        return False  # Python follows no more either
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False  # it is no template
    return all(
        not {".", "["} & set(name or "") and (not inner or _is_plain_template(inner, depth - 1))
        for _, name, inner, _ in fields
    )


def _is_closed_by_python(word: str) -> bool:
    return word.startswith("__") and word.endswith("__") and len(word) > 4 and word not in _PYTHONS


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
