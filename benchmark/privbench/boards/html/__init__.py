"""Boards as HTML, as notebooks show them, and as figures."""
