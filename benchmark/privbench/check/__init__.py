"""Checks of published results: score, reproduce, check-submission."""
