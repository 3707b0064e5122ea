"""DeepEP's Python API over ep_lib: programs written for ``import deep_ep`` run here.

:class:`Buffer` is V1's, at commit 567632d, and :class:`ElasticBuffer` V2's, at dd758ca.

``from ep_lib.compat import deep_ep`` in place of ``import deep_ep`` is the only change; if the import cannot be changed
(vLLM, SGLang, Megatron), call :func:`install_alias` before it, or install the distribution in ``extras/deep_ep`` whose
only content is that call. docs/migrate-from-deepep.md lists equal, different and missing features. Needs torch; tensors
may be on a CPU, for the emulator.
"""

from __future__ import annotations

import sys

import torch

from ep_lib.compat import alias
from ep_lib.compat.deep_ep import buffer
from ep_lib.compat.deep_ep import events as utils
from ep_lib.compat.deep_ep.buffer import Buffer
from ep_lib.compat.deep_ep.config import Config
from ep_lib.compat.deep_ep.elastic import ElasticBuffer, get_logical_domain_size, get_physical_domain_size
from ep_lib.compat.deep_ep.events import EventHandle, EventOverlap
from ep_lib.compat.deep_ep.handles import EPHandle

topk_idx_t = torch.int64
"""The dtype of expert ids, torch.int64."""

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "install_alias",
    "topk_idx_t",
]


def install_alias(*, replace: bool = False) -> None:
    """Makes ``import deep_ep`` return this module in this process. Calling it twice does no harm.

    Raises BackendUnavailable if DeepEP itself was imported already, or is installed: two libraries of one name would be
    confused. ``replace``: prefer this one to an installed DeepEP.
    """
    # Programs also import from these modules: `from deep_ep.utils import EventOverlap`.
    alias.install("deep_ep", sys.modules[__name__], {"utils": utils, "buffer": buffer}, replace=replace)
