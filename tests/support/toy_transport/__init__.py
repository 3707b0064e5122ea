"""A transport in one folder, as small as can be: every byte goes through a staging area in host memory.

A put copies into a slot of the area and returns; a fence, a quiet or a signal, which need order or completion, carries
the slots on to their targets. ``heap`` is the host's half, ``ep/transport.cuh`` the kernels'.
"""
