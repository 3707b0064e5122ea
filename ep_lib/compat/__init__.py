"""Interfaces of other libraries over ours: code written for them runs here.

``nixl``: the host half of NIXL's device API (``<ep/nixl_device.cuh>``). ``ibgda``: the set-up call of DeepEP's IBGDA
functions (``<ep/ibgda_shim.cuh>``). ``deep_ep``: DeepEP's Python API, V1's and V2's, over :class:`ep_lib.Buffer`;
``nixl_ep``: NIXL EP's, for low latency, over that. These two load torch.
"""
