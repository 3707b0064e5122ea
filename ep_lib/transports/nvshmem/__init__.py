"""NVIDIA's NVSHMEM: over NVLink, PCIe or a NIC. ``build`` compiles kernels for it, ``library`` calls it, ``heap`` is
the symmetric heap; ``ep/transport.cuh`` is its side of <ep/net.cuh>.
"""
