"""Ranks of a test that are threads of it."""

from __future__ import annotations

import threading
from typing import Any

from support.waiting import ENOUGH


def on_threads(calls: dict[int, Any]) -> dict[int, Any]:
    """Run each call on a thread of its own; its result or its exception by rank."""
    results: dict[int, Any] = {}

    def body(rank: int) -> None:
        try:
            results[rank] = calls[rank]()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ENOUGH)
        assert not thread.is_alive()
    return results
