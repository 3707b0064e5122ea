"""`make matrix`: ep_lib with the oldest and the newest dependencies that pyproject.toml allows, each smoke-tested.

The newest for every Python from 3.11 to 3.14 that this machine has, the oldest for the oldest of them: a newer Python
needs newer packages. Environments are made in a temporary folder. Exit code 1 if one of them fails.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = [f"python3.{minor}" for minor in range(11, 15)]
SMOKE = ROOT / "tests" / "programs" / "smoke.py"


def oldest(requirements: list[str]) -> list[str]:
    """The lowest minor release of each: "numpy>=2.0,<3" becomes "numpy==2.0.*"."""
    pins = []
    for requirement in requirements:
        found = re.fullmatch(r"([\w.-]+)\s*(?:>=|==)\s*([\w.]+).*", requirement)
        if found is None:
            raise SystemExit(f"{requirement!r} in pyproject.toml has no lower bound")
        version = found[2] if "." in found[2] else f"{found[2]}.0"
        pins.append(f"{found[1]}=={version}.*")
    return pins


def works(python: str) -> bool:
    """Whether there is such a Python: a shim on the PATH may lead nowhere."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def try_out(python: str, which: str, requirements: list[str], folder: Path) -> bool:
    """Installs ep_lib with these requirements for a Python, and runs the smoke test there."""
    environment = folder / f"{Path(python).name}-{which}"
    own = environment / "bin" / "python"
    commands = [
        [python, "-m", "venv", str(environment)],
        [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(ROOT), *requirements],
        [str(own), "-P", str(SMOKE)],
    ]
    for command in commands:
        if subprocess.run(command, cwd=folder, check=False).returncode != 0:
            print(f"FAILED  {python}, {which}: {' '.join(command)}", flush=True)
            return False
    print(f"ok      {python}, {which}", flush=True)
    return True


def main() -> int:
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pythons = [python for python in PYTHONS if works(python)] or [sys.executable]
    with tempfile.TemporaryDirectory(prefix="ep_lib-matrix-") as folder:
        results = [try_out(pythons[0], "oldest", oldest(base), Path(folder))]
        results += [try_out(python, "newest", ["--upgrade"], Path(folder)) for python in pythons]
    absent = [python for python in PYTHONS if python not in pythons]
    if absent:
        print(f"not here, so not tried: {', '.join(absent)}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
