"""Connects the processes of a world, and exchanges small objects on the host.

Begin at ``base``, a short Protocol. Four modules implement it: ``hub`` (ranks that ``ep_lib.spawn`` started), ``mpi``,
``torchrun`` and ``srun``. ``stopped`` and ``siblings`` check the processes of ranks that others wait for.
"""

from ep_lib.bootstrap.base import Bootstrap, SingleBootstrap

__all__ = ["Bootstrap", "SingleBootstrap"]
