"""GPUs of one host that reach each other over NVLink or PCIe: ``heap`` maps every rank's memory by CUDA IPC, and
``ep/transport.cuh`` makes ``ep::net_*`` plain stores.
"""
