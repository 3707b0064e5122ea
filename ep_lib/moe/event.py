"""The end of an asynchronous operation: DeepEP's ``EventOverlap``."""

from __future__ import annotations

from typing import Any

from ep_lib.runtime.rank import Rank


class Event:
    """The end of an operation with ``async_finish=True``, which runs beside the caller's stream.

    Its results may be used in a stream that waits (:meth:`current_stream_wait`) or on the host after
    :meth:`synchronize`. The event keeps the operation's arrays alive; it is also a context manager that waits at its
    end, so that the code inside overlaps with the operation::

        recv = buffer.dispatch(x, handle=handle, async_finish=True)
        with recv.event:
            shared = shared_expert(x)       # runs beside the dispatch
        out = experts(recv.x)               # runs after it

    The emulator has no streams, and the host reads kernels' results directly: there each way to wait, also
    :attr:`is_done`, is :meth:`ep_lib.Rank.synchronize`.
    """

    def __init__(self, rank: Rank, stream: int, kind: str, keep: tuple[Any, ...] = ()) -> None:
        """Marks the current end of ``stream``. ``kind`` of the caller's arrays: selects the library whose current
        stream waits."""
        self._rank, self._kind, self._keep = rank, kind, keep
        self._is_for_hosts = rank._backend.host_waits
        self._event: int = rank.streams.record(stream)

    def current_stream_wait(self) -> None:
        """Makes later work of the caller's current stream (torch's for torch tensors, else CuPy's) run after this
        event. On the emulator raises the errors of :meth:`synchronize`."""
        if self._is_for_hosts:
            self.synchronize()
            return
        streams = self._rank.streams
        streams.wait(streams.current(self._kind), self._event)

    def is_done(self) -> bool:
        """Whether the operation is complete, without waiting. The emulator waits, so that a polling loop ends."""
        if self._is_for_hosts:
            self.synchronize()
        return self._rank.streams.is_done(self._event)

    def synchronize(self) -> None:
        """Wait on the host for all launches of this rank: :meth:`ep_lib.Rank.synchronize`, which also raises errors
        such as PeerTimeout."""
        self._rank.synchronize()

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()

    def __del__(self) -> None:
        if not self._rank.is_closed:
            self._rank.streams.release(self._event)
