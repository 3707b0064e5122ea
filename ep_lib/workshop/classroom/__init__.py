"""Grades a class: collecting, the gradebook and its views, similar submissions, releases."""
