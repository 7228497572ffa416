"""The defense quantise for privbench."""
