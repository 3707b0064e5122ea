"""Why the outcome of each prediction is what it is: a module for each notebook, nbNN.py, with ``ANSWERS`` by the name
of the question. They are here, and not in the cells, so that nobody reads them before answering.

An entry is a sentence or two; or, where the run can only confirm it, a pair (answer, why), and the cell says
``compare()`` or ``compare(holds=...)``.
"""
