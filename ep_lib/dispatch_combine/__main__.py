"""``python -m ep_lib.dispatch_combine HIDDEN TOKENS EXPERTS CHOICES``: the same as ``ep-lib dispatch-combine``."""

import sys

from ep_lib.cli import main

if __name__ == "__main__":
    sys.exit(main(["dispatch-combine", *sys.argv[1:]]))
