"""What several tests share: cases with their expected results, programs for the ranks, tables, stand-ins.

A test module imports from here and from ``wrong_variants`` and ``grader_answers``, never from another test module.
"""
