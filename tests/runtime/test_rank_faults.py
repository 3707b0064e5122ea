"""Faults of ranks that are processes, as benchmarks/rank_faults.py has them; `make nightly` does 50 rounds each."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import rank_faults

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler"),
]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("killed (SIGKILL)", 1),
        ("stopped (SIGSTOP)", 10),
        ("killed, masked, replaced", 3),
        ("two killed, masked, replaced", 3),
    ],
)
def test_who_remains_is_told_and_nothing_stays(name: str, share: int, rounds: int) -> None:
    count = rounds // share if rounds > 3 else int(share <= rounds)  # once, or not at all
    if count == 0:
        pytest.skip(f"takes long: from --rounds {share} on, as in make nightly")
    assert [each.wrong for each in rank_faults.run_rounds(name, count)] == [""] * count


def may_mount() -> bool:
    """Whether this user may have a /dev/shm that nobody else sees."""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.extended
@pytest.mark.parametrize("name", ["unequal Buffers", "/dev/shm full (tmpfs)", "more heaps than memory"])
def test_every_rank_gets_a_sentence(name: str) -> None:
    if "tmpfs" in name and not may_mount():
        pytest.skip("needs a user who may mount a tmpfs: root, outside of most containers")
    assert rank_faults.run_rounds(name, 1)[0].wrong == ""
