"""Memory that kernels work on: ``arrays`` describes arrays of NumPy, CuPy and torch, ``symmetric`` places arrays in the
symmetric heap. Begin with ``arrays``.
"""
