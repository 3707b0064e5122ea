"""A script's ``main``: loaded from its file, in this process or in others that run it."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ep_lib import processes
from ep_lib.errors import EpError
from ep_lib.runtime.rank import Rank

_loaded: dict[str, Callable[..., Any]] = {}  # main, by the digest of its script
_loading = threading.Lock()


class CheckFailed(EpError):
    """The script could not be checked: it has an import error, no main, or does not end."""


class ScriptMain:
    """A script's function, "main" by name, for processes that have not loaded it, or that lack the file."""

    def __init__(self, script: Path, name: str) -> None:
        self.__name__ = name
        self._script = script
        self._text = script.read_bytes()
        self.digest = hashlib.sha256(name.encode() + b"\n" + self._text).hexdigest()

    def __call__(self, rank: Rank) -> Any:
        return self._load()(rank)

    @property
    def __code__(self) -> Any:
        return getattr(self._load(), "__code__", None)

    def _load(self) -> Callable[..., Any]:
        with _loading:  # each rank is a thread
            if self.digest not in _loaded:
                script = self._script
                if not script.is_file() or script.read_bytes() != self._text:
                    script = processes.private_folder() / f"script-{self.digest[:16]}" / script.name
                    script.parent.mkdir(exist_ok=True)
                    script.write_bytes(self._text)
                _loaded[self.digest] = load_main(script, self.__name__)
            return _loaded[self.digest]


def load_main(script: Path, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location(script.stem, script)
    if spec is None or spec.loader is None:
        raise CheckFailed(f"{script.name} is not a Python file; name one that defines main(rank)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as end:
        raise CheckFailed(
            f"{script.name} cannot be imported: it calls sys.exit({end.code!r}) at once; put what runs the program "
            f'under `if __name__ == "__main__":`'
        ) from None
    except Exception as error:
        raise CheckFailed(f"{script.name} cannot be imported: {describe(error, script)}") from error
    main = getattr(module, name, None)
    if not callable(main):
        raise CheckFailed(f"{script.name} has no function {name}; define {name}(rank: ep_lib.Rank)")
    try:
        inspect.signature(main).bind(None)
    except TypeError:
        raise CheckFailed(
            f"{name}{inspect.signature(main)} in {script.name} cannot be called with one argument; it must be "
            f"{name}(rank), with defaults for everything else"
        ) from None
    except ValueError:
        pass  # a callable without a signature: try it
    return main  # type: ignore[no-any-return]


def describe(error: BaseException, script: Path) -> str:
    """Type and text of an exception, and the last line of the script in its traceback."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == script]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"
