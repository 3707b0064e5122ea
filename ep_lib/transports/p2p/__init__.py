"""GPUs of one host that reach each other over NVLink or PCIe: plain loads and stores. Begin with ``heap``."""
