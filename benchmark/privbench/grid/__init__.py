"""A grid of cells: planned, run, written to disk."""
