"""Checks of published results: score, reproduce, challenge, check-submission."""
