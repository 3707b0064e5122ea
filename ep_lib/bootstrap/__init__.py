"""How processes that form a world meet: small objects are exchanged on the host before (and beside) the kernels.

One short Protocol, four ways: ``hub`` (ranks that ``ep_lib.spawn`` started), ``mpi``, ``torchrun`` and ``srun``.
"""

from ep_lib.bootstrap.base import Bootstrap, SingleBootstrap

__all__ = ["Bootstrap", "SingleBootstrap"]
