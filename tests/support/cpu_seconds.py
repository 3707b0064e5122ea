"""``--cpu-seconds=FILE``: JSON of the CPU seconds of each test, those of the processes that it started among them.

Unlike ``--durations`` they are the same beside other work. A summary names the modules that took the most.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

NAME = "cpu seconds"


def _spent() -> float:
    """Of this process and of all that it has started, whether they have ended or still run."""
    ticks, pids = 0, [os.getpid()]
    for pid in pids:
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += map(int, children.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended, and its parent counts it
    return ticks / os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", type=Path, help="write CPU seconds per test to this file, as JSON")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.config.getoption("--cpu-seconds") is not None:
        item.user_properties.append((NAME, _spent()))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown" and item.user_properties and item.user_properties[0][0] == NAME:
        report.user_properties[:] = [(NAME, _spent() - float(item.user_properties[0][1]))]
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    file = config.getoption("--cpu-seconds")
    if file is None:
        return
    tests = {
        report.nodeid: round(seconds, 2)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, seconds in report.user_properties
        if name == NAME
    }
    file.write_text(json.dumps(dict(sorted(tests.items(), key=lambda test: -test[1])), indent=0))
    modules: dict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        modules[test.partition("::")[0]] += seconds
    terminalreporter.section(f"{sum(modules.values()):.0f} CPU seconds")
    for module, seconds in sorted(modules.items(), key=lambda module: -module[1])[:20]:
        terminalreporter.write_line(f"{seconds:7.1f}  {module}")
