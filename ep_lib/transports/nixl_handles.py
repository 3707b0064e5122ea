"""The old name of :mod:`ep_lib.compat.nixl`."""

import sys
import warnings

from ep_lib.compat import nixl

warnings.warn("ep_lib.transports.nixl_handles is now ep_lib.compat.nixl", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = nixl
