"""Functions that several methods share; methods do not import each other."""
