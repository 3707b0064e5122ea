"""Compiles kernels: g++ or clang++ for the emulator, NVRTC for GPUs, with one cache for both."""
