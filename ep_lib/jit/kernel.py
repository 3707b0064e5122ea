"""`Kernel`: one ``__global__`` function of a CUDA source, compiled for the emulator or a GPU when it is needed."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ep_lib.errors import ArgumentError
from ep_lib.jit import gxx, nvrtc
from ep_lib.jit.gxx import EmulatorImage
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.jit.source import KernelSource

if TYPE_CHECKING:
    from ep_lib.runtime.rank import Rank

Dim = int | Sequence[int]
_TARGET = re.compile(r"sm_\d+[af]?")
_PACKAGE = Path(__file__).resolve().parents[1]


class Kernel(KernelSource):
    """One kernel: a source, the name of a ``__global__`` function in it, and how to compile it.

    Make one with :meth:`from_file` or :meth:`from_source`. It is compiled at its first launch, or by :meth:`compile`,
    and the result is cached on disk. A ``Kernel`` keeps what the source and its headers were when it was compiled; make
    a new one after editing them.

    Attributes: ``name`` (a C++ name expression such as ``copy`` or ``copy<float, 4>``), ``path`` (of the source, None
    for a string), ``source`` (its text), ``include`` (the learner's own folders, searched before ep_lib's headers),
    ``defines`` and ``options`` (further NVRTC options, which the emulator ignores).
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._images: dict[str, EmulatorImage | NvrtcImage] = {}
        self._lock = threading.Lock()

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

    def __getstate__(self) -> dict[str, Any]:
        """Kernels travel to other processes as source; each process takes them from the cache."""
        return {**self.__dict__, "_images": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"<ep_lib.Kernel {self.name} of {self.filename}>"


@functools.cache
def library_kernel(path: str, name: str) -> Kernel:
    """One of ep_lib's own kernels: ``path`` of its ``.cu`` file in the package, and its C++ name."""
    return Kernel.from_file(_PACKAGE / path, name)
