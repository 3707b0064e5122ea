"""The copy of a rank's fault record that kernels keep in host memory, and the hooks that it calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ep_lib.errors import EpError
from ep_lib.jit import device_state

Hook = Callable[[EpError], None]

_LOOK_SECONDS = 0.02  # polling interval of the thread that calls hooks


class ShownFault:
    """Polling ``word`` costs one load and does not wait for the GPU: it is not 0 after a kernel has given up and
    written the rest of the record. A fault stays until :meth:`clear`."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        """``memory``: uint8, the bytes of a FaultRecord that kernels write."""
        self._memory = memory
        self.word = memory[:4].view(np.uint32)
        self._hooks: list[Hook] = []
        self._lock = threading.Lock()
        self._told = False  # the hooks were called for the current fault
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def error(self) -> EpError | None:
        """The exception for the fault, if there is one, after calling the hooks."""
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
        """Clears the record for the next fault; call when no kernel writes one."""
        self._memory[:] = 0
        self._told = False

    def watch(self, hook: Hook) -> Callable[[], None]:
        """Calls ``hook(error)`` once for each fault, from a thread if no call of this rank finds it first. Call the
        result to end that."""
        self._hooks.append(hook)
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="ep_lib-faults", daemon=True)
            self._thread.start()
        return lambda: self._hooks.remove(hook)

    def stop(self) -> None:
        """Stops polling the memory, which is about to be freed."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self.error()
