"""The API reference: a page for each public module, from its docstrings, which are read and not imported.

The table of docs/api.md says which modules are public, their `__all__` which names. mkdocstrings writes the entries;
:class:`Docstrings` turns the roles and literal blocks of docstrings into Markdown.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "ep_lib"
_ROW = re.compile(r"^\| \[`(ep_lib[\w.]*)`\]", re.M)
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")
_LITERAL_BLOCK = re.compile(r"::$", re.M)


@cache
def public_modules() -> list[str]:
    """In the order of docs/api.md."""
    return _ROW.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))


@cache
def load() -> griffe.Module:
    """The package as its sources say it."""
    loaded = griffe.load(PACKAGE, search_paths=[ROOT])
    assert isinstance(loaded, griffe.Module)
    return loaded


def look_up(package: griffe.Module, path: str) -> griffe.Object | None:
    """What has this dotted name, where it is defined; None if there is no such thing."""
    try:
        found: griffe.Object | griffe.Alias = package
        for name in path.split(".")[1:]:
            found = found[name]
        return found.final_target if isinstance(found, griffe.Alias) else found
    except (KeyError, griffe.AliasResolutionError):
        return None


def public_names(module: griffe.Object) -> list[str]:
    return [name for name in module.exports or () if isinstance(name, str)]


def entries(package: griffe.Module) -> Iterator[tuple[str, str, griffe.Object]]:
    """Module, name and object of all public names, modules left out. An object comes once a module."""
    for path in public_modules():
        module = look_up(package, path)
        assert module is not None and public_names(module), f"docs/api.md: {path} is no module with an __all__"
        for name in public_names(module):
            found = look_up(package, f"{path}.{name}")
            assert found is not None, f"{path}.__all__ has {name}, which is not there"
            if not found.is_module:
                yield path, name, found


def places(package: griffe.Module) -> dict[str, str]:
    """Where each public object has its entry, by the dotted name of where it is defined."""
    found: dict[str, str] = {}
    for path, name, one in entries(package):
        found.setdefault(one.path, f"{path}.{name}")
    return {path: path for path in public_modules()} | found


def write_pages(folder: Path) -> list[dict[str, str]]:
    """A page a module, and their entries in the navigation. An object has one entry, and links from elsewhere."""
    package = load()
    first = places(package)
    names: dict[str, list[str]] = {path: [] for path in public_modules()}
    elsewhere: dict[str, list[str]] = {path: [] for path in names}
    for path, name, one in entries(package):
        place = first[one.path]
        if place == f"{path}.{name}":
            names[path].append(name)
        else:
            elsewhere[path].append(f"`{name}` is [`{place}`][{place}].")
    for path, members in names.items():
        # Members of classes that have no entry of their own are told of here.
        inherited = sorted(
            {
                name
                for member in members
                for name, one in getattr(look_up(package, f"{path}.{member}"), "inherited_members", {}).items()
                if name[0] != "_" and one.has_docstring and entry_of(one.target_path, first) is None
            }
        )
        options = [f"      members: {members}", f"      inherited_members: {inherited or False}"]
        lines = [f"::: {path}", "    options:", *options, "", *elsewhere[path], ""]
        (folder / f"{path}.md").write_text("\n".join(lines), encoding="utf-8")
    return [{path: f"{folder.name}/{path}.md"} for path in names]


class Docstrings(griffe.Extension):
    """Docstrings as Markdown. A role whose target has an entry becomes a link to it, another one code; one of an entry
    whose target is not there is a warning."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        first = places(pkg)
        for module in [pkg, *_modules(pkg)]:
            for scope in _scopes(module):
                if scope.docstring is not None:
                    scope.docstring.value = as_markdown(scope.docstring.value, scope, pkg, first)


def as_markdown(text: str, scope: griffe.Object, package: griffe.Module, first: dict[str, str]) -> str:
    def link(role: re.Match[str]) -> str:
        found = find(role[1], scope, package, first)
        if found is None and entry_of(scope.path, first) is not None:
            logging.getLogger("mkdocs.plugins").warning("%s: %s leads nowhere", scope.path, role[0])
        one = None if found is None else look_up(package, found)  # a field without a docstring has no entry
        place = None if found is None or one is None or not one.has_docstring else entry_of(found, first)
        return f"`{role[1]}`" if place is None else f"[`{role[1]}`][{place}]"

    return _LITERAL_BLOCK.sub(":", _ROLE.sub(link, text))


def find(name: str, scope: griffe.Object, package: griffe.Module, first: dict[str, str]) -> str | None:
    """The dotted name of what a docstring of ``scope`` means: from the top, a member of its class, as the code there
    would find it, or a public name."""
    start, _, rest = name.partition(".")
    if start == PACKAGE:
        return None if (found := look_up(package, name)) is None else found.path
    around = scope if scope.is_class else scope.parent
    if isinstance(around, griffe.Class) and start in around.all_members:
        return f"{around.path}.{name}"
    try:
        found = look_up(package, ".".join(filter(None, (scope.resolve(start), rest))))
    except griffe.NameResolutionError:
        return next((path for path, place in first.items() if place.endswith(f".{name}")), None)
    return None if found is None else found.path


def entry_of(path: str, first: dict[str, str]) -> str | None:
    """Where the entry of what is defined as ``path`` is, or None."""
    if path in first:
        return first[path]
    above, _, name = path.rpartition(".")
    if not above or name.startswith("_") or above in public_modules():  # these have entries for public names alone
        return None
    place = entry_of(above, first)
    return None if place is None else f"{place}.{name}"


def _modules(package: griffe.Object) -> Iterator[griffe.Object]:
    for one in package.modules.values():
        if isinstance(one, griffe.Module):
            yield one
            yield from _modules(one)


def _scopes(scope: griffe.Object) -> Iterator[griffe.Object]:
    yield scope
    for one in scope.members.values():
        if isinstance(one, griffe.Object) and not one.is_module:
            yield from _scopes(one)
