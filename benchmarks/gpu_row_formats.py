"""Rows of few bits beside BF16: dispatch with a cached handle, of rows given or cast on the way, and combine as FP8.

Times are those of the GPU, the median over the repeats of the slowest rank. What arrives is checked by
tests/moe/ (test_row_formats.py, test_packed_combine.py), not here. docs/row_formats.md says what the forms are.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import gpu_inputs
from gpu_clock import slowest, watch_of
from gpu_inputs import Shape
from gpu_normal import DEFAULT_SMS

import ep_lib
from ep_lib.moe.config import make_config
from ep_lib.moe.formats import CASTS, row_formats

COPIED = {"copied": {}, "view": {"copy": False}}


def main(rank: ep_lib.Rank, args: argparse.Namespace) -> dict[str, Any]:
    import torch

    shape = Shape(rank.world_size, args.tokens, args.hidden, args.experts, args.top_k)
    device, watch = gpu_inputs.device_of(rank), watch_of(rank)
    idx = gpu_inputs.routing(shape, rank.rank, "random", device)
    rows = torch.randn(shape.tokens, shape.hidden, device=device).bfloat16()
    arguments = buffer_arguments(args)
    times: dict[str, Any] = {}

    def time(name: str, call: Any) -> None:
        times[name] = watch.microseconds(lambda: watch.time("us", call), args.repeats)

    with ep_lib.Buffer(rank, **arguments) as buffer:
        recv = buffer.dispatch(rows, idx)
        sent = {"bfloat16 rows": (rows, None), **{f"cast to {name}": (rows, name) for name in CASTS}}
        for form in row_formats(make_config(rank.world_size, **arguments, dtype="bfloat16"))[1:]:
            if form is not None:
                sent[form.name] = (bytes_of(form, shape.tokens, device), None)
        for name, (x, cast) in sent.items():
            for how, options in COPIED.items():
                time(
                    f"dispatch, {name}, {how}",
                    lambda x=x, cast=cast, options=options: buffer.dispatch(
                        x, handle=recv.handle, quantize=cast, **options
                    ),
                )
        y = recv.x.clone()
        time("combine", lambda: buffer.combine(y, recv.handle))
        time("combine as FP8", lambda: buffer.combine(y, recv.handle, quantize="ue8m0"))
    return times


def bytes_of(form: Any, tokens: int, device: str) -> tuple[Any, ...]:
    """Any rows of this form: kernels do not look at them."""
    import torch

    def array(columns: int, dtype: Any) -> Any:
        raw = torch.randint(0, 100, (tokens, columns * dtype.itemsize), dtype=torch.uint8, device=device)
        return raw.view(getattr(torch, dtype.name))

    parts = array(form.columns, form.dtype), array(form.scale_columns, form.scale_dtypes[0])
    return (*parts, torch.ones(tokens, device=device)) if form.has_row_scale else parts


def buffer_arguments(args: argparse.Namespace) -> dict[str, int]:
    return {
        "num_experts": args.experts,
        "top_k": args.top_k,
        "hidden": args.hidden,
        "max_tokens": args.tokens,
        "num_sms": args.sms,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in {
        "ranks": 2, "tokens": 4096, "hidden": 7168, "top-k": 8, "sms": DEFAULT_SMS, "repeats": 20
    }.items():  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--experts", type=int, help="default: 256, or the next smaller multiple of the ranks")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "emulator"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    given.experts = given.experts or gpu_inputs.most_experts(given.ranks)
    heap = ep_lib.Buffer.heap_bytes(given.ranks, **buffer_arguments(given))
    ranks = ep_lib.spawn(main, given.ranks, given.backend, args=(given,), heap_bytes=heap, timeout=60)
    found = {name: slowest([times[name] for times in ranks])["sum"] for name in ranks[0]}
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        for name, us in found.items():
            base = "combine" if name.startswith("combine") else f"dispatch, bfloat16 rows, {name.rpartition(', ')[2]}"
            print(f"{name:60} {us:8.1f} us  {found[base] / us:5.2f} x as quick as BF16")
