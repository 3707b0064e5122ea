"""Ways for a kernel to reach a peer that need a host half; each works with a :class:`ep_lib.Rank`, none with another.

Plain stores over NVLink, PCIe P2P or the emulator need none: ``ep::peer_ptr`` of ``<ep/peer.cuh>`` is all.
``nixl_handles``: the host half of NIXL's device API.
"""
