"""Recipes of victims."""
