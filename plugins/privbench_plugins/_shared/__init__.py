"""Functions that several methods share; methods themselves do not import each other."""
