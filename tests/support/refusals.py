"""Calls that must be refused, and what their errors say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ep_lib.errors import EpError


def refused(call: Callable[[], Any], error: type[EpError], says: str) -> None:
    """``call`` raises an error of this very kind, whose message matches ``says``, on however many lines."""
    with pytest.raises(error, match=re.compile(says, re.DOTALL)) as caught:
        call()
    assert caught.type is error
