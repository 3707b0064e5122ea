"""Compiles kernels: g++ or clang++ for the emulator, NVRTC or nvcc for GPUs, with one cache on disk for all of them.

Begin with ``kernel``, the public :class:`ep_lib.Kernel`, then ``source``: a kernel's source with everything that a
compiler needs. ``gxx``, ``nvrtc`` and ``nvcc`` drive the compilers, ``toolkit`` finds them and the headers; ``digest``
and ``cache`` decide whether a result can be reused; ``names`` and ``diagnostics`` turn compiler messages into ep_lib's
errors. ``structs`` reads the structs that a kernel takes from its header, ``signature`` its parameters from the
compiled image, ``device_state`` what a kernel that gave up left in its heap. ``operation`` launches what a call
declares.
"""
