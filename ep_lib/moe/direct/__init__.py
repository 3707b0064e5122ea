"""Direct mode: GPUs write rows straight into each other's memory (NVLink or P2P), which is DeepEP's normal mode.

Begin at :mod:`ep_lib.moe.direct.mode`: the operations, and the launch of each kernel. A kernel lies beside it in a file
of its own, with the struct of its arguments: notify_dispatch (who sends what where), dispatch_bulk (rows to the
ranks of their experts), copy_epilogue (from the receive area to the caller's arrays, grouped by expert as well, if they
are to be), combine_push and combine_pull (rows back, and their sums). ``memory.py`` lays out the symmetric memory,
``tuning.py`` chooses launch shapes.
"""
