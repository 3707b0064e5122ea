"""The copy of a rank's fault record that kernels keep in host memory, and who is told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ep_lib.errors import EpError
from ep_lib.jit import device_state

Hook = Callable[[EpError], None]

_LOOK_SECONDS = 0.02  # how often the thread looks that calls hooks


class ShownFault:
    """Looking at ``word`` costs one load and waits for no GPU: it is not 0 once a kernel gave up and the rest of the
    record is there. A fault stays until :meth:`clear`."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        """``memory``: uint8, the bytes of a FaultRecord that kernels write."""
        self._memory = memory
        self.word = memory[:4].view(np.uint32)
        self._hooks: list[Hook] = []
        self._lock = threading.Lock()
        self._told = False  # the hooks know of the fault that is here
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def error(self) -> EpError | None:
        """The exception for the fault, if there is one; the hooks have been told of it then."""
        if not self.word[0]:
            return None
        fault = device_state.decode_fault(self._memory.tobytes())
        if fault is None:
            return None
        error = device_state.to_error(fault)
        with self._lock:
            hooks, self._told = () if self._told else tuple(self._hooks), True
        for hook in hooks:
            hook(error)
        return error

    def clear(self) -> None:
        """Ready for the next fault, when no kernel writes one."""
        self._memory[:] = 0
        self._told = False

    def watch(self, hook: Hook) -> Callable[[], None]:
        """Call ``hook(error)`` once for each fault, from a thread if no call of this rank finds it first. The result
        ends that."""
        self._hooks.append(hook)
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="ep_lib-faults", daemon=True)
            self._thread.start()
        return lambda: self._hooks.remove(hook)

    def stop(self) -> None:
        """No look at the memory from now on: it is about to be freed."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self.error()
