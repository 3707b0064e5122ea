"""The CUDA emulator: kernels of any number of ranks run on a CPU, one seeded schedule at a time."""
