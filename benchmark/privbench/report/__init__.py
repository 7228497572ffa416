"""A board as one self-contained web page."""
