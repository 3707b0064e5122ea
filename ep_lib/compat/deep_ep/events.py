"""``EventHandle`` and ``EventOverlap``: the end of an operation that runs beside the caller's stream.

This module is also ``deep_ep.utils`` of an installed alias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ep_lib.errors import ArgumentError
from ep_lib.require import flag, instance


class EventHandle:
    """An event behind the current work of torch's stream. Without GPUs there are no streams: operations are complete
    when their calls return, and waiting does nothing."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None
        if torch.cuda.is_available():
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def current_stream_wait(self) -> None:
        """Makes later work of the current stream run after the event."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An event, and a ``with`` block for work beside the operation. ``extra_tensors`` live as long as the object."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], None] | None = None
        self._releases = False  # at the end of the next `with`

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Makes the current stream wait for the event. Raises ArgumentError if there is none, since the operation ran
        in the caller's stream."""
        if self.event is None:
            raise ArgumentError(
                "this operation ran in the current stream, where its results are: it was made without async_finish "
                "(V2: async_with_compute_stream)"
            )
        self.event.current_stream_wait()
        if self.hook_after_wait is not None:
            hook, self.hook_after_wait = self.hook_after_wait, None
            hook()
        if release_handle:
            self.event = self.extra_tensors = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], None]) -> None:
        """Registers a hook, called once after the next :meth:`current_stream_wait`."""
        if self.hook_after_wait is not None:
            raise ArgumentError("this event has a hook already; it takes one")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """Returns itself, for ``with event(release_handle=True)``, which releases the event at its end."""
        self._releases = flag("release_handle", release_handle)
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(release_handle=self._releases)
        self._releases = False


def event_of(name: str, previous: Any) -> EventHandle | None:
    """The event of V1's EventOverlap, or V2's own; None for None. Raises ArgumentError for others."""
    if previous is None or isinstance(previous, EventHandle):
        return previous
    return instance(name, previous, EventOverlap, "an EventOverlap or an EventHandle, or None").event
