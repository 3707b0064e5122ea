"""Structs that the host reads from headers are laid out as the compiler lays them out."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

import ep_lib
from ep_lib import Kernel
from ep_lib.jit import structs
from ep_lib.jit.structs import enumerators, header_constant, header_struct
from ep_lib.memory.arrays import describe

PACKAGE = Path(ep_lib.__file__).parent
_USE = re.compile(r"\b(header_struct|header_constant)\(\s*\"([\w/.]+)\",\s*\"(\w+)\"")


def uses() -> set[tuple[str, str, str]]:
    """What the library asks of which header: (function, header, name)."""
    found = {("header_struct", "ep/device_state.cuh", "HeapHeader")}
    for path in PACKAGE.rglob("*.py"):
        found |= set(_USE.findall(path.read_text(encoding="utf-8")))
    return {use for use in found if use[1].endswith((".cuh", ".cu"))}


@pytest.mark.slow
def test_sizes_and_offsets_are_the_compilers() -> None:
    lines = ["#include <stddef.h>"]
    lines += [f"#include <{header}>" for header in sorted({header for _, header, _ in uses()})]
    for function, header, name in sorted(uses()):
        if function == "header_constant":
            continue
        found = header_struct(header, name)
        lines.append(f"static_assert(sizeof({found.qualified}) == {found.size});")
        lines.append(f"static_assert(alignof({found.qualified}) == {found.align});")
        lines += [
            f'static_assert(offsetof({found.qualified}, {member}) == {offset}, "{name}.{member}");'
            for member, offset in found.offsets.items()
        ]
    Kernel.from_source("\n".join([*lines, 'extern "C" __global__ void nothing() {}']), "nothing").compile()


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own header <ep/own.cuh>; results of earlier reads are forgotten."""
    folder = tmp_path / "ep"
    folder.mkdir()
    monkeypatch.setattr(structs, "_ROOTS", (tmp_path,))
    for cached in (structs._read, header_struct, header_constant, enumerators):
        cached.cache_clear()
    return folder / "own.cuh"


def test_what_headers_are_written_in(header: Path) -> None:
    (header.parent / "inner.cuh").write_text(
        "namespace ep {\nconstexpr int kFour = 2 * sizeof(short_t) / sizeof(short_t) + 2;\n"
        "enum Way : int32_t { kFirst = 3, kSecond };\nstruct short_t { int16_t value; };\n}\n"
    )
    header.write_text(
        "#include <ep/inner.cuh>\n// struct Args { int wrong; };\nnamespace ep {\nnamespace own {\nstruct Args {\n"
        "    int32_t* rows;  // [n]; a comment with { and ;\n    const float* const* table;\n    int a, b;\n"
        "    bool last = false;\n    Way way;\n    short_t inner[kFour];\n    unsigned long long tag;\n"
        "    int both() const { return a + b; }\n    static constexpr int kUnused = 1 << 4;\n};\n}\n}\n"
    )
    found = header_struct("ep/own.cuh", "Args")
    assert (found.qualified, found.size, found.align) == ("ep::own::Args", 48, 8)
    assert found.names == ("rows", "table", "a", "b", "last", "way", "inner", "tag")
    assert found.pointers == {"rows": (0, 4)}  # "table" points to pointers
    packed = found.pack(rows=1, table=2, a=3, b=-4, last=True, way=4, inner=bytes(8), tag=2**63)
    assert packed == struct.pack("<QQii?3xi8xQ", 1, 2, 3, -4, True, 4, 2**63)
    assert np.frombuffer(packed, found.dtype)["b"][0] == -4
    assert header_constant("ep/own.cuh", "kFour") == 4 and header_constant("ep/own.cuh", "kUnused") == 16
    assert enumerators("ep/own.cuh", "Way") == {"kFirst": 3, "kSecond": 4}


def test_what_is_not_there_or_not_understood(header: Path) -> None:
    header.write_text("struct Args { Unknown thing; };\nstruct Other { int (*call)(int); int x : 3; };")
    with pytest.raises(LookupError, match="no struct Missing"):
        header_struct("ep/own.cuh", "Missing")
    with pytest.raises(LookupError, match="no integer constant kMissing"):
        header_constant("ep/own.cuh", "kMissing")
    with pytest.raises(LookupError, match=r"no header <ep/none.*absolute path"):
        header_struct("ep/none.cuh", "Args")
    with pytest.raises(ValueError, match="cannot read the type 'Unknown'"):
        header_struct("ep/own.cuh", "Args")
    with pytest.raises(ValueError, match="cannot read the type 'int x :'"):
        header_struct("ep/own.cuh", "Other")


def test_a_struct_of_a_file_anywhere_goes_to_its_kernel(tmp_path: Path) -> None:
    file = tmp_path / "own.cu"
    file.write_text(
        "#include <ep/platform.cuh>\nstruct Args { int* out; float factor; int of[2]; };\n"
        'extern "C" __global__ void scale(Args args) { *args.out = int(args.factor * args.of[1]); }\n'
    )
    args = header_struct(file, "Args")

    def main(rank: ep_lib.Rank) -> int:
        out = rank.to_device(np.zeros(1, np.int32))
        packed = args.pack(out=describe(out).address, factor=2.5, of=np.array([3, 4], np.int32).tobytes())
        Kernel.from_file(file, "scale").launch(rank, 1, 1, packed, uses=[out])
        return int(rank.to_host(out)[0])

    assert ep_lib.spawn(main, ranks=1, backend="emulator") == [10]
    right = {"out": 0, "factor": 1.0, "of": bytes(8)}
    for name, wrong, says in (
        ("out", np.zeros(2), r"Args\.out is uint64; got an array .*: pass describe\(array\)\.address"),
        ("out", -1, "Args.out is uint64; got -1"),
        ("factor", 1e300, "Args.factor is float32; got 1e"),
        ("of", 3, "Args.of is packed bytes; got 3"),
    ):
        with pytest.raises(TypeError, match=says):
            args.pack(**{**right, name: wrong})


def test_every_member_is_named() -> None:
    found = header_struct("ep/device_state.cuh", "IbgdaState")
    assert found.pack(num_rc_per_pe=1, num_devices_initialized=2) == struct.pack("<ii", 1, 2)
    for wrong in ({"num_rc_per_pe": 1}, {"num_rc_per_pe": 1, "devices": 2}):
        with pytest.raises(TypeError, match="exactly the members"):
            found.pack(**wrong)
