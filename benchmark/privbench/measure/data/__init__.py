"""The data layer: examples, splits into parts, and random numbers keyed by row."""
