"""The other process of notebook 02: it owns memory, lets a peer write there, and says what it finds when asked.

    python tutorial_kernels/02_peer.py        # prints its port on 127.0.0.1, and ends when its standard input does

A peer that connects says hello as in 02_handshake.py. This process answers the notification b"sum" with the sum of its
bytes, and b"signal" with the value of its signal. b"die" ends it at once, as a crash does.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path

import numpy as np

from ep_lib.nixl import DeviceHost
from ep_lib.workshop.grader.pieces import load

handshake = load(Path(__file__).with_name("02_handshake.py"))
SIZE = 1 << 24  # bytes of "data"
LOOK_S = 0.0005  # between looks at what has arrived


def answer(host: DeviceHost, peer: str, asked: bytes, arrays: dict[str, np.ndarray]) -> None:
    if asked == b"sum":
        host.notify(peer, b"sum %d" % arrays["data"].sum(dtype=np.uint64))
    elif asked == b"signal":
        host.notify(peer, b"signal %d" % arrays["signal"][0])
    elif asked == b"die":
        os.kill(os.getpid(), signal.SIGKILL)


def serve(host: DeviceHost, listener: socket.socket, arrays: dict[str, np.ndarray]) -> None:
    """Meets each peer that connects and answers its notifications, until standard input ends."""
    mine = handshake.hello(host, arrays)
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [], LOOK_S)
        if sys.stdin in ready:
            return
        if listener in ready:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                try:
                    handshake.meet(host, mine, connection.sendall, connection.recv)
                except (handshake.Stranger, OSError) as error:
                    print(f"turned away: {error}", file=sys.stderr)
        for peer, messages in host.notifications().items():
            for asked in messages:
                answer(host, peer, asked, arrays)


def main() -> None:
    arrays = {"data": np.zeros(SIZE, np.uint8), "signal": np.zeros(1, np.uint64)}
    with DeviceHost("owner") as host, socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        serve(host, listener, arrays)


if __name__ == "__main__":
    main()
