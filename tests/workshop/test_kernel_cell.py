"""``%%kernel NAME``: a cell of CUDA C++ becomes a kernel, with errors at the cell's own lines."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import ep_lib
from ep_lib import errors, workshop

pytestmark = pytest.mark.cuda_rules

GREET = """
#include <ep/peer.cuh>
#include <ep/signal.cuh>
extern "C" __global__ void greet(int* box, uint64_t* flag, int* heard) {
    const int peer = 1 - ep::rank();
    *ep::peer_ptr(box, peer) = 100 + ep::rank();
    ep::signal_add(flag, 1, peer);
    if (ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, 0})) *heard = *box;
}
"""
WITHOUT_WAIT = GREET.replace("if (ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, 0})) ", "")
MAIN = """
import numpy as np

def main(rank):
    box, flag, heard = rank.symmetric(1, np.int32), rank.symmetric(1, np.uint64), rank.symmetric(1, np.int32)
    greet.launch(rank, 1, 1, box, flag, heard)
    return int(rank.to_host(heard)[0])
"""


@pytest.fixture
def shell() -> Iterator[Any]:
    """IPython as a notebook has it, without a notebook around it."""
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    main = sys.modules["__main__"]  # which IPython replaces
    shell = interactive.instance()
    workshop.load_ipython_extension(shell)
    yield shell
    shell.reset()
    interactive.clear_instance()
    sys.modules["__main__"] = main
    for prompt in ("ps1", "ps2", "ps3"):  # of IPython; with them a process passes for Python's prompt
        vars(sys).pop(prompt, None)


def run(shell: Any, line: str, code: str) -> Any:
    """Runs one cell; raises what the cell raised."""
    result = shell.run_cell(f"{line}\n{code}" if line else code)
    result.raise_error()
    return result


def test_a_cell_becomes_a_kernel(shell: Any) -> None:
    run(shell, "", MAIN)
    run(shell, "%%kernel greet", GREET)
    assert isinstance(shell.user_ns["greet"], ep_lib.Kernel)
    assert ep_lib.spawn(shell.user_ns["main"], ranks=2, backend="emulator") == [101, 100]


def test_several_kernels_of_a_cell(shell: Any) -> None:
    both = '#include <ep/platform.cuh>\nextern "C" __global__ void one(int* x) { *x = 1; }\n'
    both += 'extern "C" __global__ void two(int* x) { *x = 2; }\n'
    run(shell, "%%kernel one two  # both", both)

    def main(rank: ep_lib.Rank) -> list[int]:
        x = rank.to_device(np.zeros(2, np.int32))
        shell.user_ns["one"].launch(rank, 1, 1, x[:1])
        shell.user_ns["two"].launch(rank, 1, 1, x[1:])
        return [int(value) for value in rank.to_host(x)]

    assert ep_lib.spawn(main, ranks=1, backend="emulator") == [[1, 2]]


def test_a_mistake_is_named_by_the_cells_own_line(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    broken = '#include <ep/platform.cuh>\nextern "C" __global__ void oops(int* x) {\n    *x = y;\n}\n'
    with pytest.raises(errors.KernelCompileError) as caught:
        run(shell, "%%kernel oops", broken)
    assert caught.value.line == 4, "the line of %%kernel is the first"
    assert str(caught.value).startswith("cell [") and "*x = y;" in str(caught.value)
    assert "oops" not in shell.user_ns
    shown = capsys.readouterr().out
    assert "*x = y;" in shown and "Traceback" not in shown and "run_cell_magic" not in shown


def test_check_runs_the_notebooks_main(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "", MAIN)
    run(shell, "%%kernel greet --check --seeds 3", GREET)
    assert "no findings in 3 schedules of 2 ranks" in capsys.readouterr().out
    run(shell, "%%kernel greet --check --seeds 3", WITHOUT_WAIT)
    found = capsys.readouterr().out
    assert "finding" in found and "*heard = *box;" in found
    run(shell, "", MAIN.replace("def main", "def other"))
    run(shell, "%%kernel greet --check --main other --fabric rc --seeds 1", GREET)
    assert "1 schedule of 2 ranks on rc" in capsys.readouterr().out, "where no store reaches a peer"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%%kernel", "the following arguments are required: NAME"),
        ("%%kernel greet --chekc", "unrecognized arguments: --chekc"),
        ("%%kernel greet --ranks two --check", "invalid int value: 'two'"),
        ("%%kernel 2greet", "no name that Python can give"),
        ("%%kernel 'greet", "No closing quotation"),
        ("%%kernel great", "greet"),
        ("%%kernel greet --check --main nobody", r"no function nobody\(rank\)"),
    ],
)
def test_a_wrong_line_says_what_to_do(shell: Any, line: str, says: str) -> None:
    with pytest.raises(errors.EpError, match=says):
        run(shell, line, textwrap.dedent(GREET))


def test_a_puzzle_whose_lines_were_deleted_is_no_error(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "", "%%puzzle 00.1")
    assert "is yours to solve" in capsys.readouterr().out


def test_an_interrupt_is_one_line(shell: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("ep_lib.runtime.spawn.make_machine", interrupted)
    monkeypatch.setattr("ep_lib.workshop.course.puzzles.puzzle.Puzzle.attempt", interrupted)
    cells = {
        "x = 1\nep_lib.spawn(print, 2, 'emulator')": "line 2: ep_lib.spawn(print, 2, 'emulator')\n",
        "%%puzzle 00.1\n*box = 1;": "Interrupted in %%puzzle 00.1\n",
    }
    run(shell, "", "import ep_lib")
    for cell, said in cells.items():
        assert isinstance(shell.run_cell(cell).error_in_exec, KeyboardInterrupt)
        shown = capsys.readouterr().out
        assert shown.startswith("Interrupted in ") and shown.endswith(said) and shown.count("\n") == 1
    shell.run_line_magic("tb", "")
    assert "Traceback" in capsys.readouterr().out


def test_a_wait_names_the_cell_by_its_number(shell: Any) -> None:
    """Not by the temporary file that IPython makes of it."""
    shell.run_cell("import ep_lib", store_history=True)
    cell = "def main(rank):\n    rank.barrier() if rank.rank else rank.all_gather(1)\nep_lib.spawn(main, ranks=2)"
    failed = shell.run_cell(cell, store_history=True).error_in_exec
    number = shell.execution_count - 1
    assert f"rank 1 waits in barrier() at In[{number}], line 2" in str(failed)
