"""Low-latency mode: decode batches, where launches, counts and barriers cost more time than the bytes.

Begin at ``common.cuh``: one kernel per operation, a flag per row, epochs and credits. Then ``dispatch`` and
``combine``. :mod:`ep_lib.moe.low_latency.mode` has their launches and the memory.
"""
