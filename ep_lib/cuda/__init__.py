"""CUDA for a process that holds one GPU: which device, which stream, how modules are loaded, what its errors mean.

Importing this loads no CUDA library; CuPy is imported when something is asked for.
"""
