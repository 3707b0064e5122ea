"""The commands of ``ep-lib``: one module each, or a folder where a command needs several files.

    doctor    what this machine can do, and the next step for what is missing
    demo      train a small mixture-of-experts model and run it across ranks
    check     find races, missing fences and deadlocks in a script's main(rank)
    bench     measure puts, transports and modes, on GPUs or on the emulator
    grade     check your piece of an exercise with the hidden tests
    migrate   what a CUDA file written for IBGDA must change to run on EFA
    lab       open the notebooks in JupyterLab

A command offers ``add_arguments(parser)`` and ``run(args) -> int``, and ep_lib/cli.py lists it. The folders' own
``__init__.py`` hold the command itself. Begin with lab.py, the shortest. efa_environment.py, the table of NVSHMEM's
variables on EFA, is shared by doctor and migrate.
"""
