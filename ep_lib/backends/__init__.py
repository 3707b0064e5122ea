"""What runs kernels, behind one Protocol: ``emulator`` (any Linux CPU) and ``cuda`` (a process per rank).

Begin with ``base``: what a backend offers a :class:`ep_lib.Rank`. Both compile a kernel when it is first launched, hand
out memory of the symmetric heap, launch, wait, and turn what went wrong into exceptions of :mod:`ep_lib.errors`.
"""
