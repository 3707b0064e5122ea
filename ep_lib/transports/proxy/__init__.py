"""A transport through the CPU: kernels push commands into rings, and threads of the host, the proxies, carry them out.

It is for GPUs that cannot drive a NIC themselves. The design follows UCCL's P2P engine ("UCCL GPU-Driven Peer-to-Peer
Engine"): lock-free rings in memory that host and GPU share, proxy threads that poll them, and an executor behind the
proxies that moves the bytes.

* ``<ep/proxy_command.cuh>`` has the structs, ``<ep/proxy_ring.cuh>`` pushes: any kernel may use them.
* ``ep/transport.cuh`` makes ``ep::net_*`` of them: one command for each operation, one ring for each queue pair.
* ``heap`` is the host's half on the emulator. There the proxies are threads of a kernel that never ends
  (``emulated/proxy.cu``): a seed decides when they run, the checker sees what they read, and they post to the simulated
  NICs.
"""
