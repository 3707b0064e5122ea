"""Expert parallelism: dispatch, combine, and what travels between them.

Begin at :class:`ep_lib.moe.buffer.Buffer`, which checks its arguments (``checks.py``) and passes them to a mode
(``mode.py`` has its interface): ``direct/``, ``pcie/``, ``hierarchical/`` or ``low_latency/``, each with its kernels
beside their launches. ``common/`` has the device headers that the modes share (begin with ``layout.cuh``, how many
tokens go where, and ``notify.cuh``, signals and counts between ranks, as notebook 06 does), ``memory.py`` allocates a
mode's symmetric memory.

``dispatch``, ``combine`` and ``ExpertParallel`` are for torch, with gradients; they load torch on first use.
"""

from typing import TYPE_CHECKING, Any

from ep_lib.moe.buffer import Buffer
from ep_lib.moe.handle import DispatchHandle, Received
from ep_lib.moe.mode import ExpertRows

if TYPE_CHECKING:
    from ep_lib.moe.autograd import combine, dispatch
    from ep_lib.moe.layer import ExpertParallel

__all__ = ["Buffer", "DispatchHandle", "ExpertParallel", "ExpertRows", "Received", "combine", "dispatch"]

_NEED_TORCH = {
    "ExpertParallel": "ep_lib.moe.layer",
    "combine": "ep_lib.moe.autograd",
    "dispatch": "ep_lib.moe.autograd",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_NEED_TORCH[name]), name)
    return value
