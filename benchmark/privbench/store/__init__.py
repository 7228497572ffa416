"""Artifacts on disk, and the keys that name them."""
