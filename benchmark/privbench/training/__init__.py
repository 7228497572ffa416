"""Phases and the loop that runs them; models and their parts."""
