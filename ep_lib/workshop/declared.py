"""What a piece in C++ declares where tests and headers look for it: functions at namespace scope.

A test calls the library's functions by name, and C++ takes the best declaration of that name that it has seen. What a
test calls is bound before (:mod:`ep_lib.workshop.bound`); where a piece declares others of such names, however that is
written (with a trailing return type, as a template, by a macro), an instructor is told. This reads tokens and scopes,
as a compiler does, without branches: brackets that a macro or an ``#if`` leaves open lead it astray.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ep_lib.jit.lexer import logical, without_texts

_DIGRAPHS = {"<:": "[", ":>": "]", "<%": "{", "%>": "}", "%:": "#"}
_DIGRAPH = re.compile("<:(?!:(?![:>]))|:>|<%|%>|%:")  # "<::" is two tokens, "<" and "::", as in a template of ::x
_TOKEN = re.compile(r"[^\W\d]\w*|\.?\d[\w.']*|::|[^\s\w]")
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)([^\n]*)", re.MULTILINE)
_PAIRS = {"(": ")", "[": "]", "{": "}"}

_KEYWORDS = frozenset(
    (
        *("alignas", "auto", "bool", "break", "case", "char", "class", "const", "constexpr", "continue", "default"),
        *("do", "double", "else", "enum", "extern", "float", "for", "friend", "if", "inline", "int", "long"),
        *("namespace", "noexcept", "operator", "return", "short", "signed", "sizeof", "static", "struct", "switch"),
        *("template", "this", "typename", "union", "unsigned", "using", "void", "volatile", "while"),
    )
)


# CUDA's own functions. In namespace ep, another one would be called by the library's headers that are included later.
_CUDAS = re.compile(r"__(?!attribute$|typeof$)\w*(?<!__)|atomic[A-Z]\w*")
_HIDDEN_IN_EP = frozenset(("clock", "clock64", "min", "max", "abs"))
_BEFORE_EQUALS = frozenset("<>=!+-*/%&|^")
_TEMPLATE = re.compile(r"\btemplate\s*<[^{};]*[{;]")
_BEFORE_BRACKETS = frozenset(
    ("alignas", "__align__", "decltype", "__attribute__", "noexcept", "explicit", "__launch_bounds__", "requires")
)


_OF_TESTS = "the tests call a function of this name: name yours otherwise"
_OF_HEADERS = (
    "the headers beside your piece have this name, and might take yours for theirs: name it otherwise, or put it into "
    "a namespace of your own"
)


class Found(NamedTuple):
    """What is worth a look: where it begins in the text, the words, and why."""

    at: int
    what: str
    why: str


def code_of(source: str) -> str:
    """A source without comments, joined lines and what its literals hold, and with brackets in place of digraphs."""
    return _DIGRAPH.sub(lambda found: f"{_DIGRAPHS[found.group()]} ", without_texts(logical(source)))


@dataclass
class _Scope:
    kind: str  # "namespace", "class" or "body"
    is_ep: bool = False
    is_global: bool = False  # the global namespace, where C++ looks for functions of CUDA's types, or a part of it
    statement: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)  # of the statement
    begins: int = 0  # where the statement does
    macros: list[str] = field(default_factory=list)  # in the statement, and what they stand for
    hidden: str = ""  # a word that is taken, in a statement with macros
    looked_at: tuple[int, int, bool] = (0, 0, False)  # how much of both, and as if in namespace ep
    angles: int = -1  # open ones of a template's parameters; -1 elsewhere

    def begin(self) -> None:
        """Another statement."""
        self.statement, self.words, self.macros, self.hidden, self.looked_at = [], set(), [], "", (0, 0, False)
        self.angles = -1

    def says(self, word: str) -> bool:
        """Whether the statement has a word, be it in what a macro stands for."""
        return word in self.words or word in self.macros

    def gives_a_value(self, behind: str) -> bool:
        """Whether the last token, outside of round brackets, is the "=" before a variable's value, and none of a
        template's parameters or of a comparison."""
        last = self.statement[-1]
        if last == "template":
            self.angles = 0
        elif self.angles >= 0 and last in "<>":
            self.angles += 1 if last == "<" else -1
            self.angles = self.angles or -1
        before = self.statement[-2] if len(self.statement) > 1 else ""
        return last == "=" and self.angles < 0 and behind != "=" and before not in _BEFORE_EQUALS


def declarations(
    code: str, called: Collection[str], library: Collection[str], templates: Collection[str] = ()
) -> Iterator[Found]:
    """Declarations at namespace scope of names in ``called`` and of CUDA's, and of those in ``library`` too where the
    library finds them, in namespace ep and beside CUDA's own types; specialisations of templates that are not the
    piece's, as the library's are (``templates``); templates of operators, which C++ takes for the tests' own types.
    ``code`` is :func:`code_of` a source."""
    called = frozenset(called) - _KEYWORDS
    macros: dict[str, list[str]] = {}
    without = _DIRECTIVE.sub(lambda directive: " " * len(directive.group()), code)
    tokens = [(token.start(), token.group()) for token in _TOKEN.finditer(without)]
    for directive in _DIRECTIVE.finditer(code):
        name, *words = _TOKEN.findall(directive[2]) or [""]
        if directive[1] == "define":
            macros.setdefault(name, []).extend(words)
    macros = {name: _expanded(name, macros) for name in macros}

    def why_taken(name: str, is_ep: bool) -> str:
        return _OF_TESTS if name in called else _OF_HEADERS if is_ep and name in library else ""

    yield from _in_scopes(tokens, macros, why_taken, frozenset(templates))


def _expanded(name: str, macros: dict[str, list[str]]) -> list[str]:
    """All words that a macro may become, by way of others too."""
    found = dict.fromkeys(macros[name])
    new = [*found]
    while new:
        new = [word for macro in new for word in macros.get(macro, ()) if word not in found]
        found.update(dict.fromkeys(new))
    return [*found]


def templates_of(code: str) -> Iterator[str]:
    """The names of the templates that a header declares."""
    for found in _TEMPLATE.finditer(code):
        declared = _declares([token.group() for token in _TOKEN.finditer(found.group())])
        if declared and declared.names:
            yield declared.names[-1]


class _Declared(NamedTuple):
    """What a declaration that begins with ``template`` declares."""

    names: tuple[str, ...]  # with what stands before "::"; none where it is written in an unusual way
    specialises: bool


def _declares(said: list[str]) -> _Declared | None:
    """None if it is no template: a word behind a point, say."""
    at, is_special = 0, False
    if "template" not in said:
        return None
    at = said.index("template")
    while at < len(said) and said[at] == "template":
        end = _behind_angles(said, at + 1)
        is_special |= end <= at + 3  # "template <> ..." specialises, "template int f<int>(int)" instantiates
        at = end
    at += 1 if at < len(said) and said[at] in ("class", "struct", "union", "enum") else 0
    is_class = at and said[at - 1] in ("class", "struct", "union", "enum")
    names: list[str] = []
    has_arguments = False
    while at < len(said):
        word, behind = said[at], said[at + 1] if at + 1 < len(said) else ""
        if word == "[" or (behind == "(" and word in _BEFORE_BRACKETS):
            at = _behind_brackets(said, at + (word != "["))
            continue
        if word == "operator":
            return _Declared((*names, word), is_special)
        if word in ("(", "=", ":", "{", ";") or (is_class and names and word == "final"):
            break
        if word == "<":
            at, has_arguments = _behind_angles(said, at), True
            continue
        if word == "::":
            names += [""] if not names else []
        elif word.isidentifier():
            names = [*names, word] if at and said[at - 1] == "::" else [word]
            has_arguments = False
        at += 1
    if at < len(said) and said[at] == "(":
        end = _behind_brackets(said, at)
        if end < len(said) and said[end] == "(":  # the name is in brackets
            return _Declared((), True)
    return _Declared(tuple(names), is_special or has_arguments)


def _behind_angles(said: list[str], at: int) -> int:
    """Behind the "<...>" that begins there; there, if none does."""
    depth = 0
    while at < len(said):
        if said[at] in _PAIRS:
            at = _behind_brackets(said, at)
            continue
        if said[at] == ">" and said[at - 1] == "-":
            at += 1
            continue
        depth += (said[at] == "<") - (said[at] == ">")
        if depth == 0:
            return at + (said[at] == ">")
        at += 1
    return at


def _behind_brackets(said: list[str], at: int) -> int:
    depth = 0
    while at < len(said):
        depth += (said[at] in _PAIRS) - (said[at] in _PAIRS.values())
        at += 1
        if depth <= 0:
            break
    return at


def _in_scopes(
    tokens: list[tuple[int, str]],
    macros: dict[str, list[str]],
    why_taken: Callable[[str, bool], str],
    templates: frozenset[str],
) -> Iterator[Found]:
    of_cuda = "CUDA has this name: name yours otherwise"
    of_all_types = "an operator for all types is one for those of the tests as well: write a function with a name"
    of_others = "a piece specialises templates of its own only: give yours another name, and call that"
    scopes = [_Scope("namespace", is_global=True)]
    own: set[str] = set()  # classes and templates
    brackets = 0  # round and square ones
    for number, ((at, token), (_, behind)) in enumerate(itertools.pairwise([*tokens, (0, "")])):
        scope = scopes[-1]
        is_said = brackets == 0 and scope.kind != "body" and token in "{;"
        if is_said and (special := _special(scope, own, templates)):
            yield Found(scope.begins, special, of_others)
        if token == "{":
            kind = _kind(scope, brackets)
            is_ep = scope.is_ep or (kind == "namespace" and scope.says("ep"))
            is_named = scope.statement[:1] == ["namespace"] and len(scope.statement) > 1
            scopes.append(_Scope(kind, is_ep, is_global=kind == "namespace" and scope.is_global and not is_named))
            continue
        if token == "}" and len(scopes) > 1:
            ended = scopes.pop()
            if ended.kind != "class" and brackets == 0:
                scopes[-1].begin()
            continue
        if scope.kind == "body":
            continue
        brackets += (token in "([") - (token in ")]")
        if token == ";" and brackets == 0:
            scope.begin()
            continue
        said, words = scope.statement, scope.words
        scope.begins = at if not said else scope.begins
        is_ep = scope.is_ep or scope.says("ep")
        said.append(token)
        if token in macros and token not in words:
            scope.macros += (token, *macros[token])
        gives_a_value = brackets == 0 and scope.gives_a_value(behind)
        if token != "=" or gives_a_value:
            words.add(token)
        if scope.kind == "namespace" and scope.macros and "=" not in words:
            if not scope.hidden:
                scope.hidden = _hidden(scope, is_ep, why_taken)
            if scope.hidden:
                yield Found(at, scope.hidden, why_taken(scope.hidden, is_ep) or _OF_TESTS)
        if is_ep and said[:2] == ["using", "namespace"] and token not in ("namespace", "::", "ep", "detail"):
            yield Found(at, token, "it would change which functions the tests call: leave it out")
        if scope.kind == "namespace" and "operator" in words:
            if (brackets == 0 and ("template" in words or said[0] == "using")) or (brackets and token == "auto"):
                yield Found(at, "operator", of_all_types)
        elif _is_cudas(token, is_ep) and brackets == 0 and behind == "(" and "=" not in words:
            yield Found(at, token, of_cuda)
        why = why_taken(token, is_ep or scope.is_global)
        if not why:
            continue
        if why == _OF_HEADERS and not is_ep and [word for _, word in tokens[number + 1 : number + 3]] == ["(", ")"]:
            continue  # the headers' calls see this scope by the types of their arguments alone
        is_declared = scope.kind == "namespace" and brackets == 0 and behind in ("(", "<") and "=" not in words
        if is_declared or "friend" in words:
            yield Found(at, token, why)


def _special(scope: _Scope, own: set[str], templates: frozenset[str]) -> str:
    """The template of somebody else's that a statement specialises, or "". What it declares joins ``own``."""
    said = scope.statement
    if "template" not in said and "template" in scope.macros:
        return "template"
    declared = _declares(said)
    if not (declared and declared.specialises):
        own.update(name for each, name in itertools.pairwise(said) if each in ("class", "struct", "union"))
    if not declared:
        return ""
    if not declared.specialises:
        own.update(declared.names[-1:] if len(declared.names) == 1 else ())
        return ""
    whose = declared.names[:-1] or declared.names
    if own.isdisjoint(whose) or not own.issuperset(whose):
        return "::".join(declared.names) or "template"
    return next((word for word in (*said, *scope.macros) if word in templates and word not in own), "")


def _hidden(scope: _Scope, is_ep: bool, why_taken: Callable[[str, bool], str]) -> str:
    """A taken word of a statement's macros, or else of itself; "" if there is none. Looks at what is new since it did
    last."""
    macros, said, as_ep = scope.looked_at
    if as_ep != is_ep:
        macros = said = 0
    scope.looked_at = len(scope.macros), len(scope.statement), is_ep
    for word in scope.macros[macros:]:
        if word == "operator" or why_taken(word, is_ep) or _is_cudas(word, is_ep):
            return word
    return next((word for word in scope.statement[said:] if word == "operator" or why_taken(word, is_ep)), "")


def _is_cudas(name: str, is_ep: bool) -> bool:
    return _CUDAS.fullmatch(name) is not None or (is_ep and name in _HIDDEN_IN_EP)


def _kind(scope: _Scope, brackets: int) -> str:
    """Of the scope that a brace opens."""
    words = scope.words
    if scope.kind == "body" or brackets:
        return "body"
    if scope.says("namespace") or scope.statement == ["extern", '"', '"']:
        return "namespace"
    is_class = not words.isdisjoint(("class", "struct", "union")) and "(" not in words and "enum" not in words
    return "class" if is_class else "body"
