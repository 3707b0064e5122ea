"""Ranks, how they are started and how they find each other."""
