"""What was proved: the table in docs/checker.md is that of benchmarks/results/prove.json, which knows every case."""

from __future__ import annotations

import json
from fnmatch import fnmatch

import prove_cases
import prove_docs
from support import ROOT

from ep_lib.jit.names import base_name

ROWS = json.loads(prove_docs.RESULTS.read_text())["rows"]


def test_the_document_has_the_table_of_the_results() -> None:
    text = prove_docs.DOCUMENT.read_text()
    assert text == prove_docs.filled(text), "run python benchmarks/prove_docs.py"


def test_the_results_are_of_known_cases_and_nothing_was_wrong() -> None:
    wanted = {
        (case.name, fabric, memory) for case in prove_cases.CASES for fabric in case.fabrics for memory in case.memory
    }
    assert {(row["case"], row["fabric"], row["memory"]) for row in ROWS if "fabric" in row} <= wanted
    assert all(row["mistake"] for row in ROWS if "mistake" in row)
    assert not [row for row in ROWS if "found" in row or "error" in row]


def test_every_kernel_is_in_a_row_or_it_is_said_why_not() -> None:
    in_rows = {base_name(name) for row in ROWS for name in row.get("kernels", ())}
    kernels = {(file, name) for file, names in prove_cases.kernels_of_the_house().items() for name in names}
    excused = {kernel for kernel in kernels if prove_cases.reason_not_proved(*kernel)}
    assert len(kernels) > 100 and ("ep_lib/moe/direct/copy_epilogue.cu", "ep_copy_by_expert") in kernels - excused
    left = sorted(kernel for kernel in kernels - excused if kernel[1] not in in_rows)
    assert not left, "add a case to benchmarks/prove_cases.py, or say why not"


def test_what_is_in_no_row_exists() -> None:
    kernels = [(file, name) for file, names in prove_cases.kernels_of_the_house().items() for name in names]
    for what in prove_cases.NOT_PROVED:
        assert any(fnmatch(file, what) or fnmatch(f"{file}:{name}", what) for file, name in kernels), what


def test_every_mistake_is_in_a_file_that_has_its_line() -> None:
    for case in prove_cases.CASES:
        text = (ROOT / case.mistake.file).read_text()
        assert case.mistake.old in text and case.mistake.old != case.mistake.new, case.name
        assert case.mistake.fabric in case.fabrics and case.mistake.memory in case.memory, case.name
