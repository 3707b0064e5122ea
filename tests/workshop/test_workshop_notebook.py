"""The notebooks' helpers, and the pictures that only notebooks draw."""

from __future__ import annotations

import html
import importlib.util
import io
import re
import runpy
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from support import ROOT

from ep_lib import errors
from ep_lib.commands.lab import NEW_KERNEL
from ep_lib.workshop.notebook import LONGEST, as_note, expect, find, said_meanwhile, show_source

pytestmark = pytest.mark.slow

KERNELS = "tutorial_kernels/01_write_signal.cu"


# ---- source code -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "name"),
    [
        (KERNELS, "write_signal_bare"),
        (KERNELS, "pipelined_receive"),
        ("ep_lib/device/ep/peer.cuh", "peer_ptr"),
        ("ep_lib/moe/common/layout.cuh", "get_dispatch_layout"),
        ("ep_lib/device/ep/write_signal.cuh", "Pipe"),
        ("ep_lib/moe/common/dispatch.cuh", "DispatchArgs"),
        ("tests/kernels/nixl_guide.cu", "wait_for_signal_kernel_thread"),
    ],
)
def test_source_is_the_files_own_lines(file: str, name: str) -> None:
    shown = show_source(file, name)
    ((first, lines),) = shown.blocks
    text = (ROOT / file).read_text().split("\n")
    assert list(lines) == text[first - 1 : first - 1 + len(lines)]
    assert any(re.search(rf"\b{name}\b", line) for line in lines)
    assert lines[-1].startswith("}") or len(lines) == 1
    assert f"{first:4} {lines[0]}" in repr(shown)


def test_source_as_html_has_every_line_once_and_keeps_the_text() -> None:
    shown = show_source(KERNELS, "write_signal_bare", mark=["their_target[i]", "red_add_release"])
    page = shown._repr_html_()
    plain = html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"</?(pre|div)[^>]*>", "\n", page)))
    for first, lines in shown.blocks:
        for number, line in enumerate(lines, first):
            assert len(re.findall(rf"(?m)^ *{number}  {re.escape(line)}$", plain)) == 1, line
    assert page.count("background:#fff3bf") == len(shown.marked) >= 2
    assert f"{KERNELS}</code></a>" in page


def test_a_long_listing_shows_what_is_marked_and_the_rest_unfolds() -> None:
    shown = show_source("ep_lib/moe/common/layout.cuh", "get_dispatch_layout", mark="place_in_block")
    ((first, whole),) = shown.blocks
    excerpt = {n: line for begin, lines in shown.excerpt for n, line in enumerate(lines, begin)}
    assert len(whole) > len(excerpt) == LONGEST and shown.marked <= excerpt.keys()
    assert all(whole[n - first] == line for n, line in excerpt.items())
    assert any(line.startswith("EP_DEVICE void get_dispatch_layout(") for line in excerpt.values())
    assert "<details><summary" in shown._repr_html_() and f"All {len(whole)} lines" in shown._repr_html_()
    assert repr(shown).count("\n  ...\n") == len(shown.excerpt) - 1 >= 1


def test_source_without_the_comments_above() -> None:
    whole = show_source("tutorial_kernels/01_write_signal_broken.cu", "write_signal_warp_short")
    bare = show_source("tutorial_kernels/01_write_signal_broken.cu", "write_signal_warp_short", comments=False)
    ((first, lines),), ((bare_first, bare_lines),) = whole.blocks, bare.blocks
    assert lines[0].startswith("//") and not bare_lines[0].startswith("//")
    assert bare_lines == lines[bare_first - first :]
    assert "_broken.cu" in repr(whole) and "_broken" not in repr(bare)
    assert KERNELS in repr(show_source(KERNELS, "write_signal_bare", comments=False))  # a right kernel has no secret
    linked = bare._repr_html_()  # the file opens by a click, and its name is not read beside the question
    assert '01_write_signal_broken.cu" target' in linked and "_broken" not in re.sub(r"<[^>]+>", "", linked)


def test_source_without_pygments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "red_add_release_sys_u64(their_signal, 1)" in show_source(KERNELS, "write_signal_bare")._repr_html_()


def test_source_says_what_is_not_there() -> None:
    with pytest.raises(errors.ArgumentError, match="does not define 'write_signal'"):
        show_source(KERNELS, "write_signal")
    with pytest.raises(errors.ArgumentError, match=r"no line shown of .* contains 'warp'"):
        show_source(KERNELS, "write_signal_bare", mark="warp")
    with pytest.raises(errors.ArgumentError, match=r"no file 'tutorial_kernels/99\.cu'"):
        show_source("tutorial_kernels/99.cu")


def test_files_are_found_from_the_notebooks_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "notebooks")
    assert find(KERNELS).as_posix() == f"../{KERNELS}"


# ---- errors ----------------------------------------------------------------------------------------------------------
def test_an_expected_error_is_shown_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with expect(errors.HandleError) as caught:
        raise errors.HandleError("not this one")
    assert isinstance(caught.error, errors.HandleError)
    assert "HandleError" in (shown := capsys.readouterr().out) and "not this one" in shown


def test_other_errors_pass_and_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.ArgumentError), expect(errors.HandleError):
        raise errors.ArgumentError("another")
    with pytest.raises(ZeroDivisionError), expect():
        _ = 1 / 0
    with expect(errors.HandleError) as caught:
        pass
    assert caught.error is None and "No HandleError this time" in capsys.readouterr().out


def test_a_note_keeps_lines_and_escapes_html() -> None:
    error = errors.KernelFault("a <b> in " + "many words " * 20 + "\n  at file.cu:3: x < y")
    error.add_note("(raised in rank 1 of 2)")
    note = as_note(error)
    assert "\n  at file.cu:3: x < y\n" in note.text and note.text.endswith("(raised in rank 1 of 2)")
    assert "&lt;b&gt;" in note._repr_html_() and "<b> in" not in note._repr_html_()
    assert max(map(len, repr(note).split("\n"))) <= 102


# ---- pictures --------------------------------------------------------------------------------------------------------
def _png(figure: Any) -> bytes:
    data = figure.png()
    assert data.startswith(b"\x89PNG")
    return bytes(data)


def test_pictures_are_drawn() -> None:
    viz = pytest.importorskip("ep_lib.viz")
    _png(viz.interleavings({"seed 1": [0, 1, 1], "seed 2": [1, 0, 1]}))
    _png(viz.outcomes({"a": {"right": 3, "wrong data": 1}, "b": {"PeerTimeout": 4}, "c": {}}))
    clean = viz.slots_over_time([[0, 1], [2, 3], [8, 9]], [[4, 5], [6, 7], [10, 11]], 2)
    clash = viz.slots_over_time([[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]], 2)
    legend = [[text.get_text() for text in figure.legends[0].get_texts()] for figure in (clean, clash)]
    assert "too early (1x)" not in legend[0] and "too early (1x)" in legend[1]
    _png(clash)
    proxy = viz.slots_over_time([[0, 1]], [[4, 5]], 1, reader=0)  # both of rank 0: one colour, filled and hollow
    written, _, read = proxy.legends[0].get_patches()
    assert written.get_facecolor() == read.get_edgecolor() != read.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_pictures_refuse_what_they_cannot_draw() -> None:
    viz = pytest.importorskip("ep_lib.viz")
    bad: list[Callable[[], object]] = [
        lambda: viz.interleavings({}),
        lambda: viz.interleavings({"a": [0], "b": [0, 1]}),
        lambda: viz.outcomes({}),
        lambda: viz.outcomes({"a": {"right": -1}}),
        lambda: viz.slots_over_time([], [], 2),
        lambda: viz.slots_over_time([[0, 1]], [[0, 1], [2, 3]], 2),
    ]
    for draw in bad:
        with pytest.raises(errors.ArgumentError):
            draw()


def test_a_kernel_that_has_run_nothing_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = mock.Mock()
    monkeypatch.setitem(sys.modules, "IPython", mock.Mock(get_ipython=lambda: shell))
    left = runpy.run_path(str(NEW_KERNEL))
    magics = {call.kwargs["magic_name"]: call.args[0] for call in shell.register_magic_function.mock_calls}
    magics["puzzle"]("00.1", "flag[0] = 1;")
    assert "run the notebook's first cell" in capsys.readouterr().out and not [n for n in left if "begin" in n]
    (kinds, explain), error = shell.set_custom_exc.call_args.args, NameError("name 'workshop' is not defined")
    explain(shell, NameError, error, None)
    assert kinds == (NameError,) and not hasattr(error, "_render_traceback_"), "ep_lib.workshop is imported here"
    monkeypatch.delitem(sys.modules, "ep_lib.workshop")
    explain(shell, NameError, error, None)
    assert "run the notebook's first cell" in error._render_traceback_()[1]  # type: ignore[attr-defined]
    assert shell.showtraceback.call_count == 2


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_takes_long_is_said_in_a_line_that_goes(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    with said_meanwhile() as say:
        say("compiling")
    assert [part for part in out.getvalue().split("\r") if part.strip()] == ["compiling"] * is_terminal
