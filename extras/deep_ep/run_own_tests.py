"""DeepEP's own tests, unchanged, on ep_lib: ``run_own_tests.py CHECKOUT TEST ARGUMENTS``.

``CHECKOUT`` is a clone of DeepEP, of V1 (567632d) or V2 (dd758ca), that need not be built; ``TEST`` a file in it. The
process and those that it starts get ``deep_ep`` from ep_lib, and the helpers of V2's tests (``deep_ep.utils.math`` and
others) from the clone; its C++ module, which they import, is an empty one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALIAS = """
import sys, types

from ep_lib.compat import deep_ep

is_alias_of_ep_lib = True
deep_ep.install_alias()
deep_ep.utils.__path__ = [{helpers!r}]
deep_ep._C = sys.modules["deep_ep._C"] = types.ModuleType("deep_ep._C")
"""


def main(checkout: str, test: str, *arguments: str) -> int:
    """The exit status of the test."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "deep_ep"
        package.mkdir()
        helpers = Path(checkout).resolve() / "deep_ep" / "utils"
        (package / "__init__.py").write_text(ALIAS.format(helpers=str(helpers)))
        path = os.pathsep.join([folder, str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, str(Path(checkout) / test), *arguments]
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
