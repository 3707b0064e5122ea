"""The environment variables that NVSHMEM over EFA needs, what each one does, and whether they are set.

The emulator and P2P between GPUs need none of them. ``ep-lib doctor`` shows the table, ``ep-lib migrate`` checks it.
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
    """One variable of the guide. ``values`` are those that it names, the recommended one first."""

    name: str
    role: Role
    values: tuple[str, ...]
    meaning: str

    def state(self, environment: Mapping[str, str]) -> State:
        """How ``environment`` has it; "differs" where its value cannot work."""
        value = environment.get(self.name, "").strip()
        if not value:
            return "not set"
        allowed = self.role == "optional" or value.lower() in {v.lower() for v in self.values}
        if self.role == "tuning":  # any positive number works, the guide's is a good one; sizes may be 1G
            allowed = _NUMBER.fullmatch(value) is not None and value.strip("0.kmgtKMGT") != ""
        return "set" if allowed else "differs"

    def export(self) -> str:
        """What to type in a shell."""
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
        "keeps NVSHMEM from its InfiniBand transports, which cannot drive EFA and would be tried first",
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
        "lets EFA read and write the GPU's memory by itself; without it every byte is copied through the CPU's",
    ),
    Variable(
        "NVSHMEM_DEBUG",
        "optional",
        ("0", "1"),
        "makes NVSHMEM say what it does: 1 in the guide, WARN or INFO in NVSHMEM's own documentation; add "
        "NVSHMEM_DEBUG_SUBSYS=ALL and FI_LOG_LEVEL=info when it hangs",
    ),
    # Beyond the guide: what ep_lib's transport="nvshmem" needs where a NIC lies between.
    Variable(
        "NVSHMEM_REMOTE_TRANSPORT",
        "optional",
        ("libfabric", "ibrc", "none"),
        "what drives the NIC: libfabric on EFA, ibrc on InfiniBand and RoCE; ep_lib sets none where all GPUs reach "
        "each other without one",
    ),
    Variable(
        "NVSHMEM_LIBFABRIC_PROVIDER",
        "optional",
        ("efa",),
        "which of libfabric's providers NVSHMEM's libfabric transport is made for; name it on EFA",
    ),
    Variable(
        "NVSHMEM_IB_ENABLE_IBGDA",
        "optional",
        ("1",),
        "on InfiniBand and RoCE, not on EFA: GPU threads drive the NIC themselves, without a thread of the CPU; ep_lib "
        "builds kernels by nvcc then",
    ),
    Variable(
        "FI_EFA_TX_SIZE",
        "tuning",
        ("2048",),
        "sends that may be under way at once; a batch larger than this waits for room",
    ),
    Variable(
        "FI_EFA_RX_SIZE",
        "tuning",
        ("2048",),
        "receives that may be under way at once; many peers sending to one need room",
    ),
    Variable(
        "NVSHMEM_SYMMETRIC_SIZE",
        "tuning",
        ("1073741824",),
        "bytes of every rank's symmetric heap, all buffers included; too small fails at allocation",
    ),
)


def faulty(environment: Mapping[str, str]) -> tuple[Variable, ...]:
    """Those that NVSHMEM over EFA would fail or crawl with: required and not set, or set to what cannot work."""
    return tuple(
        variable
        for variable in VARIABLES
        if (state := variable.state(environment)) == "differs" or (state == "not set" and variable.role == "required")
    )


def explain(variable: Variable, environment: Mapping[str, str]) -> str:
    """One line: the variable, what it is here, what it should be, and what it does."""
    state = variable.state(environment)
    now = state if state == "not set" else f"is {environment[variable.name].strip()!r}"
    return f"{variable.name} ({variable.role}: {' or '.join(variable.values)}; {now}): {variable.meaning}"
