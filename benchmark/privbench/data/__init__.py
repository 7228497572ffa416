"""Examples, how they are cut into parts, and random numbers keyed by row."""
