"""A test process that crashed says where: its exit status and Python's last words stand in the test's report.

pytest has faulthandler write to the terminal, among the lines of other processes, and CI shows only its end.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

FILE = "crash_file"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist is about to start a test process."""
    handle, node.workerinput[FILE] = tempfile.mkstemp(prefix=f"crash-of-{node.gateway.id}-", suffix=".txt")
    os.close(handle)


@pytest.hookimpl(trylast=True)  # after pytest's own
def pytest_configure(config: pytest.Config) -> None:
    """In a test process: faulthandler writes to its file. The file stays open as long as the process lives."""
    if (workerinput := getattr(config, "workerinput", None)) is not None:
        faulthandler.enable(file=os.open(workerinput[FILE], os.O_WRONLY | os.O_APPEND))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A test process has ended, with or without a crash."""
    file = Path(node.workerinput[FILE])
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    node.last_words = "\n".join(line for line in lines if "site-packages" not in line)  # pytest's own are a hundred
    file.unlink()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """After that: the process ran a test, whose report this is."""
    node: Any = report.node  # type: ignore[attr-defined]
    status = node.gateway._io.wait()
    ended = f"signal {signal.Signals(-status).name}" if status and status < 0 else f"exit status {status}"
    report.longrepr = f"{report.longrepr}, ended by {ended}\n{node.last_words or 'Python saw no fault.'}"
