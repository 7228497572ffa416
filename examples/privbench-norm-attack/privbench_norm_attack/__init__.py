"""The attack norm-attack for privbench."""
