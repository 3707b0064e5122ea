"""Runs what a learner wrote against the hidden tests, and says what came of it."""
