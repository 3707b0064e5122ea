"""The list of what `make test` leaves to `make extended` names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.extended import KEPT


@pytest.mark.parametrize("test", KEPT)
def test_it_is_there(test: str) -> None:
    module, name = test.split("::")
    assert re.search(rf"^def {name}\(", (Path(__file__).parent / f"{module}.py").read_text("utf-8"), re.MULTILINE)
