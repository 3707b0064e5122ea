"""The machines that :func:`ep_lib.simulate` knows: constants of GPUs and links, each with its public source.

Links are described as in LogGP (Alexandrov et al., "LogGP: Incorporating Long Messages into the LogP Model", 1995):
latency L, overhead o of the poster, gap g between messages, gap per byte G (here its inverse, a bandwidth), plus
packets with headers. Nothing here was fitted to a measurement of ours or to a published table of expert-parallel
bandwidths; where no number is published, the source says how it is derived from some that are.

Each source states its certainty. "Read": the text was looked up (2026-11-21). "Not read": quoted from memory, since the
source could not be opened. "Estimate": no number is published. Estimates and numbers not read hardly matter for the
published table of PCIe mode: at EP8, doubling or halving one of them moves a row by 1.2 % at most. The line rate does
matter, and the MTU: with 1024 instead of 4096, rows lose 5 to 6 % (benchmarks/pcie_sensitivity.py,
benchmarks/results/h20-cx7-sensitivity-2026-11-21.json).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ep_lib.errors import ArgumentError
from ep_lib.require import brief, instance, number, show, text


def _check(part: Link | Gpu, whose: str, above_zero: tuple[str, ...]) -> None:
    """Raises ArgumentError unless names are strings and the other values are numbers that are not negative."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name in ("name", "source"):
            text(f"{whose} {field.name}", value)
        else:
            number(f"{whose} {field.name}", value, zero=field.name not in above_zero)


@dataclass(frozen=True)
class Link:
    """One direction of a link. ``gbytes_per_s`` (1e9 bytes a second) counts headers too: ``header_bytes`` come with
    every packet of at most ``mtu_bytes``.

    ``latency_ns``: one way, without serialisation. ``overhead_ns``: how long posting keeps the poster busy (LogGP's o).
    ``gap_ns``: how long a message keeps the NIC's engine busy (g). ``source``: where each number comes from.
    """

    name: str
    latency_ns: float
    gbytes_per_s: float
    overhead_ns: float
    gap_ns: float
    mtu_bytes: float
    header_bytes: float
    source: str

    def __post_init__(self) -> None:
        _check(self, "a link's", above_zero=("gbytes_per_s", "mtu_bytes"))

    def wire_bytes(self, nbytes: float) -> float:
        """Bytes on the wire for a message of ``nbytes``: with a header a packet, at least one packet."""
        return nbytes + max(1, -(-nbytes // self.mtu_bytes)) * self.header_bytes

    def scaled(self, k: float) -> Link:
        """The same link, with each byte counted ``k`` times."""
        return dataclasses.replace(
            self,
            gbytes_per_s=self.gbytes_per_s / k,
            mtu_bytes=self.mtu_bytes / k,
            header_bytes=self.header_bytes / k,
        )


@dataclass(frozen=True)
class Gpu:
    """``sms`` SMs, each of which loads or stores ``sm_gbytes_per_s``, all together ``memory_gbytes_per_s``.

    ``poll_ns``: from a load to its value, as a polling loop or an atomic sees it. ``launch_ns``: from a launch to the
    kernel's first instruction when the GPU is idle; ``launch_gap_ns``: between a kernel and the next one in its stream.
    """

    name: str
    sms: int
    sm_gbytes_per_s: float
    memory_gbytes_per_s: float
    clock_ghz: float
    poll_ns: float
    launch_ns: float
    launch_gap_ns: float
    source: str

    def __post_init__(self) -> None:
        _check(self, "a GPU's", above_zero=("sms", "sm_gbytes_per_s", "memory_gbytes_per_s", "clock_ghz", "poll_ns"))

    def scaled(self, k: float) -> Gpu:
        """The same GPU, with each byte counted ``k`` times."""
        return dataclasses.replace(
            self, sm_gbytes_per_s=self.sm_gbytes_per_s / k, memory_gbytes_per_s=self.memory_gbytes_per_s / k
        )


@dataclass(frozen=True)
class Hardware:
    """A GPU, its NVLink port, the PCIe link between GPU and NIC, and the NIC (one per GPU)."""

    name: str
    gpu: Gpu
    nvlink: Link
    pcie: Link
    nic: Link

    def __post_init__(self) -> None:
        text("a hardware's name", self.name)
        instance("a hardware's gpu", self.gpu, Gpu, "an ep_lib.emulator.hardware.Gpu")
        for name in ("nvlink", "pcie", "nic"):
            instance(f"a hardware's {name}", getattr(self, name), Link, "an ep_lib.Link")

    def scaled(self, k: float) -> Hardware:
        """The same hardware, with each byte counted ``k`` times: bandwidths, MTUs and headers are divided by ``k``.

        A program with rows ``k`` times shorter takes the time of the full rows, and is simulated ``k`` times as fast.
        Flags, counts and indices do not shrink with the rows, and count ``k`` times as well.
        """
        try:
            k = number("k", k)
        except ArgumentError as error:
            raise ArgumentError(f"hardware is scaled by {brief(k)}; it must be a number above zero") from error
        return Hardware(
            self.name if k == 1 else f"{self.name} / {k:g}",
            self.gpu.scaled(k),
            self.nvlink.scaled(k),
            self.pcie.scaled(k),
            self.nic.scaled(k),
        )


_CLOCK_GHZ = 1.98
_L2_CYCLES = 291
_POLL_NS = _L2_CYCLES / _CLOCK_GHZ
_GPU_SOURCE = """\
clock: 1.98 GHz. Read: "Compute Units: 132 at 1980 MHz" of a GH200 (github.com/mredenti/PowerCapping,
  configuration/OpenCL_benchmark.md); H100: glennklockwood.com/garden/processors/h100. For H20: not read
sm_gbytes_per_s: 64 bytes a clock between an SM's L1 and L2 in each direction, at the boost clock. Not read, from
  "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (Jia et al., arXiv:1804.06826)
poll_ns: L2 latency of 291 cycles of an H100 SXM, at the boost clock: a poll reads L2, where NICs and peers write. Read:
  github.com/markdewing/AI_kernels, latency/README.md (a GH200 there has 281)
launch_ns, launch_gap_ns: a kernel of 2.9 us takes 9.6 us if the host waits after each (6.7 us more) and 3.8 us if it
  launches ahead (0.9 us more). Not read, from "Getting Started with CUDA Graphs" (A. Gray, NVIDIA, 2019,
  developer.nvidia.com/blog/cuda-graphs)
"""


def _hopper(name: str, sms: int, memory_gbytes_per_s: float, sheet: str) -> Gpu:
    return Gpu(
        name=name,
        sms=sms,
        sm_gbytes_per_s=64 * _CLOCK_GHZ,
        memory_gbytes_per_s=memory_gbytes_per_s,
        clock_ghz=_CLOCK_GHZ,
        poll_ns=_POLL_NS,
        launch_ns=6700.0,
        launch_gap_ns=900.0,
        source=sheet + _GPU_SOURCE,
    )


_H20 = _hopper(
    "H20",
    78,
    4000.0,
    "sms, memory: 78 SMs (found by Geekbench) and 4.0 TB/s. Read: zangshuxian.com/new/674733024499207168, no sheet of "
    "NVIDIA's\n",
)
_H100 = _hopper(
    "H100 SXM",
    132,
    3350.0,
    "sms, memory: 132 SMs, HBM3 at 3.35 TB/s. Read: glennklockwood.com/garden/processors/h100, which cites NVIDIA's "
    "architecture paper\n",
)

_NVLINK = Link(
    name="NVLink 4",
    latency_ns=520.0 - _POLL_NS,
    gbytes_per_s=450.0,
    overhead_ns=0.0,
    gap_ns=0.0,
    mtu_bytes=128,
    header_bytes=16,
    source="""\
latency: 0.52 us per hop from a store to the poll that sees it, less the poll itself, counted apart. Read: NCCL,
  src/graph/tuning.cc, hwLat, NVLINK, Tree LL (github.com/NVIDIA/nccl at 01afd20)
gbytes_per_s: 18 links of 25 GB/s per direction, 900 GB/s both directions. Read: "18x 4th Gen NVLink, 900GB/s"
  (github.com/mlcommons/inference_results_v4.1, closed/NVIDIA/systems, H200); H20: 450 GB/s per direction
  (github.com/deepseek-ai/DeepEP/issues/16)
mtu, header: estimated, a cache line and a header flit of 16 bytes per packet. Not read, flits of 16 bytes from Foley
  and Danskin, "Ultra-Performance Pascal GPU and NVLink Interconnect", IEEE Micro 2017
""",
)

_PCIE5 = Link(
    name="PCIe 5.0 x16",
    latency_ns=547.0 / 2,
    gbytes_per_s=32 * 16 * 128 / 130 / 8,
    overhead_ns=0.0,
    gap_ns=0.0,
    mtu_bytes=256,
    header_bytes=24,
    source="""\
latency: half of the median 547 ns of a 64-byte DMA read by a NIC, on Haswell and PCIe 3. The number was not read, only
  the paper's abstract: Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018,
  doi.org/10.1145/3230543.3230560
gbytes_per_s: 32 GT/s, 16 lanes, 128b/130b. Read: PCIe 5.0 x16 of a ConnectX-7
  (docs.nvidia.com/networking/display/ConnectX7VPI/Introduction); the coding is the standard's (not read)
mtu, header: maximum payload 256 bytes; 24 bytes a packet for framing, sequence, header with 64-bit address and CRC.
  Not read, from section 3 of the same paper
""",
)

# A thread reserves its place in the queue (an atomic), writes the work request and makes it visible before it rings.
_POST_NS = 2 * _POLL_NS
_POST_SOURCE = """\
overhead: an estimate: two round trips to L2 that depend on each other, the atomic that reserves a work request and the
  one that publishes it before the doorbell (as NVSHMEM's ibgda_device.cuh does), at the L2 latency of the GPU
"""

_CX7 = Link(
    name="ConnectX-7 400 Gb/s",
    latency_ns=800.0 + 150.0,
    gbytes_per_s=50.0,
    overhead_ns=_POST_NS,
    gap_ns=1e9 / 215e6,
    mtu_bytes=4096,
    header_bytes=82,
    source="""\
latency: none is given for ConnectX-7. Below 800 ns for ConnectX-6. Read: NVIDIA's brief "ConnectX-6 EN Card"
  (studylib.net/doc/25573930/pb-connectx-6-en-card); "sub-600ns" in that of ConnectX-5. And 150 ns for a switch. Read:
  "under 150 nanoseconds" of a Quantum-2 (router-switch.com/faq/nvidia-quantum-2-qm9700-vs-spectrum-4-sn5400.html);
  other pages say 330 and 400, NVIDIA's data sheet was not read
gbytes_per_s: 400 Gb/s. Read: docs.nvidia.com/networking/display/ConnectX7VPI/Introduction
gap: 215 million messages a second, ConnectX-6's (the same brief): ConnectX-7 has more, but its number was not read
mtu: 4096, the largest of InfiniBand and RoCE, as an InfiniBand cluster has it (active_mtu 4096. Read:
  github.com/kaust-rccl/ksl-docs, docs/source/systems/ibex/interconnect.rst); that of the published table is not known
header: RoCEv2: preamble and gap 20, Ethernet 18, IP 20, UDP 8, BTH 12, ICRC 4. Not read, from the InfiniBand
  Architecture, annex A17
"""
    + _POST_SOURCE,
)

_EFA = Link(
    name="EFA, 4 x 100 Gb/s a GPU",
    latency_ns=20000.0,
    gbytes_per_s=50.0,
    overhead_ns=_POST_NS,
    gap_ns=1e9 / 215e6,
    mtu_bytes=8900,
    header_bytes=82,
    source="""\
latency: 20 us, what AWS's own model of collectives assumes. Read: aws-ofi-nccl, TUNER_NET_LATENCY, default 20
gbytes_per_s: 32 network cards of 100 Gb/s for 8 GPUs, modelled as one per GPU. Read: 32 EFA devices of a P5
  (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.md); 3,200 Gb/s was not read
gap: an estimate: that of the other NIC, at which EFA's headers keep the wire busier than its messages do
mtu: 8900 bytes. Not read, from AWS on ENA Express and SRD; header: an estimate, RoCEv2's, since SRD's is not published
"""
    + _POST_SOURCE,
)

HARDWARE = {
    "h20-cx7": Hardware("h20-cx7", _H20, _NVLINK, _PCIE5, _CX7),
    "h100-cx7": Hardware("h100-cx7", _H100, _NVLINK, _PCIE5, _CX7),
    "p5-efa": Hardware("p5-efa", _H100, _NVLINK, _PCIE5, _EFA),
}
"""By name: H20 or H100 with one ConnectX-7 per GPU, and AWS's p5.48xlarge."""


def find_hardware(hardware: Hardware | str) -> Hardware:
    """The Hardware for an argument: a Hardware, or the name of one in HARDWARE. Raises ArgumentError."""
    if isinstance(hardware, Hardware):
        return hardware
    if isinstance(hardware, str) and hardware in HARDWARE:
        return HARDWARE[hardware]
    raise ArgumentError(
        f"hardware is {show(hardware)}; it must be one of {', '.join(map(repr, HARDWARE))} or an ep_lib.Hardware"
    )
