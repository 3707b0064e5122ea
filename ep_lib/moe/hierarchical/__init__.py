"""Hierarchical mode: a token crosses to another node once, and is handed on there by loads and stores.

``nodes.cuh`` says how; ``mode.py`` launches the kernels, and finds which ranks share a node.
"""
