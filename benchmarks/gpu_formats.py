"""Rows of few bits: dispatch in each form, given or cast on its way, and combine, by their time and their bytes.

    python benchmarks/gpu_formats.py [--ranks 2] [--tokens 4096] [--hidden 7168] [--json FILE]

Each dispatch is by a cached handle and owned, with three receive areas (rows stay where they arrive) and with one (they
are copied out); a figure is the median over the repeats of the slowest rank. That rows are right is the tests' business
(tests/test_row_formats.py, which `pytest -m gpu` runs on GPUs too); here their lengths are looked at. With --backend
emulator the same script runs without a GPU, on toy sizes, and times nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import gpu_inputs
from gpu_clock import watch_of
from gpu_inputs import SETS, Shape
from gpu_rows import Row, Rows, merge

import ep_lib
from ep_lib import Buffer

# Torch's type of the numbers, how many numbers a byte holds; the same of the scales, and how many numbers share one.
FORMS: dict[str, tuple[str, int, str, int]] = {
    "fp8": ("float8_e4m3fn", 1, "float32", 128),
    "packed ue8m0": ("float8_e4m3fn", 1, "int32", 512),
    "mxfp8": ("float8_e4m3fn", 1, "uint8", 32),
    "nvfp4": ("uint8", 2, "uint8", 16),
}
CASTS = ("fp8", "mxfp8", "nvfp4")
COMBINES: dict[str, dict[str, Any]] = {"bf16": {}, "packed ue8m0": {"quantize": "ue8m0"}}


def parts_of(form: str, shape: Shape, turn: int, device: str) -> tuple[Any, ...]:
    """Any bytes: kernels only move them."""
    import torch

    number, halves, scale, block = FORMS[form]
    generator = torch.Generator(device=device).manual_seed(turn)

    def any_bytes(columns: int, dtype: str) -> Any:
        kind = getattr(torch, dtype)
        size = (shape.tokens, columns * kind.itemsize)
        return torch.randint(0, 100, size, generator=generator, device=device, dtype=torch.uint8).view(kind)

    parts = (any_bytes(shape.hidden // halves, number), any_bytes(-(-shape.hidden // block), scale))
    return (*parts, torch.ones(shape.tokens, device=device)) if form == "nvfp4" else parts


def main(rank: ep_lib.Rank, shape: Shape, sms: int, repeats: int) -> list[Row]:
    rows = Rows(rank, watch_of(rank), repeats)
    device, me = gpu_inputs.device_of(rank), rank.rank
    idx = gpu_inputs.routing(shape, me, "random", device)
    wide = [gpu_inputs.rows(shape, me, turn, "bf16", device)[0] for turn in range(SETS)]
    sets = {form: [parts_of(form, shape, turn, device) for turn in range(SETS)] for form in FORMS}
    arguments = {"num_experts": shape.experts, "top_k": shape.top_k, "hidden": shape.hidden, "max_tokens": shape.tokens}

    def time(buffer: Any, handle: Any, xs: list[Any], dtype: str, note: str, **options: Any) -> None:
        got = buffer.dispatch(xs[0], handle=handle, **options).x
        parts = got if isinstance(got, tuple) else (got,)
        rows.check({len(part) for part in parts} == {handle.num_recv_tokens}, f"{dtype}: not as many rows as were sent")
        del got, parts
        turns = [lambda x=x: buffer.dispatch(x, handle=handle, **options) for x in xs]
        rows.time(turns, group="formats", by="ep_lib", what="dispatch", dtype=dtype, note=note, tokens=shape.tokens)

    for areas in (3, 1):
        with Buffer(rank, **arguments, num_sms=sms, receive_areas=areas) as buffer:
            recv = buffer.dispatch(wide[0], idx)
            handle, y = recv.handle, recv.x.clone()
            del recv
            how = "stays" if areas > 1 else "copied out"
            time(buffer, handle, wide, "bf16", how)
            for form, xs in sets.items():
                time(buffer, handle, xs, form, how)
            for cast in CASTS:
                time(buffer, handle, wide, cast, f"cast on its way, {how}", quantize=cast)
            if areas == 1:
                for dtype, options in COMBINES.items():
                    combine = functools.partial(buffer.combine, y, handle, **options)
                    rows.time([combine], group="formats", by="ep_lib", what="combine", dtype=dtype, tokens=shape.tokens)
    if wrong := [each for ranks in rank.all_gather(rows.wrong) for each in ranks]:
        raise AssertionError("\n".join(wrong))
    return rows.rows


def row_bytes(dtype: str, hidden: int) -> int:
    """Of one row with its scales, as it travels."""
    if dtype == "bf16":
        return 2 * hidden
    _, halves, scale, block = FORMS[dtype]
    return hidden // halves + -(-hidden // block) * (4 if "32" in scale else 1) + (16 if dtype == "nvfp4" else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in {"ranks": 2, "tokens": 4096, "hidden": 7168, "sms": 24, "repeats": 30}.items():
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    given = parser.parse_args()
    shape = Shape(given.ranks, given.tokens, given.hidden, gpu_inputs.most_experts(given.ranks), 8)
    arguments = {"num_experts": shape.experts, "top_k": 8, "hidden": shape.hidden, "max_tokens": shape.tokens}
    heap = Buffer.symmetric_bytes(shape.ranks, **arguments, receive_areas=3) + (4 << 20)
    found = ep_lib.spawn(
        main, ranks=given.ranks, backend=given.backend, args=(shape, given.sms, given.repeats), heap_bytes=heap
    )
    table = merge(found)
    plain = {(row["what"], row.get("note")): row["us"] for row in table if row["dtype"] == "bf16"}
    for row in table:
        base = plain[row["what"], row["note"].split(", ")[-1] if "note" in row else None]
        row["bytes_ratio"] = round(row_bytes("bf16", shape.hidden) / row_bytes(row["dtype"], shape.hidden), 2)
        row["quicker"] = round(base / row["us"], 2)
        print(
            f"{row['us']:8.1f} us, {row['quicker']:5.2f} x quicker than bf16, with {row['bytes_ratio']:5.2f} x fewer "
            f"bytes: {row['what']} {row['dtype']}, {row.get('note', '')}"
        )
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"shape": shape._asdict(), "sms": given.sms, "rows": table}, indent=1) + "\n")
