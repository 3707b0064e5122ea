"""Memory that kernels work on: ``arrays`` describes arrays of NumPy, CuPy and torch, ``symmetric`` places arrays in the
symmetric heap, ``device_state`` reads what kernels leave in its first bytes. Begin with ``arrays``.
"""
