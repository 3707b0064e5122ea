"""Which names in Python code are variables of its own functions, as Python itself decides it.

Such a name is never that of a builtin: before anything is assigned to it, reading it is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_OF_METHODS = frozenset(("property", "cached_property", "setter", "getter", "deleter", "abstractmethod"))
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class _Scope(NamedTuple):
    bound: frozenset[str]
    is_class: bool = False
    method: tuple[str, str] | None = None  # what it calls its object, and its own name


class Variables(ast.NodeVisitor):
    """``of_functions``: by id(), the ast.Name of a function's variable. ``own_object``: by id() the ast.Name by which a
    method of a class in the code calls its object, which it assigns nothing else to, and the method's name."""

    def __init__(self, tree: ast.AST) -> None:
        self.of_functions: set[int] = set()
        self.own_object: dict[int, str] = {}
        self._scopes: list[_Scope] = []  # inside of the module
        self.visit(tree)

    def visit_Name(self, node: ast.Name) -> None:
        inside = self._scopes
        if inside and inside[-1].is_class:
            if node.id in inside[-1].bound:
                return  # of the class; before it is assigned, the module's or a builtin
            inside = inside[:-1]
        for scope in reversed([each for each in inside if not each.is_class]):
            if node.id in scope.bound:
                self.of_functions.add(id(node))
                if scope.method and scope.method[0] == node.id:
                    self.own_object[id(node)] = scope.method[1]
                return

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all((*node.decorator_list, *node.bases, *node.keywords))
        self._inside(_Scope(frozenset(_assigned(node.body)), is_class=True), node.body)

    def visit_FunctionDef(self, node: _Function) -> None:
        self._visit_all(node.decorator_list)
        self._visit_all([node.returns] if node.returns else [])
        is_method = bool(self._scopes) and self._scopes[-1].is_class and node.name != "__new__"
        is_method &= all(_decorator(each) in _OF_METHODS for each in node.decorator_list)
        self._function(node.args, node.body, node.name if is_method else "")

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, [node.body], "")

    def _function(self, args: ast.arguments, body: list[ast.stmt] | list[ast.expr], method: str) -> None:
        params = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        outside = [*args.defaults, *filter(None, args.kw_defaults), *(p.annotation for p in params if p.annotation)]
        self._visit_all(outside)  # are evaluated where the function is defined
        assigned, elsewhere = set(_assigned(body)), _declared(body)
        first = [each.arg for each in (*args.posonlyargs, *args.args)][:1]
        own = (first[0], method) if method and first and first[0] not in assigned | elsewhere else None
        bound = (assigned | {each.arg for each in params}) - elsewhere
        self._inside(_Scope(frozenset(bound), method=own), body)

    def _comprehension(self, node: _Comprehension) -> None:
        first, *others = node.generators
        self.visit(first.iter)  # is evaluated where the comprehension stands
        bound = frozenset(_assigned([each.target for each in node.generators]))
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._inside(_Scope(bound), [first.target, *first.ifs, *others, *values])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _inside(self, scope: _Scope, nodes: Iterable[ast.AST]) -> None:
        self._scopes.append(scope)
        self._visit_all(nodes)
        self._scopes.pop()

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for each in nodes:
            self.visit(each)


def _decorator(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these nodes bind where they stand."""
    for node in nodes:
        if isinstance(node, _OWN_SCOPE):
            if not isinstance(node, ast.Lambda):
                yield node.name
            continue
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            yield from (each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        yield from _assigned(ast.iter_child_nodes(node))


def _declared(nodes: Iterable[ast.AST]) -> set[str]:
    """What is declared to be of another scope, here or further inside."""
    inside = [each for node in nodes for each in ast.walk(node)]
    return {name for each in inside if isinstance(each, (ast.Global, ast.Nonlocal)) for name in each.names}
