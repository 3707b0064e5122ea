"""Kernels by clang++, on the emulator that the default compiler built: by clang++, too, it takes 40 s of CPU."""

from __future__ import annotations

import shutil

import pytest

from ep_lib.jit import runtime_library

BUILDS_ALL = 3  # repetitions (--rounds) above which clang++ builds the emulator, too: in `make nightly`


def use_clang(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """From now on clang++ compiles. Skips where there is none."""
    if shutil.which("clang++") is None:
        pytest.skip("clang++ is not installed")
    if rounds <= BUILDS_ALL:
        runtime = runtime_library.build_runtime()
        monkeypatch.setattr(runtime_library, "build_runtime", lambda: runtime)
    monkeypatch.setenv("EP_LIB_CXX", "clang++")
