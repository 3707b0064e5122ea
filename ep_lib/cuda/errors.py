"""CUDA's error codes as exceptions of ep_lib."""

from __future__ import annotations

from collections.abc import Mapping

from ep_lib.errors import EpError, KernelFault, KernelLaunchError, KernelTimeout, OutOfSymmetricMemory

# Codes are the same numbers in the driver's and in the runtime's interface.
OUT_OF_MEMORY = 2
NOT_FOUND = 500
NOT_READY = 600
LAUNCH_TOO_LARGE = 720  # of a cooperative one
LAUNCH_OUT_OF_RESOURCES = 701
LAUNCH_TIMEOUT = 702

# After one of these the context is lost: every later call of this process fails with the same code.
_FAULTS = {
    700: "a kernel read or wrote an address that belongs to no allocation (illegal memory access)",
    709: "the CUDA context was destroyed by an earlier error",
    710: "an assert in a kernel failed; its file and line are on the standard error output",
    714: "a kernel overran its stack or call depth",
    715: "a kernel ran an illegal instruction",
    716: "a kernel used an address that is not a multiple of the access's size (misaligned address)",
    717: "a kernel used an address of the wrong memory space",
    718: "a kernel jumped to an invalid address",
    719: "a kernel ended by __trap() or by an unspecified launch failure",
    721: "the launch failed in the tensor memory accelerator or a similar unit",
    214: "an uncorrectable memory (ECC) error was found",
    220: "the NVLink connection to another GPU failed",
}
_ADVICE = (
    "CUDA reports this late and without a line. To find it: run the same program on the emulator "
    '(backend="emulator" names the source line), or under `compute-sanitizer --target-processes all python ...`, or '
    "with CUDA_LAUNCH_BLOCKING=1. The CUDA context is lost: this process can launch nothing more."
)


def is_fault(status: int) -> bool:
    """Whether this code means that a kernel crashed and destroyed the context."""
    return status in _FAULTS


def launch_summary(pending: Mapping[str, int]) -> str:
    """The kernels started since the last synchronize(): "copy x 3, reduce"."""
    names = [name if count == 1 else f"{name} x {count}" for name, count in pending.items()]
    return ", ".join(names) or "none of ep_lib's; another library's, then"


def to_error(status: int, text: str, rank: int, pending: Mapping[str, int]) -> EpError:
    """The exception for a CUDA error ``status`` (with CUDA's ``text``) on ``rank``."""
    if is_fault(status):
        kernel = next(iter(pending)) if len(pending) == 1 else ""
        return KernelFault(
            f"rank {rank}: {_FAULTS[status]}.\nKernels since the last synchronize(): {launch_summary(pending)}.\n"
            f"{_ADVICE} ({text})",
            kernel=kernel,
        )
    if status == LAUNCH_TIMEOUT:
        return KernelTimeout(
            f"rank {rank}: the driver stopped a kernel that ran too long, as it does on a GPU that drives a display. "
            f"Kernels since the last synchronize(): {launch_summary(pending)}. ({text})"
        )
    return EpError(f"rank {rank}: CUDA failed: {text}")


def launch_error(status: int, text: str, rank: int, kernel: str, shape: str, registers: int) -> EpError:
    """The exception for a launch that CUDA refused."""
    if is_fault(status) or status == LAUNCH_TIMEOUT:
        return to_error(status, text, rank, {kernel: 1})
    if status == LAUNCH_OUT_OF_RESOURCES:
        return KernelLaunchError(
            f"{kernel}: the launch {shape} needs more than the GPU has ({registers} registers per thread). Use smaller "
            f"blocks, or __launch_bounds__ so that the compiler uses fewer registers. ({text})"
        )
    if status == LAUNCH_TOO_LARGE:
        return KernelLaunchError(
            f"{kernel}: the launch {shape} has more blocks than this GPU runs at once, and its source has a barrier of "
            "all blocks (grid_group::sync). Take a smaller grid with a loop; a kernel without such a barrier can have "
            f"any grid in a source of its own. ({text})"
        )
    return KernelLaunchError(f"{kernel}: CUDA refused the launch {shape}: {text}")


def allocation_error(rank: int, requested: int, free: int, text: str) -> OutOfSymmetricMemory:
    """The exception for a symmetric heap that does not fit into GPU memory; sizes in bytes."""
    return OutOfSymmetricMemory(
        f"rank {rank}: a symmetric heap of {requested} bytes does not fit: the GPU has {free} bytes free, "
        f"{max(0, requested - free)} too few. Ask for less by heap_bytes=..., or end other programs on that GPU. "
        f"({text})",
        requested=requested,
        available=free,
    )
