"""PCIe mode: everything that crosses ranks goes through NICs and bounce buffers of fixed size, also inside a node.

Begin at ``rings.cuh``: channels, the rings of messages between each two ranks, and why nothing deadlocks. Then the
three kernels in the order of an operation: ``exchange_counts`` (all ranks tell each other what they send), ``dispatch``
and ``combine``. :mod:`ep_lib.moe.pcie.mode` launches them; ``memory.py`` chooses sizes and lays out symmetric memory.
"""
