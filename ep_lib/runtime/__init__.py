"""Ranks and the ways to run them: begin at ``rank``, then ``spawn``, ``check``, ``simulate`` and ``launcher``."""
