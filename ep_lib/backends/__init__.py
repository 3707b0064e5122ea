"""What runs kernels: the CPU emulator and CUDA, behind one short Protocol."""
