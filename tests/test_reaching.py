"""Words by which a piece in Python reaches what nobody handed to it are refused; plain Python is not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import grader_answers
import pytest

from ep_lib.workshop import reaching
from ep_lib.workshop.exercises import find, names
from ep_lib.workshop.reaching import reaches
from ep_lib.workshop.watched import unwatchable, worth_a_look

REFUSED = {
    "an array of objects over numbers": "import numpy as np\nit = np.ndarray((1,), object, np.array([7]))[0]",
    "a record of objects over numbers": 'import numpy as np\nit = np.recarray((1,), dtype=[("x", "O")], buf=b"12345")',
    "arrays over memory, by another name": "from numpy import ndarray as array\nit = array((1,), object)",
    "arrays over memory, by a value": "import numpy as np\nmake = np.ndarray\nit = make((1,), object)",
    "arrays over memory, in a class": "import numpy as np\nclass Own:\n    make = np.ndarray",
    "arrays over memory, in an annotation": "import numpy as np\ndef f(x: np.ndarray((1,), object) = 1): pass",
    "arrays over memory, kept by an annotation": "import numpy as np\ndef f(x: (make := np.ndarray)): pass",
    "arrays over memory, inherited": "import numpy as np\nclass Own(np.ndarray): pass",
    "memory that others look at": "import numpy as np\nx = np.zeros(9)\ny = x[:]\nx.resize(1, refcheck=False)",
    "memory that others look at, by **": 'x = np.ones(9)\ny = x[:]\nx.resize(1, **{"ref" "check": False})',
    "memory that others look at, by a value": "from functools import partial\npartial(x.resize, 1, **more)()",
    "memory that others look at, by torch": "x.untyped_storage().resize_(0)",
    "arrays over memory, by an alias of types": (
        "import numpy as np\nfrom numpy.typing import NDArray\nit = NDArray[np.int64]((1,), object, np.array([7]))[0]"
    ),
    "arrays over memory, by an alias that is called": (
        "import numpy as np\nfrom numpy.typing import NDArray\nInts = NDArray[np.int64]\nit = Ints((1,), object, x)[0]"
    ),
    "arrays over memory, by a module's alias of types": (
        "import numpy as np\nimport numpy.typing as npt\nit = npt.NDArray[np.int64]((1,), object, np.array([7]))[0]"
    ),
    "arrays over memory, by a field's type": (
        "import numpy as np\nfrom dataclasses import dataclass, fields\n@dataclass\nclass A:\n    x: np.ndarray\n"
        "it = fields(A)[0].type((1,), object, np.array([7]))[0]"
    ),
    "arrays over memory, by a field's type of a module": (
        "import numpy as np\nimport dataclasses\nit = dataclasses.fields(A)[0].type((1,), object, np.array([7]))[0]"
    ),
    "arrays over memory, by an isinstance of its own": (
        "import numpy as np\ndef isinstance(x, kind): return kind((1,), object, x)[0]\n"
        "it = isinstance(np.array([7]), np.ndarray)"
    ),
    "arrays over memory, by a method called isinstance": (
        "import numpy as np\nclass A:\n    def isinstance(self, kind): return kind((1,), object, x)[0]\n"
        "it = A().isinstance(np.ndarray)"
    ),
    "arrays over memory, by the class beneath another one": (
        "import numpy as np\nclass M(np.matrix):\n"
        "    def __new__(cls): return super(np.matrix, cls).__new__(cls, (1, 1), object, np.array([7]))"
    ),
    "the oracle": "import ep_lib\nwants = ep_lib.reference.layout(topk_idx, num_experts=8, world_size=4)",
    "the oracle, imported": "from ep_lib.reference import layout",
    "the oracle, imported as a module": "from ep_lib import reference",
    "an enumeration without a member of its own": (
        "from enum import Enum\nclass Other(Enum):\n    global BLUE\n    BLUE = 1"
    ),
    "an enumeration of a module's names": (
        "from enum import Enum\nclass Own:\n    def _convert_(self): pass\n"
        'class Other(Enum):\n    BLUE = 1\nOther._convert_("X", "operator", lambda n: n == "attrgetter")'
    ),
    "a frame": "import sys\nframe = sys._getframe(1)",
    "a frame by another name": "from sys import _getframe as look",
    "a frame of an error": "frame = error.__traceback__.tb_frame",
    "a frame of a generator": "frame = numbers.gi_frame",
    "a function's variables": "cell = kernel.launch.__closure__[0].cell_contents",
    "a function's module": "names = kernel.launch.__func__.__globals__",
    "a pattern": "match kernel:\n    case object(__closure__=found): pass",
    "a name put together": 'getattr(kernel, "__clo" + "sure__")',
    "getattr as a value": "look = getattr\nlook(kernel, name)",
    "a closed name by getattr": 'getattr(kernel, "__closure__")',
    "operator": 'import operator\noperator.attrgetter("tb_" + "frame")',
    "format's fields": 'import string\nstring.Formatter().get_field("0.__clo" "sure__", [f], {})',
    "format's attributes": 'x = "{0._backend.launch}".format(rank)',
    "format's items": 'x = "{a[x]}".format_map({"a": rank})',
    "format's attributes in a width": 'x = "{:{0._ask}}".format(rank)',
    "format of text that is made": 'x = ("{0._ba" + "ckend}").format(rank)',
    "format of a variable": "x = text.format(rank)",
    "format of a variable of its own": 'text = "{}"\ntext += "{0.a}"\nx = text.format(rank)',
    "format of text with attributes": 'TEXT = "{0.rank}"\nx = TEXT.format(rank)',
    "format of a variable with an attribute's name": 'a.text = "{}"\nfor text in texts: x = text.format(rank)',
    "format that a comparison of one's own is handed": """class Teller:
    def __eq__(self, other): self.text = other(rank)
x = "{0._backend}".format == Teller()""",
    "format that another comparison is handed": """class Teller: pass
def told(self, other): self.text = other(rank)
Teller.__eq__ = told
x = "{0._backend}".format == Teller()""",
    "format by a comparison that setattr gave": """setattr(Teller, "__eq__", told)
x = way.format == teller""",
    "format in what is one's own": "x = way.format in tellers",
    "format among others": "x = way.format in (teller, 1)",
    "format in an enumeration": """import enum
class E(enum.Enum):
    X = 1
    @classmethod
    def _missing_(cls, value): return cls.X if value(rank) else None
x = way.format in E""",
    "format between constants": 'x = "a" < way.format < teller',
    "format beside a class of one's own making": """@made
class Teller: pass
x = way.format == Teller""",
    "format beside a class of another value": "class Teller: pass\nTeller = told\nx = way.format == Teller",
    "format beside what is no module": "x = way.format == mine.xp.teller",
    "format beside what was a module": "import numpy as np\nnp = mine\nx = way.format == np.teller",
    "a class that a comparison is handed": "x = type(y) == teller",
    "a class that is looked for": "x = type(y) in tellers",
    "format of its class": 'x = str.format("{0._backend}", rank)',
    "format as a value": "x = list(map(text.format_map, [rank]))",
    "format by getattr": 'x = getattr("{}", "format")(rank)',
    "format by operator": 'import operator\nx = operator.methodcaller("format", rank)(text)',
    "format in a pattern": "match text:\n    case str(format=show): x = show(rank)",
    "a class of ctypes": "words = type(array.ctypes.shape).from_address(1)",
    "arrays of ctypes": "shape = array.ctypes.shape",
    "ctypes by getattr": 'c = getattr(array, "ctypes")',
    "memory by an address": "word = kind.from_address(id(x) + 24)",
    "memory of a buffer": "word = kind.from_buffer(array)",
    "memory of a library": 'word = kind.in_dll(handle, "environ")',
    "pointers": "p = view.data_as(kind)",
    "memory of torch": "import torch\ns = torch.UntypedStorage(8)",
    "memory of another tensor": "x.set_(y, 0, (1 << 20,))",
    "memory by names at run time": "from types import SimpleNamespace\nx = SimpleNamespace(**{name: 5})",
    "names at run time by another class": "from types import SimpleNamespace\nclass A(SimpleNamespace): pass",
    "names at run time by an enumeration": "import enum\nx = enum.Enum('E', {name: 5})",
    "names at run time by another enumeration": "from enum import IntEnum as E\nx = E('E', {name: 5})",
    "names at run time by one of its own": "import enum\nclass E(enum.Enum):\n    pass\nx = E('E', {name: 5})",
    "an enumeration without a member": "from enum import Enum\nclass E(Enum):\n    f = lambda self: 0",
    "flags without a bit": "from enum import Flag\nclass E(Flag):\n    A = 0\n    B = 3",
    "an enumeration that ignores its members": "from enum import Enum\nclass E(Enum):\n    _ignore_ = ['A']\n    A = 1",
    "a text's format() behind one's own": (
        "class B:\n    def format_map(self, x): return x\n"
        "class A(str):\n    def show(self, x): return self.format_map(x)"
    ),
    "names at run time by torch": "import torch\nx = torch.nn.ParameterDict({name: 5})",
    "a class in a list": "box = rank.__class__.mro()[0]",
    "annotations": 'import typing\ntyping.get_type_hints(f, {"x": "y.z"})',
    "code in text": 'eval("1 + 1")',
    "code in a text's own name": '__builtins__["eval"]',
    "all objects": "import gc",
    "other threads": "import threading",
    "a module of another module": "import random\nrandom.os.write(3, b'')",
    "memory by its address": "import ctypes",
    "memory by an array": "import numpy as np\nnp.lib.stride_tricks.as_strided(a, (1 << 20,))",
    "memory as a file": 'open("/proc/self/mem", "rb")',
    "files": "from pathlib import Path",
    "a kernel of its own": 'own = type(kernel).from_source("...", "own")',
    "a kernel by its class": "import ep_lib\nown = ep_lib.Kernel('', 'own', path=None, filename='x.cu')",
    "a kernel by its imported class": "from ep_lib import Kernel as K\nown = K('', 'own', path=None, filename='x.cu')",
    "what unpickles": "class A:\n    def __reduce__(self): return list, ()",
    "everything of a module": "from os.path import *",
    "a file by another name": "import io\nio.open('/proc/self/mem')",
    "the grader": "from ep_lib.workshop import seal",
    "a module inside of a module": "import random\nrandom._os.write(3, b'')",
    "a private name of a module": "from random import _os",
    "commands of the library": "from ep_lib.processes import run",
    "commands of the library, by attributes": "import ep_lib\nep_lib.processes.run(['sh'])",
    "inside of the rank": "rank._backend.world",
    "builtins in a module": "import enum\nrun = enum.bltns.eval",
    "a module in a module": "import torch\nrun = torch.functional.torch.nn",
    "a module of the library's in it": "import ep_lib.moe as moe\nmoe.config.os",
    "a module of a library that was not loaded": "from torch import package",
    "a module as a value": "import enum\nm = enum",
    "a module inside of one, as a value": "import torch\nf(torch.nn)",
    "a module that is not on the list": "import turtle",
    "Python's own interpreter": "import sys\nfound = sys.maxsize",
    "pickles by position": "import numpy as np\nnp.load(mine, None, True)",
    "pickles by another name": "from numpy import load as text",
    "pickles of torch": "import torch\ntorch.load(mine)",
    "files of text": "import numpy as np\nnp.genfromtxt(name)",
    "everything of NumPy": "from numpy import *",
    "names at run time by functools": "import functools\nfunctools.update_wrapper(a, b, assigned=names)",
    "names at run time by contextlib": "import contextlib\nclass R(contextlib.redirect_stdout): _stream = name",
    "code in a dataclass by annotations": "from typing import TypedDict",
    "attributes that are set": "class A:\n    def __setattr__(self, name, value): kept.append(value)",
    "attributes that are got": "class A:\n    __getattr__ = found",
    "a metaclass": "class A(metaclass=B): pass",
    "a metaclass by inheritance": "class A(type): pass",
    "a class made at run time": "A = type(name, (), {name: f})",
    "a private name in a pattern": "match kernel:\n    case object(_ask=found): pass",
    "a rank's own module": "pickled = rank.xp.load(mine, None, True)",
    "a rank's own module as a value": "keep(rank.xp)",
    "a note on a module": "import ep_lib\nep_lib.shared = {}",
    "a note on a class": "import fractions\nfractions.Fraction.shared = 5",
    "a note on a class by another name": "from ep_lib import Rank\nmine = Rank\nmine.shared = 5",
    "a note on a function": "from json import dumps as d\nd.shared[3] = 5",
    "a note under another name": "import json\nd = json.dumps\nd.shared = 5",
    "a note that is taken away": "import json\ndel json.dumps.shared",
    "a note by setattr": 'import json\nsetattr(json.dumps, "shared", 5)',
    "a note on a class of what is given": "type(rank).shared = {}",
    "a note on a class by its attribute": "rank.__class__.shared = {}",
    "a note by a loop": "import json\nfor box in (json.dumps,): box.heard = 5",
    "a note by a walrus": "import json\nif (box := json.dumps): box.heard = 5",
    "a note by a comprehension": "import json\nx = [setattr(box, 'heard', 5) for box in [json.dumps]]",
    "a note by a context": "import contextlib, json\nwith contextlib.nullcontext(json.dumps) as box: box.heard = 5",
    "a note by a pattern": "import json\nmatch json.dumps:\n    case box: box.heard = 5",
    "a note by unpacking": "import json\nn, box = 1, json.dumps\nbox.heard = 5",
    "a note by a condition": "import json\nbox = None or json.dumps\nother = box\nother.heard = 5",
    "a note by a tuple": "import json\n(json.dumps,)[0].heard = 5",
    "a note in a loop": "import json\nfor json.dumps.shared in x: pass",
    "a class of a class": "made = type(int)(name, (), {name: f})",
    "a class of a class by its attribute": "M = int.__class__",
    "a class of a class by typing": "from typing import get_origin",
    "a pattern by position": "match f:\n    case Mine(found): pass",
    "a builtin in a comprehension over itself": "found = [open for open in open(name)]",
    "a builtin beside a variable of that name": "def f(): eval = 1\nfound = eval(text)",
    "a builtin in a class": "def f(eval):\n    class A:\n        found = eval(text)\n        eval = 1",
    "a builtin by global": "def f():\n    global eval\n    eval(text)\n    eval = 1",
    "a builtin as a default": "f = lambda eval=eval: eval",
    "a closed name by getattr of the library's": 'getattr(rank, "_backend")',
    **{
        f"a method of another object by {how}": f"""
class Mine:
    def __init__(self): self._backend = None
    def look(self): return self._backend
    @property
    def kind(self): return {kind}
def f(rank): return {way}.look(rank)
"""
        for how, kind, way in (
            ("another name of its class", "0", "(lambda mine: mine)(Mine)"),
            ("a list", "0", "[Mine][0]"),
            ("a condition", "0", "(Mine or 0)"),
            ("a property", "Mine", "Mine().kind"),
            ("its class of a function", "0", "next(iter({'a': Mine}.values()))"),
        )
    },
    "a method of another object by getattr": """
class Mine:
    def __init__(self): self._backend = None
    def look(self): return self._backend
def f(rank): return getattr(Mine, "look")(rank)
""",
    "a method that has no object": """
class Mine:
    def __init__(self): self._backend = None
    @staticmethod
    def look(it): return it._backend
def f(rank): return Mine().look(rank)
""",
    "a method of a class's method": """
class Mine:
    def __init__(self): self._backend = None
    def look(self): return self._backend
    @classmethod
    def of(cls, it): return cls.look(it)
def f(rank): return Mine.of(rank)
""",
    "a method of a class that is decorated": """
def hand(kind): kinds.append(kind); return kind
@hand
class Mine:
    def __init__(self): self._backend = None
    def look(self): return self._backend
def f(rank): return kinds[0].look(rank)
""",
    "a memo of its own": "import copy\ncopy.deepcopy(x, Memo())",
    "a memo by name": "from copy import deepcopy\ndeepcopy(x, memo=Memo())",
    "copies with a memo": "from copy import deepcopy\nlist(map(deepcopy, [x], [Memo()]))",
    "a copy that is told of the memo": "class A:\n    def __deepcopy__(self, memo): return memo",
    "an array's copy with a memo": "array.__deepcopy__(Memo())",
    "the library's by a method's object": "def f(self): return self._backend\nf(rank)",
    "the library's by a method of a class": "class A:\n    def f(self): self._ask = self._ask\nA.f(rank)",
    "a module's, though the piece has one": "import numpy as np\nclass A: testing = 1\nfound = np.testing",
    "a class by getattr": 'kind = getattr(3, "__class__")',
    "a class in a pattern": "match 3:\n    case int(__class__=kind): pass",
    "type where it is evaluated": "def f(x: kept[type]): pass",
    "type where it is evaluated, in spite of an import": "from __future__ import division\ndef f(x: kept[type]): pass",
    "a class by an alias of type": "made = type[int](name, (), {})",
    "type in a dataclass": "@dataclass\nclass A:\n    kind: type",
    "type to an isinstance of its own": "def isinstance(x, kind): return kind\nM = isinstance(1, type)",
    "type to a method called isinstance": "SimpleNamespace(isinstance=kept.append).isinstance(1, type)",
    "type to a pattern called isinstance": "match kept.append:\n    case isinstance: isinstance(1, type)",
    "a class to a print of its own": "match kept.append:\n    case print: print(type(int))",
    "type as a decorator": "@type\ndef f(): pass",
    "getters as values": "from operator import attrgetter\nlook = attrgetter",
    "getters of names that are made": "from operator import attrgetter\nattrgetter(name)(f)",
    "getters in a function": "def f(name):\n    from operator import attrgetter\n    return attrgetter(name)",
    "getters of closed names": 'import operator\noperator.attrgetter("x.__closure__")(f)',
    "wraps as a value": "import functools\nfunctools.wraps(f)(g, assigned=names)",
    "a file of io": "from io import FileIO",
    "a function made of code": "from types import FunctionType",
    "a pattern by position of a class that others pass for": "class A(Sized): pass\nmatch f:\n    case A(found): pass",
    "names of patterns": "class A:\n    __match_args__ = (name,)",
}
PLAIN = {
    "arrays in annotations": (
        "import numpy as np\nfrom numpy import ndarray\nArray = np.ndarray\n"
        "def f(x: Array, y: np.ndarray | None, *z: list[ndarray]) -> ndarray:\n"
        "    kept: dict[str, np.ndarray] = {}\n    return x if isinstance(y, (np.ndarray, Array)) else y"
    ),
    "aliases of arrays' types": (
        "import numpy as np\nimport numpy.typing as npt\nfrom numpy.typing import NDArray\nInts = NDArray[np.int64]\n"
        "Array = np.ndarray[tuple[int], np.dtype[np.float32]]\nOther = npt.NDArray[np.uint8]\n"
        "def f(x: Ints, y: Array | None, z: Other) -> npt.NDArray[np.int64]: return x"
    ),
    "its own resize": "class A:\n    def resize(self, size): self.storage = [0] * size\nA().resize(size=3)",
    "kernels in annotations": "import ep_lib as e\ndef f(kernel: e.Kernel | None) -> list[e.Kernel]: return [kernel]",
    "a kernel of its own": "class Kernel: pass\nkernels = [Kernel()]",
    "modules inside of modules that are on the list": "import torch.nn\ny = torch.nn.functional.softmax(x, 0)",
    "random numbers": "import numpy as np\nx = np.random.default_rng(1).random(3)",
    "an abstract class": "import collections.abc\nclass A(collections.abc.Mapping): pass",
    "a decorator": "from contextlib import contextmanager\n@contextmanager\ndef f(): yield",
    "torch's functions": "import torch\nx = torch.select(torch.where(y)[0], 0, 1)",
    "operators of its own": "class A:\n    def __radd__(self, other): return Own(self.x + other)",
    "patterns": "match x:\n    case int(n) | Point(x=n): pass",
    "a class's name": "name = type(error).__name__, self.__class__.__name__",
    "classes that are compared": "same = type(x) is int or isinstance(x, type(y)) or print(f'{type(x)}')",
    "getattr with a plain name": 'size = getattr(array, "nbytes", 0)',
    "addresses of arrays": "first = array.ctypes.data",
    "format of plain text": 'x = "{} {0:>3} {name!r:{width}} {{.}}".format(1, name=2, width=3)',
    "format of a constant": 'TEXT = "{}: " "{}"\ndef f(x): return TEXT.format(x, 1)',
    "a format of its own": "class A:\n    def format(self): return 1\n    def f(self): return self.format()",
    "a format that is compared": 'same = memoryview(x).format == "B" or x.format in ("B", "b") or "f" != x.format',
    "classes by =='s": """import numpy as np
from collections import deque
class Own: pass
same = type(x) == type(y) or type(x) == int or np.ndarray != type(x) or type(x) in (Own, deque) or type(x) is kind""",
    "bytes as numbers": "import numpy as np\nx = np.frombuffer(data, np.uint8)",
    "a message of a buffer": "class A:\n    def from_buffer(data): pass\nx = A.from_buffer(3)",
    "names that stand there": "from types import SimpleNamespace\nx = SimpleNamespace(a=1)",
    "enumerations": "import enum\nclass A(enum.Enum):\n    X = 1\nfound = isinstance(A(1), enum.Enum)",
    "flags": "import enum\nclass A(enum.IntFlag):\n    X = enum.auto()\n    Y = 2\n    XY = 3\nboth = A.X | A.Y",
    "an enumeration of pairs": "from enum import Enum\nclass A(Enum):\n    X = (1, 'one')\n    Y = -1",
    "its own private names": "class Own:\n    def __init__(self): self._seen = 0\n    def f(self): return self._seen",
    "collections": "from collections import namedtuple\nPair = namedtuple('Pair', 'x y')\np = Pair(1, 2)._replace(x=3)",
    "numbers of the machine": "import numpy as np\nlargest = np.iinfo(np.int32).max",
    "its own attribute with a name of the library's": "class Own:\n    def __init__(self): self._heap = []\n"
    "    def f(self): return [each for each in self._heap if self.open]",
    "everything of a harmless module": "from math import *",
    "a count of its own class": "class A:\n    n = 0\n    def f(self): type(self).n += 1; self.__class__.n += 1",
    "arrays by the rank's module": "x = rank.xp.zeros(3)",
    "arrays of its own": "import numpy as np\nx = np.zeros(3)\nx[0] = 1",
    "objects of its own": "class A: pass\nA.n = 1\ny = A()\ny.n = 2",
    "an argument that is called like an import": "from json import loads\ndef f(loads): loads.n = loads[0] = 1",
    "arrays beside imported types": "import numpy as np\nfor kind, x in ((np.int32, a), (np.int8, b)): x[0] = kind(1)",
    "arrays of two": "import numpy as np\na, b = np.zeros(3), np.ones(3)\na[0] = b[1] = np.pi\nc = a\nc[1] = 2",
    "arrays in a loop": "import numpy as np\nfor x in (np.zeros(3), np.ones(3)): x[0] = 1",
    "what it is given": "def f(ring, slots): ring.taken = 3; slots[0].words[1] = 5",
    "a dictionary of words": 'words = {"modules": 1, "open": 2}["open"]',
    "a file that does not parse": "def f(:",
    "variables of functions": "def f(modules, open=3):\n    vars = [type for type in modules]\n    return vars, open",
    "variables with names of modules": "modules = {}\ntesting = [monitoring for monitoring in modules]",
    "variables of lambdas and matches": "f = lambda compile: compile + 1\ndef g(x):\n    match x:\n"
    "        case [open, *vars]: return open, vars",
    "fields called as builtins": "@dataclass\nclass A:\n    type: int\n    open: int = 3\nx = A(1).open",
    "its own attributes": "class A:\n    def __init__(self): self.modules = []\n    def inspect(self): self.modules",
    "types in annotations": "from __future__ import annotations\nkinds: dict[str, type] = {}\n"
    "def f(kind: type[int]) -> type | None:\n    made: type = A",
    "a type in an annotation": "def f(kind: type) -> type: return isinstance(kind, type)",
    "a class in an annotation": "def f(kind: type[int]) -> type[int]: return kind",
    "a decorator that wraps": "from functools import wraps\ndef f(g):\n    @wraps(g)\n    def h(): g()\n    return h",
    "a property that is kept": "import functools\nclass A:\n    @functools.cached_property\n    def f(self): return 1",
    "patterns by position": "@dataclass\nclass Point:\n    x: int\nmatch point:\n    case Point(x): pass",
    "a condition that is long": "x = " + " + ".join(["a"] * 150),
}
# Right, and unusual; an instructor is told of the modules that no exercise needs.
UNUSUAL = """
from __future__ import annotations
import binascii, bisect, collections, contextlib, enum, hashlib, heapq, io, itertools, operator, queue, string
import struct, zlib
from abc import ABC, abstractmethod
from array import array
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial, reduce, total_ordering, wraps
from operator import attrgetter, itemgetter, methodcaller
from types import MappingProxyType, SimpleNamespace
from typing import Any, Callable, ClassVar, Final, Generic, Iterator, Literal, NamedTuple, Protocol, TypeVar, overload

T = TypeVar("T")
LIMIT: Final = 1 << 20
Kind = Literal["idle", "used"]


class State(enum.IntFlag):
    IDLE = enum.auto()
    USED = enum.auto()


class Shape(Protocol):
    def area(self) -> float: ...


class Base(ABC, Generic[T]):
    modules: ClassVar[list[type]] = []

    @abstractmethod
    def monitoring(self, testing: T, /, *more: T, workshop: int = 0, **rest: Any) -> T: ...


@total_ordering
@dataclass(order=False, slots=True)
class Span:
    begin: int
    end: int = 0
    kinds: dict[str, type] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.end - self.begin

    @size.setter
    def size(self, value: int) -> None:
        self.end = self.begin + value

    def __lt__(self, other: Span) -> bool:
        return (self.begin, self.end) < (other.begin, other.end)


def logged(f: Callable[..., T]) -> Callable[..., T]:
    @wraps(f)
    def inner(*args: Any, **kwargs: Any) -> T:
        nonlocal calls
        calls += 1
        return f(*args, **kwargs)

    calls = 0
    return inner


@contextlib.contextmanager
def opened(data: bytes) -> Iterator[io.BytesIO]:
    with contextlib.ExitStack() as stack, contextlib.suppress(ValueError):
        yield stack.enter_context(io.BytesIO(data))


@logged
@lru_cache(maxsize=None)
def digest(body: bytes) -> str:
    checksum = binascii.crc32(body) & 0xFFFFFFFF
    return f"{checksum=:08x} {hashlib.sha256(body).hexdigest()!r} {struct.pack('<I', zlib.crc32(body)).hex():>8}"


def spans(modules: list[Span], compile: int = 3) -> dict[str, Any]:
    open = sorted(modules, key=attrgetter("begin", "end"))
    while (n := len(open)) > LIMIT:
        open.pop()
    heap = [(each.begin, place) for place, each in enumerate(open)]
    heapq.heapify(heap)
    vars = {"n": n} | {"heap": heapq.nsmallest(2, heap, key=itemgetter(0))}
    type, *globals = [str(each) for each in itertools.chain.from_iterable([[1], (2, 3)])]
    match modules:
        case [] | [Span(0, 0)]:
            return vars
        case [Span(begin=0, end=end), *rest] if (half := end // 2):
            return {**vars, "half": half, "rest": rest, "type": type, "globals": globals}
        case [first, _, *_]:
            first = replace(first, end=reduce(operator.add, (s.size for s in modules), 0))
            return {"at": bisect.bisect_left(sorted(s.begin for s in modules), compile), "first": first}
        case _:
            pass
    yieldings = (lambda getattr=1, *, eval: getattr + eval)(eval=2)
    return dict(zip("ab", map(partial(operator.mul, yieldings), Counter("aab").values())))


def flatten(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list):
        for locals in tree:
            yield from flatten(locals)
    else:
        yield tree if not isinstance(tree, type) else tree.__name__
"""


@pytest.mark.parametrize("cheat", REFUSED)
def test_a_word_that_reaches_out_is_refused_with_its_line(cheat: str) -> None:
    first = next(each for each in reaches(f"x = 1\n{REFUSED[cheat]}\n".encode()) if each.refused)
    assert first.line > 1
    assert first.word.removeprefix("import ") in REFUSED[cheat] and str(first).endswith(".")


@pytest.mark.parametrize("code", PLAIN)
def test_plain_python_is_free(code: str) -> None:
    assert reaches(PLAIN[code].encode()) == []


def test_unusual_right_python_is_not_refused() -> None:
    assert [str(each) for each in reaches(UNUSUAL.encode()) if each.refused] == []
    exec(compile(UNUSUAL, "unusual", "exec", dont_inherit=True), {"__name__": __name__})


def test_what_is_nested_too_deeply_to_be_read_is_refused() -> None:
    (found,) = reaches(f"x = {' + '.join(['a'] * 2000)}".encode())
    assert "nested too deeply to be read: give its parts names" in str(found)


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        ("data = open(name)", "io.BytesIO is a stream of bytes"),
        ("x = vars(y)", "a dictionary of your own"),
        ("getattr(x, name)", "getattr(x, 'name')"),
        ("class A(metaclass=B): pass", "inherit from abc.ABC"),
        ("from typing import TypedDict", "a dataclass or a NamedTuple"),
        ("x = type(y)(3)", "name the class itself"),
        ("import os", "a piece imports only"),
        ("import numpy as np\nx = np.lib.arraysetops", "no modules inside of it"),
        ("from numpy import lib", "no modules inside of it"),
        ("class A:\n    def __getattr__(self, name): return 1", "give it a plain method"),
        ("object.__setattr__(self, 'x', 1)", "dataclasses.replace()"),
    ],
)
def test_what_is_refused_says_what_to_write_instead(code: str, instead: str) -> None:
    assert instead in str(reaches(code.encode())[0])


def test_code_that_hides_in_a_comment_by_its_encoding_is_read() -> None:
    hidden = b"# coding: raw_unicode_escape\n# \\u000aimport os\n"
    assert [each.word for each in reaches(hidden)] == ["import os"]
    assert reaches(b"import os".decode().encode("utf-16")) == []  # which Python does not read either


def test_a_module_that_no_exercise_needs_is_worth_a_look(tmp_path: Path) -> None:
    exercise = find("10_plan")
    (tmp_path / exercise.pieces[0]).write_text('import re\nfound = re.compile("a+")\n')
    assert unwatchable(exercise, tmp_path, ()) == ""
    (flag,) = worth_a_look(exercise, tmp_path)
    assert "10_plan.py:1: `import re`" in flag
    (tmp_path / exercise.pieces[0]).write_text("import turtle\n")
    assert "10_plan.py:1: `import turtle`: a piece imports only abc, array," in unwatchable(exercise, tmp_path, ())
    assert unwatchable(exercise, tmp_path, ()).endswith("the file is not run, and none of its tasks counts.")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "torch.nn", "torch.nn.functional", "ep_lib.moe.autograd"])
def test_what_is_said_of_torch_unloaded_is_true(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    names = vars(importlib.import_module(module))
    public = {name: isinstance(value, ModuleType) for name, value in names.items() if not name.startswith("_")}
    monkeypatch.delitem(sys.modules, module)
    reaching._is_open.cache_clear()
    said = {name: reaching._is_open(module, name) for name in public}
    listed = {name for name in public if f"{module}.{name}" in reaching._MODULES}
    assert len(said) > 5
    assert not {name for name, is_module in public.items() if is_module and said[name]} - listed
    shut = {name for name, is_module in public.items() if not is_module and not said[name]}
    assert not shut - reaching._CLOSED_OF_MODULES - reaching._CLOSED


@pytest.mark.slow
def test_no_solution_and_no_answer_says_such_a_word(tmp_path: Path) -> None:
    python = [exercise for exercise in map(find, names()) if exercise.pieces[0].endswith(".py")]
    assert len(python) > 6
    for exercise in python:
        folders = [exercise.solution_dir, exercise.exercise_dir]
        for answer in sorted((grader_answers.FOLDER / exercise.name).glob("*.txt")):
            folders.append(grader_answers.submission(exercise, answer.stem, tmp_path / exercise.name / answer.stem))
        assert len(folders) > 4
        for folder in folders:
            assert not [each for each in reaches((folder / exercise.pieces[0]).read_bytes()) if each.refused]
