"""Explanations of the outcomes of predictions: a module for each notebook, nbNN.py, with ``ANSWERS`` by the question's
name. They are not in the cells, so that learners answer before they read them.

An entry is a sentence or two; or, where the run can only confirm it, a pair (answer, why), and the cell says
``compare()`` or ``compare(holds=...)``.
"""
