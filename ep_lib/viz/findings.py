"""The findings of ``ep_lib.check`` in a notebook: a click leads to the run, step by step."""

from __future__ import annotations

import html
from typing import Any

from ep_lib.emulator.findings import Finding
from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.require import show
from ep_lib.runtime.check import CheckReport
from ep_lib.viz.time_travel import page_of


def findings(report: CheckReport) -> Any:
    """A report as a widget: each finding with a button that shows its run below, as ``time_travel`` does.

    Raises ArgumentError for anything but a report, and BackendUnavailable without ipywidgets.
    """
    if not isinstance(report, CheckReport):
        raise ArgumentError(f"findings() shows what ep_lib.check returns, not {show(report)}")
    try:
        import ipywidgets
    except ImportError as error:
        raise BackendUnavailable("buttons need ipywidgets: pip install 'ep-lib[lab]'") from error
    rows = []
    for number, finding in enumerate(report.findings, 1):
        button = ipywidgets.Button(
            description="go through this run, step by step",
            tooltip=f"the run of seed {finding.seed}",
            layout={"width": "auto"},
        )
        below = ipywidgets.VBox()
        button.on_click(lambda _, finding=finding, below=below: _show(report, finding, below))
        rows.append(ipywidgets.VBox([ipywidgets.HTML(_text(f"{number}. {finding}")), button, below]))
    heading = str(report).split("\n", 1)[0]
    return ipywidgets.VBox([ipywidgets.HTML(_text(heading)), *rows])


def _text(text: str) -> str:
    return f'<pre style="white-space:pre-wrap; line-height:1.35; margin:0.4em 0">{html.escape(text)}</pre>'


def _show(report: CheckReport, finding: Finding, below: Any) -> None:
    import ipywidgets

    if report.record is None:  # of another process
        below.children = [ipywidgets.HTML(_text(f"run it again: {finding.replay}"))]
        return
    below.children = [ipywidgets.HTML(_text("recording the run ..."))]
    below.children = [ipywidgets.HTML(page_of(report.record(finding.seed))._repr_html_())]
