"""CUDA for a process that holds one GPU: devices, streams, loading of modules, and errors.

Importing this loads no CUDA library; CuPy is imported on demand.
"""
