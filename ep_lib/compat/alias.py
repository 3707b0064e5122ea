"""Installs an interface under the name of the library that it replaces, for programs whose imports cannot be
changed."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from ep_lib.errors import BackendUnavailable


def install(name: str, face: ModuleType, submodules: dict[str, ModuleType], *, replace: bool) -> None:
    """Makes ``import name`` return ``face`` in this process, and ``name.key`` each of ``submodules``. Calling it twice
    does no harm.

    Raises BackendUnavailable if another ``name`` was imported already, or is installed: two libraries of one name would
    be confused. ``replace``: prefer the face to an installed one.
    """
    there = sys.modules.get(name)
    if there is face:
        return
    # A distribution that contains only this call (extras/deep_ep) is itself being imported now.
    if there is not None and not getattr(there, "is_alias_of_ep_lib", False):
        raise BackendUnavailable(
            f"{name} was imported before install_alias(), and is not ep_lib's: call install_alias() first"
        )
    if there is None and not replace and importlib.util.find_spec(name) is not None:
        raise BackendUnavailable(
            f"another {name} is installed here: install_alias(replace=True) prefers ep_lib's, in this process"
        )
    sys.modules[name] = face
    for key, module in submodules.items():
        sys.modules[f"{name}.{key}"] = module
