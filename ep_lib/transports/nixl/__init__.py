"""NVIDIA's NIXL, with UCX underneath. ``build`` compiles kernels for it, ``agent`` calls it, ``heap`` is the symmetric
heap; ``ep/transport.cuh`` is its side of <ep/net.cuh>.
"""
