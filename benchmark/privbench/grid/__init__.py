"""A grid of cells: planned, run and written to disk."""
