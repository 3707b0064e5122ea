"""Expert parallelism: dispatch, combine, and what travels between them."""

from ep_lib.moe.buffer import Buffer
from ep_lib.moe.handle import DispatchHandle, Received

__all__ = ["Buffer", "DispatchHandle", "Received"]
