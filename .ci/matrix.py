"""`make matrix`: ep_lib with the oldest and the newest dependencies that pyproject.toml allows.

Smoke-tested: the newest for every Python from 3.11 to 3.14 that this machine has, the oldest for the oldest of them, as
a newer Python needs newer packages. Exit code 1 if one of them fails. Then the tests run on the newest of everything
but torch, unless that is what `make` installs anyway: the last line says how many failed, and the exit code does not.

    python .ci/matrix.py [--tests-only] [--until SECONDS_SINCE_1970] [--order TEXT]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = [f"python3.{minor}" for minor in range(11, 15)]
WORKERS = ("-n", str((os.cpu_count() or 1) + 1), "--dist", "worksteal")
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


def drift(target: Path) -> list[str]:
    """The pins that `make lock` would change today, as "numpy 2.4.6 -> 2.5.0"."""
    subprocess.run([sys.executable, str(ROOT / ".ci/install.py"), "lock", str(target)], cwd=ROOT, check=True)
    locked, newest = (
        dict(line.split("==", 1) for line in file.read_text().splitlines() if "==" in line)
        for file in (ROOT / ".ci/constraints.txt", target)
    )
    return [f"{name} {locked.get(name, '-')} -> {now}" for name, now in newest.items() if locked.get(name) != now]


def run_newest(folder: Path, until: float | None, order: str | None) -> None:
    """Says which packages have a newer release than `make` installs, and how many tests fail with them."""
    changed = drift(folder / "newest.txt")
    if not changed:
        print("newest: 0 failures (the lock has the newest of everything)")
        return
    print("newer than the lock:", ", ".join(changed), flush=True)
    environment = folder / "newest"
    made = ["make", f"VENV={environment}", "CONSTRAINTS=.ci/constraints.in", f"{environment}/.installed-test"]
    if subprocess.run(made, cwd=ROOT, check=False).returncode != 0:
        print("newest: 1 failures (they cannot be installed together)")
        return
    flags = [*([f"--until={until}"] if until else []), *([f"--order={order}"] if order else [])]
    tests = [str(environment / "bin/python"), "-m", "pytest", "-q", "-m", "not extended", *WORKERS, *flags]
    done = subprocess.run(tests, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    last = done.stdout.rstrip().rpartition("\n")[2]
    counted = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    failures = counted.get("failed", 0) + counted.get("errors", 0) + counted.get("error", 0)
    if failures or done.returncode not in (0, 1):
        print(done.stdout)
    print(f"newest: {failures} failures ({last.strip('= ')})")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests-only", action="store_true")
    parser.add_argument("--until", type=float)
    parser.add_argument("--order")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ep_lib-matrix-") as folder:
        failed = 0 if asked.tests_only else smoke_tests(Path(folder))
        run_newest(Path(folder), asked.until, asked.order)
    return failed


def smoke_tests(folder: Path) -> int:
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pythons = [python for python in PYTHONS if works(python)] or [sys.executable]
    results = [try_out(pythons[0], "oldest", oldest(base), folder)]
    results += [try_out(python, "newest", ["--upgrade"], folder) for python in pythons]
    absent = [python for python in PYTHONS if python not in pythons]
    if absent:
        print(f"not here, so not tried: {', '.join(absent)}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
