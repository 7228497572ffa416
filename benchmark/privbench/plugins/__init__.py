"""Plugins: found, checked and described. Nothing here is in a key."""
