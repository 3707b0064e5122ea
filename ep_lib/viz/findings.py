"""The findings of ``ep_lib.check`` in a notebook: a click unfolds the run of each, step by step."""

from __future__ import annotations

import html

from ep_lib.emulator.findings import Finding
from ep_lib.errors import ArgumentError
from ep_lib.require import show
from ep_lib.runtime.report import CheckReport
from ep_lib.viz.page import Page
from ep_lib.viz.time_travel import page_of

_MOST_PAGES = 3  # of a report
_MOST_STEPS = 4_000  # of each: they become part of the notebook
_STYLE = "font-family:monospace; white-space:pre-wrap; line-height:1.35; margin:0.4em 0"
_FURTHER_IN = 4  # columns, of what a narrow page wraps


class Findings:
    """The result of :func:`findings`. ``str()`` is the report's."""

    def __init__(self, report: CheckReport) -> None:
        self._report = report
        self._pages: dict[int | str, Page] = {}  # by run: several findings may share one run
        if report.record is None:
            return
        for finding in report.findings:
            if finding.run in self._pages or len(self._pages) == _MOST_PAGES:
                continue
            recording = report.record(finding.run)
            if recording.steps:  # main may have failed before it launched anything
                self._pages[finding.run] = page_of(recording, _MOST_STEPS)

    def __repr__(self) -> str:
        return str(self._report)

    def _repr_html_(self) -> str:
        if self._report.ok:
            return _text(str(self._report))
        parts = [_text(str(self._report).split("\n", 1)[0])]
        shown: set[int | str] = set()
        for number, finding in enumerate(self._report.findings, 1):
            parts.append(_text(f"{number}. {_in_short(finding)}"))
            parts.append(_fold("All that the checker says of it", _text(str(finding))))
            if finding.run in shown:
                parts.append(_text("That run is above."))
            elif finding.run in self._pages:
                frame = self._pages[finding.run]._repr_html_()
                words = f"Go through {_run_of(finding)}, step by step"
                parts.append(_fold(words, frame))
                shown.add(finding.run)
        return "".join(parts)


def _run_of(finding: Finding) -> str:
    return f"the run of seed {finding.seed}" if finding.schedule is None else "its run"


def findings(report: CheckReport) -> Findings:
    """A report, as the last line of a cell: a click on a finding unfolds its run as a ``time_travel`` page.

    The first three runs are recorded now. Raises ArgumentError for anything but a report.
    """
    if not isinstance(report, CheckReport):
        raise ArgumentError(f"findings() shows what ep_lib.check returns, not {show(report)}")
    return Findings(report)


def _in_short(finding: Finding) -> str:
    """The mistake, its two lines, and the remedy, in short."""
    lines = [f"{finding.kind}: {finding.message}"]
    for side in dict.fromkeys(side for side in (finding.first, finding.second) if side is not None):
        who = "" if side.operation is None else f"{side.operation.engine}, "
        called = finding.called(side).strip()
        where = f"{side.location or 'an unknown line'}: {side.source}" + (f" ({called})" if called else "")
        lines.append(f"   {who}{side.what} at {where}")
    lines += [f"   remedy: {finding.remedy}"] if finding.remedy else []
    return "\n".join(lines)


def _fold(head: str, body: str) -> str:
    return f'<details><summary style="cursor:pointer">{head}</summary>{body}</details>'


def _text(text: str) -> str:
    return f'<pre style="{_STYLE}">{hanging_lines(text)}</pre>'


def hanging_lines(text: str) -> str:
    """The HTML of lines in a <pre>: what a narrow page wraps stands further in than the beginning of its line."""
    return "".join(map(_hanging, text.splitlines()))


def _hanging(line: str) -> str:
    columns = len(line) - len(line.lstrip()) + _FURTHER_IN
    style = f"display:block; min-height:1em; padding-left:{columns}ch; text-indent:-{columns}ch"
    return f'<span style="{style}">{html.escape(line)}</span>'
