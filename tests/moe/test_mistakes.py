"""A word of the checker for every one-line mistake in the kernels of the modes, and none where no line is wrong."""

from __future__ import annotations

import pytest
from wrong_variants import hierarchical_variants
from wrong_variants.programs import OF_MODES, Wrong

import ep_lib
from ep_lib import Fabric

pytestmark = pytest.mark.slow

ALL = [pytest.param(wrong, id=f"{mode}-{wrong.name}") for mode, several in OF_MODES.items() for wrong in several]


@pytest.mark.parametrize("wrong", ALL)
def test_every_mistake_is_flagged(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong.use(monkeypatch)
    # Some mistakes leave ranks polling for ever after it was found: that is waited for.
    report = ep_lib.check(
        wrong.main,
        wrong.ranks,
        wrong.fabric,
        seeds=60,
        args=wrong.args,
        compare_values=False,
        stop_at_first=True,
        timeout=6,
        reduce=False,
    )
    assert {finding.kind for finding in report.findings} & wrong.kinds, str(report)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("mode", OF_MODES)
def test_nothing_is_said_of_what_the_variants_break(mode: str) -> None:
    for main, ranks, fabric, args in {(w.main, w.ranks, w.fabric, w.args) for w in OF_MODES[mode]}:
        report = ep_lib.check(main, ranks, fabric, seeds=6, args=args)
        assert report.ok, str(report)


@pytest.mark.extended
@pytest.mark.parametrize("transport", ["emulated", "by_pair"])
@pytest.mark.parametrize("kind", ["rc", "srd"])
def test_nothing_is_said_of_rings_of_one_row(kind: str, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, value in hierarchical_variants.SETTINGS.items():
        monkeypatch.setattr(setting, value)
    report = ep_lib.check(hierarchical_variants.main, 4, Fabric(kind, 2), seeds=6, transport=transport)
    assert report.ok, str(report)
