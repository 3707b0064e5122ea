"""The backends that run kernels, behind one Protocol: ``emulator`` (any Linux CPU) and ``cuda`` (a process per rank).

Begin with ``base``, the interface for :class:`ep_lib.Rank`. Both compile a kernel at its first launch, allocate from
the symmetric heap, launch, wait, and turn failures into exceptions of :mod:`ep_lib.errors`.
"""
