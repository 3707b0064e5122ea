"""Every notebook runs from start to end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

pytestmark = pytest.mark.cuda_rules

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
GPUS = {
    "00_start_here": 2,
    "01_write_and_signal": 2,
    "01b_for_the_curious": 2,
    "02_host_setup": 2,
    "03_ibgda_efa_shim": 2,
    "04_ring_and_proxy": 2,
    "06_dispatch": 4,
    "07_combine": 4,
    "08_fp8_and_low_latency": 4,
    "09_moe_layer": 4,
    "10_beyond_one_machine": 4,
}
IN_BRIEF = 3  # repetitions (--rounds) up to which notebooks take fewer seeds

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def read(path: Path) -> Any:
    nbformat = pytest.importorskip("nbformat")  # here: its import takes seconds
    return nbformat.read(path, as_version=4)


def workshop_copy(folder: Path) -> Path:
    """A workshop of its own for a run, so that what notebooks write (mine/) does not land in the checkout."""
    for name in ("benchmarks", "ep_lib", "exercises", "solutions", "tests", "tutorial_kernels"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "notebooks").mkdir()
    return folder


def execute(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str = "emulator", part: int = 1) -> Any:
    """With one of ``part`` seeds."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    root = workshop_copy(folder)
    monkeypatch.setenv("EP_LIB_WORKSHOP", str(root))
    notebook = read(path)
    for cell in notebook.cells:
        cell.source = cell.source.replace('BACKEND = "emulator"', f'BACKEND = "{backend}"')
        cell.source = re.sub(r"^SEEDS = range\((\d+)\)", rf"SEEDS = range(\1 // {part})", cell.source, flags=re.M)
    client = nbclient.NotebookClient(
        notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(root / "notebooks")}}
    )
    client.execute()  # raises CellExecutionError, which shows the cell, where one fails
    return notebook


def texts(notebook: Any, cell_id: str) -> str:
    """All text that a cell showed."""
    (cell,) = (cell for cell in notebook.cells if cell.id == cell_id)
    # Two prints come in one piece or in two, as the kernel finds time: nothing may stand between the pieces.
    return "".join(out.get("text", "") or out.get("data", {}).get("text/plain", "") + "\n" for out in cell.outputs)


# What a learner must see in an unattended run: (notebook, cell, words).
SHOWN = [
    ("00_start_here", "greet-run", "[101, 100]"),
    ("00_start_here", "greet-run", "You made no prediction"),
    ("00_start_here", "turns-run", "only the two with the same seed"),
    ("00_start_here", "deadlock", "00_start_here.cu:"),
    ("00_start_here", "timeout-run", "rank 0 waited too long for rank 1"),
    ("00_start_here", "endless-run", "KernelTimeout"),
    ("00_start_here", "interrupt-run", "the notebook is alive"),
    ("00_start_here", "fault-run", "past"),
    ("00_start_here", "puzzle-00-3-answer", "Puzzle 00.3 is yours to solve"),
    ("00_start_here", "first-kernel-check", "Task 1 is still to do"),
    ("00_start_here", "first-main-check", "Task 1 is still to do"),
    ("00_start_here", "program-run", "the library's (not begun: workshop.start("),
    ("01_write_and_signal", "ring", "[True, True]"),
    ("01_write_and_signal", "program-run", "came back: every bit is right"),
    ("01_write_and_signal", "reversed-run", "in some of the runs"),
    ("01_write_and_signal", "warp-run", "wrong data in some runs"),
    ("01_write_and_signal", "many-run", "It is: 2"),
    ("01_write_and_signal", "traced-run", "It is: at most 3"),
    ("01_write_and_signal", "no-credits", "all rounds arrived: False"),
    ("01_write_and_signal", "credits-error-run", "PeerTimeout"),
    ("01b_for_the_curious", "words-run", "It is: all runs are right, and no finding"),
    ("01b_for_the_curious", "words-ptx", "store it with release, load it with acquire"),
    ("01b_for_the_curious", "words-exhaustive", "publish_words, all 4 schedules: []"),
    ("01b_for_the_curious", "nixl-run", "all bytes arrived: True"),
    ("01b_for_the_curious", "nixl-mistake-run", "It is: it is refused before a byte has moved"),
    ("01_write_and_signal", "exercise-check", "Task 1 is still to do"),
    ("01b_for_the_curious", "all-to-all-check", "Task 1 is still to do"),
    ("01b_for_the_curious", "board-run", "inequivalent schedules, none of them wrong"),
    ("01b_for_the_curious", "board-check", "Task 1 is still to do"),
    ("02_host_setup", "unregistered", "are not registered; registered: nothing"),
    ("02_host_setup", "registration-run", "It is: 2"),
    ("02_host_setup", "puzzle-inside-cell", "yours to solve"),
    ("02_host_setup", "meet-run", "It is: both wait for ever"),
    ("02_host_setup", "meet-real", "met 'owner'"),
    ("02_host_setup", "meet-garbled", "was changed on the way"),
    ("02_host_setup", "late-run", "register first, exchange metadata then"),
    ("02_host_setup", "post-run", "sum 50331648"),
    ("02_host_setup", "signal-run", "signal 201"),
    ("02_host_setup", "dead-run", "the peer 'owner' is gone"),
    ("02_host_setup", "dead-successor", "its successor says: sum 50331648"),
    ("02_host_setup", "kernel-run", "rank 1 found what rank 0 wrote: True"),
    ("02_host_setup", "kernel-check", "data before its signal"),
    ("02_host_setup", "exercise-check-handshake", "Task 1 is still to do"),
    ("02_host_setup", "exercise-check-registration", "Task 1 is still to do"),
    ("03_ibgda_efa_shim", "init-run", "call\n      ep_lib.ibgda.init_efa_device_state"),
    ("03_ibgda_efa_shim", "p2p-run", "It is: 4"),
    ("03_ibgda_efa_shim", "puzzle-message-cell", "yours to solve"),
    ("03_ibgda_efa_shim", "rung0-run", "EFA (SRD): all bytes arrived: [True, True]"),
    ("03_ibgda_efa_shim", "staged-run", "It is: on neither network"),
    ("03_ibgda_efa_shim", "check-run", "remedy  quiet before reuse of the source"),
    ("03_ibgda_efa_shim", "staged-right", "EFA (SRD): {'right': "),
    ("03_ibgda_efa_shim", "staged-right", "}; the checker finds nothing"),
    ("03_ibgda_efa_shim", "batch-run", "It is: 5 times as long, or more"),
    ("03_ibgda_efa_shim", "signal-run", "It is: after its own data"),
    ("03_ibgda_efa_shim", "atomics-run", "It is: sometimes less than 20 on both"),
    ("03_ibgda_efa_shim", "atomics-run", "remedy: one kind of writer for a counter"),
    ("03_ibgda_efa_shim", "channel-run", "It is: on InfiniBand only"),
    ("03_ibgda_efa_shim", "channel-run", "InfiniBand (RC): no findings"),
    ("03_ibgda_efa_shim", "channel-run", "remedy  quiet, fence or put_signal between data and signal"),
    ("03_ibgda_efa_shim", "channel-travel-run", "a page of"),
    ("03_ibgda_efa_shim", "exercise-check-shim", "Task 1 is still to do"),
    ("03_ibgda_efa_shim", "exercise-check-batches", "Task 1 is still to do"),
    ("03_ibgda_efa_shim", "mine-run", "channel_send: all bytes right: True"),
    ("03_ibgda_efa_shim", "mine-run", "the library's: IBGDA calls"),
    ("04_ring_and_proxy", "mailbox-run", "srd all messages arrived: [True, True]"),
    ("04_ring_and_proxy", "ring-run", "5 to 15 times"),
    ("04_ring_and_proxy", "break-run", "relaxed_credit"),
    ("04_ring_and_proxy", "break-checker", "loaded without acquire"),
    ("04_ring_and_proxy", "one-count-run", "wrong data in some runs"),
    ("04_ring_and_proxy", "batches-run", "32, 32, 32, 32"),
    ("04_ring_and_proxy", "completions-run", "3 rows: [True, True]"),
    ("04_ring_and_proxy", "completions-wrong", "in none, or nearly"),
    ("04_ring_and_proxy", "completions-check", "push_without_syncwarp: rank "),
    ("04_ring_and_proxy", "library-run", "the same bits: True"),
    ("04_ring_and_proxy", "dead-run", "the link stands still"),
    ("04_ring_and_proxy", "exercise-check-ring", "Task 1 is still to do"),
    ("04_ring_and_proxy", "exercise-check-loop", "Task 1 is still to do"),
    ("05_pcie_bounce_buffers", "exchange", "[True, True]"),
    ("05_pcie_bounce_buffers", "memory-compare", "It is: 1.9 GB"),
    ("05_pcie_bounce_buffers", "in-turn-run", "waited too long for rank"),
    ("05_pcie_bounce_buffers", "in-turn-run", "Who waited where:"),
    ("05_pcie_bounce_buffers", "in-turn-run", "everybody waits for ever"),
    ("05_pcie_bounce_buffers", "in-turn-small", "[True, True]"),
    ("05_pcie_bounce_buffers", "checker-run", "between the read and its credit"),
    ("05_pcie_bounce_buffers", "pipelined-run", "2 to 4 times"),
    ("05_pcie_bounce_buffers", "one-counter-run", "on RC only"),
    ("05_pcie_bounce_buffers", "fabrics-check", "signal overtakes data"),
    ("05_pcie_bounce_buffers", "buffer-compare", "bit for bit"),
    ("05_pcie_bounce_buffers", "exercise-check", "Task 1a is still to do"),
    ("05_pcie_bounce_buffers", "exercise-check-pipeline", "Task 1 is still to do"),
    ("06_dispatch", "rows-compare", "fewer than"),
    ("06_dispatch", "orders-run", "It is: 5 orders or more"),
    ("06_dispatch", "exact-run", "different orders: 1"),
    ("06_dispatch", "ladder-compare", "It is: a warp per token"),
    ("06_dispatch", "race-check", "next_of_mine[to]++"),
    ("06_dispatch", "early-check", "It is: those of blocks 1 and 2"),
    ("06_dispatch", "early-check", "another block of the writer's kernel has signalled"),
    ("06_dispatch", "oracle-run", "bit for bit"),
    ("06_dispatch", "mistake-absent", "rank 2"),
    ("06_dispatch", "exercise-slots-check", "Task 1 is still to do"),
    ("06_dispatch", "mine-run", "128 tokens went to their experts on 4 ranks and came back: every bit is right"),
    ("07_combine", "nothing-run", "twice the token"),
    ("07_combine", "atomics-run", "It is: 4 or more"),
    ("07_combine", "fixed-run", "equal to the oracle, bit for bit: True"),
    ("07_combine", "fused-run", "It is: in some, in their last bits"),
    ("07_combine", "overlap-run", "It is: about two thirds"),
    ("07_combine", "hurry-check", "It is: a race, found in each of them"),
    ("07_combine", "handle-mixed", "HandleError"),
    ("07_combine", "layer-run", "20 seeds: 1\nequal to the oracle, bit for bit: True"),
    ("07_combine", "exercise-groups-check", "Task 1a is still to do"),
    ("07_combine", "mine-run", "0 of the 5 pieces of the main path are yours"),
    ("08_fp8_and_low_latency", "small-compute", "It is: 14 microseconds"),
    ("08_fp8_and_low_latency", "puzzle-packet-cell", "yours to solve"),
    ("08_fp8_and_low_latency", "rung0-run", "[True, True]"),
    ("08_fp8_and_low_latency", "scale-run", "It is: 100,000 times"),
    ("08_fp8_and_low_latency", "fp8-run", "bit for bit: True"),
    ("08_fp8_and_low_latency", "fp8-mistake-run", "a multiple of 128"),
    ("08_fp8_and_low_latency", "packets-broken-run", "It is: only the checker"),
    ("08_fp8_and_low_latency", "once-compute", "It is: 2.2 times"),
    ("08_fp8_and_low_latency", "once-run", "once per rank   : every expert has its rows, bit for bit"),
    ("08_fp8_and_low_latency", "combine-run", "It is: 10 times the same bits"),
    ("08_fp8_and_low_latency", "rounds-run", "It is: some rounds are overwritten before they are read"),
    ("08_fp8_and_low_latency", "rounds-run", "two buffers: no findings\none buffer: slot reused"),
    ("08_fp8_and_low_latency", "library-run", "largest error: 0.1"),
    ("08_fp8_and_low_latency", "exercise-check-fp8", "Task 1 is still to do"),
    ("08_fp8_and_low_latency", "exercise-check-packets", "Task 1 is still to do"),
    ("09_moe_layer", "collapse-run", "It is: 3 times or more"),
    ("09_moe_layer", "balance-run", "It is: about half"),
    ("09_moe_layer", "spread-run", "It is: agrees to 0.0001"),
    ("09_moe_layer", "spread-run", "the library's ring: not begun"),
    ("09_moe_layer", "mistake-run", "this layer holds 2 of 8 experts"),
    ("09_moe_layer", "warps-run", "It is: 5 to 15 times"),
    ("09_moe_layer", "broken-check", "after the data (line"),
    ("09_moe_layer", "broken-check", "missing __syncwarp"),
    ("09_moe_layer", "router-check", "Task 1 is still to do"),
    ("09_moe_layer", "own-check", "Task 1 is still to do"),
    ("09_moe_layer", "capstone-loss", "the same loss: True"),
    ("09_moe_layer", "capstone-loss", "the library's, as yours is not whole"),
    ("04_ring_and_proxy", "break-checker", "called at "),
    ("09_moe_layer", "capstone-serve", "The class "),
    ("08_fp8_and_low_latency", "mine-run", "as before, bit for bit: True"),
    ("10_beyond_one_machine", "crossings-run", "It is: 3 to 4 times"),
    ("10_beyond_one_machine", "one-level-run", "srd all rows arrived: [True, True, True, True]"),
    ("10_beyond_one_machine", "two-levels-run", "srd (rows right, sums right): [(True, True), (True, True)"),
    ("10_beyond_one_machine", "waits-first-run", "It is: rows that its own node does not forward"),
    ("10_beyond_one_machine", "waits-first-run", "Who waited where:"),
    ("10_beyond_one_machine", "operations-run", "It is: on RC only"),
    ("10_beyond_one_machine", "operations-check", "source reused"),
    ("10_beyond_one_machine", "clock-run", "It is: up to twice"),
    ("10_beyond_one_machine", "exercise-check-plan", "Task 1 is still to do"),
    ("10_beyond_one_machine", "exercise-check-levels", "Task 1 is still to do"),
    ("10_beyond_one_machine", "mine-run", "planned [26, 19], through NICs [26, 19]"),
    ("10_beyond_one_machine", "mine-run", "bit for bit: True"),
]


@pytest.mark.notebook
@pytest.mark.slow
@each_notebook
def test_it_runs_from_start_to_end(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """`make nightly` runs all seeds, and asks NVRTC about each kernel, which test_compiles_for_gpus does of files."""
    in_brief = rounds <= IN_BRIEF
    if in_brief:
        monkeypatch.setenv("EP_LIB_CUDA_RULES", "0")
    notebook = execute(path, tmp_path, monkeypatch, part=4 if in_brief else 1)
    pictures = 0
    for cell in notebook.cells:
        for out in cell.get("outputs", []):
            pictures += "<img " in out.get("data", {}).get("text/html", "")
            assert "Traceback" not in out.get("text", ""), f"cell {cell.id} printed an error"
            text = out.get("data", {}).get("text/plain", "")
            assert not text.startswith("No "), f"cell {cell.id}: no error was provoked"
            assert "  NO  " not in text, f"cell {cell.id}: a rung of the ladder is wrong"
    assert pictures >= 1
    missing = [(cell, words) for stem, cell, words in SHOWN if stem == path.stem and words not in texts(notebook, cell)]
    assert missing == []


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=pytest.mark.gpu(count=GPUS.get(p.stem, 2), own=p.stem.startswith("04")), id=p.stem)
        for p in NOTEBOOKS
    ],
)
def test_it_runs_on_gpus(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(path, tmp_path, monkeypatch, backend="cuda")
