"""From results to boards: tables, words, figures; without torch, but for ``html/cards``."""
