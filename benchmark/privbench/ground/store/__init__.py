"""Artifacts on disk and the keys that identify them."""
