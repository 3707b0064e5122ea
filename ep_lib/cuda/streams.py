"""CUDA streams and events of one rank: the stream of each kernel, and the order between streams."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

_DISABLE_TIMING = 2
_NON_BLOCKING = 1
_NOT_READY = 600  # cudaErrorNotReady


class CudaStreams:
    """The :class:`ep_lib.backends.base.Streams` of a GPU. Streams and events are CUDA's own handles, as integers."""

    def __init__(self, cupy: Any, device: int, make: Callable[[], int] | None = None) -> None:
        """``make``: makes streams; None: on the whole GPU."""
        self._cupy, self._device = cupy, device
        self._runtime = cupy.cuda.runtime
        self._make = make or (lambda: int(self._runtime.streamCreateWithFlags(_NON_BLOCKING)))
        self._spare: list[int] = []  # events for reuse
        self._own: list[int] = []  # streams made here
        self._held: dict[int, Any] = {}  # CuPy's streams, kept alive while kernels still run there
        self.chosen: int | None = None  # set by on()
        self._of_torch: Callable[[int], int] | None = None

    def current(self, kind: str = "") -> int:
        """torch's current stream for arrays of the kind "torch", CuPy's for all others."""
        if kind == "torch":
            if self._of_torch is None:  # the function that torch's own code uses
                self._of_torch = sys.modules["torch"]._C._cuda_getCurrentRawStream
            return self._of_torch(self._device)
        stream = self._cupy.cuda.get_current_stream()
        self._held[int(stream.ptr)] = stream
        return int(stream.ptr)

    def new(self) -> int:
        """A non-blocking stream; lives as long as the rank."""
        self._own.append(self._make())
        return self._own[-1]

    def on(self, stream: int) -> Choice:
        """Kernels launched inside go to ``stream``, independent of the current one."""
        return Choice(self, stream)

    def record(self, stream: int) -> int:
        event = self._spare.pop() if self._spare else int(self._runtime.eventCreateWithFlags(_DISABLE_TIMING))
        self._runtime.eventRecord(event, stream)
        return event

    def wait(self, stream: int, event: int) -> None:
        self._runtime.streamWaitEvent(stream, event)

    def order(self, first: int, second: int) -> None:
        if first != second:
            event = self.record(first)
            self.wait(second, event)
            self.release(event)  # a wait refers to the last record before it

    def is_done(self, event: int) -> bool:
        """Whether the event has completed. Raises CUDARuntimeError if a kernel failed."""
        try:
            return int(self._runtime.eventQuery(event)) == 0
        except self._runtime.CUDARuntimeError as error:
            if error.status != _NOT_READY:
                raise
            return False

    def release(self, event: int) -> None:
        self._spare.append(event)

    def settle(self) -> None:
        """Let CuPy's own kernels finish."""
        self._cupy.cuda.get_current_stream().synchronize()

    def operations(self) -> CudaOperationStreams:
        return CudaOperationStreams(self)

    def is_capturing(self, stream: int) -> bool:
        return int(self._runtime.streamIsCapturing(stream)) != 0

    def close(self) -> None:
        """Destroy all streams and spare events."""
        with contextlib.suppress(self._runtime.CUDARuntimeError):
            for stream in self._own:
                self._runtime.streamDestroy(stream)
            for event in self._spare:
                self._runtime.eventDestroy(event)
        self._own, self._spare, self._held = [], [], {}


class Choice:
    """See :meth:`CudaStreams.on`. A class, since every operation enters one: a generator takes three times as long."""

    __slots__ = ("_before", "_streams", "stream")

    def __init__(self, streams: CudaStreams, stream: int) -> None:
        self._streams, self.stream = streams, stream

    def __enter__(self) -> None:
        self._before, self._streams.chosen = self._streams.chosen, self.stream

    def __exit__(self, *_: object) -> None:
        self._streams.chosen = self._before


class CudaOperationStreams:
    """The :class:`ep_lib.backends.base.OperationStreams` of one Buffer on a GPU."""

    def __init__(self, streams: CudaStreams) -> None:
        self._streams = streams
        self._beside: int | None = None
        self._choice = Choice(streams, 0)  # one for all operations, which never nest
        self.last: int | None = None  # the last operation's stream

    def begin(self, kind: str, async_finish: bool) -> contextlib.AbstractContextManager[None]:
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
        self._choice.stream = stream
        return self._choice
