"""A transport through the CPU: kernels push commands into rings, and host threads, the proxies, execute them.

It is for GPUs that cannot drive a NIC themselves. The design follows UCCL's P2P engine ("UCCL GPU-Driven Peer-to-Peer
Engine"): lock-free rings in memory that host and GPU share, proxy threads that poll them, and an executor behind the
proxies that transfers the bytes.

* ``<ep/proxy_command.cuh>`` has the structs, ``<ep/proxy_ring.cuh>`` pushes (behind PCIe
  ``<ep/sealed_ring.cuh>``): any kernel may use them.
* ``ep/transport.cuh`` makes ``ep::net_*`` of them: one command for each operation, one ring for each queue pair.
* ``native/`` are the proxies of real processes: threads in C++, and executors behind the functions of
  ``native/engine.hpp``: nothing, memory, NIXL (UCX), CUDA's copy engine. ``engine`` starts and stops them;
  ``rings`` has the memory that both sides share.
* ``peer_copy`` copies arrived data to other GPUs of the host (``<ep/peer_copy.cuh>``).
* ``heap`` is the host's half on the emulator. If ranks are processes, the proxies are native. In one process they are
  threads of a kernel that never ends (``emulated/proxy.cu``): a seed schedules them, the checker sees their accesses,
  and they post to the simulated NICs.
* ``gpu_heap`` is the host's half on GPUs that reach each other: native proxies with CUDA's copy engine.
"""
