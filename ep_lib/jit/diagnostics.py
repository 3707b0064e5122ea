"""Turns compiler messages into errors that point at the learner's own line."""
from __future__ import annotations
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from ep_lib.errors import KernelCompileError
if TYPE_CHECKING:
    from ep_lib.jit.kernel import Kernel

def check_name(kernel: Kernel, unit: str, roots: Sequence[Path]) -> None:
    return

def compile_error(kernel: Kernel, log: str, *, target: str, unit: Path, roots: Sequence[Path]) -> KernelCompileError:
    return KernelCompileError(log, log=log)
