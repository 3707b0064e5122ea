"""One-line mistakes that people make: which kernel, which line, and what the checker must call it. Those of which two
lines and a cause must be said are in told.cu."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank

HERE = Path(__file__).parent
RACE = ("race",)
REUSED = ("slot reused",)
OUT = ("out of bounds",)
NET_RACE = ("race", "signal overtakes data", "source reused", "read before arrival")


@dataclass(frozen=True)
class Variant:
    """``old`` becomes ``new`` in one kernel. ``remedy``: a word that the report must contain, "" for any."""

    name: str
    kernel: str
    old: str
    new: str
    kinds: tuple[str, ...] = RACE
    remedy: str = ""
    fabric: str = "p2p"
    blocks: int = 1


def _sync(after: str) -> str:
    return f"__syncthreads();  // {after}"


VARIANTS = [
    Variant("partial sums read too early", "block_sum", _sync("partial is complete"), "", remedy="__syncthreads"),
    Variant("partial sums overwritten", "block_sum", _sync("partial may be written again"), "", remedy="__syncthreads"),
    Variant(
        "first warp forgotten",
        "block_sum",
        "% 32 == 0) partial",
        "% 32 == 0 && threadIdx.x) partial",
        ("uninitialised",),
    ),
    Variant(
        "index one too far",
        "reverse",
        "tile[blockDim.x - 1 - threadIdx.x]",
        "tile[blockDim.x - threadIdx.x]",
        ("uninitialised", "out of bounds"),
    ),
    Variant("barrier in one branch", "reverse", "__syncthreads();", "if (threadIdx.x < 32) __syncthreads();"),
    Variant("lanes read before written", "warp_rotate", "__syncwarp();  // written", "", remedy="__syncwarp"),
    Variant("lanes overwrite what is read", "warp_rotate", "__syncwarp();  // read", "", remedy="__syncwarp"),
    Variant(
        "half a mask",
        "warp_rotate",
        "__syncwarp();  // written",
        "__syncwarp(lane < 16 ? 0xffffu : 0xffff0000u);",
        remedy="__syncwarp",
    ),
    Variant(
        "lanes left before syncwarp",
        "warp_rotate",
        "mine[lane] = value;",
        "if (lane > 20) return; mine[lane] = value;",
        ("uninitialised",),
    ),
    Variant("bins not cleared", "histogram", "if (threadIdx.x < 8) bins[threadIdx.x] = 0;", "", ("uninitialised",)),
    Variant("gpu scope of the signal", "exchange", "st_release_sys", "st_release_gpu", (*RACE, "scope"), "scope"),
    Variant("gpu scope of the wait", "exchange", "ld_acquire_sys", "ld_acquire_gpu", (*RACE, "scope"), "scope"),
    Variant(
        "plain signal",
        "exchange",
        "ep::st_release_sys_u64(ep::peer_ptr(flag, peer), 1)",
        "*ep::peer_ptr(flag, peer) = 1",
    ),
    Variant("no wait at all", "exchange", "while (ep::ld_acquire_sys_u64(flag) == 0)", "while (false)"),
    Variant("waits for too much", "exchange", "(flag) == 0)", "(flag) < 2)", ("deadlock",)),
    Variant("signals itself", "exchange", "st_release_sys_u64(ep::peer_ptr(flag, peer)", "st_release_sys_u64((flag)"),
    Variant(
        "volatile flag without fence", "exchange_fence", "__threadfence_system();  // data", "//", remedy="release"
    ),
    Variant(
        "volatile poll without fence", "exchange_fence", "__threadfence_system();  // the flag", "//", remedy="acquire"
    ),
    Variant(
        "fence of one block", "exchange_fence", "__threadfence_system();  // the", "__threadfence_block();  // the"
    ),
    Variant("warp signals too early", "exchange_warp", "__syncwarp();  // written", "", remedy="__syncwarp"),
    Variant("warp reads too early", "exchange_warp", "__syncwarp();  // arrived", "", remedy="__syncwarp"),
    Variant("all read the first warp's flag", "exchange_warp", "(flag + warp) == 0", "(flag) == 0"),
    Variant(
        "no credit", "rounds", "while (ep::ld_acquire_sys_u64(credit) + 1 < round)", "while (false)", REUSED, "credit"
    ),
    Variant("relaxed credit", "rounds", "ep::ld_acquire_sys_u64(credit)", "ep::ld_relaxed_sys_u64(credit)"),
    Variant("counter only releases", "last_block", "atom_add_acq_rel_gpu", "atom_add_release_gpu", blocks=3),
    Variant("block counted before it wrote", "last_block", _sync("written"), "", blocks=3, remedy="__syncthreads"),
    Variant("decision read too early", "last_block", _sync("decided"), "", (*RACE, "uninitialised"), blocks=3),
    Variant("blocks read a relaxed flag", "broadcast", "ld_acquire_gpu", "ld_relaxed_gpu", blocks=2),
    Variant("block flag before data", "broadcast", "__syncthreads();", "", blocks=2, remedy="__syncthreads"),
    Variant("gpu atomics from many ranks", "count", "red_add_relaxed_sys", "red_add_relaxed_gpu", ("scope",), "scope"),
    Variant("plain add from many ranks", "count", "ep::red_add_relaxed_sys_u64(counter, 1)", "*counter += 1"),
    Variant("signal without quiet", "net_exchange", "ep::net_quiet(peer, 0);", "", NET_RACE, "quiet", "srd"),
    Variant(
        "quiet on another queue pair",
        "net_exchange",
        "net_quiet(peer, 0)",
        "net_quiet(peer, 1)",
        NET_RACE,
        "quiet",
        "srd",
    ),
    Variant("read before others waited", "net_exchange", _sync("arrived"), "", RACE, "__syncthreads", "rc"),
    Variant(
        "signal first",
        "net_exchange",
        "ep::net_put_nbi(data,",
        "ep::net_atomic_add_u64_nbi(flag, 1, peer, 0); ep::net_put_nbi(data,",
        NET_RACE,
        "",
        "rc",
    ),
    Variant("fence forgotten", "net_fence_exchange", "ep::net_fence(peer);", "", NET_RACE, "fence", "srd"),
    Variant(
        "fence for another queue pair",
        "net_fence_exchange",
        "net_fence(peer)",
        "net_fence(peer, 0)",
        NET_RACE,
        "fence",
        "srd",
    ),
    Variant(
        "signal before its put",
        "net_put_signal",
        "ep::net_put_signal_nbi(data, data + 512, 128, flag, 1, peer, 0);",
        "ep::net_atomic_add_u64_nbi(flag, 1, peer, 0); ep::net_put_nbi(data, data + 512, 128, peer, 0);",
        NET_RACE,
        "",
        "srd",
    ),
    Variant("waits for one of two", "net_put_signal", "(flag) < 2", "(flag) < 1", NET_RACE, "", "srd"),
    Variant(
        "no credit over the network",
        "net_rounds",
        "while (ep::ld_acquire_sys_u64(flag + 1) + 1 < round)",
        "while (false)",
        REUSED,
        "credit",
        "rc",
    ),
    Variant("no quiet before the next round", "net_rounds", "ep::net_quiet();", "", ("source reused",), "quiet", "srd"),
    Variant(
        "cuda::atomic_ref of one GPU",
        "exchange_ref",
        "thread_scope_system> theirs",
        "thread_scope_device> theirs",
        (*RACE, "scope"),
        "scope",
    ),
    Variant("cuda::atomic_ref without release", "exchange_ref", "memory_order_release", "memory_order_relaxed"),
    Variant("int4 at an odd address", "write_vectors", "theirs + 0", "theirs + 1", ("misaligned",)),
    Variant("one element past a peer's array", "write_vectors", "960 + ", "961 + ", OUT),
    Variant(
        "barriers in two branches of one line",
        "reverse",
        "__syncthreads();",
        "if (threadIdx.x < 32) __syncthreads(); else __syncthreads();",
        ("divergent barrier",),
    ),
    Variant("puts one element too many", "net_exchange", "source, n *", "source, 513 *", OUT, "", "rc"),
]
BLOCKS = {"last_block": 3, "broadcast": 2}  # of correct kernels; 1 where nothing is said


@functools.cache
def functions() -> dict[str, str]:
    """Name -> text of each correct kernel."""
    parts = re.split(r"^//---- (\w+)\n", (HERE / "kernels.cuh").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


NAMES = [*functions(), *(variant.name for variant in VARIANTS)]  # by their numbers in all_in_one()


def _bodies() -> Iterator[tuple[str, str]]:
    yield from ((name, text) for name, text in functions().items())
    for variant in VARIANTS:
        text = functions()[variant.kernel]
        assert text.count(variant.old) == 1, f"{variant.name}: its line is there {text.count(variant.old)} times"
        yield variant.kernel, text.replace(variant.old, variant.new)


@functools.cache
def all_in_one() -> Kernel:
    """One kernel that is all of them, so that the compiler runs once: correct ones first, then VARIANTS."""
    source = "#include <cuda/atomic>\n#include <ep/net.cuh>\n#include <ep/signal.cuh>\n"
    cases = ""
    for number, (name, text) in enumerate(_bodies()):
        source += f"namespace v{number} {{\n{text}}}\n"
        cases += f"        case {number}: return v{number}::{name}(data, flag, out, n);\n"
    source += 'extern "C" __global__ void run(int which, int* data, uint64_t* flag, int* out, int n) {\n'
    return Kernel.from_source(source + f"    switch (which) {{\n{cases}    }}\n}}\n", "run", filename="variants.cu")


def run(rank: Rank, name: str, blocks: int) -> Any:
    """main: one launch of a correct kernel or a variant."""
    data, flag = rank.symmetric(1024, np.int32), rank.symmetric(16, np.uint64)
    out = rank.to_device(np.zeros(256, np.int32))
    all_in_one().launch(rank, blocks, 64, NAMES.index(name), data, flag, out, 64)
    return rank.to_host(out)
