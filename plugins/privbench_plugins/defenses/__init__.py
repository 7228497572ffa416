"""Defenses."""
