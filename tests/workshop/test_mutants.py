"""benchmarks/mutants.py: which mutants are made, and that a wrong one is killed and a harmless one lives."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mutate
import pytest
from support import ROOT

CODE = """    for (uint64_t i = lane_id(); i < count; i += kWarpSize) {
        st_relaxed_sys_u64(peer_ptr(to, peer) + i, from[i]);  // i < 3
    }
    __syncwarp();
    return wait_until_ge(flag, epoch, {kPhaseSignal, peer, -1});
"""


def made(code: str, *, python: bool = False) -> list[str]:
    return [each.what.split(" in `")[0] for each in mutate.mutants(code, python=python)]


def test_mutants_are_small_changes_of_code_each_once() -> None:
    found = mutate.mutants(CODE)
    assert len(found) >= 60
    assert len({each.code for each in found}) == len({each.what for each in found}) == len(found)
    assert all(each.code != CODE for each in found)


@pytest.mark.parametrize(
    "what",
    [
        "`<` becomes `<=`",
        "`i` becomes `static_cast<uint32_t>(i)`",
        "`st_relaxed_sys_u64` becomes `st_relaxed_gpu_u64`",
        "`peer_ptr(to, peer)` becomes `to`",
        "`lane_id()` becomes `thread_in_block()`",
        "`__syncwarp();` becomes `;`",
        "`to, peer` becomes `peer, to`",
        "`wait_until_ge(flag, epoch, {kPhaseSignal, peer, -1})` becomes `0`",
    ],
)
def test_what_communication_invites_is_among_them(what: str) -> None:
    assert any(each.endswith(what) for each in made(CODE))


def test_comments_and_what_a_wait_was_for_stay_as_they_are() -> None:
    for each in mutate.mutants(CODE):
        assert "// i < 3" in each.code or "peer_ptr" not in each.code or "relaxed" not in each.code
        assert "{kPhaseSignal, peer, -1}" in each.code or "kPhaseSignal" not in each.code


def test_python_loses_statements_and_conditions() -> None:
    code = "    if found is None:\n        return 3\n    found.users += 1\n"
    assert {"line 3: `found.users += 1` becomes `pass`", "line 1: `found is None:` becomes `True:`"} <= set(
        made(code, python=True)
    )


def test_a_choice_keeps_what_matters_and_is_the_same_each_time() -> None:
    found = mutate.mutants(CODE)
    chosen = mutate.some(found, 20)
    assert chosen == mutate.some(found, 20) and len(chosen) == 20
    assert any("__syncwarp();` becomes `;`" in each.what for each in chosen)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_hidden_tests_kill_a_mutant_and_let_another_live(tmp_path: Path) -> None:
    row = tmp_path / "row.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks/mutants.py"),
        "08_packets",
        "--only",
        "hole 3, line 1: `lane_id()`",
    ]
    done = subprocess.run([*command, "--json", str(row)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(row.read_text())
    assert result["killed"] == 3 and result["alive"] == 0 and result["equivalent"] == 2
