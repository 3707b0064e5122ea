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

    On the emulator everything runs in the order of the calls, and waiting means :meth:`ep_lib.Rank.synchronize`.
    """

    def __init__(self, rank: Rank, stream: int, kind: str, keep: tuple[Any, ...] = ()) -> None:
        """Marks what is in ``stream`` now. ``kind`` of the caller's arrays: whose current stream shall wait."""
        self._rank, self._kind, self._keep = rank, kind, keep
        self._event: int = rank.streams.record(stream)

    def current_stream_wait(self) -> None:
        """What the caller puts into his current stream (torch's for torch tensors, else CuPy's) runs after this."""
        streams = self._rank.streams
        streams.wait(streams.current(self._kind), self._event)

    def is_done(self) -> bool:
        """Whether the operation is done, without waiting."""
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


class OperationStreams:
    """Which stream each operation of one Buffer runs in: the caller's, or one beside it. All of them in turn."""

    def __init__(self, rank: Rank) -> None:
        self._streams = rank.streams
        self._beside: int | None = None
        self.last: int | None = None  # in which the last operation ran

    def begin(self, kind: str, async_finish: bool) -> int:
        """The stream for the next operation, behind what the caller's stream and the last operation do.

        ``kind``: of the caller's arrays. In a CUDA graph that is being captured, operations before it are not waited
        for: a graph cannot.
        """
        streams = self._streams
        stream = streams.current(kind)
        if async_finish:
            if self._beside is None:
                self._beside = streams.new()
            streams.order(stream, self._beside)
            stream = self._beside
        last, self.last = self.last, stream
        if last is not None and last != stream and streams.is_capturing(last) == streams.is_capturing(stream):
            streams.order(last, stream)
        return stream
