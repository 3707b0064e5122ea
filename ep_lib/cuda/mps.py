"""NVIDIA's Multi-Process Service (MPS): with it, kernels of several processes run on one GPU at the same time.

Ranks that share a GPU are processes, not threads: CUDA loads no module and frees no memory while another kernel of the
same process runs, so a rank that loads a kernel could wait for ever for another rank's kernel that waits for it. MPS is
part of the driver. Its daemon runs as this user, changes no setting of the GPU, and ends with the ranks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ep_lib.cuda.devices import import_cupy
from ep_lib.errors import BackendUnavailable
from ep_lib.processes import end_group, guarded

CONTROL = "nvidia-cuda-mps-control"
_MPS_ENABLED = 133  # cudaDevAttrMpsEnabled
_COMPUTE_MODE = 20  # cudaDevAttrComputeMode
_EXCLUSIVE = 3  # cudaComputeModeExclusiveProcess
_LONGEST_PATH = 80  # of the folder: the names of sockets inside it have at most 108 bytes
_START_SECONDS = 20.0
_LOOK_SECONDS = 0.02
_END_SECONDS = 3.0  # from SIGTERM to SIGKILL
_INSTEAD = (
    "EP_LIB_SHARE_GPUS=1 without gpus= lets ranks take turns on a GPU (milliseconds for a signal), and "
    'backend="emulator" needs no GPU'
)


def is_active(device: int = 0) -> bool:
    """Whether this process reaches the GPU through MPS, or would."""
    return bool(import_cupy().cuda.runtime.deviceGetAttribute(_MPS_ENABLED, device))


def _compute_mode(device: int = 0) -> int:
    return int(import_cupy().cuda.runtime.deviceGetAttribute(_COMPUTE_MODE, device))


@contextlib.contextmanager
def service() -> Iterator[dict[str, str]]:
    """The environment of processes that share GPUs, with a daemon of their own: the GPU alternates between daemons of
    several programs, while under a single one kernels of two programs could wait for each other's SMs for ever. A GPU
    in exclusive mode allows only the daemon that already runs.

    Raises BackendUnavailable if MPS does not work.
    """
    if is_active() and _compute_mode() == _EXCLUSIVE:
        yield dict(os.environ)
        return
    if shutil.which(CONTROL) is None:
        raise BackendUnavailable(
            f"ranks that share a GPU need NVIDIA's MPS, and {CONTROL} is not on the PATH. It comes with the driver; a "
            f"container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility. {_INSTEAD}"
        )
    folder = _folder()
    with guarded(folder) as guard:
        folder.mkdir(mode=0o700)
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
        try:
            with (folder / "output").open("wb") as output:
                daemon = guard.start(
                    [CONTROL, "-f"], env=environment, stdout=output, stderr=output, cwd="/", process_group=0
                )
            try:
                _wait_until_ready(daemon, folder, environment)
                yield _for_clients(environment)
            finally:
                _end(daemon)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    name = f"ep_lib-mps-{secrets.token_hex(8)}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(str(folder)) <= _LONGEST_PATH else Path("/tmp") / name


def _for_clients(environment: dict[str, str]) -> dict[str, str]:
    """The environment of clients: the daemon has the list of visible GPUs, and numbers them from 0 for the ranks."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if not visible:
        return environment
    return {**environment, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(visible.count(",") + 1)))}


def _wait_until_ready(daemon: subprocess.Popen[bytes], folder: Path, environment: dict[str, str]) -> None:
    """Waits for the daemon: a process that starts earlier would use the GPU without it."""
    deadline = time.monotonic() + _START_SECONDS
    while daemon.poll() is None and time.monotonic() < deadline:
        asked = subprocess.run(
            [CONTROL], input=b"get_server_list\n", env=environment, capture_output=True, timeout=_START_SECONDS
        )
        if asked.returncode == 0:
            return
        time.sleep(_LOOK_SECONDS)
    said = (folder / "output").read_text(errors="replace").strip() or "no message"
    raise BackendUnavailable(
        f"ranks that share a GPU need NVIDIA's MPS, and {CONTROL} did not start: {said}. {_INSTEAD}"
    )


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Ends the daemon and its servers, which are in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(_END_SECONDS)
    end_group(daemon)
