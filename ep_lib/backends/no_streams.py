"""Streams on the emulator: there is one, 0, in which everything runs in the order of the calls."""

from __future__ import annotations

import contextlib


class NoStreams:
    """The :class:`ep_lib.backends.base.Streams` of a backend that has one stream. The event 0 has always passed: what
    follows it in the one stream runs after it, and the host looks at results behind ``synchronize()``."""

    def current(self, kind: str = "") -> int:
        return 0

    def new(self) -> int:
        return 0

    def on(self, stream: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record(self, stream: int) -> int:
        return 0

    def wait(self, stream: int, event: int) -> None:
        pass

    def order(self, first: int, second: int) -> None:
        pass

    def is_done(self, event: int) -> bool:
        return True

    def release(self, event: int) -> None:
        pass

    def is_capturing(self, stream: int) -> bool:
        return False
