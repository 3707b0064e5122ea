"""Normal mode over NVLink under the checker: silent on what is right; a word for every mistake."""

from __future__ import annotations

import pytest
from wrong_variants import direct_variants as variants

import ep_lib

pytestmark = pytest.mark.slow


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("kernel", variants.HEADERS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_nothing_is_said_of_what_the_variants_break(kernel: str, ranks: int) -> None:
    report = ep_lib.check(variants.main, ranks, seeds=6, args=(kernel,))
    assert report.ok, str(report)


@pytest.mark.parametrize("number", range(len(variants.VARIANTS)), ids=[v.name for v in variants.VARIANTS])
def test_every_mistake_is_flagged(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variants.use_variant(monkeypatch, number)
    arguments = (variants.VARIANTS[number].kernel,)
    report = variants.all_in_one.look_for_mistake(variants.main, 3, None, arguments)
    assert {finding.kind for finding in report.findings} & variants.all_in_one.KINDS, str(report)
