"""Transports of bytes between ranks: a folder for each, a line each in ``registry``; none imports another.

``p2p``: GPUs of one host that reach each other's memory. ``nccl``: the same in memory that NCCL maps, also on the hosts
of one NVLink domain; its kernels are those of ``p2p``. ``nvshmem`` and ``nixl``: those libraries, which may go through
NICs. ``proxy``: commands to threads of the host. ``emulated``: the emulator's simulated NICs. Each folder has the
symmetric heap, the build of kernels if it differs, and ``ep/transport.cuh``, the device functions behind <ep/net.cuh>.
Begin with ``base``, their common interface; ``ipc`` is memory that GPUs of one host have mapped; ``choose`` opens a
transport on GPUs.
"""
