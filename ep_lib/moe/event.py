"""When an asynchronous operation is done: DeepEP's ``EventOverlap``."""

from __future__ import annotations

from typing import Any

from ep_lib.runtime.rank import Rank


class Event:
    """The end of an operation with ``async_finish=True``, which runs beside the caller's stream.

    Its results may be used in a stream that waits (:meth:`current_stream_wait`) or on the host after
    :meth:`synchronize`. The event keeps the operation's arrays alive; it is also a context manager that waits at its
    end, so that what stands inside overlaps with the operation::

        recv = buffer.dispatch(x, handle=handle, async_finish=True)
        with recv.event:
            shared = shared_expert(x)       # runs beside the dispatch
        out = experts(recv.x)               # runs after it

    The emulator has no streams, and the host reads what kernels have written: there each way to wait, and the question
    whether it is done, is :meth:`ep_lib.Rank.synchronize`.
    """

    def __init__(self, rank: Rank, stream: int, kind: str, keep: tuple[Any, ...] = ()) -> None:
        """Marks what is in ``stream`` now. ``kind`` of the caller's arrays: whose current stream is to wait."""
        self._rank, self._kind, self._keep = rank, kind, keep
        self._is_for_hosts = rank._backend.host_waits
        self._event: int = rank.streams.record(stream)

    def current_stream_wait(self) -> None:
        """What the caller puts into its current stream (torch's for torch tensors, else CuPy's) runs after this. On the
        emulator raises what :meth:`synchronize` raises."""
        if self._is_for_hosts:
            self.synchronize()
            return
        streams = self._rank.streams
        streams.wait(streams.current(self._kind), self._event)

    def is_done(self) -> bool:
        """Whether the operation is done, without waiting. The emulator waits, so that a loop that asks ends."""
        if self._is_for_hosts:
            self.synchronize()
        return self._rank.streams.is_done(self._event)

    def synchronize(self) -> None:
        """Wait on the host, for everything that this rank has launched: :meth:`ep_lib.Rank.synchronize`, which also
        raises what went wrong, PeerTimeout for example."""
        self._rank.synchronize()

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()

    def __del__(self) -> None:
        if not self._rank.is_closed:
            self._rank.streams.release(self._event)
