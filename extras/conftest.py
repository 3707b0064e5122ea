"""These tests meet kernels as users do: NVRTC is asked whether they are CUDA. Options and marks: tests/conftest.py."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def rules_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_LIB_CUDA_RULES", "1")
