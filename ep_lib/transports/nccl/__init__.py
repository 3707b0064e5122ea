"""GPUs that NCCL joins by loads and stores (its LSA team): ``library`` calls libnccl, ``heap`` is the symmetric heap in
a window of NCCL's. Kernels are those of p2p, stores to peers: NCCL gives their addresses, also across the hosts of one
NVLink domain, where CUDA IPC is limited to one host.
"""
