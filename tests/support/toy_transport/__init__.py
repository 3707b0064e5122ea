"""A transport in one folder, as small as can be: every byte goes through a staging area in host memory.

A put copies into a slot of the area and returns; whoever needs order or completion (a fence, a quiet, a signal) carries
the slots on to their targets. ``heap`` is the host's half, ``ep/transport.cuh`` the kernels'.
"""
