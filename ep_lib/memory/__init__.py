"""Memory of kernels: ``arrays`` describes arrays of NumPy, CuPy and torch, ``symmetric`` places arrays in the symmetric
heap, ``device_state`` reads the kernels' records in its first bytes. Begin with ``arrays``.
"""
