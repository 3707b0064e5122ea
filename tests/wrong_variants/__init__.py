"""Kernels with one mistake each, and the programs in which the checker must find it."""
