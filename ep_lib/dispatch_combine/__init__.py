"""Dispatch and combine as an API of three names, as in the Standalone Dispatch-Combine Implementation.

``python -m ep_lib.dispatch_combine 4096 128 8 2`` runs it, under mpiexec, torchrun or alone; see
docs/dispatch_combine.md. The engine is :class:`ep_lib.Buffer`, which has more features (FP8, handles, low latency).
"""

from ep_lib.dispatch_combine.config import Config
from ep_lib.dispatch_combine.context import DispatchCombineContext
from ep_lib.dispatch_combine.handle import DispatchCombineHandle

__all__ = ["Config", "DispatchCombineContext", "DispatchCombineHandle"]
