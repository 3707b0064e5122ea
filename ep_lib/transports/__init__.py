"""How bytes travel between ranks, a folder for each transport; they never import each other.

``p2p``: GPUs of one host that reach each other's memory. ``nvshmem`` and ``nixl``: those libraries, which may go
through NICs. Begin with ``base``, what each of them offers; ``registry`` finds one by its name.
"""
