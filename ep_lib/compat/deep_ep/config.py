"""``Config``: numbers that tune DeepEP's kernels. Here they only set the number of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from ep_lib.errors import ArgumentError
from ep_lib.require import at_least_one, whole_number

_ALIGNMENT_BYTES = 128
_NODE = 8  # ranks of a node, in DeepEP


@dataclass
class Config:
    """``num_sms``: blocks of the kernels. The other four are the sizes of DeepEP's rings; there are none here (rows are
    written to their final places), so they are checked as in DeepEP, kept, and not used."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        whole_number("num_sms", self.num_sms, 0, 1024)
        for way in ("nvl", "rdma"):
            names = [f"num_max_{way}_chunked_{what}_tokens" for what in ("send", "recv")]
            send, recv = (whole_number(name, getattr(self, name), 1, 2**31 - 1) for name in names)
            if send >= recv:
                raise ArgumentError(f"{names[0]} is {send} and {names[1]} is {recv}; the first must be smaller")

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """A size that grows with its arguments as in DeepEP, for programs that compare sizes. It allocates nothing: a
        Buffer learns its needs from its calls."""
        return self._size(
            hidden_bytes, min(at_least_one("num_ranks", num_ranks), _NODE), self.num_max_nvl_chunked_recv_tokens
        )

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Likewise; 0 for the ranks of a node."""
        nodes = num_ranks // _NODE if at_least_one("num_ranks", num_ranks) > _NODE else 0
        return self._size(hidden_bytes, 2 * nodes, self.num_max_rdma_chunked_recv_tokens)

    def _size(self, hidden_bytes: int, peers: int, tokens: int) -> int:
        nbytes = max(1, self.num_sms // 2) * peers * tokens * at_least_one("hidden_bytes", hidden_bytes)
        return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
