"""``python -m ep_lib`` is ``ep-lib``: the same commands without the script on the PATH."""

import sys

from ep_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
