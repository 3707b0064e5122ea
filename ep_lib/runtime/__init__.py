"""Ranks, and the ways to run them. Begin with ``rank``, the object that ``main(rank)`` gets.

``spawn`` starts the ranks of a world (``emulated``: threads of this process; ``spawn_cuda``: a process per GPU),
``launcher`` finds a rank's place under mpiexec, torchrun or srun, ``check`` runs many schedules under the race checker,
``simulate`` runs one on the virtual clock.
"""
