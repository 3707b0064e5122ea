"""NIXL on the host: the public place of :mod:`ep_lib.compat.nixl`."""

from ep_lib.compat.nixl import DeviceHost, Peer, Region, Request, Signal, Telemetry, Transfer

__all__ = ["DeviceHost", "Peer", "Region", "Request", "Signal", "Telemetry", "Transfer"]
