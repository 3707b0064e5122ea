"""Commands of ``ep-lib`` that are too thin for a module elsewhere."""
