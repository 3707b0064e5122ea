"""The old place of :mod:`ep_lib.compat.ibgda`; the attribute ``ep_lib.ibgda`` is that module and stays."""

import sys
import warnings

from ep_lib.compat import ibgda

warnings.warn("the module ep_lib.ibgda is now ep_lib.compat.ibgda", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = ibgda
