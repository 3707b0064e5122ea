"""The environment variables for NVSHMEM over EFA: their effects, and whether they are set.

The emulator and P2P between GPUs need none of them. ``ep-lib doctor`` shows the table, ``ep-lib migrate`` checks it.

Sources: the guide (the needed ones, and their values); libfabric's man page fi_efa(7); NVSHMEM's documentation, page
"Environment Variables". NVSHMEM_DISABLE_IB and NVSHMEM_DEBUG=1 are the guide's: NVSHMEM's page does not name them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["required", "optional", "tuning"]
State = Literal["set", "not set", "differs"]

_NUMBER = re.compile(r"\d+(\.\d+)?[kmgtKMGT]?")


@dataclass(frozen=True)
class Variable:
    """One variable of the guide. ``values``: those in the guide, the recommended one first."""

    name: str
    role: Role
    values: tuple[str, ...]
    meaning: str

    def state(self, environment: Mapping[str, str]) -> State:
        """The state in ``environment``; "differs" if the value cannot work."""
        value = environment.get(self.name, "").strip()
        if not value:
            return "not set"
        allowed = self.role == "optional" or value.lower() in {v.lower() for v in self.values}
        if self.role == "tuning":  # any positive number works, and the guide's is a good one; sizes may be 1G
            allowed = _NUMBER.fullmatch(value) is not None and value.strip("0.kmgtKMGT") != ""
        return "set" if allowed else "differs"

    def export(self) -> str:
        """The shell command that sets it."""
        return f"{self.name}={self.values[0]}"


VARIABLES = (
    Variable(
        "NVSHMEM_BOOTSTRAP",
        "required",
        ("MPI",),
        "how the processes find each other before NVSHMEM runs: through MPI, so start them by mpirun or srun (not read "
        'under ep_lib\'s transport="nvshmem", where the ranks have met already)',
    ),
    Variable(
        "NVSHMEM_DISABLE_IB",
        "required",
        ("1", "true"),
        "keeps NVSHMEM from its InfiniBand transports, which cannot drive EFA (the guide's; NVSHMEM's own list has "
        "NVSHMEM_REMOTE_TRANSPORT for it: see there)",
    ),
    Variable(
        "FI_PROVIDER",
        "required",
        ("efa",),
        "which provider libfabric takes; without it that may be TCP, correct but many times slower",
    ),
    Variable(
        "FI_EFA_USE_DEVICE_RDMA",
        "required",
        ("1",),
        "the NIC carries out reads and writes by itself (RDMA): 1 demands it, and the program is aborted on a NIC that "
        "cannot; 0 emulates them in software; if it is not set, RDMA is used where the NIC has it",
    ),
    Variable(
        "NVSHMEM_DEBUG",
        "optional",
        ("0", "1"),
        "makes NVSHMEM log what it does: 1 in the guide, WARN or INFO in NVSHMEM's own documentation; add "
        "NVSHMEM_DEBUG_SUBSYS=ALL and FI_LOG_LEVEL=info when it hangs",
    ),
    # Beyond the guide: needed by ep_lib's transport="nvshmem" if NICs connect the ranks.
    Variable(
        "NVSHMEM_REMOTE_TRANSPORT",
        "optional",
        ("libfabric", "ibrc", "none"),
        "what drives the NIC: libfabric on EFA, ibrc (NVSHMEM's default) on InfiniBand and RoCE; ep_lib sets none "
        "if all GPUs reach each other without a NIC",
    ),
    Variable(
        "NVSHMEM_LIBFABRIC_PROVIDER",
        "optional",
        ("efa",),
        "for which of libfabric's providers NVSHMEM's libfabric transport is set up; name it on EFA, because the "
        "default is cxi, HPE's Slingshot",
    ),
    Variable(
        "NVSHMEM_IB_ENABLE_IBGDA",
        "optional",
        ("1",),
        "on InfiniBand and RoCE, not on EFA: GPU threads drive the NIC themselves, without a thread of the CPU; ep_lib "
        "then builds kernels with nvcc",
    ),
    Variable(
        "FI_EFA_TX_SIZE",
        "tuning",
        ("2048",),
        "transmit operations that may be under way at once; beyond that the provider returns FI_EAGAIN or queues them",
    ),
    Variable(
        "FI_EFA_RX_SIZE",
        "tuning",
        ("2048",),
        "receive operations that may be under way at once before the provider returns FI_EAGAIN",
    ),
    Variable(
        "NVSHMEM_SYMMETRIC_SIZE",
        "tuning",
        ("1073741824",),
        "bytes of every rank's symmetric heap, all buffers included (the guide's is NVSHMEM's default); it is a limit "
        "only for a heap of fixed size, with NVSHMEM_DISABLE_CUDA_VMM=1, where allocations beyond it fail",
    ),
)


def faulty(environment: Mapping[str, str]) -> tuple[Variable, ...]:
    """The variables that make NVSHMEM over EFA fail or very slow: required but not set, or set to an impossible
    value."""
    return tuple(
        variable
        for variable in VARIABLES
        if (state := variable.state(environment)) == "differs" or (state == "not set" and variable.role == "required")
    )


def explain(variable: Variable, environment: Mapping[str, str]) -> str:
    """One line: the variable, its current value, the right one, and its effect."""
    state = variable.state(environment)
    now = state if state == "not set" else f"is {environment[variable.name].strip()!r}"
    return f"{variable.name} ({variable.role}: {' or '.join(variable.values)}; {now}): {variable.meaning}"
