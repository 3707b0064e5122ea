"""`Kernel`: one ``__global__`` function of a CUDA source, compiled for the emulator or a GPU when it is needed."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ep_lib.errors import ArgumentError
from ep_lib.jit import cache, gxx, nvrtc
from ep_lib.jit.diagnostics import ENTRY_FILE
from ep_lib.jit.gxx import EmulatorImage
from ep_lib.jit.nvrtc import NvrtcImage

if TYPE_CHECKING:
    from ep_lib.runtime.rank import Rank

Dim = int | Sequence[int]
Define = str | int | float | None

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_TARGET = re.compile(r"sm_\d+[af]?")


_filenames: dict[str, str] = {}  # of sources that were strings: copy in the cache -> what the user calls it


def filename_of(path: str | os.PathLike[str]) -> str | None:
    """What the user calls a source string whose copy lies at ``path``; None for ordinary files."""
    return _filenames.get(os.fspath(path))


class Kernel:
    """One kernel: a source, the name of a ``__global__`` function in it, and how to compile it.

    Make one with :meth:`from_file` or :meth:`from_source`. It is compiled at its first launch, or by :meth:`compile`,
    and the result is cached on disk. A ``Kernel`` keeps what the source and its headers were when it was compiled; make
    a new one after editing them.

    Attributes: ``name`` (a C++ name expression such as ``copy`` or ``copy<float, 4>``), ``path`` (of the source, None
    for a string), ``source`` (its text), ``include`` (the learner's own folders, searched before ep_lib's headers),
    ``defines`` and ``options`` (further NVRTC options, which the emulator ignores).
    """

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
    ) -> None:
        self.name = name.strip()
        if not self.name or "\n" in self.name:
            raise ArgumentError(f"a kernel's name is one C++ name such as 'copy<float, 4>', got {name!r}")
        self.path = path
        self.source = source
        self.filename = filename
        folders = [include] if isinstance(include, (str, os.PathLike)) else list(include)
        self.defines: dict[str, str] = {}
        for macro, value in (defines or {}).items():
            self.defines[_check_macro(macro)] = _macro_text(value)
        self.options = self._take_options([options] if isinstance(options, str) else list(options), folders)
        self.include = tuple(Path(folder).expanduser().absolute() for folder in folders)
        for folder in self.include:
            if not folder.is_dir():
                raise ArgumentError(f"the include folder {str(folder)!r} of kernel {self.name!r} does not exist")
        self._images: dict[str, EmulatorImage | NvrtcImage] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        name: str,
        *,
        include: Sequence[str | os.PathLike[str]] = (),
        defines: Mapping[str, Define] | None = None,
        options: Sequence[str] = (),
    ) -> Kernel:
        """The kernel ``name`` in a ``.cu`` file, read now.

        ``include`` folders come before everything else, so a header there replaces the library's of the same name.
        ``defines`` are macros: ``{"TILE": 32, "DEBUG": None}``, where None and True mean 1. ``options`` go to NVRTC;
        ``-D`` and ``-I`` among them count on the emulator too. Raises :class:`ArgumentError` when the file cannot be
        read.
        """
        file = Path(path).expanduser().absolute()
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"cannot read the kernel source {str(path)!r}: {error}") from error
        return cls(source, name, path=file, filename=str(path), include=include, defines=defines, options=options)

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
    ) -> Kernel:
        """The kernel ``name`` in a string of CUDA C++. ``filename`` is what errors call the string; the rest is as in
        :meth:`from_file`."""
        if "\n" in filename:
            raise ArgumentError(f"filename must be one line, got {filename!r}")
        return cls(source, name, path=None, filename=filename, include=include, defines=defines, options=options)

    def launch(
        self,
        rank: Rank,
        grid: Dim,
        block: Dim,
        *args: object,
        shared_bytes: int = 0,
        uses: Sequence[object] = (),
    ) -> None:
        """Starts the kernel on ``rank`` and returns at once; the kernels of a rank run one after the other.

        ``grid`` and ``block`` are numbers or up to three of them, ``shared_bytes`` the size of ``extern __shared__``
        memory. ``args`` are numbers, arrays (NumPy, CuPy, torch; zero copy), addresses or None for pointers, and bytes,
        ctypes structures or NumPy scalars for structs by value. ``uses`` names the arrays whose addresses lie inside
        such structs: they are kept alive, and the emulator lets the kernel touch them. Raises
        :class:`KernelLaunchError`, :class:`KernelCompileError` and :class:`KernelNotFoundError`.
        """
        rank.launch(self, grid, block, args, shared_bytes, uses)

    @overload
    def compile(self) -> EmulatorImage: ...
    @overload
    def compile(self, target: str) -> EmulatorImage | NvrtcImage: ...
    def compile(self, target: str = "emulator") -> EmulatorImage | NvrtcImage:
        """Compiles now for "emulator", or for a GPU architecture such as "sm_90", which needs no GPU.

        Raises :class:`KernelCompileError`, :class:`KernelNotFoundError`, and :class:`BackendUnavailable` when the
        compiler is missing.
        """
        with self._lock:
            image = self._images.get(target)
            if image is None:
                if target == "emulator":
                    image = gxx.build_emulator_kernel(self)
                elif _TARGET.fullmatch(target):
                    image = nvrtc.compile_cubin(self, target)
                else:
                    raise ArgumentError(f"target is 'emulator' or an architecture such as 'sm_90', got {target!r}")
                self._images[target] = image
            return image

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
        if not file.exists():
            cache.write_atomically(file, data)
        return file

    def translation_unit(self) -> str:
        """The text that both compilers get: the defines, the source, and the lines that describe the kernel."""
        defines = "".join(f"#define {macro} {value}\n" for macro, value in self.defines.items())
        place = str(self.source_path).replace("\\", "\\\\").replace('"', '\\"')
        return (
            f'{defines}#line 1 "{place}"\n{self.source}\n#line 1 "{ENTRY_FILE}"\n'
            f"#include <ep/detail/entry.cuh>\nEP_KERNEL_ENTRY({self.name})\n"
        )

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

    def __getstate__(self) -> dict[str, Any]:
        """Kernels travel to other processes as source; each process takes them from the cache."""
        return {**self.__dict__, "_images": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"<ep_lib.Kernel {self.name} of {self.filename}>"


def _check_macro(name: str) -> str:
    if not _IDENTIFIER.fullmatch(name.partition("(")[0]):
        raise ArgumentError(f"a define's name must be an identifier, got {name!r}")
    return name


def _macro_text(value: Define) -> str:
    if value is None or value is True:
        return "1"
    text = "0" if value is False else str(value)
    if "\n" in text:
        raise ArgumentError(f"a define's value must be one line, got {text!r}")
    return text
