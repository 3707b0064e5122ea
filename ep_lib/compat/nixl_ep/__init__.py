"""NIXL EP's Python API over ep_lib, for low latency: programs written for ``import nixl_ep`` run here.

:class:`Buffer` is that of ``examples/device/ep`` in ai-dynamo/nixl, at commit 8770b65. As for
:mod:`ep_lib.compat.deep_ep`, ``from ep_lib.compat import nixl_ep`` in place of ``import nixl_ep`` is the only change;
if the import cannot be changed (vLLM), call :func:`install_alias` before it. docs/migrate-from-deepep.md lists equal,
different and missing features. Needs torch; tensors may be on a CPU, for the emulator.
"""

from __future__ import annotations

import sys

from ep_lib.compat import alias
from ep_lib.compat.deep_ep import events as utils
from ep_lib.compat.deep_ep import topk_idx_t
from ep_lib.compat.deep_ep.config import Config
from ep_lib.compat.deep_ep.events import EventOverlap
from ep_lib.compat.nixl_ep import buffer
from ep_lib.compat.nixl_ep.buffer import Buffer

__all__ = ["Buffer", "Config", "EventOverlap", "install_alias", "topk_idx_t"]


def install_alias(*, replace: bool = False) -> None:
    """Makes ``import nixl_ep`` return this module in this process. Calling it twice does no harm.

    Raises BackendUnavailable if NIXL EP itself was imported already, or is installed: two libraries of one name would
    be confused. ``replace``: prefer this one to an installed NIXL EP.
    """
    alias.install("nixl_ep", sys.modules[__name__], {"utils": utils, "buffer": buffer}, replace=replace)
