"""The emulator's simulated NICs. ``heap`` is the symmetric heap, which the machine owns; ``ep/transport.cuh`` calls the
emulator's runtime.
"""
