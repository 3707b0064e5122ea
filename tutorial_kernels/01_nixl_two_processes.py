"""Write, notify, signal between two processes by NIXL: the "2proc" example of the NIXL Device API Kernel Guide.

    python tutorial_kernels/01_nixl_two_processes.py                       # starts the second process itself
    python ... --role target --port 18515                                  # or each by hand, on one host or on two
    python ... --role initiator --peer 127.0.0.1 --port 18515
    mpiexec -n 2 python tutorial_kernels/01_nixl_two_processes.py          # metadata over MPI; then kernels post, too

The initiator writes its data into the target's memory; NIXL notifies the target once the bytes are there; a signal
follows, and the initiator reads the data back to compare. Memory is the CPU's, or with --memory vram a GPU's. The
guide's kernels, at THREAD and WARP level, run where the two processes are ranks of ep_lib: on the emulator, or on GPUs
with EP_LIB_BACKEND=cuda EP_LIB_TRANSPORT=nixl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ep_lib
from ep_lib.nixl import DeviceHost, Peer

GUIDE = Path(__file__).resolve().parent.parent / "tests" / "kernels" / "nixl_guide.cu"


def data_of(size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, size, np.uint8)


def allocate(memory: str, size: int, device: int) -> Any:
    """Zeros, of NumPy or of CuPy on GPU ``device``."""
    if memory == "dram":
        return np.zeros(size, np.uint8)
    import cupy

    cupy.cuda.Device(device).use()  # NIXL's agent wants a CUDA context to be there
    return cupy.zeros(size, cupy.uint8)


def fill(array: Any, values: np.ndarray[Any, Any]) -> None:
    """Done when it returns: NIXL does not wait for a GPU's streams."""
    if isinstance(array, np.ndarray):
        array[:] = values
    else:
        array.set(values)
        array.device.synchronize()


def address_of(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def target(host: DeviceHost, data: Any, signal: np.ndarray[Any, Any], meet: Any) -> None:
    peer: Peer = meet(host)
    host.wait_notification(peer.name, b"written")
    received = data if isinstance(data, np.ndarray) else data.get()
    assert np.array_equal(received, data_of(data.nbytes)), "the notification came before the data"
    seen = host.wait_signal(signal, 1, peer.name)
    host.notify(peer.name, b"checked")
    host.wait_notification(peer.name, b"read")
    host.notify(peer.name, b"bye")
    print(f"target: {data.nbytes} bytes, the notification and signal {seen} arrived from {peer.name!r}")


def initiator(host: DeviceHost, data: Any, device: int, meet: Any) -> None:
    peer: Peer = meet(host)
    fill(data, data_of(data.nbytes))
    here = (address_of(data), data.nbytes, device)
    write = host.create_write_req(*here, peer.descs["data"], peer.name)
    host.transfer(write, b"written")
    host.signal(host.create_signal_req(peer.descs["signal"], peer.name))
    host.wait_notification(peer.name, b"checked")
    fill(data, np.zeros(data.nbytes, np.uint8))
    host.transfer(host.create_read_req(*here, peer.descs["data"], peer.name), b"read")
    back = data if isinstance(data, np.ndarray) else data.get()
    assert np.array_equal(back, data_of(data.nbytes)), "what was read back differs"
    host.wait_notification(peer.name, b"bye")
    took = host.telemetry(write)
    print(f"initiator: wrote {took.nbytes} bytes to {peer.name!r} in {took.transfer_us} us, and read them back")


def run(role: str, options: argparse.Namespace, meet: Any, port: int | None = None) -> None:
    """One process: registers, publishes what peers may reach, meets its peer."""
    device = options.device if options.memory == "vram" else 0
    data, signal = allocate(options.memory, options.size, device), np.zeros(1, np.uint64)
    with DeviceHost(role, "UCX", port, host=options.host, telemetry=True) as host:
        if options.memory == "dram":
            host.register_dram(address_of(data), data.nbytes)
        else:
            host.register_vram(address_of(data), data.nbytes, device)
        host.register(signal)
        host.publish("data", host.serialize_xfer_descs(address_of(data), data.nbytes, device))
        host.publish("signal", host.serialize_xfer_descs(address_of(signal), signal.nbytes))
        if port is not None:
            print(f"{role}: listens on {options.host}, port {host.port}", flush=True)
        if role == "target":
            target(host, data, signal, meet)
        else:
            initiator(host, data, device, meet)


def kernels(rank: ep_lib.Rank, size: int) -> None:
    """The guide's set-up, and its kernels at both levels: rank 0 writes and signals, rank 1 waits."""
    host = DeviceHost(rank)
    data, signal = rank.symmetric(size, np.uint8), rank.symmetric(1, np.uint64)
    pointers = [int(a.ctypes.data if isinstance(a, np.ndarray) else a.data.ptr) for a in (data, signal)]
    host.register_vram(pointers[0], size)
    host.register_vram(pointers[1], 8)
    host.publish("data", host.serialize_xfer_descs(pointers[0], size))
    host.publish("signal", host.serialize_xfer_descs(pointers[1], 8))
    peer = host.exchange(rank)[1 - rank.rank]
    if rank.rank == 0:
        data[:] = rank.to_device(data_of(size))
        write = host.create_gpu_req(host.create_write_req(pointers[0], size, 0, peer.descs["data"], peer.name))
        ring = host.create_gpu_req(host.create_signal_req(peer.descs["signal"], peer.name))
    for count, level in enumerate(("thread", "warp"), 1):
        rank.barrier()
        if rank.rank == 0:
            ep_lib.Kernel.from_file(GUIDE, f"{level}_level_kernel").launch(rank, 1, 32, write, ring, size)
        else:
            ep_lib.Kernel.from_file(GUIDE, "wait_for_signal_kernel_thread").launch(rank, 1, 32, signal, count)
            assert np.array_equal(rank.to_host(data), data_of(size)), f"{level}: the signal came before the data"
            print(f"kernels: {size} bytes and signal {count} arrived, written at {level.upper()} level")
            data[:] = 0
            rank.synchronize()
        rank.barrier()
    host.close()


def is_launched() -> bool:
    names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "TORCHELASTIC_RUN_ID")
    return any(name in os.environ for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=("target", "initiator"))
    parser.add_argument("--port", type=int, default=0, help="where the target listens (0: any free port)")
    parser.add_argument("--peer", default="127.0.0.1", help="the target's address")
    parser.add_argument("--host", default="127.0.0.1", help="this process's own address (set EP_LIB_SECRET as well)")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes")
    parser.add_argument("--memory", choices=("dram", "vram"), default="dram")
    parser.add_argument("--device", type=int, default=0, help="the GPU, for --memory vram")
    options = parser.parse_args()
    if is_launched():
        with ep_lib.init() as rank:
            run(("initiator", "target")[rank.rank], options, lambda host: host.exchange(rank)[1 - rank.rank])
            kernels(rank, min(options.size, 1 << 16))
    elif options.role == "target":
        run("target", options, lambda host: host.accept(), options.port)
    elif options.role == "initiator":
        run("initiator", options, lambda host: host.connect(options.peer, options.port))
    else:
        command = [sys.executable, __file__, *sys.argv[1:], "--role", "target"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            line = child.stdout.readline()  # "target: listens on 127.0.0.1, port 12345"
            if line:
                options.port = int(line.split()[-1])
                run("initiator", options, lambda host: host.connect(options.peer, options.port))
                print(child.stdout.read(), end="")
            status = child.wait()
        sys.exit(status)


if __name__ == "__main__":
    main()
