"""ep_lib: GPU-initiated communication, from one write and one signal to Mixture-of-Experts dispatch and combine.

Importing it starts nothing and loads neither torch nor CuPy.
"""

from ep_lib import dispatch_combine, errors, nixl
from ep_lib.compat import ibgda
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import HARDWARE, Hardware, Link
from ep_lib.emulator.timeline import Message, Sample, Span, Timeline
from ep_lib.jit.kernel import Kernel
from ep_lib.moe import Buffer
from ep_lib.runtime.check import check
from ep_lib.runtime.launcher import init, rejoin
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.report import CheckReport
from ep_lib.runtime.simulate import simulate
from ep_lib.runtime.spawn import spawn
from ep_lib.version import __version__

__all__ = [
    "HARDWARE",
    "Buffer",
    "CheckReport",
    "Fabric",
    "Hardware",
    "Kernel",
    "Link",
    "Message",
    "Rank",
    "Sample",
    "Span",
    "Timeline",
    "__version__",
    "check",
    "dispatch_combine",
    "errors",
    "ibgda",
    "init",
    "nixl",
    "rejoin",
    "simulate",
    "spawn",
]
