"""One rank's NIXL agent: registers memory, connects to the other agents, makes memory views for kernels.

The order is NIXL's own: a CUDA context first, then the agent, its memory, all metadata, connections (which a
notification completes), and only then views of remote memory.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ep_lib.errors import BackendUnavailable, PeerTimeout
from ep_lib.transports.nixl.build import Installation, Wheel, pip_line

_HELLO = b"ep_lib: connect"
_POLL_SECONDS = 0.001  # between two checks for notifications


@dataclass(frozen=True)
class Library:
    """NIXL's modules, and the exceptions that its calls raise."""

    api: Any
    bindings: Any
    failures: tuple[type[Exception], ...]


def load(found: Wheel) -> Library:
    """Imports NIXL. Raises BackendUnavailable."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # else it logs every step
    try:
        bindings = importlib.import_module(f"{found.package}._bindings")
        api = importlib.import_module(f"{found.package}._api")
    except ImportError as error:
        raise BackendUnavailable(f"{found} cannot be loaded ({error}): {pip_line(found.cuda_major)}") from error
    kinds = [value for value in vars(bindings).values() if isinstance(value, type) and issubclass(value, Exception)]
    return Library(api, bindings, tuple(kinds))


class NixlAgent:
    """``name``: its name for the other agents. Raises BackendUnavailable with NIXL's message and a remedy."""

    def __init__(self, installation: Installation, rank: int) -> None:
        self.installation = installation
        self.name = f"ep_lib rank {rank}"
        self._rank = rank
        self._lock = threading.Lock()  # an agent serves one thread at a time
        self._heard: set[str] = set()
        library = load(installation)
        self._failures = library.failures
        if not getattr(library.bindings, "HAVE_UCX_GPU_DEVICE_API", False):
            raise BackendUnavailable(
                f"found {installation}, built with a UCX that has no device API; kernels need one that has (UCX 1.21 "
                f"or later): {pip_line(installation.cuda_major)}"
            )
        # NIXL's own progress thread would use a CPU core as long as the agent lives; see kept_going().
        config = library.api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = self._call("making an agent", lambda: library.api.nixl_agent(self.name, config))
        if "UCX" not in self._agent.backends:
            raise BackendUnavailable(
                f"{installation} has no UCX plugin that loads; it shows {self._agent.plugin_list}: "
                f"{pip_line(installation.cuda_major)} --force-reinstall"
            )
        self._registered: Any = None
        self._peers: list[str] = []
        self._views: list[int] = []

    def register(self, address: int, nbytes: int, device: int) -> bytes:
        """Register GPU memory; returns the metadata that the other agents need."""

        def register() -> bytes:
            regions = [(address, nbytes, device, "")]
            self._registered = self._agent.register_memory(self._agent.get_reg_descs(regions, mem_type="VRAM"))
            return bytes(self._agent.get_agent_metadata())

        return bytes(self._call(f"registering {nbytes} bytes of GPU {device}", register))

    @contextlib.contextmanager
    def kept_going(self) -> Iterator[None]:
        """Lets UCX answer the other agents in a thread within this context. Later this is not needed: kernels store by
        themselves."""
        done = threading.Event()

        def listen() -> None:
            while not done.wait(_POLL_SECONDS):
                try:
                    heard = self._call("reading notifications", self._agent.get_new_notifs)
                except BackendUnavailable:  # connect() then waits until its limit, and names the rank
                    return
                self._heard |= {as_text(name) for name, messages in heard.items() if _HELLO in messages}

        listener = threading.Thread(target=listen, name=f"{self.name}: NIXL", daemon=True)
        listener.start()
        try:
            yield
        finally:
            done.set()
            listener.join()

    def connect(self, metadata: dict[int, bytes], timeout: float) -> None:
        """Connect with the agents of these ranks, all of which call this; returns when each has been heard from.

        Call it inside :meth:`kept_going`, until all ranks are connected: a rank that is may still be needed by another.
        """
        names = {}
        for peer, theirs in metadata.items():
            name = self._call(f"reading rank {peer}'s metadata", lambda data=theirs: self._agent.add_remote_agent(data))
            names[as_text(name)] = peer
        self._peers = list(names)
        for name, peer in names.items():
            self._call(f"connecting with rank {peer}", lambda name=name: self._agent.make_connection(name))
            self._call(f"notifying rank {peer}", lambda name=name: self._agent.send_notif(name, _HELLO))
        deadline = time.monotonic() + timeout
        while missing := [peer for name, peer in names.items() if name not in self._heard]:
            if time.monotonic() > deadline:
                raise PeerTimeout(
                    f"rank {self._rank} waited {timeout:g} s for NIXL's connection with rank {missing[0]}: UCX found "
                    "no way between them; UCX_LOG_LEVEL=info makes it say what it tried",
                    rank=self._rank,
                    peer=missing[0],
                    phase="bootstrap",
                    seen=len(names) - len(missing),
                    expected=len(names),
                )
            time.sleep(_POLL_SECONDS)

    def view_of_mine(self, address: int, nbytes: int, device: int) -> int:
        """A memory view whose entry 0 is this memory: its handle for kernels."""
        return self._view([(address, nbytes, device)], remote=False)

    def view_of_others(self, regions: list[tuple[int, int, int, int]]) -> int:
        """A memory view of other ranks' memory, one entry each: (rank, address, nbytes, device)."""
        return self._view(
            [(address, nbytes, device, f"ep_lib rank {peer}") for peer, address, nbytes, device in regions], remote=True
        )

    def close(self) -> None:
        """Release views, then peers, then memory. Kernels must have finished using them."""
        for view in self._views:
            self._call("releasing a memory view", lambda view=view: self._agent.release_mem_view(view))
        for name in self._peers:
            self._call("forgetting an agent", lambda name=name: self._agent.remove_remote_agent(name))
        if self._registered is not None:
            self._call("deregistering memory", lambda: self._agent.deregister_memory(self._registered))
        self._views, self._peers, self._registered = [], [], None

    def _view(self, regions: list[tuple[Any, ...]], *, remote: bool) -> int:
        describe = self._agent.get_remote_descs if remote else self._agent.get_xfer_descs
        whose = "the other ranks'" if remote else "this rank's"
        view = self._call(
            f"making a memory view of {whose} heaps",
            lambda: self._agent.prep_mem_view(describe(regions, mem_type="VRAM"), backends=["UCX"]),
        )
        self._views.append(int(view))
        return int(view)

    def _call(self, what: str, call: Any) -> Any:
        try:
            with self._lock:
                return call()
        except self._failures as error:
            raise BackendUnavailable(
                f"rank {self._rank}: {what} failed with {type(error).__name__}: {error}. {self.installation}; "
                "NIXL_LOG_LEVEL=DEBUG and UCX_LOG_LEVEL=info make them say why"
            ) from error


def as_text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
