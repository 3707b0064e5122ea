"""The CUDA emulator: kernels of any number of ranks run on a CPU, one seeded schedule at a time.

- ``runtime/`` is C++: CUDA threads as fibers, the schedules that pick the next one, checked memory, NICs, the race
  checker and the model of time. Begin with ``runtime/machine.hpp``, then ``schedule.hpp`` and ``scheduler.cpp``.
- ``include/`` is what kernels see: CUDA's built-in functions, which call the runtime (``ep_emulator/abi.h``).
- :mod:`.library` loads the runtime; :mod:`.machine` is one machine of ranks in Python's terms; :mod:`.world` runs a
  main per rank, and the kernels when all of them wait.
- :mod:`.fabric` describes the network between ranks and injected faults; :mod:`.hardware` and :mod:`.timeline` belong
  to virtual time (:mod:`.virtual_time`); :mod:`.findings` and :mod:`.outcomes` describe failures.
"""
