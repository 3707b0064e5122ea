"""GPUs that NCCL joins by loads and stores (its LSA team): ``library`` calls libnccl, ``heap`` is the symmetric heap in
a window of NCCL's. Kernels are those of p2p, stores to peers: NCCL says where they are, also on the hosts of one NVLink
domain, which CUDA IPC does not leave.
"""
