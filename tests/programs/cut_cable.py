"""One of two ranks on two hosts, between which the cable is cut: what its kernel's wait says of it.

    cut_cable.py OUT FOLDER

Writes a JSON object to OUT. FOLDER has kernel.cu; `ready0` and `ready1` say that ranks may lose each other, `cut` that
they have.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import ep_lib
from ep_lib.errors import EpError, PeerTimeout

TIMEOUT_S = 8.0  # of a kernel; its waits end after half of it


def main() -> None:
    out, folder = map(Path, sys.argv[1:3])
    rank = ep_lib.init(backend="emulator", timeout=TIMEOUT_S)
    kernel = ep_lib.Kernel.from_file(folder / "kernel.cu", "all_kinds")
    data, got = rank.symmetric(16, np.uint8), rank.symmetric(8, np.uint8)
    signal, large = rank.symmetric(1, np.uint64), rank.symmetric(1, np.uint64)
    small = rank.symmetric(1, np.uint32)
    kernel.compile()
    rank.barrier()
    (folder / f"ready{rank.rank}").touch()
    while not (folder / "cut").exists():
        time.sleep(0.05)
    begin, said = time.monotonic(), {}
    kernel.launch(rank, 1, 1, data, got, signal, small, large, 8)
    try:
        rank.synchronize()
    except EpError as error:
        other = getattr(error, "peer", None) if isinstance(error, PeerTimeout) else getattr(error, "rank", None)
        said = {"kind": type(error).__name__, "other": other, "seconds": time.monotonic() - begin, "text": str(error)}
    out.write_text(json.dumps(said))
    os._exit(0)  # the others cannot be met any more


if __name__ == "__main__":
    main()
