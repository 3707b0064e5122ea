"""Runs compilers and linkers, and tells failures of the machine from those of a source."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ep_lib import processes
from ep_lib.config import Config
from ep_lib.errors import BackendUnavailable

_CPU_S, _IDLE_S = 1200.0, 300.0  # a compiler's limits: CPU time, and idle time
_ELF_MAGIC = b"\x7fELF"
ANOTHER = "EP_LIB_CXX names another compiler"

# Compiler messages that blame the machine, not the source
_MACHINE = re.compile(
    r"no space left on device|disk quota exceeded|read-only file system|cannot create temporary file|"
    r"input/output error|killed signal|terminated program|virtual memory exhausted|out of memory|"
    r"cannot allocate memory|internal compiler error|cannot execute|posix_spawn|vfork|too many open files|"
    r"error writing to|unable to execute command|error while loading shared libraries",
    re.IGNORECASE,
)
# The heap only: the sanitizer does not know about fibers' stack switches.
_SANITIZER_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "--param=asan-stack=0", "-O1"]


def sanitizer() -> list[str]:
    if not Config.from_environment().sanitize:
        return []
    if "libasan" not in Path("/proc/self/maps").read_text():  # without libasan, loading it would end the process
        raise BackendUnavailable(
            "EP_LIB_SANITIZE is set, and the sanitizers' libraries are not loaded: run `make sanitize`, or unset it"
        )
    return _SANITIZER_FLAGS


def run(command: Sequence[str]) -> tuple[int, str]:
    """Runs a compiler; returns its exit status and messages (in English, without colours)."""
    environment = {**os.environ, "LC_ALL": "C", "GCC_COLORS": ""}
    if sanitizer():
        environment.pop("LD_PRELOAD", None)  # the sanitizers are for this process, not for the compiler
    try:
        done = processes.run(command, cpu_s=_CPU_S, idle_s=_IDLE_S, environment=environment)
    except processes.TookTooLong as error:
        raise BackendUnavailable(f"{command[0]} {error} without coming to an end; {ANOTHER}") from error
    except OSError as error:
        raise BackendUnavailable(f"the compiler {command[0]} cannot be started: {error}") from error
    if done.returncode < 0:
        return done.returncode, f"{done.stderr}{command[0]}: killed signal {-done.returncode}\n"
    return done.returncode, done.stderr + done.stdout


def build(command: Sequence[str], what: str, target: Path) -> None:
    """Compiles something of ours to ``target``; a failure is the installation's fault, not a kernel's."""
    status, log = run(command)
    if status == 0:
        return require_output(target, command)
    if "fatal error: cuda" in log:
        raise BackendUnavailable(
            "the emulator needs CUDA's headers (no GPU, no driver): "
            "pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl, or set CUDA_HOME"
        )
    raise failed(command, what, log)


def require_output(target: Path, command: Sequence[str]) -> None:
    """Checks that a compiler has written its output, and that it is not empty."""
    try:
        with target.open("rb") as file:
            begin = file.read(len(_ELF_MAGIC))
    except FileNotFoundError:
        begin = b""
    if not begin or (target.suffix in (".o", ".so") and begin != _ELF_MAGIC):
        what = "no machine code" if begin else "nothing"
        raise BackendUnavailable(f"{command[0]} says that it is done, but has written {what}; {ANOTHER}")


def says_the_machine(log: str) -> str:
    """The line of a compiler's messages that blames the machine or the compiler; "" if none does."""
    for line in log.splitlines():
        about_source = line.startswith(" ") or re.match(r".+?:\d+:(\d+:)? (?!internal compiler error)", line)
        if not about_source and _MACHINE.search(line):
            return line
    return ""


def failed(command: Sequence[str], what: str, log: str) -> BackendUnavailable:
    """The error for a fault of the machine or the installation, not of a source."""
    with tempfile.NamedTemporaryFile("w", prefix="ep_lib-", suffix=".log", delete=False) as file:
        file.write(" ".join(command) + "\n" + log)
    first = says_the_machine(log) or next((line for line in log.splitlines() if "error" in line), log.strip()[:500])
    return BackendUnavailable(f"{command[0]} cannot compile {what}: {first} (all messages: {file.name})")
