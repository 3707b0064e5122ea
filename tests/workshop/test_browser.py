"""The course in a real browser: JupyterLab as `make lab` starts it, in Debian's Chromium.

Errors on the console fail a test. Set EP_LIB_SCREENSHOTS to a folder to keep what the pages looked like. `make nightly`
runs every notebook here; `make extended` only the quickest.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.browser import PATIENCE_MS, needs_chromium, page_of

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
QUICKEST = "06_dispatch"
RUNS_ALL = 3  # repetitions (--rounds) above which all notebooks run

pytestmark = [
    pytest.mark.slow,
    needs_chromium,
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Lab:
    """A JupyterLab on a workshop of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("benchmarks", "docs", "ep_lib", "exercises", "solutions", "tests", "tutorial_kernels"):
            (root / name).symlink_to(ROOT / name)
        shutil.copytree(ROOT / "notebooks", root / "notebooks")
        environment = {
            **os.environ,
            "EP_LIB_WORKSHOP": str(root),
            **{f"JUPYTER_{what}_DIR": str(root / f".{what}") for what in ("CONFIG", "DATA", "RUNTIME")},
            "JUPYTERLAB_SETTINGS_DIR": str(root / ".settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(root / ".workspaces"),
            "IPYTHONDIR": str(root / ".ipython"),
        }
        self.log = root / "log"
        command = [sys.executable, "-m", "ep_lib", "lab", "--no-browser", "--port", str(free_port())]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log)
        self.address, self.token = self._started()

    def _started(self) -> tuple[str, str]:
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", self.log.read_text()):
                return found[1], found[2]
            time.sleep(0.1)
        raise AssertionError(f"JupyterLab did not start:\n{self.log.read_text()}")

    def url(self, path: str) -> str:
        return f"{self.address}/lab/tree/{path}?token={self.token}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab")
    started = Lab(tmp_path_factory.mktemp("lab"))
    yield started
    started.stop()


def open_notebook(page: Any, lab: Lab, name: str) -> None:
    """Opens it, alone, with a kernel that is ready and cells that no earlier test has run."""
    page.goto(f"{lab.url(f'mine/notebooks/{name}')}&reset")  # else the tabs of earlier tests come back, and have cells
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()  # before that, cells that are run do nothing


def cell(page: Any, text: str) -> Any:
    """The code cell whose source contains ``text``."""
    found = page.locator(".jp-CodeCell", has=page.locator(".jp-InputArea-editor", has_text=text)).first
    found.scroll_into_view_if_needed()
    return found


def run_cell(page: Any, text: str) -> Any:
    """Selects the cell, runs it by the keyboard, and waits until it is done."""
    found = cell(page, text)
    found.locator(".jp-InputPrompt").click()
    page.keyboard.press("Shift+Enter")
    found.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]")).wait_for()
    return found


def write_into(page: Any, text: str, source: str) -> Any:
    """Replaces what is in the cell that contains ``text``, with keys alone once it is selected, and runs it."""
    found = cell(page, text)
    found.locator(".jp-InputPrompt").click()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")
    return cell(page, source.partition("\n")[0])


@pytest.fixture(scope="module")
def start_here(chromium: Any, lab: Lab) -> Iterator[Any]:
    """The page that `ep-lib lab` leads to: the first notebook, with ep_lib imported, for tests of different cells."""
    with page_of(chromium, "start_here") as page:
        page.goto(f"{lab.address}/lab?token={lab.token}".replace("/lab?", "/?"))  # as ep-lib prints it
        page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
        assert page.locator(".jp-mod-dirty").count() == 0  # nobody has changed anything
        run_cell(page, "import ep_lib")
        yield page


def test_lab_opens_the_first_notebook(start_here: Any, lab: Lab) -> None:
    assert start_here.locator(".jp-Notebook h1").first.inner_text().startswith("Start here")
    assert "/mine/notebooks/00_start_here.ipynb" in start_here.url
    assert start_here.get_by_text("notified about official Jupyter news").count() == 0
    assert "Overriding existing" not in lab.log.read_text()


TWO_TABS = """async (script) => {
    (0, eval)(script);
    const container = window._JUPYTERLAB['ep-lib'];
    const shared = (exported) => ({1: {get: async () => () => exported}});
    container.init({
        '@jupyterlab/codemirror': shared({IEditorLanguageRegistry: {}}),
        '@jupyterlab/notebook': shared({INotebookTracker: {}}),
    });
    const plugins = (await container.get('./extension'))().default;
    window.said = [];
    plugins.find((plugin) => plugin.id === 'ep-lib:tabs').activate({
        restored: Promise.resolve(),
        shell: {widgets: () => [{context: {path: 'mine/notebooks/00.ipynb'}}, {}], layoutModified: {connect: () => {}}},
        commands: {execute: (command, args) => window.said.push(command + ': ' + args.message)},
    });
}"""  # with as much of JupyterLab as the plugin asks for


def test_a_notebook_in_two_tabs_says_so(page: Any) -> None:
    folder = ROOT / "ep_lib" / "workshop" / "jupyter" / "labextensions" / "ep-lib"
    page.context.route("http://lab.test/", lambda route: route.fulfill(body="<p>", content_type="text/html"))
    tabs = [page, page.context.new_page()]
    for tab in tabs:
        tab.goto("http://lab.test/")
        tab.evaluate(TWO_TABS, (folder / "static" / "remoteEntry.js").read_text())
    for tab in tabs:
        tab.wait_for_function("window.said.length")
        assert "apputils:notify: 00.ipynb is open in another tab, too" in tab.evaluate("window.said.join()")


@pytest.mark.extended
def test_a_prediction_is_remembered(start_here: Any) -> None:
    page = start_here
    for text in ("greet = ep_lib.Kernel", '"00.greet"'):
        asked = run_cell(page, text)
    wrong = asked.get_by_role("button", name="[0, 0]")
    wrong.focus()
    page.keyboard.press("Enter")
    asked.get_by_text("Now run the next cells").wait_for()
    assert asked.locator(".mod-info").count() == 1
    page.keyboard.press("Shift+Enter")  # the choice made the next cell active: this runs it
    asked.get_by_text("You predicted: [0, 0]. It is: [101, 100]").wait_for()
    page.keyboard.press("Control+s")
    page.wait_for_selector(".jp-mod-current .jp-DirtyIndicator, .jp-mod-dirty", state="detached")
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    cell(page, '"00.greet"').get_by_text("You predicted: [0, 0]. It is: [101, 100]").wait_for()
    assert "model not found" not in page.content()
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()


@pytest.mark.extended
def test_after_a_restart_a_question_is_text_and_not_dead_buttons(page: Any, lab: Lab) -> None:
    open_notebook(page, lab, "07_combine.ipynb")
    for text in ("TOKENS = 4, 8, 2, 16, 6", '"07.nothing"'):
        asked = run_cell(page, text)
    asked.get_by_role("button", name="twice the token").wait_for()
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Restart Kernel…")).click()
    page.locator(".jp-Dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    asked.get_by_text("Not answered. Where the notebook runs").wait_for()
    assert asked.get_by_role("button", name="twice the token").count() == 0
    assert "model not found" not in page.content()
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()  # a server does not end while a kernel restarts


def test_a_dark_theme_turns_listings_around_and_leaves_notes(page: Any, lab: Lab) -> None:
    open_notebook(page, lab, "07_combine.ipynb")
    run_cell(page, "TOKENS = 4, 8, 2, 16, 6")
    listing = run_cell(page, 'show_source(LADDER, "combine_atomics"').locator("pre[style*=background]").first
    puzzle = run_cell(page, "%%puzzle 07.2").locator("div[style*=background]").first
    look = "(shown) => getComputedStyle(shown).filter"
    assert [shown.evaluate(look) for shown in (listing, puzzle)] == ["none", "none"]
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    assert listing.evaluate(look).startswith("invert") and puzzle.evaluate(look) == "none"


@pytest.mark.extended
def test_nothing_is_shown_before_the_question_is_answered(page: Any, lab: Lab) -> None:
    """And the line of a printed finding, pasted into the next cell, shows its run."""
    open_notebook(page, lab, "06_dispatch.ipynb")
    for text in ("TOKENS = [7, 5, 0, 6]", "popularity = np", '"06.rows"'):  # in no other notebook that is open
        run_cell(page, text)
    shown = run_cell(page, "rows.compare(")
    shown.get_by_role("button", name="fewer than").wait_for()
    assert "rows\n" not in shown.inner_text() and "It is:" not in shown.inner_text()
    shown.get_by_role("button", name="more than").click()
    shown.get_by_text("It is: fewer than").wait_for()
    assert re.search(r"^\d+ rows$", shown.inner_text(), re.M)
    found = run_cell(page, 'args=("dispatch_without_atomics"')
    line = re.search(r"from ep_lib import viz; viz\.time_travel\(.*\)", found.inner_text())
    assert line is not None
    travelled = write_into(page, "%%puzzle 06.1", line[0])
    travelled.locator("iframe").content_frame.locator("#now").wait_for()


def test_a_puzzle_is_solved_from_the_keyboard(start_here: Any, lab: Lab) -> None:
    page = start_here
    shown = run_cell(page, 'workshop.puzzle("00.1")')
    hint = shown.locator("summary").first
    hint.focus()
    page.keyboard.press("Enter")
    shown.get_by_text("is in <ep/peer.cuh>").wait_for()
    answer = run_cell(page, "%%puzzle 00.1")
    answer.get_by_text("Puzzle 00.1 is yours to solve").wait_for()
    write_into(page, "%%puzzle 00.1", "%%puzzle 00.1\n*box = 100 + me;")
    answer.get_by_text("00.1: Not right yet").wait_for()
    write_into(page, "%%puzzle 00.1", "%%puzzle 00.1\n*ep::peer_ptr(box, peer) = 100 + me;")
    answer.get_by_text("00.1: Right").wait_for()
    picture = answer.locator("img")
    assert "box of rank 0 holds [101] at the end: word 0 written by rank 1" in picture.get_attribute("alt")
    assert "00.1" in (lab.root / "mine" / "progress.json").read_text()


@pytest.mark.extended
def test_an_answer_is_watched_and_a_slider_moves_it(start_here: Any, lab: Lab) -> None:
    page = start_here
    answer = write_into(page, "%%puzzle 00.2", "%%puzzle 00.2\nep::peer_ptr(list, peer)[threadIdx.x] = me;")
    answer.get_by_text("workshop.watch()").wait_for()
    shown = write_into(page, "%%puzzle 00.3", "workshop.watch()")
    player = shown.locator("iframe").content_frame
    before = player.locator("#now").inner_text()
    player.locator("#slider").focus()
    page.keyboard.press("ArrowRight")
    player.locator("#now").filter(has_not_text=before).wait_for()
    page.keyboard.press("Escape")  # leaves the page's frame: the keyboard is the notebook's again
    page.locator(".jp-Cell:focus").wait_for()


@pytest.mark.extended
def test_an_exercise_is_done_from_the_keyboard(start_here: Any, lab: Lab) -> None:
    page = start_here
    started = run_cell(page, 'workshop.start("00_first_kernel")')
    started.locator("a", has_text="00_first_kernel.cuh").focus()
    page.keyboard.press("Enter")
    editor = page.locator(".jp-FileEditor .cm-content")
    editor.get_by_text("Task 1 is still to do").wait_for()
    editor.focus()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text((ROOT / "solutions" / "00_first_kernel" / "00_first_kernel.cuh").read_text())
    changed = page.locator(".jp-mod-current.jp-mod-dirty")  # the editor's tab: the notebook is saved minutes later
    changed.wait_for()
    page.keyboard.press("Control+s")
    mine = lab.root / "mine" / "00_first_kernel" / "00_first_kernel.cuh"
    changed.wait_for(state="detached")
    assert "signal_add(flag, 1, peer)" in mine.read_text()
    page.get_by_role("tab", name="00_start_here.ipynb").click()
    checked = run_cell(page, 'workshop.check("00_first_kernel")')
    checked.get_by_text("2 of 2 tasks pass the public checks").wait_for()


@pytest.mark.extended
@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_to_its_end(path: Path, page: Any, lab: Lab, rounds: int) -> None:
    if path.stem != QUICKEST and rounds <= RUNS_ALL:
        pytest.skip("in make nightly, which passes --rounds")
    open_notebook(page, lab, path.name)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    last = page.locator(".jp-CodeCell .jp-InputPrompt").last
    last.filter(has_text=re.compile(r"\[\d+\]")).wait_for()
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', state="attached")
    wrong = page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]')
    assert wrong.all_inner_texts() == []
    assert page.get_by_text("model not found").count() == 0
