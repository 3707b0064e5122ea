"""Direct mode: every row straight to where it stays (NVLink or P2P), without bounce buffers and without the host in
between; this is DeepEP's normal mode.

Begin at :mod:`ep_lib.moe.direct.dispatch` and :mod:`ep_lib.moe.direct.combine`: the operations, and the launch of each
kernel. A kernel lies beside them in a file of its own, with the struct of its arguments: notify_dispatch (who sends
what where), dispatch_bulk (rows to the ranks of their experts), copy_epilogue (from the receive area to the caller's
arrays, grouped by expert as well, if they are to be), combine_push and combine_pull (rows back, and their sums).
``workspace.py`` has what both share, ``memory.py`` lays out the symmetric memory, ``tuning.py`` chooses launch shapes.

Kernels run in the caller's stream or in one beside it. The host waits in one place only: where it must know how many
rows a dispatch without a handle brings, and then while the rows are on their way. Operations count themselves on the
GPU (<moe/common/epoch.cuh>), so a CUDA graph may replay them.
"""

from ep_lib.moe.direct.combine import Combines
from ep_lib.moe.direct.dispatch import Dispatches
from ep_lib.moe.direct.memory import make_direct_map


class DirectMode(Dispatches, Combines):
    """The :class:`ep_lib.moe.mode.Mode` of ranks that reach each other by loads and stores: direct writes."""

    checks_values = True
    memory_map = staticmethod(make_direct_map)
