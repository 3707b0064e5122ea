"""A kernel's source, and everything else that a compiler needs."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ep_lib.callers import short_path
from ep_lib.errors import ArgumentError
from ep_lib.jit import cache, digest, pieces, sealed, toolkit
from ep_lib.require import a_path, instance, refuse, several, text

Define = str | int | float | None

ENTRY_FILE = "<ep_lib kernel entry>"  # the file name of the lines that ep_lib appends to a source
UNIT_FILE = "ep_lib_unit.cpp"  # the translation unit that g++ gets

BYTE_ORDER_MARK = "\ufeff"  # with which editors on Windows begin a file
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
NO_FILE = re.compile("No such file|file not found|cannot open source file")  # of compilers' messages

_filenames: dict[str, str] = {}  # of source strings: copy in the cache -> the user's name


def filename_of(path: str | os.PathLike[str]) -> str | None:
    """The user's name for the source string whose copy is at ``path``; None for ordinary files."""
    return _filenames.get(os.fspath(path))


class KernelSource:
    """The compiler's input for a kernel; :class:`ep_lib.Kernel` documents the attributes."""

    def __init__(
        self,
        source: str,
        name: str,
        *,
        path: Path | None,
        filename: str,
        include: Sequence[str | os.PathLike[str]] = (),
        defines: Mapping[str, Define] | None = None,
        options: Sequence[str] = (),
        closed: KernelSource | None = None,
    ) -> None:
        """``closed``: on the emulator, a foreign source, compiled to an object of its own, with C functions that this
        source declares and calls (:mod:`ep_lib.jit.closed`)."""
        self.closed = closed
        self.texts: Mapping[str, str] = {}  # what compilers get in place of what is in files, by their paths
        self.left_out: Sequence[str] = ()  # headers that are nowhere, in these texts
        self.name = text("a kernel's name", name).strip()
        if not self.name or "\n" in self.name:
            raise ArgumentError(f"a kernel's name is one C++ name such as 'copy<float, 4>', got {name!r}")
        self.path = path
        self.source = sealed.opened(source.removeprefix(BYTE_ORDER_MARK))  # of text that was copied
        self.filename = filename
        folders = _several("include", include, "folders")
        self.defines: dict[str, str] = {}
        for macro, value in instance("defines", {} if defines is None else defines, dict, "a dict").items():
            self.defines[_check_macro(macro)] = _macro_text(value)
        given = [text("a compiler option", option) for option in _several("options", options, "compiler options")]
        self.options = self._take_options(given, folders)
        self.include = tuple(a_path("an include folder", folder) for folder in folders)
        for folder in self.include:
            if not folder.is_dir():
                raise ArgumentError(f"the include folder {str(folder)!r} of kernel {self.name!r} does not exist")

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        name: str,
        *,
        include: Sequence[str | os.PathLike[str]] = (),
        defines: Mapping[str, Define] | None = None,
        options: Sequence[str] = (),
    ) -> Self:
        """The kernel ``name`` in a ``.cu`` file, read now.

        ``include`` folders come before everything else, so a header there replaces the library's of the same name.
        ``defines`` are macros: ``{"TILE": 32, "DEBUG": None}``, where None and True mean 1. ``options`` go to NVRTC;
        ``-D`` and ``-I`` among them count on the emulator too. Raises :class:`ArgumentError` when the file cannot be
        read.
        """
        file = a_path("path", path)
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"cannot read the kernel source {str(path)!r}: {error}") from error
        text(f"the source {str(path)!r}", source)
        filename = short_path(file) if Path(path).parts[:1] == (os.pardir,) else str(path)
        # One name for a file, even through "../tutorial_kernels/" in a notebook: it is part of the cache key.
        one = file.parent.resolve() / file.name
        return cls(source, name, path=one, filename=filename, include=include, defines=defines, options=options)

    @classmethod
    def from_source(
        cls,
        source: str,
        name: str,
        *,
        filename: str = "<kernel>",
        include: Sequence[str | os.PathLike[str]] = (),
        defines: Mapping[str, Define] | None = None,
        options: Sequence[str] = (),
    ) -> Self:
        """The kernel ``name`` in a string of CUDA C++. ``filename``: its name in errors; the rest is as in
        :meth:`from_file`."""
        text("source", source)
        if "\n" in text("filename", filename):
            raise ArgumentError(f"filename must be one line, got {filename!r}")
        return cls(source, name, path=None, filename=filename, include=include, defines=defines, options=options)

    def include_roots(self, transport: Path) -> list[Path]:
        """Folders to search for headers, in order: those of ``include``, the learner's pieces that this source reaches,
        the source's own, the transport's, ep_lib's."""
        found = self.pieces(transport)
        pieces_first = [*found, toolkit.COUNTING_INCLUDE] if found else []
        return [*self.include, *pieces_first, *self._library_roots(transport)]

    def pieces(self, transport: Path) -> tuple[Path, ...]:
        """The folders of the learner's pieces (:mod:`ep_lib.jit.pieces`) that this source includes a header of, or is
        part of."""
        return pieces.among([*self.reaches(transport).files, str(self.path)]) if pieces.in_use else ()

    def reaches(self, transport: Path) -> digest.Headers:
        """The headers that this source includes, with the learner's pieces among them."""
        return digest.scan(self.source, [*self.include, *pieces.active(), *self._library_roots(transport)])

    def _library_roots(self, transport: Path) -> list[Path]:
        return [*([self.path.parent] if self.path is not None else []), transport, *toolkit.DEVICE_ROOTS]

    @property
    def source_path(self) -> Path:
        """Where the source's text can be read: ``path``, or for a string a copy in the cache directory."""
        if self.path is not None:
            return self.path
        data = self.source.encode()
        stem = re.sub(r"[^\w.+-]", "", Path(self.filename).name) or "kernel"
        folder = hashlib.sha256(data).hexdigest()[:16]
        file = cache.cache_dir() / "sources" / folder / (stem if "." in stem else f"{stem}.cu")
        _filenames[str(file)] = self.filename
        cache.write_file(file, data)
        return file

    def translation_unit(self, kernels: Sequence[str] | None = None) -> str:
        """The text that both compilers get: the defines, the source, and a line that describes each of ``kernels``, by
        default this one only."""
        defines = "".join(f"#define {macro} {value}\n" for macro, value in self.defines.items())
        place = str(self.source_path).replace("\\", "\\\\").replace('"', '\\"')
        source = self.texts.get(str(self.source_path), self.source)
        text = f'{defines}#line 1 "{place}"\n{source}\n'
        named = [self.name] if kernels is None else kernels
        if not named:
            return text
        entries = "".join(f"EP_KERNEL_ENTRY({i}, {name})\n" for i, name in enumerate(named))
        return f'{text}#line 1 "{ENTRY_FILE}"\n#include <ep/detail/entry.cuh>\n{entries}'

    def _take_options(self, options: list[str], folders: list[Any]) -> tuple[str, ...]:
        """Moves -D and -I to ``defines`` and ``folders``, where the emulator sees them too; returns the others."""
        others = []
        for option in options:
            if option.startswith(("-D", "--define-macro=")):
                macro, _, value = option.removeprefix("--define-macro=").removeprefix("-D").strip().partition("=")
                self.defines[_check_macro(macro)] = value if "=" in option.partition("-D")[2] else "1"
            elif option.startswith(("-I", "--include-path=")):
                folders.append(option.removeprefix("--include-path=").removeprefix("-I").strip())
            else:
                others.append(option)
        return tuple(others)


def _several(name: str, value: Any, what: str) -> list[Any]:
    """A list of one path or option, or of several."""
    if isinstance(value, (str, os.PathLike)):
        return [value]
    return several(name, value, f"a list of {what}")


def _check_macro(name: str) -> str:
    if not _IDENTIFIER.fullmatch(text("a define's name", name).partition("(")[0]):
        raise ArgumentError(f"a define's name must be an identifier, got {name!r}")
    return name


def _macro_text(value: Define) -> str:
    if value is None or value is True:
        return "1"
    if not isinstance(value, (str, int, float, np.generic)):
        refuse("a define's value", value, "a number, a str or None")
    written = text("a define's value", "0" if value is False else str(value))
    if "\n" in written:
        raise ArgumentError(f"a define's value must be one line, got {written!r}")
    return written
