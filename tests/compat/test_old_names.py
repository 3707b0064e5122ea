"""Names that README or docs once gave still work, and say what they are called now."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

import ep_lib


@pytest.mark.parametrize(
    ("old", "new"),
    [("ep_lib.transports.nixl_handles", "ep_lib.compat.nixl"), ("ep_lib.ibgda", "ep_lib.compat.ibgda")],
)
def test_an_old_module_is_the_new_one_and_says_so(old: str, new: str) -> None:
    code = f"import warnings, sys\nwarnings.simplefilter('always')\nimport {old}, {new}\nassert {old} is {new}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "DeprecationWarning: " in done.stderr and f"{old} is now {new}" in done.stderr


def test_the_attribute_ibgda_stays_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from ep_lib import ibgda
    assert ibgda is ep_lib.ibgda is importlib.import_module("ep_lib.compat.ibgda")


def test_multiprocessors_are_sms() -> None:
    def main(rank: ep_lib.Rank) -> bool:
        with pytest.warns(DeprecationWarning, match="rank.multiprocessors is now rank.sm_count"):
            return rank.multiprocessors is rank.sm_count is None

    assert ep_lib.spawn(main, 1, "emulator") == [True]
