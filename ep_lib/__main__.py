"""``python -m ep_lib`` is ``ep-lib``: the same commands where the script is not on the PATH."""

import sys

from ep_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
